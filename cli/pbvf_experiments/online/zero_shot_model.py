"""Section 4.3 by what a run has seen: its environment is learned, and a critic is fitted to it.

A model is learned from the training episodes of a run, a critic is fitted to imagined returns in
it, and fresh policies climb that critic without a step in the environment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbvf_offline.fit.rounds import RoundSettings, round_defaults
from pbvf_offline.models.settings import MODEL_UPDATES, ModelRequest

if TYPE_CHECKING:
    from pbvf_offline.fit.rounds import ImaginedFit
    from pbvf_offline.models.model_file import ModelFile
    from pbvf_offline.synthesis.settings import SynthesisSettings

_MODEL = ModelRequest(seed=0)


@dataclass(frozen=True)
class ImaginingSettings:
    """What decides the model and the critic of imagined returns. The seeds are those of the run.

    Attributes:
        model_updates: Gradient steps of the model.
        model: What else decides it.
        rounds: What decides the critic; None: the defaults of its kind and environment.
    """

    model_updates: int = MODEL_UPDATES
    model: ModelRequest = _MODEL
    rounds: RoundSettings | None = None

    def rounds_of(self, kind: str, env: str, seed: int) -> RoundSettings:
        """Return the settings of the rounds of one seed."""
        rounds = self.rounds or round_defaults(kind, env).settings
        return dataclasses.replace(rounds, seed=seed)

    def described(self, kind: str, env: str, seed: int) -> dict[str, Any]:
        """Return what decides the result, in JSON form.

        Not the precision of the networks' multiplications: a processor with other
        instructions finds a finished result complete.
        """
        model = dataclasses.replace(self.model, seed=seed).to_dict()
        del model["bfloat16"]
        return {
            "model": model | {"updates": self.model_updates},
            "rounds": self.rounds_of(kind, env, seed).to_dict(),
        }


def grow_imagined(
    run: Path,
    folder: Path,
    kind: str,
    synthesis: SynthesisSettings,
    settings: ImaginingSettings,
    *,
    env: str,
    episodes: int,
    note: Callable[[str], None],
) -> dict[str, Any]:
    """Learn a run's environment, fit a critic to imagined returns, and grow policies through it.

    As ``fit-model RUN``, ``fit-critic RUN --model`` and ``synthesize`` do; a model that fails its
    check is used all the same, as with ``--force``, and the result says so.

    Args:
        run: The run's folder.
        folder: Where the model, the critic and the policies are kept.
        kind: The critic's kind.
        synthesis: The ascent inside the trust region; its seed is that of all random numbers.
        settings: What decides the model and the critic.
        env: Where the policies are measured.
        episodes: Test episodes of each policy.
        note: Told of each stage.

    Returns:
        What a cell keeps: the data's digest and size, the model and its check, how the critic
        came about, and the policies: their returns, and what model and critic said of them.
    """
    from pbvf_offline.io.reading import file_digest
    from pbvf_offline.models.to_file import fit_model_to_file
    from pbvf_offline.policies.batch import has_bfloat16
    from pbvf_offline.synthesis.rounds_to_file import rounds_to_file
    from pbvf_runs.data import load_run

    data, seed = load_run(run), synthesis.seed
    source: dict[str, Any] = {"environment": data.environment, "dataset": data.digest}
    folder.mkdir(parents=True, exist_ok=True)
    note("learning the environment of what the run has seen")
    learned = fit_model_to_file(
        data.trajectories,
        dataclasses.replace(settings.model, seed=seed, bfloat16=has_bfloat16()),
        folder / "model.safetensors",
        updates=settings.model_updates,
        **source,
    ).file
    digest = file_digest(folder / "model.safetensors")
    note("fitting a critic to imagined returns")
    critic = folder / "imagined.safetensors"
    imagined = rounds_to_file(
        data.trajectories,
        learned,
        settings.rounds_of(kind, env, seed),
        critic,
        model_digest=digest,
        **source,
    ).file.imagined
    if imagined is None:
        raise TypeError("rounds end with a critic that says how it was fitted")
    note("growing policies through it")
    return {
        "data": {
            "digest": data.digest,
            "steps": len(data.trajectories),
            "episodes": data.trajectories.episodes,
        },
        "model": _said_of(learned),
        "critic": {
            "stands": "imagined" if imagined.stands else "recipe",
            "kept": imagined.kept.to_dict(),
            "comparison": None if imagined.comparison is None else imagined.comparison.to_dict(),
            "rounds": [done.to_dict() for done in imagined.rounds],
        },
        "grown": _grow(critic, learned, digest, imagined, synthesis, env, episodes),
    }


def _said_of(model: ModelFile) -> dict[str, Any]:
    check, settings = model.check, model.ensemble.settings
    if check is None:
        raise TypeError("a finished model has a check")
    return {
        "noise": settings.noise,
        "recovery": settings.recovery,
        "huber": settings.huber,
        "angles": settings.angles,
        "unroll": settings.unroll,
        "mixed": settings.mixed,
        "bfloat16": settings.bfloat16,
        "check": check.to_dict(),
        "fit_for": list(check.fit_for),
        "refusal": check.refusal,
    }


def _grow(
    path: Path,
    model: ModelFile,
    model_digest: str,
    imagined: ImaginedFit,
    synthesis: SynthesisSettings,
    env: str,
    episodes: int,
) -> dict[str, Any]:
    from pbvf_experiments.growing import grow, grown_policies
    from pbvf_offline.policies.files import load_policies
    from pbvf_offline.synthesis.model_evaluation import ModelEvaluator

    evaluator = ModelEvaluator.of(model, imagined.horizon)
    grown = grow(
        path,
        synthesis,
        env,
        episodes=episodes,
        every=max(1, synthesis.steps),
        evaluator=evaluator,
        model_digest=model_digest,
    )
    returns = evaluator.evaluate(load_policies(grown_policies(path, synthesis)).policies)
    return grown | {
        "imagined": returns.mean.tolist(),
        "interval": returns.interval_lists,
    }
