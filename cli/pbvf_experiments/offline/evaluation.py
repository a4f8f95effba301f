"""Off-policy evaluation: policies that neither model nor critic has seen, and their true returns.

Two sets of policies: around the dataset, as the collection would have gone on, and along ascents,
which is where a critic is needed most. The metrics are those of the DOPE benchmark.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.read.dataset import Dataset
from pbvf_experiments.metrics import coverage, estimate_metrics
from pbvf_experiments.offline.settings import OpeSettings
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import IncompatibleError
from pbvf_offline.fit.critic_file import CriticFile
from pbvf_offline.models.model_file import ModelFile
from pbvf_offline.policies.policy import Policies, init_theta
from pbvf_offline.rollout.evaluation import evaluate_policies
from pbvf_offline.rollout.schedules import PerturbationSchedule
from pbvf_offline.seeding import Stream, generator, reset_seed
from pbvf_offline.synthesis.ascent import synthesize
from pbvf_offline.synthesis.model_evaluation import ModelEvaluator, known_horizon
from pbvf_offline.synthesis.prediction import predict
from pbvf_offline.synthesis.settings import default_synthesis_settings

ESTIMATES = ("imagined", "cautious", "predicted")
"""What is said of each policy: mean and cautious imagined return, and the critic's prediction."""
SETS = ("around", "ascents")
"""The sets of policies: around the dataset, and along ascents."""


def unseen_policies(
    data: Dataset, critic: CriticFile, settings: OpeSettings, *, env: str, seed: int
) -> dict[str, Policies]:
    """Return the policies of each of :data:`SETS`; no environment is built.

    Args:
        data: A dataset of perturbations of a fresh policy.
        critic: The critic that is climbed, with the defaults of ``pbvf synthesize`` and one
            start a policy.
        settings: How many.
        env: The environment's id, for those defaults.
        seed: Seed of the ascents and of what is drawn from them.

    Raises:
        IncompatibleError: The dataset does not say which policy was perturbed, or the ways of the
            ascents have too few points.
    """
    return {
        "around": around_dataset(data, settings.policies),
        "ascents": _along_ascents(critic, settings, env, seed),
    }


def around_dataset(data: Dataset, count: int) -> Policies:
    """Return the policies that the collection of a dataset would have gone on with.

    The base policy and the standard deviation of the noise are the collection's. The noise is
    that of the first segments of ``count`` further episodes.

    Args:
        data: The dataset.
        count: How many.

    Raises:
        IncompatibleError: It does not say which policy was perturbed, and how.
    """
    provenance = {} if data.manifest is None else data.manifest["provenance"]
    settings, seed = provenance.get("settings", {}), provenance.get("seed")
    sigma = settings.get("sigma")
    other = settings.get("schedule", "independent") != "independent"
    if settings.get("policy") is None or sigma is None or seed is None or other:
        raise IncompatibleError(
            "does not say which fresh policy was perturbed independently, and how",
            where=data.path,
            remedy="use a dataset of pbvf collect without --base, --policies and --schedule",
        )
    base = Policies(
        data.spec,
        init_theta(data.spec, generator(seed, Stream.BASE_POLICY))[None],
        data.obs_mean[:1],
        data.obs_std[:1],
    )
    schedule = PerturbationSchedule(base, sigma, None, seed)
    theta = [schedule.theta(len(data) + more, 0) for more in range(count)]
    mean, std = (np.repeat(array, count, axis=0) for array in (base.obs_mean, base.obs_std))
    return Policies(data.spec, np.stack(theta), mean, std)


def _along_ascents(critic: CriticFile, settings: OpeSettings, env: str, seed: int) -> Policies:
    """Draw points of the ways of fresh policies, each point once."""
    climb = default_synthesis_settings(
        env, count=settings.climbing, seed=reset_seed(seed, Stream.SUBSAMPLE, 0)
    )
    climbed = synthesize(
        critic, dataclasses.replace(climb, restarts=1), waypoint_every=settings.every
    )
    points = np.concatenate([point.theta for point in climbed.path])
    if len(points) < settings.policies:
        raise IncompatibleError(
            f"the ways of {settings.climbing} policies have {len(points)} points, and "
            f"{settings.policies} are wanted",
            remedy="let more policies climb",
        )
    drawn = generator(seed, Stream.SUBSAMPLE, 1).permutation(len(points))[: settings.policies]
    return critic.policies(points[drawn], climbed.policies.spec)


