"""The main job in one go: collect, learn, fit, synthesize, evaluate on Swimmer-v5."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pbvf_datasets.read.dataset import Dataset, load_dataset
from pbvf_experiments.plots import draw_synthesis
from pbvf_offline.envs.reference import EnvConfig, EnvReference
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.fit.rounds import round_defaults
from pbvf_offline.fit.settings import default_fit_settings
from pbvf_offline.fit.to_file import fit_to_file
from pbvf_offline.io.reading import file_digest
from pbvf_offline.models.settings import ModelRequest
from pbvf_offline.models.to_file import Hooks, fit_model_to_file
from pbvf_offline.policies.batch import has_bfloat16
from pbvf_offline.presets.offline import SYNTHESIS
from pbvf_offline.rollout.evaluation import evaluate_policies
from pbvf_offline.synthesis.model_evaluation import ModelEvaluator
from pbvf_offline.synthesis.rounds_to_file import RoundCallbacks, episode_limit, rounds_to_file
from pbvf_offline.synthesis.settings import EvaluationSettings, default_synthesis_settings
from pbvf_offline.synthesis.to_file import synthesize_to_file
from pbvf_runs.collection import collect
from pbvf_runs.compare.figures import check_figures
from pbvf_runs.settings import CollectSettings

ENV = "Swimmer-v5"
DATASET = "quickstart/swimmer-fragments-v0"
FIGURE = "quickstart.png"
EPISODES = 10
"""Of each grown policy, for its return."""
NEAREST_EPISODES = 2
"""Of each dataset policy nearest to a grown one, and of each point of the figure's curve."""
_EVALUATED_POINTS = 20


Recipe = Literal["model", "default"]
Progress = Callable[..., None]
"""Takes a stage's name, what is done, the total, and words to show beside them, if any."""


@dataclass(frozen=True)
class QuickstartResult:
    """What the main job came to; returns are undiscounted, over whole episodes.

    Attributes:
        best_episode: Best episode in the dataset.
        mean_episode: Mean episode in the dataset.
        closest: Mean return of the dataset policies nearest to the grown ones.
        returns: (K,) mean return of each grown policy.
        predicted: (K,) what the critic predicts of them; the default recipe's is discounted.
        chosen_step: (K,) gradient step kept.
        figure: The figure's file.
        recipe: Whether a model was used, or the data alone.
        grown_through: The critic in words: which kind stood, what it is fitted to, and why.
    """

    best_episode: float
    mean_episode: float
    closest: float
    returns: list[float]
    predicted: list[float]
    chosen_step: list[int]
    figure: Path
    recipe: Recipe
    grown_through: str


