"""One policy acting, one observation at a time (numpy)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import UsageError
from pbvf_offline.policies.actions import DiscreteActions, box_action
from pbvf_offline.policies.families.base import FloatArray, Forward
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

    Attributes:
        logits: The function from one raw observation (obs_dim,) to the raw network output
            (outputs,), float64.
        to_action: The function from pre-squash outputs (…, act_dim) to executed actions; see
            :func:`~pbvf_offline.policies.actions.box_action`. Box actions only.

    Raises:
        UsageError: theta is not ``spec.size`` long.
    """

    logits: Forward
    to_action: Callable[[NDArray[np.float64]], NDArray[Any]]

    def __init__(
        self, spec: PolicySpec, theta: FloatArray, obs_mean: FloatArray, obs_std: FloatArray
    ) -> None:
        if theta.shape != (spec.size,):
            raise UsageError(
                f"theta has shape {theta.shape}; a {spec.arch} policy with "
                f"{spec.obs_dim} observations needs ({spec.size},)"
            )
        wide = np.asarray(theta, np.float64)
        mean, std = np.asarray(obs_mean, np.float64), np.asarray(obs_std, np.float64)
        self.logits = spec.network.forward(spec, wide[spec.log_std_size :], mean, std)
        self._spec = spec
        self._std = np.exp(wide[: spec.log_std_size])
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
