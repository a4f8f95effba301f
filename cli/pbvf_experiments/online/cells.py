"""The online experiments as cells: one algorithm, environment, policy and choice of settings.

A cell is run for several seeds; each run is one small JSON file, whatever made it (our
own training or a baseline), so that tables and figures are drawn from files alone and an
experiment goes on where it stopped.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pbvf_experiments.cells import cell, run_all
from pbvf_offline.envs.make import close_env, make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.policies.spec import PolicySpec, parse_arch
from pbvf_offline.presets.offline import default_reward, env_preset
from pbvf_offline.presets.paper import (
    TODAY,
    ArsChoice,
    DdpgChoice,
    ars_choice,
    ddpg_choice,
    env_family,
    paper_steps,
)
from pbvf_runs.records import Evaluation, RunConfig, average_returns

if TYPE_CHECKING:
    from pbvf_offline.online.settings import OnlineSettings

Note = Callable[[str], None]
OURS = ("pssvf", "psvf", "pavf")
BASELINES = ("ars", "ddpg")
EVALUATIONS = 100
EVALUATION_EPISODES = 10


@dataclass(frozen=True)
class OnlineCell:
    """One cell of a table.

    Attributes:
        algorithm: ``pssvf``, ``psvf``, ``pavf``, ``ars`` or ``ddpg``.
        env: The environment's id today.
        arch: ``linear``, ``32`` or ``64,64``.
        metric: Which of the paper's best hyperparameters: ``avg`` or ``last``.
        stochastic: Whether policies are stochastic.
        biased: Leave the gradient of Q in theta out (PAVF).
        changes: Settings that differ from the preset's, by name.
        steps: Environment steps; None: the paper's.
    """

    algorithm: str
    env: str
    arch: str = "linear"
    metric: str = "avg"
    stochastic: bool = False
    biased: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)
    steps: int | None = None

    @property
    def hidden(self) -> tuple[int, ...]:
        """Hidden sizes of the policy."""
        return parse_arch(self.arch)

    @property
    def length(self) -> int:
        """Environment steps of a run."""
        return paper_steps(self.env) if self.steps is None else self.steps

    @property
    def name(self) -> str:
        """What it is called in files and in ``--cells``."""
        parts = [self.algorithm, self.arch.replace(",", "x"), self.env]
        parts += [self.metric] if self.metric != "avg" else []
        parts += ["stochastic"] if self.stochastic else []
        parts += ["biased"] if self.biased else []
        parts += [f"{key}={_short(value)}" for key, value in sorted(self.changes.items())]
        parts += [f"steps={self.steps}"] if self.steps is not None else []
        return "-".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        data = dataclasses.asdict(self)
        data["steps"] = self.length
        data["evaluations"], data["evaluation_episodes"] = EVALUATIONS, EVALUATION_EPISODES
        return data


def policies_title(algorithm: str, env: str, arch: str) -> str:
    """Return an algorithm, an environment and an architecture as a figure names them.

    >>> policies_title("psvf", "Swimmer-v5", "64,64")
    'PSVF on Swimmer-v5, [64, 64] policy'
    """
    return f"{algorithm.upper()} on {env}, {arch_title(arch)}"


def arch_title(arch: str) -> str:
    """Return an architecture as a figure names it."""
    return "linear policy" if arch == "linear" else f"[{arch.replace(',', ', ')}] policy"


def _short(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "x".join(str(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def table_cells() -> list[OnlineCell]:
    """Return every cell of the paper's two result tables, ours and the baselines'."""
    cells = []
    for metric in ("avg", "last"):
        for arch in ("linear", "32", "64,64"):
            for algorithm in (*BASELINES, *OURS):
                for family, env in TODAY.items():
                    discrete = family in ("Acrobot", "CartPole")
                    if not (discrete and algorithm in ("pavf", "ddpg")):
                        cells.append(OnlineCell(algorithm, env, arch, metric))
    return cells


def stochastic_cells() -> list[OnlineCell]:
    """Return the cells of the paper's figures of stochastic policies: PSSVF and PSVF."""
    return [
        OnlineCell(kind, env, arch, stochastic=True)
        for arch in ("linear", "64,64")
        for kind in ("pssvf", "psvf")
        for env in TODAY.values()
    ]