def run_quickstart(
    out: Path,
    *,
    recipe: Recipe = "model",
    steps: int,
    updates: int,
    seed: int,
    workers: int,
    note: Callable[[str], None],
    progress: Progress | None = None,
) -> QuickstartResult:
    """Run the stages into the folder ``out``; each continues what is there already.

    Args:
        out: The folder.
        recipe: ``model``: learn the environment and fit a PSSVF to imagined episodes, where
            the check of what was learned allows it; ``default``: fit a PSVF to the data alone.
        steps: Transitions to collect.
        updates: Gradient steps of the learned environment, or of the PSVF.
        seed: Seed of every stage but the evaluation, whose seed is the next one.
        workers: Number of processes; does not change the result.
        note: Told the command that would do each stage.
        progress: Told a stage's name, what is done and the total.
    """
    report = _Report(progress)
    policies_path = out / "policies.safetensors"
    note(
        f"MINARI_DATASETS_PATH={_quoted(out)} pbvf collect {ENV} --dataset {DATASET} "
        f"--steps {steps} --perturb-every 200 --sigma 0.5 --workers {workers} --seed {seed}"
    )
    check_figures(out, FIGURE)
    collected = collect(
        CollectSettings(EnvConfig(ENV), DATASET, steps=steps, perturb_every=200, seed=seed),
        root=out,
        workers=workers,
        progress=report.of("collect"),
    )
    data = load_dataset(collected.path, cache=False)
    imagined = _imagined(out, data, updates, seed, note, report) if recipe == "model" else None
    why = ""
    if imagined is None:
        why = ": the model failed its check" if recipe == "model" else ""
        recipe = "default"
        critic_path = _default(out, data, updates, seed, note, report)
        judged: dict[str, Any] = {}
    else:
        critic_path, model_path, judged = imagined
    critic = load_critic(critic_path)
    kind = critic.critic.kind.name.upper()
    if critic.imagined is not None and critic.imagined.stands:
        through = f"{kind}, fitted to imagined episodes"
    else:
        through = f"{kind}, fitted to the data alone"
        why = why or (": the model prefers its policies" if imagined else "")
    every = max(1, SYNTHESIS.steps // _EVALUATED_POINTS)
    note(
        f"pbvf synthesize {_quoted(critic_path)} --from-scratch 5 --out {_quoted(policies_path)} "
        + (f"--model {_quoted(model_path)} " if imagined else "")
        + f"--evaluate --evaluate-every {every} --episodes {NEAREST_EPISODES} "
        f"--workers {workers} --seed {seed}"
    )
    grown = synthesize_to_file(
        critic_path,
        critic,
        default_synthesis_settings(ENV, count=5, seed=seed, judged=imagined is not None),
        policies_path,
        evaluation=EvaluationSettings(EnvConfig(ENV), NEAREST_EPISODES, every, seed),
        workers=workers,
        progress=progress,
        **judged,
    )
    note(
        f"pbvf evaluate {_quoted(policies_path)} --critic {_quoted(critic_path)} "
        f"--episodes {EPISODES} --workers {workers} --seed {seed + 1}"
    )
    returns, _ = evaluate_policies(
        EnvConfig(ENV),
        grown.file.policies,
        episodes=EPISODES,
        seed=seed + 1,
        workers=workers,
        progress=report.of("evaluate"),
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
    draw_synthesis(drawn, figure, f"{ENV}: grown through a {through}")
    return QuickstartResult(
        best_episode=float(episodes.max()),
        mean_episode=float(episodes.mean()),
        closest=float(np.mean(grown.closest or [])),
        returns=returns.mean(axis=1).tolist(),
        predicted=grown.predicted,
        chosen_step=grown.chosen_step,
        figure=figure,
        recipe=recipe,
        grown_through=through + why,
    )


@dataclass(frozen=True)
class _Report:
    """Tells a stage's progress to the caller, if anybody listens."""

    progress: Progress | None

    def of(self, stage: str) -> Any:
        progress = self.progress
        return None if progress is None else lambda done, total, *_: progress(stage, done, total)

    def trying(self, done: int, total: int, number: int, count: int) -> None:
        """Tell how far the short trainings are, and which of how many it is."""
        if self.progress is not None:
            self.progress("trials", done, total, f"trial {number} of {count}")


def _default(
    out: Path, data: Dataset, updates: int, seed: int, note: Callable[[str], None], report: _Report
) -> Path:
    """Fit a PSVF to the data alone and return its file."""
    path = out / "psvf.safetensors"
    note(
        f"pbvf fit-critic {_quoted(data.path)} --critic psvf --updates {updates} "
        f"--out {_quoted(path)} --seed {seed}"
    )
    fit_to_file(
        data.trajectories,
        default_fit_settings("psvf", ENV, data.spec, seed=seed),
        path,
        updates=updates,
        environment=EnvReference.from_dict(data.environment, str(data.path)),
        dataset=data.digest,
        progress=report.of("fit"),
    )
    return path


def _imagined(
    out: Path, data: Dataset, updates: int, seed: int, note: Callable[[str], None], report: _Report
) -> tuple[Path, Path, dict[str, Any]] | None:
    """Learn the environment and fit a PSSVF to imagined episodes.

    Returns the critic's file, the model's, and what synthesis takes to judge in it; None where the
    check says that whole episodes cannot be imagined.
    """
    model, path = out / "model.safetensors", out / "pssvf.safetensors"
    source: dict[str, Any] = {
        "environment": EnvReference.from_dict(data.environment, str(data.path)),
        "dataset": data.digest,
    }
    note(
        f"pbvf fit-model {_quoted(data.path)} --updates {updates} --out {_quoted(model)} "
        f"--seed {seed}"
    )
    learned = fit_model_to_file(
        data.trajectories,
        ModelRequest(seed=seed, bfloat16=has_bfloat16()),
        model,
        updates=updates,
        hooks=Hooks(trying=report.trying, update=report.of("learn")),
        **source,
    )
    if learned.file.check is not None and (refusal := learned.file.check.refusal) is not None:
        note(f"{refusal}; a PSVF is fitted to the data alone")
        return None
    note(
        f"pbvf fit-critic {_quoted(data.path)} --critic pssvf --model {_quoted(model)} "
        f"--out {_quoted(path)} --seed {seed}"
    )
    digest = file_digest(model)
    settings = dataclasses.replace(round_defaults("pssvf", ENV).settings, seed=seed)
    imagining, told = report.of("imagine"), report.progress
    rounds_to_file(
        data.trajectories,
        learned.file,
        settings,
        path,
        model_digest=digest,
        callbacks=RoundCallbacks(
            after_round=None
            if imagining is None
            else lambda done: imagining(done.number, settings.rounds),
            comparing=None
            if told is None
            else lambda stage, done, total: told(f"compare-{stage}", done, total),
        ),
        **source,
    )
    horizon = episode_limit(data.trajectories, source["environment"])
    return (
        path,
        model,
        {
            "evaluator": ModelEvaluator.of(learned.file, horizon),
            "model_digest": digest,
        },
    )


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
