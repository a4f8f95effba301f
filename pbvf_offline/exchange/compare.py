"""Whether a policy acts as its source does."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.recompute import Recomputation
from pbvf_offline.policies.spec import PolicySpec

_TIE = 1e-4  # logits closer than this, of the largest, are equal in float32 and float64


def differences(
    policies: Policies, obs: NDArray[np.float64], action: NDArray[Any]
) -> NDArray[np.float64]:
    """Return how far one policy's mean actions are from its source's in raw obs (N, obs_dim).

    The source's are (N, act_dim), or (N,) of a discrete policy.

    Returns:
        (N, act_dim), in units of the range, infinite where ``action`` is NaN; discrete: (N,), 1
        where another choice is better by more than rounding, else 0.
    """
    recomputed = Recomputation(policies)
    outputs = recomputed.outputs([0], [len(obs)], obs)
    apart = recomputed.apart(outputs, action)
    actions = policies.spec.actions
    if isinstance(actions, BoxActions):
        away = apart / np.subtract(actions.high, actions.low)
        return np.where(np.isnan(away), np.inf, away)
    tie = _TIE * np.maximum(1.0, np.abs(outputs).max(axis=1))
    return np.asarray(apart > tie, np.float64)


def how_far(spec: PolicySpec, away: NDArray[np.float64]) -> str:
    """Return differences in words."""
    if spec.is_continuous:
        return f"actions differ by up to {away.max():.3g} of the range in {len(away)} observations"
    return f"{away.mean():.1%} of {len(away)} choices differ"
