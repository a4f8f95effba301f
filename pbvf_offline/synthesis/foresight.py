"""What a learned environment foretells of policies: undiscounted returns of whole episodes.

No environment step is taken. The estimate is no better than the environment that was learned:
policies that were sought with it are among those that it takes to be better than they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.envs.make import registered_limit
from pbvf_offline.errors import IncompatibleError, UsageError
from pbvf_offline.fit.critic_file import CriticFile
from pbvf_offline.fit.rounds import RoundSettings
from pbvf_offline.models.imagine import imagine
from pbvf_offline.models.members import cautious_values, interval_90
from pbvf_offline.models.model_file import ModelFile
from pbvf_offline.models.noise import action_noise
from pbvf_offline.policies.policy import Policies
from pbvf_offline.seeding import Stream, generator

IMAGINED_UNIT = "undiscounted return of whole episodes, with any survival bonus"
STARTS = 16  # initial states that each policy is played from
BEST_SHOWN = 5  # dataset policies that others are held against
_PLAYED_AGAIN = 20  # dataset policies that are played from all starts
_BLOCK = 64  # policies between two reports of progress


@dataclass(frozen=True)
class Foresight:
    """Imagined undiscounted returns of K policies.

    Attributes:
        members: (K, M) float64, what each member says.
    """

    members: NDArray[np.float64]

    @property
    def mean(self) -> NDArray[np.float64]:
        """(K,): the members' mean."""
        value: NDArray[np.float64] = self.members.mean(axis=1)
        return value

    @property
    def cautious(self) -> NDArray[np.float64]:
        """(K,): with the caution that ``fit-critic --model`` has by default."""
        return cautious_values(self.members, RoundSettings.caution)

    @property
    def interval(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Low and high (K,) of the 90 % interval, as the model's check counts them.

        None where the model has one member.
        """
        return interval_90(self.members)


@dataclass(frozen=True)
class Oracle:
    """A learned environment with what imagining whole episodes in it needs.

    Attributes:
        model: The learned environment.
        horizon: Time limit of an episode.
    """

    model: ModelFile
    horizon: int

    def foresee(
        self,
        policies: Policies,
        *,
        starts: int = STARTS,
        progress: Callable[[int, int], None] | None = None,
    ) -> Foresight:
        """Play policies in every member; what each comes to does not depend on the others.

        With stochastic policies each member and start has action noise of its own, the same for
        all policies. No search has seen that noise.

        Args:
            policies: K policies, of any normaliser and architecture.
            starts: Number of initial states; all policies have the same ones.
            progress: Called with policies done and the total.

        Raises:
            IncompatibleError: They act in another environment than the model's.
        """
        ensemble, seen = self.model.ensemble, self.model.ensemble.scales.normaliser
        initial = self.model.initial_observations
        first = initial[np.linspace(0, len(initial) - 1, starts).astype(np.int64)]
        rng = generator(ensemble.settings.seed, Stream.FORESIGHT_ACTION, starts)
        noise = action_noise(policies.spec, rng, self.horizon, ensemble.members, starts)
        theta = policies.in_normaliser(seen.mean, seen.std)
        values = []
        for at in range(0, len(theta), _BLOCK):
            block = theta[at : at + _BLOCK]
            played = imagine(ensemble, policies.spec, block, first, self.horizon, noise=noise)
            values.append(played.member_values())
            if progress is not None:
                progress(min(at + _BLOCK, len(theta)), len(theta))
        return Foresight(np.concatenate(values))


def best_of_the_data(
    critic: CriticFile,
    oracle: Oracle,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.float64]:
    """Return the cautious values (≤ 5,) of the dataset's best policies, highest first.

    Of the policies that the critic's file keeps. All are played from one initial state, the
    best 20 of them from as many as any other policy.

    Args:
        critic: The critic.
        oracle: The learned environment.
        progress: Called with policies played and the total.

    Raises:
        IncompatibleError: The policies act in another environment than the model's.
    """
    known = critic.policies(critic.context.theta)
    glance = oracle.foresee(known, starts=1, progress=progress).cautious
    liked = known.select(np.argsort(-glance, kind="stable")[:_PLAYED_AGAIN])
    return np.sort(oracle.foresee(liked).cautious)[::-1][:BEST_SHOWN]


def known_horizon(critic: CriticFile) -> int:
    """Return the time limit of an episode of the critic's environment, which is not built.

    That of the critic's own imagined episodes, else of the registered environment.

    Raises:
        UsageError: Neither is known.
    """
    if critic.imagined is not None:
        return critic.imagined.horizon
    environment = critic.context.environment
    limit = None if environment is None else registered_limit(environment)
    if limit is None:
        raise UsageError(
            "nothing says how many steps an episode has: the environment is not registered here, "
            "or has no time limit",
            where="--model",
            remedy="use pbvf predict with --horizon N, or a critic of fit-critic --model",
        )
    return limit


def refuse_unfit(model: ModelFile, *, force: bool | None = None) -> None:
    """Refuse a model that cannot be relied on for whole episodes.

    Args:
        model: The model.
        force: Whether one whose check says so passes all the same; None where a user has no
            such choice.

    Raises:
        IncompatibleError: Its training is not finished, or its check says so.
    """
    if model.check is None:
        raise IncompatibleError(
            "the model's training is not finished", remedy="run pbvf fit-model again"
        )
    if not force and (refusal := model.check.refusal) is not None:
        choice = "" if force is None else ", or use it all the same with --force"
        raise IncompatibleError(
            refusal,
            remedy=f"collect more data, train it longer, or leave --model out{choice}",
        )
