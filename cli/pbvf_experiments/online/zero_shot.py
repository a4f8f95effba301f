"""Section 4.3: policies grown from scratch through critics that were trained online.

Training is stopped at snapshots. Through the frozen critic of each, five fresh policies
climb without a step in the environment; they are measured beside the policy learned so
far, the best perturbed policy seen so far, and the nearest policy in the replay buffer.

Cells with a model also grow them through a critic of imagined returns, in an environment
that was learned from what the run has seen.
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
from pbvf_experiments.online.cells import policies_title
from pbvf_experiments.online.zero_shot_model import ImaginingSettings, grow_imagined
from pbvf_offline.envs.make import close_env, make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.policies.spec import parse_arch
from pbvf_offline.presets.offline import SYNTHESIS, env_preset
from pbvf_offline.synthesis.settings import SynthesisSettings, default_synthesis_settings

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
        model: Also grow them through a critic of imagined returns, in a model of all that the
            run has seen; there is one snapshot then, and no plain ascent.
    """

    kind: str = "pssvf"
    env: str = "Swimmer-v5"
    arch: str = "linear"
    lr: float = 0.02
    snapshots: tuple[int, ...] = (100_000, 200_000, 300_000)
    model: bool = False

    def __post_init__(self) -> None:
        if self.model and len(self.snapshots) != 1:
            raise ValueError("a model is learned from the whole run, so there is one snapshot")

    @property
    def run_name(self) -> str:
        """What its run is called; the cells with and without a model share one."""
        name = f"{self.kind}-{self.arch.replace(',', 'x')}-{self.env}-lr={self.lr:g}"
        return name if len(self.snapshots) > 1 else f"{name}-at={self.snapshots[0]}"

    @property
    def name(self) -> str:
        """What it is called in files and in ``--cells``."""
        return f"{self.run_name}-model" if self.model else self.run_name

    @property
    def title(self) -> str:
        """What it is called in figures."""
        how = ", through a learned environment" if self.model else ""
        return f"{policies_title(self.kind, self.env, self.arch)}, learning rate {self.lr:g}{how}"

    def described(self) -> dict[str, Any]:
        """Return its JSON form; older files of cells without a model do not have that field."""
        named = dataclasses.asdict(self)
        return named if self.model else {k: v for k, v in named.items() if k != "model"}


@dataclass(frozen=True)
class ZeroShotSettings:
    """What is measured of each cell.

    Attributes:
        policies: Fresh policies grown through each critic.
        plain_steps: Gradient steps of plain ascent, which is the paper's; it gives no number.
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

    The second is the first snapshot of the figure alone, which many seeds can afford; the last
    is the same one through a model of what its run has seen.
    """
    short = (20_000, 50_000, 100_000)
    cells = [ZeroShotCell(), ZeroShotCell(snapshots=(100_000,))]
    for arch in ("linear", "64,64"):
        for env in ("Swimmer-v5", "MountainCarContinuous-v0", "InvertedPendulum-v5"):
            steps = ZeroShotCell().snapshots if env == "Swimmer-v5" else short
            cells += [
                ZeroShotCell(kind, env, arch, 0.05, steps) for kind in ("pssvf", "psvf", "pavf")
            ]
    return [*cells, ZeroShotCell(snapshots=(100_000,), model=True)]


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
    imagining: ImaginingSettings | None = None,
    *,
    note: Note = _say_nothing,
) -> dict[str, Any]:
    """Return the result of one cell and seed: from its file, or by running it.

    Runs go to the ``work`` folder of ``out``, results to ``raw``. ``imagining`` is used by a cell
    with a model alone.
    """
    settings = settings or ZeroShotSettings()
    imagining = imagining or ImaginingSettings()
    described = {"seed": seed, **chosen.described(), **dataclasses.asdict(settings)}
    if chosen.model:
        described["imagining"] = imagining.described(chosen.kind, chosen.env, seed)
        described["candidates"] = SYNTHESIS.candidates
    return cell(
        out / "raw" / f"{chosen.name}-seed{seed}.json",
        described,
        lambda: _Seed(chosen, seed, out / "work", settings, note).result(imagining),
    )


