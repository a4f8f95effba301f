"""Recomputed actions: is a stored action the one of the policy that its tag names?

Acting is done one observation at a time, in double precision
(:class:`pbvf_offline.policies.policy.Actor`). Here the same network runs over many at once, so the
last digits differ with the order of summation, and there are tolerances. Hidden layers run in
single precision first: a stretch is believed only where that agrees with double precision at
three of its steps and the stored action is well within the tolerance; the rest runs again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pbvf_offline.policies.policy import (
    BoxActions,
    DiscreteActions,
    Policies,
    PolicySpec,
    split_theta,
)
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
    most_steps = max(1, _BATCH_VALUES // max(spec.obs_dim, spec.actions.outputs, *spec.hidden, 1))
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


class _Networks:
    """The networks of all policies of an episode, each applied to many observations at once."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._layers = split_theta(policies.spec, policies.theta)[1]  # views, nothing is copied
        self._rooms: dict[tuple[str, np.dtype[Any]], NDArray[Any]] = {}

    @property
    def deep(self) -> bool:
        """Whether there are layers after the first one."""
        return len(self._layers) > 1

    def outputs(
        self,
        rows: Iterable[int],
        counts: Iterable[int],
        observations: NDArray[Any],
        dtype: DTypeLike,
    ) -> NDArray[np.float64]:
        """Return outputs (n, outputs) of the policies that acted, one stretch after another.

        Args:
            rows: The policy of each stretch.
            counts: Steps of each stretch, n in all.
            observations: (n, obs_dim) raw.
            dtype: Precision of all layers but the first. That one is always computed in
                double precision: what it sums up may be large and cancel, while the
                others see numbers between -1 and 1.
        """
        result = np.empty((len(observations), self._policies.spec.actions.outputs))
        start = 0
        # Schedules make stretches of one length: those go through each layer together.
        for count, group in itertools.groupby(
            zip(counts, rows, strict=True), lambda piece: piece[0]
        ):
            alike = [row for _, row in group]
            there = slice(start, start + count * len(alike))
            start = there.stop
            if count:
                obs = observations[there].reshape(len(alike), count, -1)
                result[there] = self._forward(alike, obs, dtype).reshape(count * len(alike), -1)
        return result

    def _forward(self, rows: list[int], obs: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
        """Return outputs (P, n, outputs) of P policies for n observations (P, n, obs_dim) each."""
        policies = self._policies
        # In order, as they nearly always are, they need not be copied.
        in_order = rows == list(range(rows[0], rows[0] + len(rows)))
        which = slice(rows[0], rows[0] + len(rows)) if in_order else rows
        # The normaliser is folded into the first layer, as an actor does.
        weight, bias = self._layers[0]
        folded = weight[which] / policies.obs_std[which, np.newaxis]
        shift = np.matmul(folded, policies.obs_mean[which, :, np.newaxis])[..., 0]
        x = self._layer(0, self._converted("observations", obs, np.float64), folded)
        x += (bias[which] - shift)[:, np.newaxis]
        for k, (weight, bias) in enumerate(self._layers[1:], 1):
            x = self._converted("input", x, dtype)
            np.tanh(x, out=x)
            x = self._layer(k, x, self._converted("weights", weight[which], dtype))
            x += bias[which, np.newaxis]
        return x

    def _layer(self, k: int, x: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
        """Return x (P, n, inputs) times weights (P, outputs, inputs), in an array that stays."""
        y = self._room(f"outputs {k}", (*x.shape[:2], weights.shape[1]), x.dtype)
        np.matmul(x, weights.swapaxes(1, 2), out=y)
        return y

    def _converted(self, name: str, values: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
        """Return values in a dtype, themselves where they have it."""
        if values.dtype == dtype:
            return values
        room = self._room(name, values.shape, dtype)
        room[:] = values
        return room

    def _room(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array to write to, cut from one that stays: a new one has no pages yet,
        and to get them takes as long as the arithmetic.
        """  # noqa: D205
        key, size = (name, np.dtype(dtype)), math.prod(shape)
        room = self._rooms.get(key)
        if room is None or len(room) < size:
            room = self._rooms[key] = np.empty(size, dtype)
        return room[:size].reshape(shape)


class _Judge:
    """Compares stored actions with those that follow from outputs of networks."""

    def __init__(self, policies: Policies) -> None:
        self._actions = policies.spec.actions
        self._actor = policies.actor(0)  # how outputs become actions is the same for all
        if isinstance(self._actions, BoxActions):
            low, high = np.array(self._actions.low), np.array(self._actions.high)
            # A coarse dtype cannot hold the tolerance: there its last place may differ.
            largest = np.maximum(abs(low), abs(high)).astype(self._actions.dtype)
            place = np.spacing(largest).astype(np.float64)
            self._tolerance = np.maximum(ACTION_TOLERANCE * (high - low), place)

    def wrong(
        self, outputs: NDArray[np.float64], stored: NDArray[Any], part: float = 1.0
    ) -> NDArray[np.bool_]:
        """Return (n,) where stored actions differ by more than ``part`` of the tolerance."""
        # Each time "not within", so that NaN counts as wrong.
        if isinstance(self._actions, DiscreteActions):
            taken = outputs[np.arange(len(stored)), stored - self._actions.start]
            within = taken >= outputs.max(axis=1) - part * LOGIT_TOLERANCE
        else:
            apart = np.abs(self._actor.to_action(outputs).astype(np.float64) - stored)
            within = np.all(apart <= part * self._tolerance, axis=1)
        return np.asarray(np.logical_not(within), np.bool_)

    def differ(
        self, some: NDArray[np.float64], others: NDArray[np.float64], part: float
    ) -> NDArray[np.bool_]:
        """Return (n,) where two outputs differ by more than ``part`` of the tolerance."""
        if isinstance(self._actions, DiscreteActions):
            within = np.all(np.abs(some - others) <= part * LOGIT_TOLERANCE, axis=1)
            return np.asarray(np.logical_not(within), np.bool_)
        return self.wrong(some, self._actor.to_action(others), part)


def wrong_actions(episode: Trajectories) -> NDArray[np.int64]:
    """Return the steps whose stored action is not that of the policy which its tag names.

    A deterministic action must be within :data:`ACTION_TOLERANCE` of the range (or one unit
    in the last place of a coarse dtype); the logit of a discrete one within
    :data:`LOGIT_TOLERANCE` of the best. Of stochastic policies the squashing of stored
    pre-squash actions is checked, and of discrete ones nothing can be.

    Args:
        episode: One episode.
    """
    policies = episode.policies
    spec, stored = policies.spec, episode.actions
    if spec.stochastic and (episode.pre_action is None or not spec.is_continuous):
        return np.empty(0, np.int64)
    judge, networks = _Judge(policies), _Networks(policies)
    found = [np.empty(0, np.int64)]
    with np.errstate(all="ignore"):
        for batch in _batches(episode.policy, spec):
            steps = slice(batch[0][1], batch[-1][2])
            if spec.stochastic and episode.pre_action is not None:
                wrong = judge.wrong(episode.pre_action[steps], stored[steps])
            else:
                wrong = _wrong_in_batch(
                    judge, networks, batch, episode.observations[steps], stored[steps]
                )
            found.append(np.flatnonzero(wrong) + steps.start)
    return np.concatenate(found)


def _wrong_in_batch(
    judge: _Judge,
    networks: _Networks,
    batch: list[_Piece],
    observations: NDArray[Any],
    stored: NDArray[Any],
) -> NDArray[np.bool_]:
    """Return (n,) where the actions of a batch of stretches are wrong."""
    rows, starts, ends = (np.array(part) for part in zip(*batch, strict=True))
    names, counts = rows.tolist(), (ends - starts).tolist()
    starts, ends = starts - batch[0][1], ends - batch[0][1]
    outputs = networks.outputs(names, counts, observations, np.float32)
    if not networks.deep:
        return judge.wrong(outputs, stored)
    wrong = judge.wrong(outputs, stored, _WELL_WITHIN)
    probes = np.stack([starts, (starts + ends) // 2, ends - 1], axis=1)
    exact = networks.outputs(names, [3] * len(names), observations[probes.ravel()], np.float64)
    off = judge.differ(outputs[probes.ravel()], exact, _BELIEVED)
    wrong |= np.repeat(off.reshape(probes.shape).any(axis=1), counts)
    if wrong.any():
        counts = np.add.reduceat(wrong, starts).tolist()
        outputs = networks.outputs(names, counts, observations[wrong], np.float64)
        wrong[wrong] = judge.wrong(outputs, stored[wrong])
    return wrong


def expected_action(episode: Trajectories, step: int) -> Any:
    """Return the action that follows from the tag of a step of a single episode.

    Args:
        episode: One episode.
        step: A step for which :func:`wrong_actions` can tell.
    """
    actor = episode.policies.actor(int(episode.policy[step]))
    actions = episode.policies.spec.actions
    with np.errstate(all="ignore"):
        if episode.policies.spec.stochastic and episode.pre_action is not None:
            return actor.to_action(episode.pre_action[step])
        outputs = actor.logits(episode.observations[step])
        if isinstance(actions, BoxActions):
            return actor.to_action(outputs)
        return actions.start + int(np.argmax(outputs))
