"""Synthesis into a policies file, with the paper's evaluation protocol on request."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.curve import OnEvent
from pbvf_offline.errors import DamagedError, PbvfError
from pbvf_offline.fit.critic_file import CriticFile
from pbvf_offline.io.output_file import writing
from pbvf_offline.io.reading import file_digest
from pbvf_offline.policies.files import (
    KIND,
    PoliciesFile,
    concatenate,
    load_policies,
    refuse_other_policies,
)
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.evaluation import evaluate_policies
from pbvf_offline.synthesis.ascent import Synthesis, closest_policies, synthesize
from pbvf_offline.synthesis.model_evaluation import ModelEvaluator, best_of_the_data
from pbvf_offline.synthesis.settings import EvaluationSettings, SynthesisSettings
from pbvf_offline.synthesis.stored_result import is_result

_LOOKED_AT = (
    "returns",
    "closest",
    "curve",
    "cautious",
    "low",
    "high",
    "above_data",
    "data_cautious",
)
_MEANS = {
    "predicted": "mean_predicted",
    "objective": "mean_objective",
    "distance": "mean_distance",
    "returns": "mean_return",  # as training runs call it
    "closest": "mean_closest_return",
    "cautious": "mean_cautious_return",
}


@dataclass(frozen=True)
class SynthesisResult:
    """What a synthesis into a file came to; lists have one entry a policy.

    Attributes:
        file: The policies file.
        predicted: The critic's prediction at the chosen step.
        chosen_step: The gradient step kept.
        objective: The ascended objective at the chosen step.
        distance: Distance from the dataset's policies, in units of their 95 % quantile.
        returns: Mean measured return at the chosen step, or None without evaluation.
        closest: Mean measured return of the nearest dataset policy, or None.
        curve: ``{"step", "returns", "predicted"}`` along the ascent, or None.
        cautious: Cautious undiscounted return of whole episodes; None without a model. See
            :attr:`pbvf_offline.synthesis.model_evaluation.ImaginedReturns.cautious`.
        low: Lower end of the 90 % interval of the imagined return, see
            :attr:`pbvf_offline.synthesis.model_evaluation.ImaginedReturns.interval`, and None of a
            policy that is imagined to act for longer than the model's check could look; None
            where the model has one network, or the file was made before there were intervals.
        high: Its upper end.
        above_data: Whether ``low`` is above the highest of ``data_cautious``; in a file that was
            made before there were intervals, whether ``cautious`` is.
        data_cautious: The same estimate for the dataset's best policies, highest first.
        already_complete: Whether nothing had to be done.
    """

    file: PoliciesFile
    predicted: list[float]
    chosen_step: list[int]
    objective: list[float]
    distance: list[float]
    returns: list[float] | None
    closest: list[float] | None
    curve: list[dict[str, Any]] | None
    cautious: list[float] | None
    low: list[float | None] | None
    high: list[float | None] | None
    above_data: list[bool] | None
    data_cautious: list[float] | None
    already_complete: bool


def stored_seed(out: Path) -> int | None:
    """Return the synthesis seed of the policies file at ``out``, if there is one."""
    seed = _stored_settings(out).get("seed")
    return seed if type(seed) is int else None


def chosen_by_critic(out: Path) -> bool:
    """Whether there is a policies file at ``out`` whose policies the critic alone has chosen."""
    settings = _stored_settings(out)
    return bool(settings) and settings.get("candidates", 1) == 1


def _stored_settings(out: Path) -> dict[str, Any]:
    settings: object = None
    if out.exists():
        with contextlib.suppress(PbvfError):  # which is named when the file is written
            settings = load_policies(out).origin.get("settings")
    return settings if isinstance(settings, dict) else {}


def synthesize_to_file(
    critic_path: Path,
    critic: CriticFile,
    settings: SynthesisSettings,
    out: Path,
    *,
    given: Policies | None = None,
    given_digest: str | None = None,
    observations: NDArray[np.float64] | None = None,
    states_digest: str | None = None,
    evaluation: EvaluationSettings | None = None,
    evaluator: ModelEvaluator | None = None,
    model_digest: str | None = None,
    workers: int = 1,
    overwrite: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
    on_event: OnEvent | None = None,
) -> SynthesisResult:
    """Grow policies and write them, with what was measured of them, to ``out``.

    Args:
        critic_path: The critic's file, for its digest.
        critic: The loaded critic.
        settings: What decides the synthesis.
        out: The policies file.
        given: Policies to start from, in place of fresh ones.
        given_digest: Digest of their file.
        observations: Raw states from a dataset in place of the critic's own.
        states_digest: Digest of that dataset.
        evaluation: Measure the policies along the way; the chosen step is the same without.
        evaluator: A learned environment in which the policies and the dataset's are held against
            each other; candidates are chosen among by their cautious returns there.
        model_digest: Digest of the model's file.
        workers: Processes that climb and run episodes; does not change the result.
        overwrite: Start over whatever is there.
        progress: Called with the stage's name, what is done and the total.
        on_event: Called with each event of the curve: ``ascent`` at each step, the mean
            objective, ``evaluation`` where the policies were measured, and ``result`` of those
            chosen. Not of a synthesis that is complete.

    Raises:
        ConflictError: ``out`` exists with other settings, or another process writes it.
        DivergedError: The objective became NaN or infinite.
        IncompatibleError: The critic does not read such policies, they cannot be drawn into the
            trust region, or they act in another environment than the model's.
        ResourceError: The disk or a permission refuses.
    """
    made_from: dict[str, Any] = {
        "made_by": "synthesize",
        "critic": file_digest(critic_path),
        "states_from": states_digest,
        "settings": settings.to_dict(),
    }
    imagined_in = None if evaluator is None else [model_digest, evaluator.horizon]
    sources: dict[str, Any] = {
        "started_from": None if given is None else given_digest,
        "chosen_in": imagined_in if settings.candidates > 1 else None,
    }
    # Only where they are: files of earlier versions lack them.
    made_from |= {name: source for name, source in sources.items() if source is not None}
    looked_at = {
        "evaluation": None if evaluation is None else evaluation.to_dict(),
        "imagined_in": imagined_in,
    }
    before: dict[str, Any] = {}
    with writing(out, kind=KIND, overwrite=overwrite) as refusal:
        existing = None if overwrite or not out.exists() else load_policies(out)
        if existing is not None:
            named = _compared({**sources, **made_from})
            origin = _compared(existing.origin)
            there = {name: origin.get(name) for name in named}
            with contextlib.suppress(DamagedError):  # a setting that it lacks means its default
                stored = SynthesisSettings.from_dict(there["settings"], str(out))
                there["settings"] = stored.to_dict()
            refuse_other_policies(there, named, out, SynthesisSettings)
            result = existing.origin.get("result")
            if is_result(result, out, len(existing.policies), settings.steps):
                there = {name: existing.origin.get(name) for name in looked_at}
                if all(how in (None, there[name]) for name, how in looked_at.items()):
                    return _result(existing, already_complete=True)
                # The policies will be the same ones, and what was measured of them stays.
                before = {name: value for name, value in result.items() if name in _LOOKED_AT}
                looked_at = {name: how or there[name] for name, how in looked_at.items()}
        if refusal is not None:
            raise refusal
        grown = synthesize(
            critic,
            settings,
            given=given,
            observations=observations,
            judge=None
            if evaluator is None
            else functools.partial(evaluator.judge, candidates=settings.candidates),
            waypoint_every=None if evaluation is None else evaluation.every,
            workers=workers,
            after_step=None
            if on_event is None
            else lambda step, objective: on_event("ascent", step, {"objective": objective}),
            progress=None if progress is None else functools.partial(progress, "synthesize"),
        )
        result = {
            "predicted": grown.predicted.tolist(),
            "chosen_step": grown.chosen_step.tolist(),
            "objective": grown.objective.tolist(),
            "distance": grown.distance.tolist(),
        }
        if evaluation is not None:
            result |= _measure(critic, grown, evaluation, workers, progress)
        if evaluator is not None:
            result |= _imagine(critic, grown, evaluator, progress)
        if looked_at["imagined_in"] is None:
            del looked_at["imagined_in"]  # which files of earlier versions lack
        origin = {**made_from, **looked_at, "result": before | result}
        file = PoliciesFile(grown.policies, critic.context.environment, origin)
        file.save(out)
        if on_event is not None:
            _report_result(before | result, settings.steps, on_event)
    return _result(file, already_complete=False)


def _compared(origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return an origin for a comparison, with the model and the horizon as keys of their own."""
    told = dict(origin)
    match told.pop("chosen_in", None):
        case [model, horizon]:
            return {**told, "model": model, "horizon": horizon}
        case other:
            return {**told, "model": other, "horizon": None}


