"""Imagined episodes as tagged trajectories, like those of a dataset."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.imagine import Recording
from pbvf_offline.policies.actions import BoxActions, box_action
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.episodes import Trajectories


def imagined_trajectories(
    ensemble: Ensemble, policies: Policies, recording: Recording, lengths: NDArray[np.int64]
) -> Trajectories:
    """Lay imagined episodes end to end: those of a policy together, by start, then by member.

    Args:
        ensemble: The learned environment.
        policies: The K policies that were played.
        recording: Their steps.
        lengths: (K, S, M) int64, steps of each episode.

    Returns:
        K S M episodes of raw observations and executed actions. An episode that the time limit
        ended is truncated.
    """
    spec, own = policies.spec, ensemble.scales.normaliser
    flat = lengths.reshape(-1)
    steps = recording.rewards.shape[-1]
    played = np.arange(steps) < lengths[..., None]
    seen = np.arange(steps + 1) <= lengths[..., None]
    outputs = recording.outputs[played].astype(np.float64)
    if isinstance(spec.actions, BoxActions):
        actions = box_action(spec.actions, spec.squash)(outputs.copy())
    else:
        actions = outputs.argmax(axis=1) + spec.actions.start
    start = np.append(0, np.cumsum(flat))
    last = np.zeros(len(outputs), bool)
    last[start[1:] - 1] = True
    terminated = np.zeros(len(outputs), bool)
    terminated[start[1:] - 1] = recording.ended.reshape(-1)
    each = lengths.reshape(len(policies), -1).sum(axis=1)
    return Trajectories(
        policies=policies,
        observations=recording.states[seen] * own.std + own.mean,
        actions=actions,
        rewards=recording.rewards[played],
        terminated=terminated,
        truncated=last & ~terminated,
        policy=np.repeat(np.arange(len(policies), dtype=np.int32), each),
        start=start,
        cut=np.zeros(len(flat), bool),
        seeds=np.full(len(flat), -1, np.int64),
        pre_action=outputs if spec.stochastic and spec.is_continuous else None,
    )
