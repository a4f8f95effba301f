"""An ensemble of dynamics networks, and the steps that it learns from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbvf_offline.models.network import BatchedMLP
from pbvf_offline.models.scales import Scales, action_inputs, action_width
from pbvf_offline.models.settings import ModelSettings
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.seeding import Stream, generator


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

    def __init__(self, spec: PolicySpec, scales: Scales, settings: ModelSettings) -> None:
        super().__init__()
        self.spec, self.scales, self.settings = spec, scales, settings
        width = spec.obs_dim * (3 if settings.angles else 1) + action_width(spec)
        self.network = BatchedMLP(
            settings.members,
            width,
            settings.hidden,
            spec.obs_dim + 1 + int(scales.ends),
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
            self.register_buffer(name, torch.from_numpy(np.asarray(value, np.float32)))

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.mean.device

    @property
    def members(self) -> int:
        """Number M of networks."""
        return self.settings.members

    def outputs(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return the raw outputs (M, B, obs_dim + 1 or 2), in units of their spreads.

        Args:
            obs: (M, B, obs_dim) normalised.
            action: (M, B, action inputs).
        """
        parts = [obs, action / self.action_std]
        if self.settings.angles:
            raw = obs * self.std + self.mean
            parts += [torch.sin(raw), torch.cos(raw)]
        out: Tensor = self.network(torch.cat(parts, dim=-1))
        return out

    def step(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Imagine one step of each member in its own observations.

        Args:
            obs: (M, B, obs_dim) normalised.
            action: (M, B, action inputs).

        Returns:
            ``(next_obs (M, B, obs_dim), reward (M, B) float64, ended (M, B))``: kept inside the box
            and the range of the data; ended where termination is more likely than not.
        """
        out = self.outputs(obs, action)
        size = self.spec.obs_dim
        change = torch.addcmul(self.change_mean, out[..., :size], self.change_std)
        ahead = torch.clamp(obs + change, self.low, self.high)
        scales = self.scales
        reward = out[..., size].double() * scales.reward_std + scales.reward_mean
        reward = reward.clamp(scales.reward_low, scales.reward_high)
        ended = (
            out[..., size + 1] > 0 if scales.ends else torch.zeros_like(reward, dtype=torch.bool)
        )
        return ahead, reward, ended


@dataclass(frozen=True)
class Steps:
    """What an ensemble learns from, as tensors of N steps.

    Attributes:
        obs: (N, obs_dim) float32, normalised.
        change: (N, obs_dim) float32, change of the normalised observation.
        action: (N, action inputs) float32.
        reward: (N,) float32, standardised.
        ended: (N,) float32, 1 where the step terminated.
        last: (N,) int64, up to which of the N the steps follow each other in one episode.
    """

    obs: Tensor
    change: Tensor
    action: Tensor
    reward: Tensor
    ended: Tensor
    last: Tensor

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
        time limit or a step budget is no change of the environment.
        """
        row = data.obs_index[step]
        obs = data.observations[row].astype(np.float64)
        after = data.observations[row + 1].astype(np.float64)
        reward = (data.rewards[step] - scales.reward_mean) / scales.reward_std
        episode = data.episode[step]
        breaks = np.flatnonzero((np.diff(step) != 1) | (np.diff(episode) != 0))
        ends = np.append(breaks, len(step) - 1)
        tensors = (
            _float(scales.normaliser.apply(obs)),
            _float((after - obs) / scales.normaliser.std),
            action_inputs(data.policies.spec, data.actions[step]),
            _float(reward),
            _float(data.terminated[step]),
            torch.from_numpy(np.repeat(ends, np.diff(ends, prepend=-1))),
        )
        return cls(*(tensor.to(device) for tensor in tensors))

    def __len__(self) -> int:
        return int(self.reward.shape[0])


def _float(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.float32))
