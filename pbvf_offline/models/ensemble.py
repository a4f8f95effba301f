"""An ensemble of dynamics networks, and the steps that it learns from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbvf_offline.io import columns
from pbvf_offline.io.columns import Column, StoredColumn
from pbvf_offline.io.mapped import taken
from pbvf_offline.models.network import BatchedMLP
from pbvf_offline.models.scales import (
    RewardScale,
    Scales,
    action_inputs,
    action_width,
    has_sparse_rewards,
)
from pbvf_offline.models.settings import ModelSettings
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.seeding import Stream, generator

_ROWS: Final = 2**18  # looked at together
_HELD: Final = 0.5  # of the spread of a change: what the box may take off a step unnoticed


class ImaginedStep(NamedTuple):
    """One step of B observations in each of M members, (M, B, …).

    Attributes:
        obs: (M, B, obs_dim) what it leads to, kept inside the box of the data.
        reward: (M, B) float64, in the range of the data's; where it ends, that of an end.
        ended: (M, B) bool, whether termination is more likely than not.
        held: (M, B) bool, whether the box kept the observation back by more than half of the
            spread of a step's change, and not where the environment itself does.
        going_on: (M, B) float64, chance 1 - p that it does not terminate; 0 where ``ended``.
        expected: (M, B) float64, reward by that chance: ``(1 - p) r + p r_end``; where ``ended``
            as ``reward``.
    """

    obs: Tensor
    reward: Tensor
    ended: Tensor
    held: Tensor
    going_on: Tensor
    expected: Tensor


class Ensemble(torch.nn.Module):
    """M networks that predict a step: change of the observation, reward, termination.

    Observations are in the units of ``scales.normaliser`` throughout, actions in the
    policy's unit or one-hot.

    Args:
        spec: Policies of the dataset; their architecture plays no part.
        scales: Units and bounds of the data.
        settings: Size, features and seed.
    """

    mean: Tensor
    std: Tensor
    low: Tensor
    high: Tensor
    change_mean: Tensor
    change_std: Tensor
    action_std: Tensor
    slack_low: Tensor
    slack_high: Tensor

    def __init__(self, spec: PolicySpec, scales: Scales, settings: ModelSettings) -> None:
        super().__init__()
        self.spec, self.scales, self.settings = spec, scales, settings
        width = spec.obs_dim * (3 if settings.angles else 1) + action_width(spec)
        self.network = BatchedMLP(
            settings.members,
            width,
            settings.hidden,
            spec.obs_dim + 1 + int(scales.ends) + int(scales.end_reward is not None),
            generator(settings.seed, Stream.MODEL_INIT),
            bfloat16=settings.bfloat16,
        )
        normaliser = scales.normaliser
        for name, value in (
            ("mean", normaliser.mean),
            ("std", normaliser.std),
            ("low", normaliser.apply(scales.low)),
            ("high", normaliser.apply(scales.high)),
            ("change_mean", scales.change_mean / normaliser.std),
            ("change_std", scales.change_std / normaliser.std),
            ("action_std", scales.action_std),
        ):
            # Mean and std may be beyond single precision. Only angles are made of them, and a loss
            # that is no number is noticed.
            with np.errstate(over="ignore"):
                self.register_buffer(name, torch.from_numpy(np.asarray(value, np.float32)))
        slack = _HELD * self.change_std
        for name, is_limit in (
            ("slack_low", scales.low_is_limit),
            ("slack_high", scales.high_is_limit),
        ):
            self.register_buffer(name, slack.masked_fill(torch.from_numpy(is_limit), torch.inf))

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.mean.device

    @property
    def members(self) -> int:
        """Number M of networks."""
        return self.settings.members

    def outputs(
        self, obs: Tensor, action: Tensor, network: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Return the raw outputs (m, B, outputs), in units of their spreads.

        They are the change of the observation, the reward, and where the data hold ends the logit
        of termination and the reward of a step that terminates.

        Args:
            obs: (m, B, obs_dim) normalised.
            action: (m, B, action inputs).
            network: Of some m members, see
                :meth:`~pbvf_offline.models.network.BatchedMLP.members`; of all by default.
        """
        parts = [obs, action / self.action_std]
        if self.settings.angles:
            raw = obs * self.std + self.mean
            parts += [torch.sin(raw), torch.cos(raw)]
        out: Tensor = (network or self.network)(torch.cat(parts, dim=-1))
        return out

    def step(self, obs: Tensor, action: Tensor) -> ImaginedStep:
        """Imagine one step of each member in its own observations.

        Args:
            obs: (M, B, obs_dim) normalised.
            action: (M, B, action inputs).
        """
        out = self.outputs(obs, action)
        size = self.spec.obs_dim
        change = torch.addcmul(self.change_mean, out[..., :size], self.change_std)
        free = obs + change
        ahead = torch.clamp(free, self.low, self.high)
        away = free - ahead
        held = ((away > self.slack_high) | (-away > self.slack_low)).any(dim=-1)
        scales = self.scales
        reward = _in_range(out[..., size], scales.reward)
        if not scales.ends:
            never = torch.zeros_like(reward, dtype=torch.bool)
            return ImaginedStep(ahead, reward, never, held, torch.ones_like(reward), reward)
        ended = out[..., size + 1] > 0
        going_on = torch.sigmoid(-out[..., size + 1].double()).masked_fill_(ended, 0.0)
        at_end = reward
        if scales.end_reward is not None:
            at_end = _in_range(out[..., size + 2], scales.end_reward)
        expected = torch.lerp(at_end, reward, going_on)
        reward = torch.where(ended, at_end, reward)
        return ImaginedStep(ahead, reward, ended, held, going_on, expected)


