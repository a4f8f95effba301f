"""Policies evaluated in a learned environment: undiscounted returns of whole imagined episodes.

No environment step is taken. The estimate is no better than the environment that was learned:
policies that were sought with it are among those that it takes to be better than they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pbvf_offline.envs.make import named_limit
from pbvf_offline.errors import DivergedError, IncompatibleError, UsageError
from pbvf_offline.fit.critic_file import CriticFile
from pbvf_offline.fit.rounds import RoundSettings
from pbvf_offline.models.calibration import Calibration
from pbvf_offline.models.check import ModelCheck
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.imagine import Imagined, imagine
from pbvf_offline.models.members import cautious_values, interval_90
from pbvf_offline.models.model_file import ModelFile
from pbvf_offline.models.noise import action_noise
from pbvf_offline.policies.policy import Policies
from pbvf_offline.seeding import Stream, generator
from pbvf_offline.setting_types import MAX_HORIZON
from pbvf_offline.synthesis.stored_result import BEST_SHOWN

IMAGINED_UNIT = "undiscounted return of whole episodes, with any survival bonus"
STARTS = 16  # initial states that each policy is played from
_FIRST_STARTS = 4  # from which many candidates are played first
_PLAYED_FULLY = 8  # of them, those that are played from all
_PLAYED_AGAIN = 20  # dataset policies that are played from all starts
_BLOCK = 64  # policies between two reports of progress
_BLOCK_GPU = 1_024  # which takes as long for far fewer
_RECORDED = 2**25  # numbers that a recording may have: 128 MB in single precision


@dataclass(frozen=True)
class ImaginedReturns:
    """Imagined undiscounted returns of K policies.

    Attributes:
        members: (K, M) float64, mean return over the initial states in each member, as far as it
            is trusted: see :attr:`~pbvf_offline.models.imagine.Imagined.trusted`.
        lengths: (K,) float64, mean number of steps of an episode.
        starts: (S, obs_dim) raw initial states, from which all were played.
        caution: How many population standard deviations of the members' returns a cautious
            value is below their mean.
        calibration: How wide intervals are; None where the model's check did not measure it.
        free: (K, M) float64, ``members`` without that limit, where they differ.
        unseen: Steps from which on the model's check says nothing of an episode, see
            :attr:`~pbvf_offline.models.check.ModelCheck.looked_until`.
    """

    members: NDArray[np.float64]
    lengths: NDArray[np.float64]
    starts: NDArray[np.float64]
    caution: float = RoundSettings.caution
    calibration: Calibration | None = None
    free: NDArray[np.float64] | None = None
    unseen: float = math.inf

    @property
    def free_members(self) -> NDArray[np.float64]:
        """(K, M): mean returns without that limit."""
        return self.members if self.free is None else self.free

    @property
    def mean(self) -> NDArray[np.float64]:
        """(K,): the members' mean."""
        value: NDArray[np.float64] = self.members.mean(axis=1)
        return value

    @property
    def cautious(self) -> NDArray[np.float64]:
        """(K,): the members' mean less caution, with the limit or without, whichever is lower.

        The limit lowers the members that exceed it, and can so make them agree more.
        """
        return np.minimum(
            cautious_values(self.members, self.caution),
            cautious_values(self.free_members, self.caution),
        )

    def limited(self, level: float = math.inf) -> NDArray[np.float64]:
        """Return cautious values (K,) of all that was imagined; above a level, trusted ones.

        Args:
            level: What is above it counts only as far as it is in :attr:`cautious`, so earned
                inside the box of the data.
        """
        all_imagined = cautious_values(self.free_members, self.caution)
        return np.minimum(all_imagined, np.maximum(self.cautious, level))

    @property
    def interval(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Low and high (K,) of an interval of the true return, 90 % on policies like the data's.

        As wide as the model's check found that errors ask for, see
        :class:`~pbvf_offline.models.calibration.Calibration`; over at most 200 steps and of the
        data's policies. Of policies that were optimised with the model fewer are inside. Without
        such a measurement by the members' deviation alone, see
        :func:`~pbvf_offline.models.members.interval_90`. Each end is the farther one with and
        without the limit on ``members``: what the check measured is without it. NaN where episodes
        are imagined to last for ``unseen`` steps on average, or more; None where the model has one
        member.
        """
        limited, free = self._interval(self.members), self._interval(self.free_members)
        if limited is None or free is None:
            return None
        known = self.lengths < self.unseen
        low, high = np.minimum(limited[0], free[0]), np.maximum(limited[1], free[1])
        return np.where(known, low, np.nan), np.where(known, high, np.nan)

    def _interval(
        self, members: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        if self.calibration is None:
            return interval_90(members)
        return self.calibration.interval(members, self.lengths)

    @property
    def interval_lists(self) -> list[list[float | None]] | None:
        """The same as lists for JSON, with None for NaN."""
        if (found := self.interval) is None:
            return None
        return [[None if np.isnan(x) else float(x) for x in end] for end in found]


def together(parts: Sequence[ImaginedReturns]) -> ImaginedReturns:
    """Return the returns of several groups of policies, evaluated alike."""
    return ImaginedReturns(
        np.concatenate([part.members for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        parts[0].starts,
        parts[0].caution,
        parts[0].calibration,
        np.concatenate([part.free_members for part in parts]),
        parts[0].unseen,
    )


@dataclass(frozen=True)
class ModelEvaluator:
    """A learned environment with what imagining whole episodes in it needs.

    Attributes:
        ensemble: The learned environment.
        initial: (E, obs_dim) raw first observations of episodes.
        horizon: Time limit of an episode.
        caution: As of :class:`ImaginedReturns`.
        check: What the model's check found; None before it.
        where: The model's file, for messages; None where none is known.

    Raises:
        UsageError: An episode has no steps, or more than :data:`MAX_HORIZON`.
    """

    ensemble: Ensemble
    initial: NDArray[np.float64]
    horizon: int
    caution: float = RoundSettings.caution
    check: ModelCheck | None = None
    where: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.horizon <= MAX_HORIZON:
            raise UsageError(
                f"an episode of {self.horizon:,} steps cannot be imagined; 1 to {MAX_HORIZON:,} can"
            )

    @classmethod
    def of(
        cls, model: ModelFile, horizon: int, caution: float = RoundSettings.caution
    ) -> ModelEvaluator:
        """Return the evaluator of a model's file, by default with the caution of rounds."""
        ensemble, initial = model.ensemble, model.initial_observations
        return cls(ensemble, initial, horizon, caution, model.check, model.where)

    def evaluate(
        self,
        policies: Policies,
        *,
        starts: int = STARTS,
        progress: Callable[[int, int], None] | None = None,
    ) -> ImaginedReturns:
        """Play policies in every member.

        What each comes to does not depend on the others, but for the last digits, since networks
        multiply blocks of any size.

        With stochastic policies each member and start has action noise of its own, the same for
        all policies. No round of imagination has seen that noise; a choice among candidates has.

        Args:
            policies: K policies, of any normaliser and architecture.
            starts: Number of initial states; all policies have the same ones.
            progress: Called with policies done and the total.

        Raises:
            IncompatibleError: They act in another environment than the model's.
            DivergedError: Their returns are not finite.
        """
        first = self.initial[np.linspace(0, len(self.initial) - 1, starts).astype(np.int64)]
        rng = generator(self.ensemble.settings.seed, Stream.IMAGINED_EVALUATION, starts)
        noise = self._noise(policies, first, rng)
        parts, size = [], _BLOCK if self.ensemble.device.type == "cpu" else _BLOCK_GPU
        for at in range(0, len(policies), size):
            end = min(at + size, len(policies))
            block = policies.select(np.arange(at, end))
            parts.append(self._returns(self._imagine(block, first, noise), first))
            if progress is not None:
                progress(end, len(policies))
        return together(parts)

    def judge(
        self,
        policies: Policies,
        candidates: int,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> NDArray[np.float64]:
        """Return the values (N,) by which one of the candidates of each policy is kept.

        These are their cautious returns. Of more than 8 candidates all are played from 4 initial
        states first. The 8 that come out best are played from 16, like other policies, and the
        others are worth minus infinity.

        Args:
            policies: N policies; the candidates of each wanted one stand together.
            candidates: How many those are.
            progress: Called with policies done and the total.

        Raises:
            IncompatibleError: They act in another environment than the model's.
            DivergedError: Their returns are not finite.
        """
        if candidates <= _PLAYED_FULLY:
            return self.evaluate(policies, progress=progress).cautious
        first = self.evaluate(policies, starts=_FIRST_STARTS, progress=progress).cautious
        groups = first.reshape(-1, candidates)
        best = np.argsort(-groups, axis=1, kind="stable")[:, :_PLAYED_FULLY]
        rows = np.sort((best + candidates * np.arange(len(best))[:, None]).ravel())
        values = np.full(len(policies), -np.inf)
        values[rows] = self.evaluate(policies.select(rows), progress=progress).cautious
        return values

    def play(
        self,
        policies: Policies,
        starts: NDArray[np.float64],
        rng: np.random.Generator,
        *,
        record: bool = False,
        after_block: Callable[[Policies, Imagined, ImaginedReturns], None] | None = None,
    ) -> ImaginedReturns:
        """Play K policies in every member, from given starts and with given noise.

        With stochastic policies each member and start has action noise of its own, the same
        for all policies. So the members' deviation, and caution, hold the luck of the noise too.

        Args:
            policies: The policies.
            starts: (S, obs_dim) raw first observations.
            rng: Source of the action noise of stochastic policies.
            record: Record every step for ``after_block``.
            after_block: Called with policies, their episodes and their returns; with a few
                policies at a time where steps are recorded.
        """
        noise, spec = self._noise(policies, starts, rng), policies.spec
        numbers = spec.obs_dim + spec.actions.outputs + 2  # of a recorded step; rewards are double
        recorded = numbers * self.horizon * self.ensemble.members * len(starts)
        size = max(1, _RECORDED // recorded) if record else len(policies)
        parts = []
        for at in range(0, len(policies), size):
            block = policies.select(np.arange(at, min(at + size, len(policies))))
            imagined = self._imagine(block, starts, noise, record=record)
            parts.append(self._returns(imagined, starts))
            if after_block is not None:
                after_block(block, imagined, parts[-1])
        return together(parts)

    def _noise(
        self, policies: Policies, starts: NDArray[np.float64], rng: np.random.Generator
    ) -> Tensor | None:
        return action_noise(policies.spec, rng, self.horizon, self.ensemble.members, len(starts))

    def _imagine(
        self,
        policies: Policies,
        starts: NDArray[np.float64],
        noise: Tensor | None,
        *,
        record: bool = False,
    ) -> Imagined:
        own = self.ensemble.scales.normaliser
        theta = policies.in_normaliser(own.mean, own.std)
        return imagine(
            self.ensemble, policies.spec, theta, starts, self.horizon, noise=noise, record=record
        )

    def _returns(self, imagined: Imagined, starts: NDArray[np.float64]) -> ImaginedReturns:
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused
            found = ImaginedReturns(
                imagined.trusted.mean(axis=1),
                imagined.lengths.mean(axis=(1, 2)),
                starts,
                self.caution,
                None if self.check is None else self.check.calibration,
                imagined.member_values(),
                math.inf if self.check is None else self.check.looked_until,
            )
            sums = found.mean, found.free_members.mean(axis=1), found.cautious
        if not all(np.isfinite(part).all() for part in sums):
            raise DivergedError(
                "the learned environment's returns are not finite",
                where=self.where,
                remedy="learn it again, from rewards of a smaller scale",
            )
        return found


def best_of_the_data(
    critic: CriticFile,
    evaluator: ModelEvaluator,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.float64]:
    """Return the cautious values (≤ 5,) of the dataset's best policies, highest first.

    Of the policies that the critic's file keeps. All are played from one initial state, the
    best 20 of them from as many as any other policy.

    Args:
        critic: The critic.
        evaluator: The learned environment.
        progress: Called with policies played and the total.

    Raises:
        IncompatibleError: The policies act in another environment than the model's.
    """
    known = critic.policies(critic.context.theta)
    glance = evaluator.evaluate(known, starts=1, progress=progress).cautious
    liked = known.select(np.argsort(-glance, kind="stable")[:_PLAYED_AGAIN])
    return np.sort(evaluator.evaluate(liked).cautious)[::-1][:BEST_SHOWN]


def known_horizon(critic: CriticFile, model: ModelFile) -> tuple[int, str]:
    """Return the time limit of an episode in steps, and where it is from; nothing is built.

    That of the critic's own imagined episodes, else that which ended episodes of the model's data,
    else that of the environment, see :func:`~pbvf_offline.envs.make.named_limit`, else the longest
    episode of these data.

    Raises:
        UsageError: The model was not checked, so that it says nothing of episodes.
    """
    if critic.imagined is not None:
        return critic.imagined.horizon, "the critic's imagined episodes"
    if model.check is not None and model.check.time_limit is not None:
        return model.check.time_limit, "the time limit in the model's data"
    for environment in (critic.context.environment, model.environment):
        limit = None if environment is None else named_limit(environment)
        if limit is not None:
            return limit, "the environment's time limit"
    if model.check is None:
        raise UsageError("nothing says how many steps an episode has", where="--model")
    return model.check.episode_steps, "the longest episode of the model's data"


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
        # Where the check could not look far enough, the refusal says what helps: no training does.
        more = "collect more data, train it longer, or " if model.check.shortage is None else "or "
        forced = ", or use it all the same with --force (which predict and synthesize do not have)"
        choice = "" if force is None else forced
        raise IncompatibleError(
            refusal,
            remedy=f"{more}leave --model out{choice}",
        )