def _report_result(result: Mapping[str, Any], steps: int, on_event: OnEvent) -> None:
    """Report what was measured along the ascent, and means over the chosen policies."""
    for point in result.get("curve") or ():
        values = {name: point[name] for name in ("returns", "predicted")}
        on_event("evaluation", point["step"], _means(values) | values)
    on_event("result", steps, _means(result))


def _means(lists: Mapping[str, Any]) -> dict[str, float]:
    return {mean: float(np.mean(lists[name])) for name, mean in _MEANS.items() if lists.get(name)}


def _measure(
    critic: CriticFile,
    grown: Synthesis,
    evaluation: EvaluationSettings,
    workers: int,
    progress: Callable[[str, int, int], None] | None,
) -> dict[str, Any]:
    """Measure waypoints, chosen policies and their nearest dataset policies."""
    count, spec = len(grown.policies), grown.policies.spec
    groups = [critic.policies(point.theta, spec) for point in grown.path]
    groups += [grown.policies, closest_policies(critic, grown.policies)]
    total, done = count * len(groups) * evaluation.episodes, 0

    def means_of(policies: Policies) -> NDArray[np.float64]:
        nonlocal done
        returns, _ = evaluate_policies(
            evaluation.env,
            policies,
            episodes=evaluation.episodes,
            seed=evaluation.seed,
            max_steps=evaluation.max_steps,
            workers=workers,
            progress=None
            if progress is None
            else lambda now, _: progress("evaluate", done + now, total),
        )
        done += returns.size
        means: NDArray[np.float64] = returns.mean(axis=1).reshape(-1, count)
        return means

    # The nearest dataset policies may be of another architecture.
    together = -1 if groups[-1].spec != spec else len(groups)
    parts = [part for part in (groups[:together], groups[together:]) if part]
    means = np.concatenate([means_of(concatenate(part)) for part in parts])
    curve = [
        {"step": p.step, "returns": m.tolist(), "predicted": p.predicted.tolist()}
        for p, m in zip(grown.path, means[:-2], strict=True)
    ]
    return {"returns": means[-2].tolist(), "closest": means[-1].tolist(), "curve": curve}


