"""Action noise of stochastic policies in imagined episodes: drawn, or that of stored steps."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbvf_offline.io.mapped import taken
from pbvf_offline.policies.actions import DiscreteActions
from pbvf_offline.policies.recompute import Recomputation
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories

_LARGEST = 1e6  # where noise has hardly any spread, rounding makes it as large as it likes
_SMALLEST = 1e-30


def action_noise(spec: PolicySpec, rng: np.random.Generator, *shape: int) -> Tensor | None:
    """Return independent noise (*shape, outputs) of stochastic policies; None for others.

    Standard normal, or Gumbel for discrete actions.
    """
    if not spec.stochastic:
        return None
    full = (*shape, spec.actions.outputs)
    drawn = rng.standard_normal(full) if spec.is_continuous else rng.gumbel(size=full)
    return torch.from_numpy(drawn.astype(np.float32))


def stored_noise(
    data: Trajectories, policy: NDArray[np.int32], step: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.float32] | None:
    """Return the noise (n, outputs) with which stochastic policies acted as is stored.

    Continuous actions: what the stored pre-squash action differs by from the policy's mean.
    Discrete actions: Gumbel noise drawn given that the stored choice was taken.

    Args:
        data: The dataset.
        policy: (n,) the rows of its policies that acted.
        step: (n,) the steps, in which those of one policy follow each other.
        rng: Source of what is drawn.

    Returns:
        None for deterministic policies, and where pre-squash actions are not stored.
    """
    spec, actions, pre_action = data.policies.spec, data.policies.spec.actions, data.pre_action
    if not spec.stochastic or (spec.is_continuous and pre_action is None):
        return None
    rows, counts = _stretches(policy)
    acting = data.policies.select(rows)
    out = Recomputation(acting).outputs(
        range(len(rows)), counts.tolist(), taken(data.observations, data.obs_row_of(step))
    )
    if isinstance(actions, DiscreteActions):
        noise = _gumbel_given(out, data.actions[step] - actions.start, rng)
    else:
        std = np.exp(acting.theta[:, : spec.log_std_size].astype(np.float64))
        std = np.repeat(np.maximum(std, _SMALLEST), counts, axis=0)
        noise = np.clip((np.asarray(pre_action)[step] - out) / std, -_LARGEST, _LARGEST)
    return noise.astype(np.float32)


def _stretches(policy: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return each run of equal rows as its row and its length."""
    first = np.flatnonzero(np.diff(policy, prepend=-1))
    return policy[first], np.diff(first, append=len(policy))


def _gumbel_given(
    logits: NDArray[np.float64], choice: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draw Gumbel noise (n, choices) given that logits plus noise are highest at a choice (n,)."""
    drawn = logits + rng.gumbel(size=logits.shape)
    highest = np.logaddexp.reduce(logits, axis=1) + rng.gumbel(size=len(logits))
    # The others' values: Gumbel distributions cut off at the highest one.
    values: NDArray[np.float64] = -np.logaddexp(-highest[:, None], -drawn)
    values[np.arange(len(values)), choice] = highest
    return values - logits