class _Seed:
    """The work of one cell and seed."""

    def __init__(
        self, chosen: ZeroShotCell, seed: int, work: Path, settings: ZeroShotSettings, note: Note
    ) -> None:
        self._cell, self._seed, self._settings = chosen, seed, settings
        self._run = work / f"{chosen.run_name}-seed{seed}"
        self._own = work / f"{chosen.name}-seed{seed}"
        self._note: Note = lambda text: note(f"{chosen.name} seed {seed}: {text}")

    def result(self, imagining: ImaginingSettings) -> dict[str, Any]:
        """Return what the cell keeps."""
        import torch

        torch.set_num_threads(1)
        result, noisy = self._train()
        result["snapshots"] = []
        for step in self._cell.snapshots:
            self._note(f"growing policies at step {step:,}")
            result["snapshots"].append(self._snapshot(step, noisy))
        if self._cell.model:
            result["imagined"] = grow_imagined(
                self._run,
                self._own,
                self._cell.kind,
                self._synthesis(trust_region=True, judged=True),
                imagining,
                env=self._cell.env,
                episodes=self._settings.episodes,
                note=self._note,
            )
        return result

    def _train(self) -> tuple[dict[str, Any], np.ndarray[Any, np.dtype[np.float64]]]:
        """Train the run; return what is kept of it, and steps and returns (E, 2) of episodes."""
        from pbvf_offline.online.settings import online_defaults
        from pbvf_runs.records import RunConfig
        from pbvf_runs.train import train_run

        chosen = self._cell
        config = EnvConfig(chosen.env)
        env = make_env(config)
        spec = spec_for_env(env, parse_arch(chosen.arch), squash=env_preset(chosen.env).squash)
        close_env(env)
        training = online_defaults(chosen.kind, chosen.env, spec, seed=self._seed).settings
        self._note(f"training {chosen.snapshots[-1]:,} steps")
        run = train_run(
            RunConfig(config, spec, training, self._settings.evaluations),
            self._run,
            chosen.snapshots[-1],
            snapshots=chosen.snapshots,
        )
        noisy = np.array(run.training_returns)
        kept: dict[str, Any] = {
            "settings": training.to_dict(),
            "learning_curve": [
                {"step": e.step, "return": float(np.mean(e.returns))} for e in run.evaluations
            ],
            "best_noisy": _records(noisy),
        }
        return kept, noisy

    def _snapshot(self, step: int, noisy: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, Any]:
        """Measure the run's own policies and those grown through its critic at one step."""
        from pbvf_experiments.growing import grow
        from pbvf_offline.policies.files import load_policies
        from pbvf_offline.rollout.evaluation import evaluate_policies
        from pbvf_runs.records import snapshot_files

        critic, policy = snapshot_files(self._run, step)
        learned, _ = evaluate_policies(
            EnvConfig(self._cell.env),
            load_policies(policy).policies,
            episodes=10,
            seed=self._seed,
        )
        # Plain ascent is shown by the cell without a model.
        ways = {"region": True} if self._cell.model else {"region": True, "plain": False}
        grown = {
            name: grow(
                critic,
                self._synthesis(trust_region=trust_region),
                self._cell.env,
                episodes=self._settings.episodes,
                every=self._settings.evaluate_every,
            )
            for name, trust_region in ways.items()
        }
        seen = noisy[noisy[:, 0] <= step, 1]
        return {
            "step": step,
            "learned": float(learned.mean()),
            "best_noisy": float(seen.max()) if len(seen) else None,
            **grown,
        }

    def _synthesis(self, *, trust_region: bool, judged: bool = False) -> SynthesisSettings:
        usual = default_synthesis_settings(
            self._cell.env,
            count=self._settings.policies,
            seed=self._seed,
            trust_region=trust_region,
            judged=judged,
        )
        steps = usual.steps if trust_region else self._settings.plain_steps
        return dataclasses.replace(usual, lr=self._cell.lr, steps=steps)


def _records(noisy: np.ndarray[Any, np.dtype[np.float64]]) -> list[dict[str, float]]:
    """Return the training episodes that beat all before them: their steps and returns."""
    best = np.maximum.accumulate(noisy[:, 1])
    new = np.append(True, best[1:] > best[:-1])
    return [{"step": int(step), "return": float(value)} for step, value in noisy[new]]


def zero_shot_rows(results: Mapping[int, Mapping[str, Any]]) -> list[dict[str, float | str]]:
    """Return one row a seed and snapshot, and the means over seeds.

    ``chosen``: grown inside the trust region, at the step that the critic chose; ``peak`` and
    ``last``: plain ascent, best and last mean of its five policies; ``nearest``: the replayed
    policies nearest to those at the end of plain ascent. Of a cell with a model ``model`` and
    ``imagined``: true and imagined returns of the policies grown through the critic of imagined
    returns; ``check``: whether the model passed its own check; ``critic``: which critic stands,
    that of imagined returns or the default recipe's.
    """
    rows = [row for seed in sorted(results) for row in _rows(str(seed), results[seed])]
    steps = list(dict.fromkeys(row["step"] for row in rows))
    names = [name for name in rows[0] if name not in ("seed", "step")]
    for step in steps:
        here = [row for row in rows if row["step"] == step]
        mean = {name: _together([row[name] for row in here]) for name in names}
        rows.append({"seed": "mean", "step": step, **mean})
    return rows


def _together(values: Sequence[float | str]) -> float | str:
    """Return the mean of numbers; of words, how often each was said."""
    numbers = [value for value in values if not isinstance(value, str)]
    if numbers:
        return float(np.mean(numbers))
    return ", ".join(f"{values.count(word)} {word}" for word in sorted({*map(str, values)}))


def _rows(seed: str, result: Mapping[str, Any]) -> Iterator[dict[str, float | str]]:
    for snapshot in result["snapshots"]:
        row: dict[str, float | str] = {"seed": seed, "step": f"{snapshot['step']:,}"}
        if "imagined" in result:
            grown, model = result["imagined"]["grown"], result["imagined"]["model"]
            row["model"] = float(np.mean(grown["returns"]))
            row["imagined"] = float(np.mean(grown["imagined"]))
            row["check"] = "passed" if model["refusal"] is None else "failed"
            row["critic"] = result["imagined"]["critic"]["stands"]
        row["chosen"] = float(np.mean(snapshot["region"]["returns"]))
        if "plain" in snapshot:
            curve = [float(np.mean(point["returns"])) for point in snapshot["plain"]["curve"]]
            row |= {"peak": max(curve), "last": curve[-1]}
        row["learned"] = snapshot["learned"]
        row["best noisy"] = snapshot["best_noisy"]
        if "plain" in snapshot:
            row["nearest"] = float(np.mean(snapshot["plain"]["closest"]))
        yield row


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