def _imagine(
    critic: CriticFile,
    grown: Synthesis,
    evaluator: ModelEvaluator,
    progress: Callable[[str, int, int], None] | None,
) -> dict[str, Any]:
    """Hold the policies and the dataset's against each other in the learned environment."""
    imagined = evaluator.evaluate(grown.policies)
    # What they were chosen by among candidates is kept as it was.
    cautious = imagined.cautious if grown.liked is None else grown.liked
    low, high = imagined.interval_lists or (None, None)
    best = best_of_the_data(
        critic,
        evaluator,
        progress=None if progress is None else lambda done, total: progress("imagine", done, total),
    )
    lowest = low or [None] * len(cautious)
    return {
        "cautious": cautious.tolist(),
        "low": low,
        "high": high,
        "above_data": [value is not None and value > float(best[0]) for value in lowest],
        "data_cautious": best.tolist(),
    }


def _result(file: PoliciesFile, *, already_complete: bool) -> SynthesisResult:
    result = file.origin["result"]
    return SynthesisResult(
        file=file,
        predicted=result["predicted"],
        chosen_step=result["chosen_step"],
        objective=result["objective"],
        distance=result["distance"],
        returns=result.get("returns"),
        closest=result.get("closest"),
        curve=result.get("curve"),
        cautious=result.get("cautious"),
        low=result.get("low"),
        high=result.get("high"),
        above_data=result.get("above_data"),
        data_cautious=result.get("data_cautious"),
        already_complete=already_complete,
    )
