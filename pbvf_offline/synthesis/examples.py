"""What a critic is told of imagined policies, through the seam by which it learns from data.

A critic that learns from returns of whole episodes is told one number of each policy, its
worth: a cautious return. One that learns from steps is told steps of the policy's imagined
episodes, whose rewards are lowered so that they add up to its worth. With members' mean return
R, worth C and mean length L of the policy's episodes, each of its rewards is lowered by

    (R - C) / L

Over all episodes of the policy the lowered rewards then add up to R - L (R - C) / L = C on
average, whatever the episodes' lengths are; and the reward of a step, which a discounted value
goes by, falls by the same share of what caution takes off. Where the members agree nothing is
lowered.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from pbvf_offline.critics import TrainingSet
from pbvf_offline.critics.base import joined
from pbvf_offline.critics.kinds import CRITICS
from pbvf_offline.fit.loop import training_set
from pbvf_offline.fit.steps import Fit
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.imagine import Imagined
from pbvf_offline.models.trajectories import imagined_trajectories
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.files import concatenate
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.synthesis.model_evaluation import ImaginedReturns

_STEPS = 128  # of a policy that are told; n-step sums are over all of its steps
_LEAST_UNIT = 0.01  # of the largest value
_NUMBERS = 2**14  # of observations that they start from: fewer steps where those are wide


@dataclass(frozen=True)
class Scale:
    """Critics learn values of about unit spread: ``(V - shift) / unit``.

    Attributes:
        shift: Mean of the values that are told first.
        unit: Their standard deviation, and at least a hundredth of the largest. The first policies
            may all be worth the same, as where none reaches a goal, and later ones more.
    """

    shift: float
    unit: float

    @classmethod
    def of(cls, played: ImaginedReturns, gamma: float) -> Scale:
        """Return the scale of the values of policies, of all that was imagined of them.

        Discounted, a policy is worth what an episode would be worth that earned as much at every
        step: ``C (1 - gamma^L) / ((1 - gamma) L)``. What a truncated episode is still worth beyond
        its time limit is left out.
        """
        worth = played.limited()
        if gamma < 1:
            worth = worth * (1 - gamma**played.lengths) / ((1 - gamma) * played.lengths)
        largest = float(np.abs(worth).max()) or 1.0
        return cls(float(worth.mean()), max(float(worth.std()), _LEAST_UNIT * largest))


class Examples(ABC):
    """What a critic has been told of policies of one architecture, all rounds together."""

    records: ClassVar[bool]
    """Whether it needs the steps of imagined episodes."""

    @abstractmethod
    def add(
        self,
        policies: Policies,
        imagined: Imagined,
        played: ImaginedReturns,
        worth: NDArray[np.float64],
    ) -> None:
        """Take in policies that were played.

        Args:
            policies: The policies, in the critic's normaliser.
            imagined: Their episodes, recorded where wanted.
            played: What they came to.
            worth: (K,) float64, what the critic is told that they are worth.
        """

    @abstractmethod
    def training_set(self, scale: Scale) -> TrainingSet:
        """Return everything told so far, with values in a scale."""


class ReturnExamples(Examples):
    """For a Monte Carlo critic: each policy has one episode, which pays what it is worth.

    The episode has one step, that terminates.

    Args:
        fit: The critic in training.
    """

    records = False

    def __init__(self, fit: Fit) -> None:
        self._fit = fit
        self._told: list[tuple[Policies, NDArray[np.float64], NDArray[np.float64]]] = []

    def add(
        self,
        policies: Policies,
        imagined: Imagined,
        played: ImaginedReturns,
        worth: NDArray[np.float64],
    ) -> None:
        """Take in policies that were played; their steps are not looked at."""
        del imagined
        self._told.append((policies, worth, np.tile(played.starts[0], (len(policies), 1))))

    def training_set(self, scale: Scale) -> TrainingSet:
        """Return one entry a policy."""
        policies = concatenate([told for told, _, _ in self._told])
        values = np.concatenate([worth for _, worth, _ in self._told])
        first = np.concatenate([start for _, _, start in self._told])
        count, actions = len(values), policies.spec.actions
        ended = np.ones(count, bool)
        episodes = Trajectories(
            policies=policies,
            observations=np.repeat(first, 2, axis=0),
            actions=np.zeros((count, actions.dim), actions.dtype)
            if isinstance(actions, BoxActions)
            else np.full(count, actions.start),
            rewards=(values - scale.shift) / scale.unit,
            terminated=ended,
            truncated=~ended,
            policy=np.arange(count, dtype=np.int32),
            start=np.arange(count + 1),
            cut=~ended,
            seeds=np.full(count, -1),
        )
        return training_set(self._fit, episodes, self._fit.online.device, scaled_later=True)


class StepExamples(Examples):
    """For a critic that learns from steps: some of each policy's, with lowered rewards.

    The n-step target of each is over all steps that follow it. The first step of every episode
    is told, and others are drawn without replacement: up to 128 with those, or fewer where
    observations have more than 128 dimensions, so that what is told of a policy keeps its size.

    Told values v with bootstrap factor d become ``(v - shift (1 - d)) / unit``. If V solves
    ``V(s) = v + d V(s')``, then ``(V - shift) / unit`` solves that.

    Args:
        fit: The critic in training.
        ensemble: The learned environment.
        rng: Source of the choice of steps.
    """

    records = True

    def __init__(self, fit: Fit, ensemble: Ensemble, rng: np.random.Generator) -> None:
        self._fit, self._ensemble, self._rng = fit, ensemble, rng
        self._told: list[TrainingSet] = []

    def add(
        self,
        policies: Policies,
        imagined: Imagined,
        played: ImaginedReturns,
        worth: NDArray[np.float64],
    ) -> None:
        """Take in steps of policies that were played.

        Raises:
            ValueError: Their episodes were not recorded.
        """
        if imagined.recording is None:
            raise ValueError("the episodes were not recorded")
        data = imagined_trajectories(self._ensemble, policies, imagined.recording, imagined.lengths)
        device = self._fit.online.device
        lower = lowered(data, played, worth)
        whole = training_set(self._fit, lower, device, scaled_later=True)
        self._told.append(whole.picked(torch.from_numpy(_some_steps(data, self._rng)).to(device)))

    def training_set(self, scale: Scale) -> TrainingSet:
        """Return the steps of all policies."""
        told = joined(self._told)
        was = told.value[:]
        factor = torch.zeros_like(was) if told.discount is None else told.discount[:]
        value = (was - scale.shift * (1 - factor)) / scale.unit
        bounds = told.bounds
        if bounds is not None:
            low, high = ((bound - scale.shift) / scale.unit for bound in bounds)
            bounds = (low, high)
        return dataclasses.replace(told, value=value, bounds=bounds)


def lowered(
    data: Trajectories, played: ImaginedReturns, worth: NDArray[np.float64]
) -> Trajectories:
    """Return episodes of K policies with rewards lowered to what they are worth (K,).

    See the module: of policy k each reward is lowered by ``(mean - worth) / length``.
    """
    by = (played.free_members.mean(axis=1) - worth) / played.lengths
    return dataclasses.replace(data, rewards=data.rewards - by[data.policy])


def _some_steps(data: Trajectories, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return steps, of each policy the first of its episodes and others, in order."""
    is_first = np.zeros(len(data), bool)
    is_first[data.start[:-1]] = True
    chosen, most = [], min(_STEPS, _NUMBERS // data.policies.spec.obs_dim)
    for policy in range(len(data.policies)):
        own = np.flatnonzero(data.policy == policy)
        first, others = own[is_first[own]], own[~is_first[own]]
        drawn = rng.permutation(others)[: max(0, most - len(first))]
        chosen += [first, drawn]
    return np.sort(np.concatenate(chosen))


def examples_for(fit: Fit, ensemble: Ensemble, rng: np.random.Generator) -> Examples:
    """Return what a critic is told of policies: returns, or steps; see :class:`StepExamples`."""
    if CRITICS[fit.settings.kind].monte_carlo:
        return ReturnExamples(fit)
    return StepExamples(fit, ensemble, rng)
