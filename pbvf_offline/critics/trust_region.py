"""Where in parameter space a critic can be trusted: near the policies it was fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbvf_offline.policies.batch import double_device
from pbvf_offline.policies.normaliser import column_moments

_QUANTILE = 0.95
_ROWS_PER_DIMENSION = 10


@dataclass(frozen=True)
class TrustRegion:
    """A Mahalanobis ball around the dataset's policies, all in the critic's normaliser.

    Attributes:
        center: (D,) float64, the mean theta.
        factor: (D, D) float64 lower Cholesky factor of the covariance, or (D,) its square
            root of the diagonal where there are too few policies for a full covariance.
        quantile: The 95 % quantile of the dataset's own distances.
    """

    center: NDArray[np.float64]
    factor: NDArray[np.float64]
    quantile: float

    @classmethod
    def of(cls, theta: NDArray[np.float32], *, off_the_data: float = 0.0) -> TrustRegion:
        """Fit the region to a dataset's policies theta (P, D).

        Directions without spread get a thousandth of the typical one, so that the region
        has a positive, if thin, extent in every direction.

        Args:
            theta: (P, D).
            off_the_data: Variance to add in every direction, in units of the mean one. With
                any, the full covariance is used however few policies there are.
        """
        rows, size = theta.shape
        center, variance = column_moments(theta)
        typical = float(np.median(variance[variance > 0])) if np.any(variance > 0) else 1.0
        floor = 1e-6 * typical
        if off_the_data > 0 or rows >= _ROWS_PER_DIMENSION * size:
            away = theta.astype(np.float64) - center
            floor += off_the_data * float(variance.mean())
            covariance = away.T @ away / rows + floor * np.eye(size)
            factor = np.linalg.cholesky(covariance)
        else:
            factor = np.sqrt(np.maximum(variance, floor))
        region = cls(center, factor, 0.0)
        distances = [
            region.distance(block).numpy() for block in torch.split(torch.from_numpy(theta), 512)
        ]
        quantile = float(np.quantile(np.concatenate(distances), _QUANTILE))
        return cls(center, factor, max(quantile, 1e-12))

    def whiten(self, theta: Tensor) -> Tensor:
        """Return thetas (K, D) as (K, D) float64 coordinates in which the region is a ball.

        They are on the thetas' device, or on the CPU where that has no double precision.
        """
        center, factor = self._on(theta.device)
        away = theta.to(center.device).double() - center
        if factor.dim() == 1:
            return away / factor
        solved: Tensor = torch.linalg.solve_triangular(factor, away.T, upper=False)
        return solved.T.contiguous()

    def colour(self, white: Tensor) -> Tensor:
        """Return the thetas (K, D) float32 of whitened coordinates: undoes :meth:`whiten`."""
        center, factor = self._on(white.device)
        away = white * factor if factor.dim() == 1 else white @ factor.T
        return (away + center).float()

    def pull_back(self, gradient: Tensor) -> Tensor:
        """Return gradients in theta (K, D) as gradients in whitened coordinates, float64."""
        _, factor = self._on(gradient.device)
        wide = gradient.detach().to(factor.device).double()
        return wide * factor if factor.dim() == 1 else wide @ factor

    def distance(self, theta: Tensor) -> Tensor:
        """Return the Mahalanobis distance of each theta (K, D) from the center, (K,) float64."""
        norm: Tensor = torch.linalg.vector_norm(self.whiten(theta), dim=1)
        return norm

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return center and factor where they are computed with, copied there once."""
        place = double_device(device)
        if place not in self._placed:
            both = (torch.from_numpy(self.center), torch.from_numpy(self.factor))
            self._placed[place] = (both[0].to(place), both[1].to(place))
        return self._placed[place]

    @cached_property
    def _placed(self) -> dict[torch.device, tuple[Tensor, Tensor]]:
        return {}

    @property
    def scale(self) -> float:
        """Typical length in theta of one whitened unit along one direction."""
        return float(np.sqrt(np.square(self.factor).sum() / len(self.center)))


def shrink(white: Tensor, radius: float) -> Tensor:
    """Return whitened coordinates (K, D) drawn straight to the center up to a radius."""
    norm = torch.linalg.vector_norm(white, dim=1, keepdim=True)
    shrunk: Tensor = white * torch.clamp(radius / norm.clamp_min(1e-300), max=1.0)
    return shrunk