def measured_cells() -> list[tuple[OnlineCell, int]]:
    """Return the cells that this project's results are about, with their number of seeds."""
    swimmer, car, pendulum = "Swimmer-v5", "MountainCarContinuous-v0", "InvertedPendulum-v5"
    cells = [(OnlineCell("pssvf", env), 5) for env in TODAY.values()]
    cells += [
        (OnlineCell("pssvf", env, "64,64"), 3) for env in (car, pendulum, swimmer, "CartPole-v1")
    ]
    cells += [(OnlineCell(kind, env), 5) for kind in ("psvf", "pavf") for env in (car, pendulum)]
    cells += [(OnlineCell(kind, swimmer), 3) for kind in ("psvf", "pavf")]
    cells += [(OnlineCell("psvf", env), 3) for env in ("CartPole-v1", "Acrobot-v1")]
    cells += [(OnlineCell("pavf", car, stochastic=True), 3)]
    cells += [(OnlineCell("ars", env), 3) for env in (car, pendulum, swimmer)]
    cells += [(OnlineCell("ddpg", env), 3) for env in (car, pendulum)]
    return cells


def run_file(out: Path, chosen: OnlineCell, seed: int) -> Path:
    """Return the file of one run."""
    return out / "raw" / f"{chosen.name}-seed{seed}.json"


def run_one(chosen: OnlineCell, seed: int, out: Path) -> dict[str, Any]:
    """Return the result of one run: from its file, or by running it and writing the file.

    Runs go to the ``work`` folder of ``out``, results to ``raw``.

    Returns:
        ``evaluations``, ``average_return``, ``last20_return``, …; returns of the unperturbed
        learned policy, and for our own algorithms what the perturbed ones got.
    """
    import torch

    def run() -> dict[str, Any]:
        torch.set_num_threads(1)  # so that results do not depend on how many run at once
        started = time.perf_counter()
        if chosen.algorithm in BASELINES:
            result = _run_baseline(chosen, seed)
        else:
            result = _run_ours(chosen, seed, out)
        result["seconds"] = round(time.perf_counter() - started, 1)
        return result

    described = {**chosen.to_dict(), "seed": seed, "training": training_of(chosen, seed)}
    return cell(run_file(out, chosen, seed), described, run)


def training_of(chosen: OnlineCell, seed: int) -> dict[str, Any]:
    """Return all settings of a run in JSON form: other ones make another run."""
    if chosen.algorithm in BASELINES:
        choice, gamma = _baseline_choice(chosen)
        return {"choice": dataclasses.asdict(choice), "gamma": gamma}
    return _settings(chosen, seed)[1].to_dict()


def _run_ours(chosen: OnlineCell, seed: int, out: Path) -> dict[str, Any]:
    from pbvf_runs.train import train_run

    config = EnvConfig(chosen.env)
    spec, settings, source = _settings(chosen, seed)
    folder = out / "work" / f"{chosen.name}-seed{seed}"
    result = train_run(
        RunConfig(config, spec, settings, EVALUATIONS, EVALUATION_EPISODES),
        folder,
        chosen.length,
    )
    return {
        "settings": settings.to_dict(),
        "preset": source,
        "episodes": result.episodes,
        **_measured(result.evaluations, chosen.length),
        "perturbed": _perturbed(result.training_returns, chosen.length),
    }


def _settings(chosen: OnlineCell, seed: int) -> tuple[PolicySpec, OnlineSettings, str]:
    """Return the policies' spec, the settings and where the tuned ones come from."""
    from pbvf_offline.online.settings import online_defaults

    env = make_env(EnvConfig(chosen.env))
    squash = env_preset(chosen.env).squash
    spec = spec_for_env(env, chosen.hidden, squash=squash, stochastic=chosen.stochastic)
    close_env(env)
    defaults = online_defaults(
        chosen.algorithm,
        chosen.env,
        spec,
        seed=seed,
        biased=chosen.biased,
        preset="paper-last" if chosen.metric == "last" else None,
    )
    return spec, dataclasses.replace(defaults.settings, **chosen.changes), defaults.source


