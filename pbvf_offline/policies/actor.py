"""Policies acting: one policy and observation at a time, or several side by side (numpy)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import UsageError
from pbvf_offline.policies.actions import DiscreteActions, box_action
from pbvf_offline.policies.families.base import FloatArray, Forward
from pbvf_offline.policies.normaliser import NOT_POSITIVE, SMALLEST_STD
from pbvf_offline.policies.spec import PolicySpec


class Actor:
    """One policy ready to act, one observation at a time.

    The float32 parameters and the normaliser become a float64 network once; the result is cast
    once to the action's own dtype and clipped to its bounds.

    Args:
        spec: Architecture.
        theta: (D,) float32.
        obs_mean: (obs_dim,).
        obs_std: (obs_dim,), positive.
        trusted: Not to check the values, as where they were checked, or are drawn from such.

    Attributes:
        logits: The function from one raw observation (obs_dim,) to the raw network output
            (outputs,), float64.
        to_action: The function from pre-squash outputs (…, act_dim) to executed actions; see
            :func:`~pbvf_offline.policies.actions.box_action`. Box actions only.

    Raises:
        UsageError: Shapes do not fit the spec, or values are not finite (std: not positive).
    """

    logits: Forward
    to_action: Callable[[NDArray[np.float64]], NDArray[Any]]

    def __init__(
        self,
        spec: PolicySpec,
        theta: FloatArray,
        obs_mean: FloatArray,
        obs_std: FloatArray,
        *,
        trusted: bool = False,
    ) -> None:
        if not trusted:
            for name, array in (("theta", theta), ("obs_mean", obs_mean), ("obs_std", obs_std)):
                if np.asarray(array).dtype.kind not in "fiu":
                    raise UsageError(f"{name} is {np.asarray(array).dtype}, which are no numbers")
                if name != "theta" and np.shape(array) != (spec.obs_dim,):
                    raise UsageError(
                        f"{name} has shape {np.shape(array)}; ({spec.obs_dim},) is expected"
                    )
                check_values(name, array)
        params, mean, std, self._std = _wide(spec, theta, obs_mean, obs_std)
        self.logits = spec.network.forward(spec, params, mean, std)
        self._spec = spec
        if not isinstance(spec.actions, DiscreteActions):
            self.to_action = box_action(spec.actions, spec.squash)

    def act(
        self, obs: NDArray[Any], rng: np.random.Generator | None = None
    ) -> tuple[Any, NDArray[np.float64] | None]:
        """Return the action to execute and, for a stochastic box policy, its pre-squash value.

        Args:
            obs: (obs_dim,), raw, as the environment gave it.
            rng: Source of action noise; needed by stochastic policies only.

        Returns:
            The action, (act_dim,) in its own dtype or a numpy int64 where actions are discrete,
            and its value before squashing, (act_dim,) float64 or None.

        Raises:
            UsageError: A stochastic policy got no ``rng``.
        """
        out = self.logits(obs)
        spec = self._spec
        if spec.stochastic and rng is None:
            raise UsageError("a stochastic policy needs a random generator to act")
        if isinstance(spec.actions, DiscreteActions):
            if rng is not None and spec.stochastic:
                # Gumbel-max: argmax(logits + Gumbel noise) is a categorical sample.
                out = out + rng.gumbel(size=out.shape)
            return np.int64(spec.actions.start + int(np.argmax(out))), None
        if rng is not None and spec.stochastic:
            out += self._std * rng.standard_normal(out.shape)
            return self.to_action(out), out
        return self.to_action(out), None


class StackedActor:
    """Policies in rows, each of which acts on the observation of its row. Box actions only.

    What a row does has the same bits as what :class:`Actor` does.

    Args:
        spec: Architecture of all of them.
        rows: Number of rows; one that has no policy yet gives finite numbers that mean nothing.
    """

    def __init__(self, spec: PolicySpec, rows: int) -> None:
        assert not isinstance(spec.actions, DiscreteActions)
        self._spec = spec
        self._networks = spec.network.stacked(spec, rows)
        self._std = np.ones((rows, spec.log_std_size))
        self._to_action = box_action(spec.actions, spec.squash)

    def place(self, row: int, theta: FloatArray, obs_mean: FloatArray, obs_std: FloatArray) -> None:
        """Put a policy into a row.

        Raises:
            UsageError: theta is not ``spec.size`` long.
        """
        params, mean, std, self._std[row] = _wide(self._spec, theta, obs_mean, obs_std)
        self._networks.place(row, params, mean, std)

    def act(
        self, obs: FloatArray, noise: NDArray[np.float64] | None = None
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return the actions to execute and their values before squashing, (rows, act_dim) each.

        Args:
            obs: (rows, obs_dim) float64, raw.
            noise: (rows, act_dim) standard normal numbers, for stochastic policies.
        """
        out = self._networks(np.asarray(obs, np.float64))
        if noise is not None:
            out += self._std * noise
        return self._to_action(out), out


def check_values(name: str, array: FloatArray) -> None:
    """Check the values of ``theta``, ``obs_mean`` or ``obs_std`` of any shape.

    Raises:
        UsageError: They are not finite, or those of ``obs_std`` not positive.
    """
    if not np.all(np.isfinite(array)):
        raise UsageError(f"{name} holds NaN or infinite values")
    if name == "obs_std" and np.any(array < SMALLEST_STD):
        raise UsageError(f"{name} holds values that are {NOT_POSITIVE}")


def _wide(
    spec: PolicySpec, theta: FloatArray, obs_mean: FloatArray, obs_std: FloatArray
) -> tuple[NDArray[np.float64], ...]:
    """Return the network's parameters, the normaliser's mean and std, and the noise's std.

    Raises:
        UsageError: theta is not ``spec.size`` long.
    """
    if theta.shape != (spec.size,):
        raise UsageError(
            f"theta has shape {theta.shape}; a {spec.arch} policy with "
            f"{spec.obs_dim} observations needs ({spec.size},)"
        )
    wide = np.asarray(theta, np.float64)
    mean, std = np.asarray(obs_mean, np.float64), np.asarray(obs_std, np.float64)
    return wide[spec.log_std_size :], mean, std, np.exp(wide[: spec.log_std_size])
