"""A learned environment as a place where policies are played for whole episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.imagine import Imagined, imagine
from pbvf_offline.models.members import cautious_values
from pbvf_offline.models.noise import action_noise
from pbvf_offline.policies.policy import Policies

_RECORDED = 2**25  # numbers that a recording may have: 128 MB in single precision


@dataclass(frozen=True)
class Played:
    """What the model says of K policies.

    Attributes:
        cautious: (K,) float64, mean return less caution.
        mean: (K,) float64, mean return over members and starts.
        length: (K,) float64, mean number of steps of an episode.
        starts: (S, obs_dim) raw first observations, from which all were played.
    """

    cautious: NDArray[np.float64]
    mean: NDArray[np.float64]
    length: NDArray[np.float64]
    starts: NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """The learned environment with what playing in it needs.

    Attributes:
        ensemble: The learned environment.
        initial: (E, obs_dim) raw first observations of episodes.
        horizon: Time limit of an episode.
        caution: How many population standard deviations of the members' returns are taken off.
    """

    ensemble: Ensemble
    initial: NDArray[np.float64]
    horizon: int
    caution: float

    def play(
        self,
        policies: Policies,
        starts: NDArray[np.float64],
        rng: np.random.Generator,
        *,
        record: bool = False,
        after_block: Callable[[Policies, Imagined, Played], None] | None = None,
    ) -> Played:
        """Play K policies in every member.

        With stochastic policies each member and start has action noise of its own, the same
        for all policies. So the members' deviation, and caution, hold the luck of the noise too.

        Args:
            policies: The policies.
            starts: (S, obs_dim) raw first observations.
            rng: Source of the action noise of stochastic policies.
            record: Record every step for ``after_block``.
            after_block: Called with policies, their episodes and what they came to; with a few
                policies at a time where steps are recorded.
        """
        spec, own = policies.spec, self.ensemble.scales.normaliser
        shown = policies.in_normaliser(own.mean, own.std)
        noise = action_noise(spec, rng, self.horizon, self.ensemble.members, len(starts))
        numbers = spec.obs_dim + spec.actions.outputs + 2  # of a recorded step; rewards are double
        recorded = numbers * self.horizon * self.ensemble.members * len(starts)
        size = max(1, _RECORDED // recorded) if record else len(policies)
        parts = []
        for at in range(0, len(policies), size):
            played_out = imagine(
                self.ensemble,
                spec,
                shown[at : at + size],
                starts,
                self.horizon,
                noise=noise,
                record=record,
            )
            members = played_out.member_values()
            parts.append(
                Played(
                    cautious_values(members, self.caution),
                    members.mean(axis=1),
                    played_out.lengths.mean(axis=(1, 2)),
                    starts,
                )
            )
            if after_block is not None:
                rows = np.arange(at, min(at + size, len(policies)))
                after_block(policies.select(rows), played_out, parts[-1])
        return together(parts)


def together(parts: Sequence[Played]) -> Played:
    """Return what several groups of policies came to that were played from the same starts."""
    return Played(
        np.concatenate([part.cautious for part in parts]),
        np.concatenate([part.mean for part in parts]),
        np.concatenate([part.length for part in parts]),
        parts[0].starts,
    )
