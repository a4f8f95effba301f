"""Whether a policy acts as its source does."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.policies.policy import BoxActions, Policies, PolicySpec

_TIE = 1e-4  # logits closer than this, of the largest, are equal in float32 and float64


def differences(
    policies: Policies, obs: NDArray[np.float64], action: NDArray[Any]
) -> NDArray[np.float64]:
    """Return how far one policy's mean actions are from what its source does.

    Args:
        policies: One policy.
        obs: (N, obs_dim), raw.
        action: (N, act_dim), or (N,) of a discrete policy.

    Returns:
        (N, act_dim), in units of the range, infinite where ``action`` is NaN; discrete: (N,), 1
        where another choice is better by more than rounding, else 0.
    """
    actor = policies.actor(0)
    outputs = np.array([actor.logits(row) for row in obs])
    actions = policies.spec.actions
    if isinstance(actions, BoxActions):
        ours = np.array([actor.to_action(out) for out in outputs], np.float64)
        spread = np.subtract(actions.high, actions.low)
        away: NDArray[np.float64] = np.abs(ours - action) / spread
        return np.where(np.isnan(away), np.inf, away)
    choice = np.asarray(action, np.float64) - actions.start
    valid = (choice >= 0) & (choice < actions.n) & (choice == np.floor(choice))
    theirs = outputs[np.arange(len(outputs)), np.where(valid, choice, 0).astype(np.int64)]
    worse = outputs.max(axis=1) - theirs > _TIE * np.maximum(1.0, np.abs(outputs).max(axis=1))
    return np.asarray(worse | ~valid, np.float64)


def how_far(spec: PolicySpec, away: NDArray[np.float64]) -> str:
    """Return differences in words."""
    if spec.is_continuous:
        return f"actions differ by up to {away.max():.3g} of the range in {len(away)} observations"
    return f"{away.mean():.1%} of {len(away)} choices differ"
