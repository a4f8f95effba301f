"""Recomputed actions: is a stored action the one of the policy that its tag names?

Where the policy family allows it, networks run in single precision first: a stretch is believed
only where that agrees with double precision at three of its steps and the stored action is well
within the tolerance; the rest runs again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import DamagedError, shorten
from pbvf_offline.policies.actions import BoxActions, DiscreteActions
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.recompute import Recomputation
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories

ACTION_TOLERANCE: Final = 1e-5
"""How far a recomputed action may be from the stored one, as a part of the range."""

LOGIT_TOLERANCE: Final = 1e-4
"""How far the logit of a stored discrete action may be below the best one."""

_BELIEVED: Final = 0.05  # of the tolerance: how far single precision may be off at a probe
_WELL_WITHIN: Final = 0.5  # of the tolerance
_BATCH_VALUES: Final = 2**17  # in the widest layer: such a batch stays in the cache
_BATCH_PARAMETERS: Final = 2**20

_Piece = tuple[int, int, int]  # a policy's row, first step, step after the last


def _batches(policy: NDArray[np.int32], spec: PolicySpec) -> Iterator[list[_Piece]]:
    """Yield stretches in which one policy acts, as many at once as memory should hold.

    Args:
        policy: (T,) the row that acted.
        spec: Architecture of all.
    """
    most_steps = max(1, _BATCH_VALUES // spec.network.width(spec))
    most_pieces = max(1, _BATCH_PARAMETERS // spec.size)
    ends = [*(np.flatnonzero(np.diff(policy)) + 1).tolist(), len(policy)]
    batch: list[_Piece] = []
    room = most_steps
    start = 0
    for end in ends:
        row = int(policy[start])
        while start < end:
            stop = min(end, start + most_steps)
            if batch and (stop - start > room or len(batch) == most_pieces):
                yield batch
                batch, room = [], most_steps
            batch.append((row, start, stop))
            room -= stop - start
            start = stop
    if batch:
        yield batch


class _Judge:
    """Compares stored actions with recomputed ones, within a part of the tolerance.

    Args:
        policies: The policies of an episode.
    """

    def __init__(self, policies: Policies) -> None:
        self.recomputed = Recomputation(policies)
        actions = policies.spec.actions
        self._discrete = isinstance(actions, DiscreteActions)
        self._tolerance: float | NDArray[np.float64] = LOGIT_TOLERANCE
        if isinstance(actions, BoxActions):
            low, high = np.array(actions.low), np.array(actions.high)
            # A coarse dtype cannot hold the tolerance: there its last place may differ.
            largest = np.maximum(abs(low), abs(high)).astype(actions.dtype)
            place = np.spacing(largest).astype(np.float64)
            self._tolerance = np.maximum(ACTION_TOLERANCE * (high - low), place)

    def wrong(
        self, outputs: NDArray[np.float64], stored: NDArray[Any], part: float = 1.0
    ) -> NDArray[np.bool_]:
        """Return (n,) where stored actions differ by more than ``part`` of the tolerance."""
        return self._beyond(self.recomputed.apart(outputs, stored), part)

    def differ(
        self, some: NDArray[np.float64], others: NDArray[np.float64], part: float
    ) -> NDArray[np.bool_]:
        """Return (n,) where two outputs differ by more than ``part`` of the tolerance."""
        if self._discrete:
            return self._beyond(np.abs(some - others), part)
        return self.wrong(some, self.recomputed.actions(others), part)

    def _beyond(self, apart: NDArray[np.float64], part: float) -> NDArray[np.bool_]:
        within = apart <= part * self._tolerance  # "not within", so that NaN counts as wrong
        return np.logical_not(within if within.ndim == 1 else np.all(within, axis=1))


def wrong_actions(episode: Trajectories) -> NDArray[np.int64]:
    """Return the steps whose stored action is not that of the policy which its tag names.

    See :func:`wrong_steps`.

    Args:
        episode: One episode.
    """
    return wrong_steps(
        episode.policies,
        episode.policy,
        episode.observations,
        episode.actions,
        episode.pre_action,
    )


def wrong_steps(
    policies: Policies,
    policy: NDArray[np.int32],
    observations: NDArray[Any],
    actions: NDArray[Any],
    pre_action: NDArray[np.float64] | None = None,
) -> NDArray[np.int64]:
    """Return the steps whose action is not that of the policy which is said to have acted.

    A deterministic action must be within :data:`ACTION_TOLERANCE` of the range (or one unit
    in the last place of a coarse dtype); the logit of a discrete one within
    :data:`LOGIT_TOLERANCE` of the best. Of stochastic policies the squashing of stored
    pre-squash actions is checked, and of discrete ones nothing can be.

    Args:
        policies: The policies.
        policy: (T,) the row that acted.
        observations: (T or more, obs_dim) raw; later rows are not looked at.
        actions: (T, act_dim), or (T,) of discrete actions.
        pre_action: (T, act_dim) before squashing, of stochastic policies.
    """
    spec = policies.spec
    if spec.stochastic and (pre_action is None or not spec.is_continuous):
        return np.empty(0, np.int64)
    judge = _Judge(policies)
    found = [np.empty(0, np.int64)]
    with np.errstate(all="ignore"):
        for batch in _batches(policy, spec):
            steps = slice(batch[0][1], batch[-1][2])
            if spec.stochastic and pre_action is not None:
                wrong = judge.wrong(pre_action[steps], actions[steps])
            else:
                wrong = _wrong_in_batch(judge, spec, batch, observations[steps], actions[steps])
            found.append(np.flatnonzero(wrong) + steps.start)
    return np.concatenate(found)


def telling_steps(policies: Policies, row: int, observations: NDArray[Any]) -> NDArray[np.int64]:
    """Return the steps where some choice would be wrong, so that the right one shows who acted.

    Elsewhere the logits of all choices are within :data:`LOGIT_TOLERANCE` of the best.

    Args:
        policies: Deterministic policies with discrete actions.
        row: The one that acts.
        observations: (n, obs_dim) raw.
    """
    with np.errstate(all="ignore"):
        logits = Recomputation(policies).outputs([row], [len(observations)], observations)
    return np.flatnonzero(logits.max(axis=1) - logits.min(axis=1) > LOGIT_TOLERANCE)


def _wrong_in_batch(
    judge: _Judge,
    spec: PolicySpec,
    batch: list[_Piece],
    observations: NDArray[Any],
    stored: NDArray[Any],
) -> NDArray[np.bool_]:
    """Return (n,) where the actions of a batch of stretches are wrong."""
    rows, starts, ends = (np.array(part) for part in zip(*batch, strict=True))
    names, counts = rows.tolist(), (ends - starts).tolist()
    starts, ends = starts - batch[0][1], ends - batch[0][1]
    networks = judge.recomputed
    if not spec.network.single_precision(spec):
        return judge.wrong(networks.outputs(names, counts, observations), stored)
    outputs = networks.outputs(names, counts, observations, np.float32)
    wrong = judge.wrong(outputs, stored, _WELL_WITHIN)
    probes = np.stack([starts, (starts + ends) // 2, ends - 1], axis=1)
    exact = networks.outputs(names, [3] * len(names), observations[probes.ravel()])
    off = judge.differ(outputs[probes.ravel()], exact, _BELIEVED)
    wrong |= np.repeat(off.reshape(probes.shape).any(axis=1), counts)
    if wrong.any():
        counts = np.add.reduceat(wrong, starts).tolist()
        outputs = networks.outputs(names, counts, observations[wrong])
        wrong[wrong] = judge.wrong(outputs, stored[wrong])
    return wrong


def expected_action(episode: Trajectories, step: int) -> Any:
    """Return the action that follows from the tag of a step of a single episode.

    Args:
        episode: One episode.
        step: A step for which :func:`wrong_actions` can tell.
    """
    recomputed = Recomputation(episode.policies)
    with np.errstate(all="ignore"):
        if episode.policies.spec.stochastic and episode.pre_action is not None:
            outputs = episode.pre_action[step : step + 1]
        else:
            row, obs = int(episode.policy[step]), episode.observations[step : step + 1]
            outputs = recomputed.outputs([row], [1], obs)
        return recomputed.actions(outputs)[0]


def action_error(episode: Trajectories, where: str) -> DamagedError | None:
    """Return what is wrong with the actions of an episode, or None.

    Args:
        episode: One episode.
        where: Its file and place, for the message.
    """
    wrong = wrong_actions(episode)
    if not wrong.size:
        return None
    step = int(wrong[0])
    return DamagedError(
        f"the actions of {wrong.size:,} of {len(episode):,} steps are not those of the "
        f"policies that the tags name, the first at step {step}: "
        f"{shorten(episode.actions[step], 80)} is stored, "
        f"{shorten(expected_action(episode, step), 80)} is what its policy does",
        where=where,
    )
