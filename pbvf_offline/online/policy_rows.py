"""The policies of a replay buffer, in rows that its entries refer to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.policies.policy import Policies, renormalise
from pbvf_offline.policies.spec import PolicySpec

FIRST_ROWS = 256  # a power of two


class PolicyRows:
    """The policies that entries refer to by row; rows that nothing refers to are dropped.

    Attributes:
        count: Number of rows; only so many of the arrays below count.
        theta: (rows, D) float32, in each policy's own normaliser.
        mean: (rows, obs_dim) of that normaliser.
        std: (rows, obs_dim) of it.
        total: (rows,) undiscounted return of the policy's episode, NaN until it ended.
        shown: (rows, D), what the critic sees.
    """

    def __init__(self, spec: PolicySpec, device: torch.device) -> None:
        self.spec, self.device = spec, device
        self.count = 0
        self.theta = np.zeros((FIRST_ROWS, spec.size), np.float32)
        self.mean = np.zeros((FIRST_ROWS, spec.obs_dim))
        self.std = np.ones((FIRST_ROWS, spec.obs_dim))
        self.total = np.full(FIRST_ROWS, np.nan)
        self.shown = torch.zeros(FIRST_ROWS, spec.size, device=device)

    def make_room(self, rows: int) -> None:
        """Allocate so that ``rows`` policies fit."""
        while len(self.theta) < rows:  # what is in the new rows is written before it is read
            self.theta, self.mean, self.std, self.total = (
                np.concatenate([array, array])
                for array in (self.theta, self.mean, self.std, self.total)
            )
            self.shown = torch.cat([self.shown, self.shown])

    def add(self, policies: Policies) -> int:
        """Store one policy and return its row."""
        self.make_room(self.count + 1)
        row = self.count
        self.theta[row], self.mean[row] = policies.theta[0], policies.obs_mean[0]
        self.std[row], self.total[row] = policies.obs_std[0], np.nan
        self.count += 1
        return row

    def drop(self, rows: int) -> None:
        """Forget the first ``rows`` policies."""
        left = self.count - rows
        for array in (self.theta, self.mean, self.std, self.total):
            array[:left] = array[rows : self.count].copy()
        self.shown[:left] = self.shown[rows : self.count].clone()
        self.count = left

    def show(self, first: int, normaliser: Normaliser | None) -> None:
        """Bring what the critic sees of the rows from ``first`` on up to date."""
        rows = slice(first, self.count)
        theta = self.theta[rows]
        if normaliser is not None:
            theta = renormalise(
                self.spec, theta, self.mean[rows], self.std[rows], normaliser.mean, normaliser.std
            )
        self.shown[rows] = torch.from_numpy(theta).to(self.device)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays from which :meth:`restore` makes equal rows."""
        kept = slice(0, self.count)
        return {
            "policy_theta": self.theta[kept],
            "policy_mean": self.mean[kept],
            "policy_std": self.std[kept],
            "policy_total": np.nan_to_num(self.total[kept]),
            "policy_ended": (~np.isnan(self.total[kept])).astype(np.uint8),
        }

    def restore(self, count: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over ``count`` rows, shown as they are stored."""
        self.make_room(count)
        self.count = count
        kept = slice(0, count)
        self.theta[kept], self.mean[kept] = arrays["policy_theta"], arrays["policy_mean"]
        self.std[kept] = arrays["policy_std"]
        self.total[kept] = np.where(arrays["policy_ended"] == 1, arrays["policy_total"], np.nan)
        self.show(0, None)
