"""Stored actions recomputed: what policies do in many observations, and how far others are off.

Acting is done one observation at a time, in double precision
(:class:`~pbvf_offline.policies.actor.Actor`). Here the same network runs over many at once, so
the last digits differ with the order of summation: whoever compares needs a tolerance.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pbvf_offline.policies.actions import DiscreteActions, box_action
from pbvf_offline.policies.policy import Policies


class Recomputation:
    """The mean actions of policies in many observations.

    Args:
        policies: K policies.
    """

    def __init__(self, policies: Policies) -> None:
        spec = policies.spec
        self._actions = spec.actions
        self._forward = spec.network.batch_forward(
            spec, policies.params, policies.obs_mean, policies.obs_std
        )
        if not isinstance(spec.actions, DiscreteActions):
            self._to_action = box_action(spec.actions, spec.squash)

    def outputs(
        self,
        rows: Iterable[int],
        counts: Iterable[int],
        observations: NDArray[Any],
        dtype: DTypeLike = np.float64,
    ) -> NDArray[np.float64]:
        """Return the networks' outputs (n, outputs), one stretch of observations after another.

        Args:
            rows: The policy of each stretch.
            counts: Observations of each stretch, n in all.
            observations: (n, obs_dim) raw.
            dtype: What the networks compute in; see :meth:`PolicyFamily.single_precision`.
        """
        result = np.empty((len(observations), self._actions.outputs))
        start = 0
        # Schedules make stretches of one length: those go through the network together.
        for count, group in itertools.groupby(
            zip(counts, rows, strict=True), lambda piece: piece[0]
        ):
            alike = [row for _, row in group]
            there = slice(start, start + count * len(alike))
            start = there.stop
            if count:
                obs = observations[there].reshape(len(alike), count, -1)
                outputs = self._forward(alike, obs, dtype)
                result[there] = outputs.reshape(count * len(alike), -1)
        return result

    def actions(self, outputs: NDArray[np.float64]) -> NDArray[Any]:
        """Return the actions (n, act_dim), discrete: (n,), that outputs (n, outputs) mean."""
        if isinstance(self._actions, DiscreteActions):
            return np.asarray(self._actions.start + outputs.argmax(axis=1))
        return self._to_action(outputs)

    def apart(self, outputs: NDArray[np.float64], stored: NDArray[Any]) -> NDArray[np.float64]:
        """Return how far stored actions are from those that outputs (n, outputs) mean.

        Args:
            outputs: (n, outputs); for stochastic box policies pre-squash actions.
            stored: (n, act_dim), or (n,) discrete.

        Returns:
            (n, act_dim) in the action's unit; discrete: (n,), how far the logit of the stored
            choice is below the best one, infinite for what is no choice. NaN stays NaN.
        """
        actions = self._actions
        if not isinstance(actions, DiscreteActions):
            return np.asarray(np.abs(self._to_action(outputs).astype(np.float64) - stored))
        choice = np.asarray(stored, np.float64) - actions.start
        valid = (choice >= 0) & (choice < actions.n) & (choice == np.floor(choice))
        taken = outputs[np.arange(len(outputs)), np.where(valid, choice, 0).astype(np.int64)]
        return np.where(valid, outputs.max(axis=1) - taken, np.inf)