def _in_range(out: Tensor, scale: RewardScale) -> Tensor:
    return (out.double() * scale.std + scale.mean).clamp(scale.low, scale.high)


@dataclass(frozen=True)
class Steps:
    """What an ensemble learns from: columns of N steps, made of the data when indexed.

    Attributes:
        obs: (N, obs_dim) float32, normalised.
        change: (N, obs_dim) float32, change of the normalised observation.
        action: (N, action inputs) float32.
        reward: (N,) float32, standardised; of steps that terminate by their own scale.
        ended: (N,) float32, 1 where the step terminated.
        last: (N,) int64, up to which of the N the steps follow each other in one episode.
        sparse: Whether few of them have most of the rewards' variance, see
            :func:`~pbvf_offline.models.scales.has_sparse_rewards`.
    """

    obs: Column
    change: Column
    action: Column
    reward: Column
    ended: Column
    last: Column
    sparse: bool

    @classmethod
    def of(
        cls,
        data: Trajectories,
        scales: Scales,
        step: NDArray[np.int64],
        device: torch.device | None = None,
    ) -> Steps:
        """Return the given steps (n,) of a dataset, in increasing order, on a device.

        Each ends at its true next observation, whatever followed: a change of policy, a
        time limit or a step budget is no change of the environment. Few are turned
        into tensors, and so are all that go to a GPU.
        """
        normaliser, ends = scales.normaliser, _ends(data, step)
        sparse = has_sparse_rewards(data, step)

        def observations(rows: NDArray[np.int64], ahead: int = 0) -> NDArray[np.float64]:
            found = taken(data.observations, data.obs_row_of(step[rows]) + ahead)
            return found.astype(np.float64)

        def change(rows: NDArray[np.int64]) -> NDArray[np.float32]:
            obs = observations(rows)
            return _float((observations(rows, 1) - obs) / normaliser.std)

        def reward(rows: NDArray[np.int64]) -> NDArray[np.float32]:
            found = taken(data.rewards, step[rows])
            going_on, at_end = scales.reward, scales.end_reward or scales.reward
            ended = taken(data.terminated, step[rows])
            mean = np.where(ended, at_end.mean, going_on.mean)
            return _float((found - mean) / np.where(ended, at_end.std, going_on.std))

        def action(rows: NDArray[np.int64]) -> NDArray[np.float32]:
            return action_inputs(data.policies.spec, taken(data.actions, step[rows])).numpy()

        makes: dict[str, Callable[[NDArray[np.int64]], NDArray[Any]]] = {
            "obs": lambda rows: _float(normaliser.apply(observations(rows))),
            "change": change,
            "action": action,
            "reward": reward,
            "ended": lambda rows: _float(taken(data.terminated, step[rows])),
            "last": lambda rows: ends[np.searchsorted(ends, rows)],
        }
        device = device or torch.device("cpu")
        stored = {name: StoredColumn(len(step), make, device) for name, make in makes.items()}
        size = sum(column[:1].nbytes for column in stored.values())
        # A device of its own would wait for the rows of each step.
        if device.type != "cpu" or size * len(step) <= columns.AT_ONCE:
            return cls(**{name: column[:] for name, column in stored.items()}, sparse=sparse)
        return cls(**stored, sparse=sparse)

    def __len__(self) -> int:
        return len(self.reward)


def _ends(data: Trajectories, step: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return at which of some steps (n,) those end that follow each other in one episode."""
    found = []
    for at in range(0, len(step), _ROWS):
        some = step[at : at + _ROWS + 1]
        episode = data.episode_of(some)
        breaks = np.flatnonzero((np.diff(some) != 1) | (np.diff(episode) != 0))
        found.append(at + breaks)
    return np.append(np.concatenate(found), len(step) - 1)


def _float(values: NDArray[Any]) -> NDArray[np.float32]:
    return np.ascontiguousarray(values, np.float32)
