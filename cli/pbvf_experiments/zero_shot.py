"""Section 4.3: policies grown from scratch through critics that were trained online.

Training is stopped at snapshots. Through the frozen critic of each, five fresh policies
climb without a step in the environment; they are measured beside the policy learned so
far, the best perturbed policy seen so far, and the nearest policy in the replay buffer.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pbvf_experiments.cells import cell, choose_cells, run_all
from pbvf_offline.envs.make import close_env, make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.policies.spec import parse_arch
from pbvf_offline.presets.offline import env_preset
from pbvf_offline.synthesis.settings import default_synthesis_settings

Note = Callable[[str], None]


def _say_nothing(_: str) -> None: ...


@dataclass(frozen=True)
class ZeroShotCell:
    """One column of the figure.

    Attributes:
        kind: ``pssvf``, ``psvf`` or ``pavf``.
        env: The environment.
        arch: ``linear`` or ``64,64``.
        lr: Learning rate of the fresh policies: the paper has 0.02 for the PSSVF on Swimmer
            and 0.05 elsewhere.
        snapshots: Environment steps at which policies are grown; the last ends the run.
    """

    kind: str = "pssvf"
    env: str = "Swimmer-v5"
    arch: str = "linear"
    lr: float = 0.02
    snapshots: tuple[int, ...] = (100_000, 200_000, 300_000)

    @property
    def name(self) -> str:
        """What it is called in files and in ``--cells``."""
        name = f"{self.kind}-{self.arch.replace(',', 'x')}-{self.env}-lr={self.lr:g}"
        return name if len(self.snapshots) > 1 else f"{name}-at={self.snapshots[0]}"


@dataclass(frozen=True)
class ZeroShotSettings:
    """What is measured of each cell.

    Attributes:
        policies: Fresh policies grown through each critic.
        plain_steps: Gradient steps of plain ascent, the paper's.
        evaluate_every: Gradient steps between measurements (the paper: 5).
        episodes: Test episodes of each measurement (the paper: 5).
        evaluations: Evaluations of the learned policy in a run.
    """

    policies: int = 5
    plain_steps: int = 200
    evaluate_every: int = 10
    episodes: int = 2
    evaluations: int = 30


def zero_shot_cells() -> list[ZeroShotCell]:
    """Return the paper's cells: figure ``fig:scratch`` first, then the appendix's grid.

    The second is the first snapshot of the figure alone, which many seeds can afford.
    """
    short = (20_000, 50_000, 100_000)
    cells = [ZeroShotCell(), ZeroShotCell(snapshots=(100_000,))]
    for arch in ("linear", "64,64"):
        for env in ("Swimmer-v5", "MountainCarContinuous-v0", "InvertedPendulum-v5"):
            steps = ZeroShotCell().snapshots if env == "Swimmer-v5" else short
            cells += [
                ZeroShotCell(kind, env, arch, 0.05, steps) for kind in ("pssvf", "psvf", "pavf")
            ]
    return cells


def choose_zero_shot(patterns: str | None) -> list[ZeroShotCell]:
    """Return the cells whose names match comma-separated patterns; ``fig:scratch`` for None.

    Raises:
        UsageError: A pattern matches nothing.
    """
    cells = zero_shot_cells()
    return cells[:1] if patterns is None else choose_cells(cells, patterns)


def run_zero_shot(
    chosen: ZeroShotCell,
    seed: int,
    out: Path,
    settings: ZeroShotSettings | None = None,
    *,
    note: Note = _say_nothing,
) -> dict[str, Any]:
    """Return the result of one cell and seed: from its file, or by running it.

    Runs go to the ``work`` folder of ``out``, results to ``raw``.
    """
    settings = settings or ZeroShotSettings()
    described = {"seed": seed, **dataclasses.asdict(chosen), **dataclasses.asdict(settings)}
    return cell(
        out / "raw" / f"{chosen.name}-seed{seed}.json",
        described,
        lambda: _run(chosen, seed, out, settings, note),
    )


def _run(
    chosen: ZeroShotCell, seed: int, out: Path, settings: ZeroShotSettings, note: Note
) -> dict[str, Any]:
    import torch

    from pbvf_offline.online.settings import online_defaults
    from pbvf_runs.records import RunConfig
    from pbvf_runs.train import train_run

    torch.set_num_threads(1)
    config = EnvConfig(chosen.env)
    env = make_env(config)
    spec = spec_for_env(env, parse_arch(chosen.arch), squash=env_preset(chosen.env).squash)
    close_env(env)
    training = online_defaults(chosen.kind, chosen.env, spec, seed=seed).settings
    folder = out / "work" / f"{chosen.name}-seed{seed}"
    note(f"{chosen.name} seed {seed}: training {chosen.snapshots[-1]:,} steps")
    run = train_run(
        RunConfig(config, spec, training, settings.evaluations),
        folder,
        chosen.snapshots[-1],
        snapshots=chosen.snapshots,
    )
    noisy = np.array(run.training_returns)
    result: dict[str, Any] = {
        "settings": training.to_dict(),
        "learning_curve": [
            {"step": e.step, "return": float(np.mean(e.returns))} for e in run.evaluations
        ],
        "best_noisy": _records(noisy),
        "snapshots": [],
    }
    for step in chosen.snapshots:
        note(f"{chosen.name} seed {seed}: growing policies at step {step:,}")
        result["snapshots"].append(_grow(chosen, seed, folder, step, settings, noisy))
    return result


def _records(noisy: np.ndarray[Any, np.dtype[np.float64]]) -> list[dict[str, float]]:
    """Return the training episodes that beat all before them: their steps and returns."""
    best = np.maximum.accumulate(noisy[:, 1])
    new = np.append(True, best[1:] > best[:-1])
    return [{"step": int(step), "return": float(value)} for step, value in noisy[new]]


def _grow(
    chosen: ZeroShotCell,
    seed: int,
    folder: Path,
    step: int,
    settings: ZeroShotSettings,
    noisy: np.ndarray[Any, np.dtype[np.float64]],
) -> dict[str, Any]:
    from pbvf_experiments.growing import grow
    from pbvf_offline.policies.files import load_policies
    from pbvf_offline.rollout.evaluation import evaluate_policies
    from pbvf_runs.records import snapshot_files

    critic, policy = snapshot_files(folder, step)
    config = EnvConfig(chosen.env)
    learned, _ = evaluate_policies(config, load_policies(policy).policies, episodes=10, seed=seed)
    grown: dict[str, Any] = {}
    for name, trust_region in (("region", True), ("plain", False)):
        usual = default_synthesis_settings(
            chosen.env, count=settings.policies, seed=seed, trust_region=trust_region
        )
        steps = usual.steps if trust_region else settings.plain_steps
        grown[name] = grow(
            critic,
            dataclasses.replace(usual, lr=chosen.lr, steps=steps),
            chosen.env,
            episodes=settings.episodes,
            every=settings.evaluate_every,
        )
    seen = noisy[noisy[:, 0] <= step, 1]
    return {
        "step": step,
        "learned": float(learned.mean()),
        "best_noisy": float(seen.max()) if len(seen) else None,
        **grown,
    }


def zero_shot_rows(results: Mapping[int, Mapping[str, Any]]) -> list[dict[str, float | str]]:
    """Return one row a seed and snapshot, and the means over seeds.

    ``chosen``: grown inside the trust region, at the step that the critic chose; ``peak`` and
    ``last``: plain ascent, best and last mean of its five policies; ``nearest``: the replayed
    policies nearest to those at the end of plain ascent.
    """
    rows = [row for seed in sorted(results) for row in _rows(str(seed), results[seed])]
    steps = list(dict.fromkeys(row["step"] for row in rows))
    names = [name for name in rows[0] if name not in ("seed", "step")]
    for step in steps:
        here = [row for row in rows if row["step"] == step]
        mean = {name: float(np.mean([float(row[name]) for row in here])) for name in names}
        rows.append({"seed": "mean", "step": step, **mean})
    return rows


def _rows(seed: str, result: Mapping[str, Any]) -> Iterator[dict[str, float | str]]:
    for snapshot in result["snapshots"]:
        curve = [float(np.mean(point["returns"])) for point in snapshot["plain"]["curve"]]
        yield {
            "seed": seed,
            "step": f"{snapshot['step']:,}",
            "chosen": float(np.mean(snapshot["region"]["returns"])),
            "peak": max(curve),
            "last": curve[-1],
            "learned": snapshot["learned"],
            "best noisy": snapshot["best_noisy"],
            "nearest": float(np.mean(snapshot["plain"]["closest"])),
        }


def run_zero_shot_seeds(
    chosen: ZeroShotCell, seeds: Sequence[int], out: Path, *, workers: int, note: Note
) -> dict[int, dict[str, Any]]:
    """Return the results of several seeds, ``workers`` of them run at once."""
    if workers <= 1:
        return {seed: run_zero_shot(chosen, seed, out, note=note) for seed in seeds}
    results = {}
    run = functools.partial(run_zero_shot, chosen, out=out)
    for seed, result in zip(seeds, run_all(run, seeds, workers), strict=True):
        results[seed] = result
        note(f"{chosen.name} seed {seed}: done")
    return results
