"""Blurring: a value is fitted to hold for all policies near the one that acted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.rollout.episodes import Trajectories


@dataclass(frozen=True)
class Blur:
    """Gaussian noise around each policy.

    Attributes:
        scale: (D,) float32, its standard deviation in each direction.
    """

    scale: Tensor

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """(D,): standard normal numbers needed for each drawn theta."""
        return tuple(self.scale.shape)

    def draw(self, theta: Tensor, rows: Tensor, noise: Tensor) -> Tensor:
        """Return parameters (B, D) around those of the policies ``rows`` (B,)."""
        return theta[rows] + self.scale * noise


def make(
    data: Trajectories,  # noqa: ARG001
    theta: NDArray[np.float32],
    normaliser: Normaliser,  # noqa: ARG001
    strength: float,
    device: torch.device,
) -> Blur:
    """Return noise in proportion to the dataset's own spread, direction by direction.

    Args:
        data: The dataset.
        theta: (P, D) its policies in the critic's normaliser.
        normaliser: The critic's normaliser.
        strength: Standard deviation of the noise over that of the dataset's policies.
        device: Where the tensors go.
    """
    scale = strength * theta.astype(np.float64).std(axis=0)
    return Blur(torch.from_numpy(scale.astype(np.float32)).to(device))
