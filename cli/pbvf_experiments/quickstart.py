"""The main job in one go: collect, fit, synthesize, evaluate on Swimmer-v5."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pbvf_datasets.read.dataset import load_dataset
from pbvf_experiments.plots import draw_synthesis
from pbvf_offline.envs.reference import EnvConfig, EnvReference
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.fit.settings import default_fit_settings
from pbvf_offline.fit.to_file import fit_to_file
from pbvf_offline.presets.offline import SYNTHESIS
from pbvf_offline.rollout.evaluation import evaluate_policies
from pbvf_offline.synthesis.settings import EvaluationSettings, default_synthesis_settings
from pbvf_offline.synthesis.to_file import synthesize_to_file
from pbvf_runs.collection import collect
from pbvf_runs.settings import CollectSettings

ENV = "Swimmer-v5"
DATASET = "quickstart/swimmer-fragments-v0"
FIGURE = "quickstart.png"
_EVALUATED_POINTS = 20


@dataclass(frozen=True)
class QuickstartResult:
    """What the main job came to; returns are undiscounted, over whole episodes.

    Attributes:
        best_episode: Best episode in the dataset.
        mean_episode: Mean episode in the dataset.
        closest: Mean return of the dataset policies nearest to the grown ones.
        returns: (K,) mean return of each grown policy.
        predicted: (K,) what the critic predicts of them, discounted.
        chosen_step: (K,) gradient step kept.
        figure: The figure's file.
    """

    best_episode: float
    mean_episode: float
    closest: float
    returns: list[float]
    predicted: list[float]
    chosen_step: list[int]
    figure: Path


def run_quickstart(
    out: Path,
    *,
    steps: int,
    updates: int,
    seed: int,
    workers: int,
    note: Callable[[str], None],
    progress: Callable[[str, int, int | None], None] | None = None,
) -> QuickstartResult:
    """Run the four stages into the folder ``out``; each continues what is there already.

    ``note`` is told the command that would do each stage, ``progress`` its name, what is done and
    the total.
    """

    def report(stage: str) -> Any:
        return None if progress is None else lambda done, total, *_: progress(stage, done, total)

    critic_path, policies_path = out / "psvf.safetensors", out / "policies.safetensors"
    note(
        f"pbvf collect {ENV} --dataset {DATASET} --steps {steps} --perturb-every 200 "
        f"--sigma 0.5 --workers {workers} --seed {seed}"
    )
    collected = collect(
        CollectSettings(EnvConfig(ENV), DATASET, steps=steps, perturb_every=200, seed=seed),
        root=out,
        workers=workers,
        progress=report("collect"),
    )
    data = load_dataset(collected.path, cache=False)
    note(
        f"pbvf fit-critic {collected.path} --critic psvf --updates {updates} "
        f"--out {critic_path} --seed {seed}"
    )
    fit_to_file(
        data.trajectories,
        default_fit_settings("psvf", ENV, data.spec, seed=seed),
        critic_path,
        updates=updates,
        environment=EnvReference.from_dict(data.environment, str(data.path)),
        dataset=data.digest,
        progress=report("fit"),
    )
    every = max(1, SYNTHESIS.steps // _EVALUATED_POINTS)
    note(
        f"pbvf synthesize {critic_path} --from-scratch 5 --out {policies_path} --evaluate "
        f"--evaluate-every {every} --episodes 2 --seed {seed}"
    )
    grown = synthesize_to_file(
        critic_path,
        load_critic(critic_path),
        default_synthesis_settings(ENV, count=5, seed=seed),
        policies_path,
        evaluation=EvaluationSettings(EnvConfig(ENV), 2, every, seed, workers),
        progress=progress,
    )
    note(f"pbvf evaluate {policies_path} --critic {critic_path} --episodes 10 --seed {seed + 1}")
    returns, _ = evaluate_policies(
        EnvConfig(ENV),
        grown.file.policies,
        episodes=10,
        seed=seed + 1,
        workers=workers,
        progress=report("evaluate"),
    )
    episodes = data.trajectories.whole_returns()
    figure = out / FIGURE
    drawn = {
        "curve": grown.curve,
        "returns": grown.returns,
        "chosen_step": grown.chosen_step,
        "closest": grown.closest,
        "best_episode": float(episodes.max()),
    }
    draw_synthesis(drawn, figure, f"{ENV}: policies grown through a frozen PSVF")
    return QuickstartResult(
        best_episode=float(episodes.max()),
        mean_episode=float(episodes.mean()),
        closest=float(np.mean(grown.closest or [])),
        returns=returns.mean(axis=1).tolist(),
        predicted=grown.predicted,
        chosen_step=grown.chosen_step,
        figure=figure,
    )