def evaluate_unseen(
    data: Dataset,
    model: ModelFile,
    critic: CriticFile,
    settings: OpeSettings,
    *,
    env: EnvConfig,
    seed: int,
    workers: int = 1,
    note: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return what model and critic say of policies that neither has seen, beside the truth.

    Args:
        data: The dataset that the model was learned from.
        model: The learned environment.
        critic: A critic of such policies.
        settings: What is evaluated.
        env: Where true returns are measured.
        seed: Seed of the ascents, of what is drawn from them, and of resets.
        workers: Number of processes; does not change the result.
        note: Told of each set.

    Returns:
        For each of :data:`SETS`: ``true``, each of :data:`ESTIMATES` and ``interval`` (low and
        high, None of a model with one member), lists with a number a policy, or None where a
        policy has no interval; ``coverage``, the share of true returns in their interval, of
        policies that have one; ``metrics``, an
        :class:`~pbvf_experiments.metrics.EstimateMetrics` of each estimate; ``inside``, the share
        of the policies in the critic's trust region; ``range``, the lowest and the highest true
        return. And ``unit``, that of the critic's prediction: where it is no undiscounted return,
        its ``error`` and ``absolute_error`` mean nothing.

    Raises:
        IncompatibleError: The dataset does not say which policy was perturbed, or the critic or
            the model is of other policies.
    """
    evaluator = ModelEvaluator.of(model, known_horizon(critic, model)[0])
    sets = unseen_policies(data, critic, settings, env=env.name, seed=seed)
    result: dict[str, Any] = {"unit": critic.unit}
    for name, policies in sets.items():
        if note is not None:
            note(f"evaluating {len(policies)} policies: {name}")
        returns, _ = evaluate_policies(
            env, policies, episodes=settings.episodes, seed=seed, workers=workers
        )
        result[name] = compare_estimates(critic, evaluator, policies, returns.mean(axis=1))
    return result


def compare_estimates(
    critic: CriticFile, evaluator: ModelEvaluator, policies: Policies, true: NDArray[np.float64]
) -> dict[str, Any]:
    """Return the entry of one set of policies, see :func:`evaluate_unseen`.

    Args:
        critic: The critic.
        evaluator: The learned environment.
        policies: K policies.
        true: (K,) their true returns.

    Raises:
        IncompatibleError: The critic or the model is of other policies.
    """
    imagined, by_critic = evaluator.evaluate(policies), predict(critic, policies)
    interval = imagined.interval
    said = {
        "imagined": imagined.mean,
        "cautious": imagined.cautious,
        "predicted": by_critic.predicted,
    }
    return {
        "true": true.tolist(),
        **{name: values.tolist() for name, values in said.items()},
        "interval": imagined.interval_lists,
        "coverage": None if interval is None else coverage(true, *interval),
        "metrics": {
            name: estimate_metrics(true, values).to_dict() for name, values in said.items()
        },
        "inside": float(by_critic.inside.mean()),
        "range": [float(true.min()), float(true.max())],
    }


def summary_of_evaluation(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row, of each set of policies.

    Of imagined returns the rank correlation, the error in units of the range of the true returns,
    and the regret. Also the rank correlation of the critic's predictions, and the share of true
    returns that are in their interval. A number that does not exist is left out.
    """
    row: dict[str, float | None] = {}
    for name in SETS:
        metrics = result[name]["metrics"]
        row[f"rank {name}"] = metrics["imagined"]["rank_correlation"]
        row[f"critic's rank {name}"] = metrics["predicted"]["rank_correlation"]
        row[f"error {name}"] = metrics["imagined"]["absolute_error"]
        row[f"regret@5 {name}"] = metrics["imagined"]["regret_at_5"]
        row[f"in interval {name}"] = result[name]["coverage"]
    return {name: value for name, value in row.items() if value is not None}
