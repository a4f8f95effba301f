"""The units in which an ensemble sees and predicts a dataset, and the box that holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbvf_offline.io.mapped import taken
from pbvf_offline.policies.actions import DiscreteActions
from pbvf_offline.policies.batch import to_unit
from pbvf_offline.policies.normaliser import MIN_STD, Normaliser, RunningStatistics
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories

_ROWS: Final = 2**18  # in memory at once; a multiple of the rows that statistics take in
_FEW: Final = 0.01  # share of the steps
_MOST: Final = 0.5  # of the variance of rewards
_AT_LIMIT: Final = 5  # steps of the data that lead exactly to a limit, at least
_SAMPLED: Final = 2**20  # rewards that are looked at


def has_sparse_rewards(data: Trajectories, step: NDArray[np.int64]) -> bool:
    """Return whether few steps, as those that reach a goal, have most of the rewards' variance.

    Few is one in a hundred, most more than half, of the steps that do not terminate: rewards of
    those that do are predicted apart. In movements of MuJoCo's environments few steps have 3 to
    32 % of it.

    Args:
        data: The dataset.
        step: (n,) the steps of it that are meant, at least one; of more than a million every k-th
            is looked at.
    """
    some = step[:: -(-len(step) // _SAMPLED)]
    rewards = taken(data.rewards, some).astype(np.float64)
    rewards = _some(rewards[~taken(data.terminated, some)], rewards)
    rewards /= float(np.abs(rewards).max()) or 1.0  # squares of huge rewards have no number
    away = np.square(rewards - rewards.mean())
    few = max(1, round(_FEW * len(away)))
    return bool(np.partition(away, -few)[-few:].sum() > _MOST * away.sum())


class RewardScale(NamedTuple):
    """Unit and range of the rewards of some steps.

    Attributes:
        mean: Mean reward of a step.
        std: Its standard deviation, positive.
        low: Smallest reward.
        high: Largest.
    """

    mean: float
    std: float
    low: float
    high: float

    @classmethod
    def of(cls, rewards: NDArray[np.floating]) -> RewardScale:
        """Take the scale of rewards (n,), at least one."""
        largest = float(np.abs(rewards).max()) or 1.0  # squares of huge rewards have no number
        return cls(
            mean=float(rewards.mean()),
            std=largest * max(float((rewards / largest).std()), MIN_STD),
            low=float(rewards.min()),
            high=float(rewards.max()),
        )


@dataclass(frozen=True)
class Scales:
    """Means, spreads and bounds of the steps that an ensemble learns from.

    Attributes:
        normaliser: Of the observations that were acted on.
        change_mean: (obs_dim,) float64, mean of ``next_obs - obs``.
        change_std: (obs_dim,) float64, positive, its standard deviation.
        action_std: (action inputs,) float64, positive, of actions in the policy's unit.
        low: (obs_dim,) float64, smallest observation of the data, final ones included.
        high: (obs_dim,) float64, largest.
        low_is_limit: (obs_dim,) bool, whether the environment itself keeps an observation from
            being smaller, as a wall or a speed limit does: steps of the data lead exactly there,
            5 at least. So it is known what happens there.
        high_is_limit: (obs_dim,) bool, the same of larger ones.
        reward: Of the steps that do not terminate; of all where every step does.
        ends: Whether a step of the data terminated.
        end_reward: Of the steps that terminate; None where none does, and of a model that was made
            before they were told apart, where ``reward`` is of all.
    """

    normaliser: Normaliser
    change_mean: NDArray[np.float64]
    change_std: NDArray[np.float64]
    action_std: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    low_is_limit: NDArray[np.bool_]
    high_is_limit: NDArray[np.bool_]
    reward: RewardScale
    ends: bool
    end_reward: RewardScale | None = None

    @classmethod
    def of(cls, data: Trajectories, step: NDArray[np.int64]) -> Scales:
        """Take the scales of the given steps of a dataset.

        Args:
            data: The dataset.
            step: (n,) the steps to learn from, at least one.
        """
        spec = data.policies.spec
        seen, changes = RunningStatistics(spec.obs_dim), RunningStatistics(spec.obs_dim)
        acted = RunningStatistics(action_width(spec))
        low, high = _Bound(spec.obs_dim), _Bound(spec.obs_dim)
        for at in range(0, len(step), _ROWS):
            some = step[at : at + _ROWS]
            row = data.obs_row_of(some)
            obs = taken(data.observations, row).astype(np.float64)
            after = taken(data.observations, row + 1).astype(np.float64)
            seen.update_in_blocks(obs)
            changes.update_in_blocks(after - obs)
            actions = action_inputs(spec, taken(data.actions, some))
            acted.update_in_blocks(actions.double().numpy())
            low.update(obs, after)
            high.update(-obs, -after)
        std = _spread(seen.variance)
        rewards, ended = taken(data.rewards, step), taken(data.terminated, step)
        ends = bool(ended.any())
        return cls(
            normaliser=Normaliser(seen.mean, std),
            change_mean=changes.mean,
            change_std=np.maximum(np.sqrt(changes.variance), MIN_STD * std),
            action_std=_spread(acted.variance),
            low=low.least,
            high=-high.least,
            low_is_limit=low.is_limit,
            high_is_limit=high.is_limit,
            reward=RewardScale.of(_some(rewards[~ended], rewards)),
            ends=ends,
            end_reward=RewardScale.of(rewards[ended]) if ends else None,
        )


class _Bound:
    """The smallest observation (obs_dim,) so far, and how many steps lead to it."""

    def __init__(self, obs_dim: int) -> None:
        self.least = np.full(obs_dim, np.inf)
        self._steps, self._arrivals = np.zeros(obs_dim, np.int64), np.zeros(obs_dim, np.int64)

    def update(self, obs: NDArray[np.float64], after: NDArray[np.float64]) -> None:
        """Take in observations before and after n steps, (n, obs_dim) each."""
        least = np.minimum(self.least, np.minimum(obs.min(axis=0), after.min(axis=0)))
        lower = least < self.least
        self.least = least
        there = after == least
        self._steps = there.sum(axis=0) + np.where(lower, 0, self._steps)
        arrivals = (there & (obs != least)).sum(axis=0)
        self._arrivals = arrivals + np.where(lower, 0, self._arrivals)

    @property
    def is_limit(self) -> NDArray[np.bool_]:
        """Whether many steps lead to it, not counting what never changes in an episode."""
        return (self._steps >= _AT_LIMIT) & (self._arrivals > 0)


def _some(values: NDArray[Any], otherwise: NDArray[Any]) -> NDArray[Any]:
    return values if len(values) else otherwise


def _spread(variance: NDArray[np.float64]) -> NDArray[np.float64]:
    std = np.sqrt(variance)
    return np.where(std < MIN_STD, 1.0, std)


def action_inputs(spec: PolicySpec, actions: NDArray[np.generic]) -> Tensor:
    """Return stored actions as networks see them: (n, action inputs) float32.

    Continuous actions (n, act_dim) in the policy's unit, discrete ones (n,) as one-hot rows.
    """
    if isinstance(spec.actions, DiscreteActions):
        choice = torch.from_numpy(np.asarray(actions, np.int64) - spec.actions.start)
        return torch.nn.functional.one_hot(choice, spec.actions.n).float()
    return to_unit(spec, torch.from_numpy(np.asarray(actions, np.float64))).float()


def action_width(spec: PolicySpec) -> int:
    """Return the number of network inputs that an action takes."""
    return spec.actions.outputs
