"""Policies as data: ``(spec, theta, obs_mean, obs_std)``.

Layout of ``theta`` (float32): for a stochastic policy over continuous actions ``log_std``
(act_dim) first, then the parameters of the network as its family lays them out.

This module is numpy only, so that worker processes that roll policies out never import torch.
Its differentiable twin is :mod:`pbvf_offline.policies.batch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import IncompatibleError, UsageError, counted
from pbvf_offline.policies.actor import Actor, check_values
from pbvf_offline.policies.spec import PolicySpec

INITIAL_LOG_STD = -0.5


def init_theta(spec: PolicySpec, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw fresh parameters as the family does; ``log_std`` starts at -0.5.

    Returns:
        (D,) float32.
    """
    log_std = np.full(spec.log_std_size, INITIAL_LOG_STD)
    return np.concatenate([log_std, spec.network.initial(spec, rng)]).astype(np.float32)


def perturb(
    theta: NDArray[np.float32], sigma: float, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Return ``theta + epsilon`` with ``epsilon ~ N(0, sigma^2 I)`` (paper, section 4).

    theta is (D,) float32, ``log_std`` included.
    """
    noise = rng.standard_normal(theta.shape)
    with np.errstate(over="ignore"):  # whoever uses the result refuses what is not finite
        return (theta.astype(np.float64) + sigma * noise).astype(np.float32)


def renormalise(
    spec: PolicySpec,
    theta: NDArray[np.float32],
    obs_mean: NDArray[np.float64],
    obs_std: NDArray[np.float64],
    new_mean: NDArray[np.float64],
    new_std: NDArray[np.float64],
    numbers: Sequence[int] | NDArray[np.integer[Any]] | None = None,
) -> NDArray[np.float32]:
    """Re-express policies in another normaliser, keeping every action.

    Args:
        spec: Architecture shared by all rows.
        theta: (K, D) float32.
        obs_mean: (K, obs_dim), the present means.
        obs_std: (K, obs_dim), the present standard deviations.
        new_mean: (obs_dim,), the mean wanted.
        new_std: (obs_dim,), the standard deviation wanted.
        numbers: (K,) what messages call the policies; 0, 1, … when None.

    Raises:
        IncompatibleError: The parameters wanted are beyond single precision.

    Returns:
        (K, D) float32; rows already in the wanted normaliser come back bit for bit.
    """
    result = np.array(theta)
    rows = np.flatnonzero(np.any((obs_mean != new_mean) | (obs_std != new_std), axis=-1))
    if len(rows):
        mean, std = obs_mean[rows], obs_std[rows]
        params = result[:, spec.log_std_size :]
        with np.errstate(all="ignore"):  # what overflows is refused
            spec.network.renormalise(spec, params, rows, new_std / std, (new_mean - mean) / std)
        beyond = np.flatnonzero(~np.isfinite(result).all(axis=1))
        if len(beyond):
            first = int(beyond[0])
            more = f" (and {len(beyond) - 1:,} more)" if len(beyond) > 1 else ""
            raise IncompatibleError(
                f"policy {first if numbers is None else numbers[first]}{more} cannot be expressed "
                "in another normaliser in single precision: its obs_std goes down to "
                f"{obs_std[first].min():.2g}, the other's up to {new_std.max():.2g}",
                remedy="leave such policies out",
            )
    return result


@dataclass(frozen=True)
class Policies:
    """K policies of one architecture.

    Attributes:
        spec: Architecture shared by all.
        theta: (K, D) float32.
        obs_mean: (K, obs_dim) float64, in the observation's unit.
        obs_std: (K, obs_dim) float64, positive, in the observation's unit.

    Raises:
        UsageError: Shapes do not fit the spec, or values are not finite (std: not positive).
    """

    spec: PolicySpec
    theta: NDArray[np.float32]
    obs_mean: NDArray[np.float64]
    obs_std: NDArray[np.float64]

    def __post_init__(self) -> None:
        rows = self.theta.shape[0] if self.theta.ndim == 2 else -1
        for name, array, width, dtype in (
            ("theta", self.theta, self.spec.size, np.float32),
            ("obs_mean", self.obs_mean, self.spec.obs_dim, np.float64),
            ("obs_std", self.obs_std, self.spec.obs_dim, np.float64),
        ):
            if array.shape != (rows, width) or array.dtype != dtype:
                raise UsageError(
                    f"{name} is {array.dtype} of shape {array.shape}; "
                    f"{np.dtype(dtype)} of shape (K, {width}) with one K for all is expected"
                )
            check_values(name, array)

    def __len__(self) -> int:
        return int(self.theta.shape[0])

    @property
    def params(self) -> NDArray[np.float32]:
        """(K, n) the networks' parameters: theta without ``log_std``."""
        return self.theta[:, self.spec.log_std_size :]

    def select(self, rows: Sequence[int] | NDArray[np.integer[Any]]) -> Policies:
        """Return the given rows as policies."""
        index = np.asarray(rows, dtype=np.int64)
        return Policies(self.spec, self.theta[index], self.obs_mean[index], self.obs_std[index])

    def actor(self, row: int) -> Actor:
        """Return policy ``row`` ready to act."""
        mean, std = self.obs_mean[row], self.obs_std[row]
        return Actor(self.spec, self.theta[row], mean, std, trusted=True)

    def in_normaliser(
        self,
        mean: NDArray[np.float64],
        std: NDArray[np.float64],
        numbers: Sequence[int] | NDArray[np.integer[Any]] | None = None,
    ) -> NDArray[np.float32]:
        """Return theta (K, D) re-expressed in one normaliser; see :func:`renormalise`.

        Raises:
            IncompatibleError: The normaliser is of other observations, or parameters in it are
                beyond single precision.
        """
        if mean.shape != (self.spec.obs_dim,):
            raise IncompatibleError(
                f"the policies observe {counted(self.spec.obs_dim, 'number')}, and the normaliser "
                f"is of {mean.size:,}",
                remedy="give policies with the same observations",
            )
        return renormalise(self.spec, self.theta, self.obs_mean, self.obs_std, mean, std, numbers)