def _baseline_choice(chosen: OnlineCell) -> tuple[ArsChoice | DdpgChoice, float | None]:
    """Return a baseline's hyperparameters and the discount where it differs from the usual."""
    changes = dict(chosen.changes)
    gamma = changes.pop("gamma", None)
    find = ars_choice if chosen.algorithm == "ars" else ddpg_choice
    return dataclasses.replace(find(chosen.env, chosen.hidden, chosen.metric), **changes), gamma


def _run_baseline(chosen: OnlineCell, seed: int) -> dict[str, Any]:
    from pbvf_experiments.online.baselines import run_baseline

    choice, gamma = _baseline_choice(chosen)
    evaluations, settings = run_baseline(
        choice,
        chosen.env,
        chosen.hidden,
        steps=chosen.length,
        seed=seed,
        evaluations=EVALUATIONS,
        evaluation_episodes=EVALUATION_EPISODES,
        gamma=gamma,
    )
    return {
        "settings": settings,
        "preset": f"paper-{chosen.metric} for {env_family(chosen.env)}",
        **_measured(evaluations, chosen.length),
    }


def _measured(evaluations: Sequence[Evaluation], steps: int) -> dict[str, Any]:
    """Return the evaluations of a run of so many steps, and their averages."""
    rounded = [_rounded(e.to_dict()) for e in evaluations]
    return {"evaluations": rounded, **average_returns(evaluations, steps)}


def _rounded(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return an evaluation with returns to six significant digits: the files are read by people."""
    rounded = dict(evaluation)
    for key in ("returns", "returns_without_survival"):
        if rounded[key] is not None:
            rounded[key] = [float(f"{value:.6g}") for value in rounded[key]]
    return rounded


def _perturbed(returns: Iterable[tuple[int, float]], steps: int) -> list[float | None]:
    """Return the mean training return between evaluations: what the perturbed policies got."""
    bins: list[list[float]] = [[] for _ in range(EVALUATIONS)]
    for end, total in returns:
        bins[min(EVALUATIONS - 1, math.ceil(end * EVALUATIONS / steps) - 1)].append(total)
    return [float(f"{np.mean(b):.6g}") if b else None for b in bins]


def _run_line(out: Path, item: tuple[OnlineCell, int]) -> str:
    """Run a cell with a seed and return a line about it."""
    chosen, seed = item
    result = run_one(chosen, seed, out)
    return (
        f"{chosen.name} seed {seed}: average {result['average_return']:.1f}, "
        f"last fifth {result['last20_return']:.1f}"
    )


def run_cells(
    work: Sequence[tuple[OnlineCell, int]], out: Path, *, workers: int = 1, note: Note
) -> None:
    """Run cells for seeds, several at once; finished runs are read back."""
    for line in run_all(functools.partial(_run_line, out), work, workers):
        note(line)


def stored_runs(out: Path, chosen: OnlineCell, seeds: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Return the finished runs of a cell by seed."""
    runs = {}
    for seed in seeds:
        path = run_file(out, chosen, seed)
        if path.exists():
            runs[seed] = json.loads(path.read_text())["result"]
    return runs


def compared_return(chosen: OnlineCell, run: Mapping[str, Any], metric: str) -> float:
    """Return a run's number that stands beside the paper's.

    On Hopper our own algorithms' without the survival bonus, which the authors' code takes
    off when it evaluates them; the baselines' with it, as the ARS authors' code evaluates.
    The paper itself does not say.
    """
    key = "average_return" if metric == "avg" else "last20_return"
    if leaves_bonus_out(chosen):
        key += "_without_survival"
    return float(run[key])


def leaves_bonus_out(chosen: OnlineCell) -> bool:
    """Return whether :func:`compared_return` is without the survival bonus."""
    return chosen.algorithm in OURS and has_bonus(chosen)


def has_bonus(chosen: OnlineCell) -> bool:
    """Return whether the task is one whose survival bonus the paper removes for the PSSVF."""
    return default_reward("pssvf", chosen.env) == "without-survival"
