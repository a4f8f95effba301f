"""What a critic file keeps of the data that its critic was fitted to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.critics import Critic
from pbvf_offline.critics.trust_region import TrustRegion
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import DamagedError
from pbvf_offline.fit.steps import Fit
from pbvf_offline.io.mapped import taken
from pbvf_offline.io.tensor_file import Tensors, array_of
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.rollout.targets import chosen_rewards, policy_returns
from pbvf_offline.seeding import Stream, generator

MAX_OBSERVATIONS = 10_000
MAX_INITIAL = 1_000
MAX_POLICIES = 1_000


@dataclass(frozen=True)
class CriticContext:
    """What a critic file keeps of the dataset, fixed before the first update.

    Attributes:
        environment: The environment of the dataset, when known.
        dataset: The dataset's digest.
        observations: (≤ 10,000, obs_dim) float64 raw observations, for objectives.
        initial_observations: (≤ 1,000, obs_dim) float64 raw, for predictions.
        theta: (≤ 1,000, D) float32 dataset policies in the critic's normaliser.
        returns: (same,) float64, mean undiscounted return of each policy's segments, in
            the critic's reward; segments that a step budget cut count only for policies
            that have no others.
        region: Where the critic can be trusted.
    """

    environment: EnvReference | None
    dataset: str
    observations: NDArray[np.float64]
    initial_observations: NDArray[np.float64]
    theta: NDArray[np.float32]
    returns: NDArray[np.float64]
    region: TrustRegion

    def tensors(self) -> Tensors:
        """Return the arrays by the names that a critic file gives them."""
        return {
            "observations": self.observations,
            "initial_observations": self.initial_observations,
            "dataset_theta": self.theta,
            "dataset_returns": self.returns,
            "region_center": self.region.center,
            "region_factor": self.region.factor,
        }


def make_context(
    data: Trajectories,
    fit: Fit,
    *,
    environment: EnvReference | None,
    dataset: str,
) -> CriticContext:
    """Collect what a critic file keeps of its dataset; subsamples come from the fit's seed."""
    normaliser = fit.normaliser
    return context_of(
        fit.critic,
        lambda steps: taken(data.observations, data.obs_row_of(steps)),
        len(data),
        data.initial_observations,
        data.policies.in_normaliser(normaliser.mean, normaliser.std),
        policy_returns(data, chosen_rewards(data, fit.settings.reward)),
        seed=fit.settings.seed,
        environment=environment,
        dataset=dataset,
    )


def context_of(
    critic: Critic,
    observations: Callable[[NDArray[np.int64]], NDArray[Any]],
    count: int,
    initial: NDArray[Any],
    theta: NDArray[np.float32],
    returns: NDArray[np.float64],
    *,
    seed: int,
    environment: EnvReference | None,
    dataset: str,
) -> CriticContext:
    """Return what a critic file keeps of such data.

    Args:
        critic: The critic, which says in which coordinates it can be trusted.
        observations: Returns the raw observations (n, obs_dim) that some steps (n,) started from.
        count: Number of steps.
        initial: (E, obs_dim) raw first observations.
        theta: (P, D) policies in the critic's normaliser.
        returns: (P,) their returns, see :class:`CriticContext`.
        seed: Seed of the subsamples.
        environment: The environment, when known.
        dataset: Digest of where the data are from.
    """

    def some(rows: int, most: int, which: int) -> NDArray[np.int64]:
        if rows <= most:
            return np.arange(rows)
        rng = generator(seed, Stream.SUBSAMPLE, which)
        return np.sort(rng.choice(rows, most, replace=False))

    kept = some(len(theta), MAX_POLICIES, 2)
    states = observations(some(count, MAX_OBSERVATIONS, 0))
    return CriticContext(
        environment=environment,
        dataset=dataset,
        observations=states.astype(np.float64),
        initial_observations=initial[some(len(initial), MAX_INITIAL, 1)].astype(np.float64),
        theta=theta[kept],
        returns=returns[kept],
        region=critic.view.region(critic.config.spec, theta),
    )


def stored_context(
    tensors: Tensors,
    critic: Critic,
    quantile: float,
    *,
    environment: EnvReference | None,
    dataset: str,
    where: str,
) -> CriticContext:
    """Return the context in the tensors of a critic file.

    Args:
        tensors: See :meth:`CriticContext.tensors`.
        critic: The critic.
        quantile: The trust region's.
        environment: The environment, when known.
        dataset: The dataset's digest.
        where: The file, for messages.

    Raises:
        DamagedError: An array is missing, misshapen or not finite, or they do not fit together.
    """
    factor = tensors.get("region_factor")
    full = factor is not None and factor.ndim == 2
    spec = critic.config.spec
    size, obs = critic.view.places, spec.obs_dim

    def array(name: str, *shape: int) -> NDArray[Any]:
        return array_of(tensors, name, shape, np.float64, where)

    context = CriticContext(
        environment=environment,
        dataset=dataset,
        observations=array("observations", -1, obs),
        initial_observations=array("initial_observations", -1, obs),
        theta=array_of(tensors, "dataset_theta", (-1, spec.size), np.float32, where),
        returns=array("dataset_returns", -1),
        region=TrustRegion(
            array("region_center", size).copy(),
            array("region_factor", *((size, size) if full else (size,))).copy(),
            quantile,
        ),
    )
    parts = (context.observations, context.initial_observations, context.theta)
    diagonal = np.diagonal(context.region.factor) if full else context.region.factor
    if (
        len(context.theta) != len(context.returns)
        or min(len(part) for part in parts) == 0
        or np.any(diagonal <= 0)
    ):
        raise DamagedError("its parts contradict each other", where=where)
    return context
