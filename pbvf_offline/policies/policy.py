"""A policy as data: ``(spec, theta, obs_mean, obs_std)``, and how it acts.

This module is numpy only, so that worker processes that roll policies out never
import torch. Its differentiable twin is :mod:`pbvf_offline.policies.batch`.

Layout of ``theta`` (float32): for a stochastic policy over continuous actions
``log_std`` (act_dim) first; then layer by layer the weight (out, in) row by row and
the bias (out), which is the order of PyTorch's ``parameters_to_vector``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import DamagedError, UsageError
from pbvf_offline.setting_types import Squash

FloatArray = NDArray[np.floating[Any]]

INITIAL_LOG_STD = -0.5
MAX_LAYERS = 16
MAX_WIDTH = 65_536
MAX_PARAMETERS = 100_000_000
_FLOAT_DTYPES = ("float16", "float32", "float64")


@dataclass(frozen=True)
class BoxActions:
    """A finite box of continuous actions.

    Attributes:
        low: Lower bound of each action dimension, in the environment's unit.
        high: Upper bound of each action dimension, in the environment's unit.
        dtype: The action's own floating-point type, as numpy names it.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if len(self.low) == 0 or len(self.low) != len(self.high):
            raise UsageError(
                f"action bounds have lengths {len(self.low)} and {len(self.high)}; "
                "both need the same length, at least 1"
            )
        if self.dtype not in _FLOAT_DTYPES:
            raise UsageError(f"action dtype {self.dtype!r} is none of {', '.join(_FLOAT_DTYPES)}")
        for low, high in zip(self.low, self.high, strict=True):
            if not (math.isfinite(high - low) and low < high):
                raise UsageError(
                    f"action bounds [{low}, {high}] are not finite and increasing",
                    remedy="bound the action space, for example with gymnasium's ClipAction or "
                    "RescaleAction wrapper",
                )

    @property
    def dim(self) -> int:
        """Number of action dimensions."""
        return len(self.low)

    @property
    def outputs(self) -> int:
        """Number of network outputs."""
        return len(self.low)


@dataclass(frozen=True)
class DiscreteActions:
    """Actions ``start, start + 1, …, start + n - 1``."""

    n: int
    start: int = 0

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UsageError(f"a discrete action space needs at least 1 action, not {self.n}")

    @property
    def dim(self) -> int:
        """Number of stored values per action."""
        return 1

    @property
    def outputs(self) -> int:
        """Number of network outputs (one logit per action)."""
        return self.n


@dataclass(frozen=True)
class PolicySpec:
    """Architecture of a policy: everything but its numbers.

    Attributes:
        obs_dim: Number of observation dimensions.
        hidden: Sizes of the tanh hidden layers; empty for a linear policy.
        actions: The action space.
        squash: ``tanh`` maps the output into the bounds; ``none`` only clips it.
        stochastic: A tanh of a Gaussian (continuous) or a categorical (discrete).

    Raises:
        UsageError: A size is out of range, or ``squash="none"`` with discrete actions.
    """

    obs_dim: int
    hidden: tuple[int, ...]
    actions: BoxActions | DiscreteActions
    squash: Squash = "tanh"
    stochastic: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.obs_dim <= 1_000_000:
            raise UsageError(f"observation dimension {self.obs_dim} is not in 1 … 1,000,000")
        if len(self.hidden) > MAX_LAYERS or any(not 1 <= h <= MAX_WIDTH for h in self.hidden):
            raise UsageError(
                f"hidden sizes {list(self.hidden)} are not at most {MAX_LAYERS} numbers "
                f"in 1 … {MAX_WIDTH}"
            )
        if self.squash not in ("tanh", "none"):
            raise UsageError(f"squash {self.squash!r} is neither 'tanh' nor 'none'")
        if self.squash == "none" and not self.is_continuous:
            raise UsageError("squash 'none' is for continuous actions; these are discrete")
        if self.size > MAX_PARAMETERS:
            raise UsageError(
                f"a policy of {self.size:,} parameters is over the limit of {MAX_PARAMETERS:,}"
            )

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """``(out, in)`` of each layer in order."""
        sizes = (self.obs_dim, *self.hidden, self.actions.outputs)
        return tuple((sizes[k + 1], sizes[k]) for k in range(len(sizes) - 1))

    @property
    def log_std_size(self) -> int:
        """Number of leading ``log_std`` entries in theta."""
        return self.actions.dim if self.stochastic and self.is_continuous else 0

    @property
    def size(self) -> int:
        """Number of parameters D."""
        return self.log_std_size + sum(out * (inp + 1) for out, inp in self.layers)

    @property
    def is_continuous(self) -> bool:
        """Whether actions are a box."""
        return isinstance(self.actions, BoxActions)

    @property
    def arch(self) -> str:
        """The architecture as users type it: ``linear`` or ``64,64``."""
        return ",".join(str(h) for h in self.hidden) or "linear"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form that files carry."""
        if isinstance(self.actions, BoxActions):
            actions: dict[str, Any] = {
                "kind": "box",
                "low": list(self.actions.low),
                "high": list(self.actions.high),
                "dtype": self.actions.dtype,
            }
        else:
            actions = {"kind": "discrete", "n": self.actions.n, "start": self.actions.start}
        return {
            "obs_dim": self.obs_dim,
            "hidden": list(self.hidden),
            "actions": actions,
            "squash": self.squash,
            "stochastic": self.stochastic,
        }

    @classmethod
    def from_dict(cls, data: object) -> PolicySpec:
        """Read the JSON form strictly.

        Raises:
            DamagedError: A key is missing, unknown or of the wrong type.
        """
        fields = _exact(data, {"obs_dim", "hidden", "actions", "squash", "stochastic"}, "spec")
        actions_data = fields["actions"]
        kind = actions_data.get("kind") if isinstance(actions_data, Mapping) else None
        try:
            actions: BoxActions | DiscreteActions
            if kind == "box":
                box = _exact(actions_data, {"kind", "low", "high", "dtype"}, "spec.actions")
                actions = BoxActions(
                    _numbers(box["low"]), _numbers(box["high"]), _typed(box["dtype"], str)
                )
            elif kind == "discrete":
                disc = _exact(actions_data, {"kind", "n", "start"}, "spec.actions")
                actions = DiscreteActions(_typed(disc["n"], int), _typed(disc["start"], int))
            else:
                raise DamagedError(f"spec.actions.kind is {kind!r}, not 'box' or 'discrete'")
            hidden = fields["hidden"]
            if not isinstance(hidden, list):
                raise DamagedError(f"spec.hidden is {hidden!r}, not a list")
            return cls(
                obs_dim=_typed(fields["obs_dim"], int),
                hidden=tuple(_typed(h, int) for h in hidden),
                actions=actions,
                squash=_typed(fields["squash"], str),
                stochastic=_typed(fields["stochastic"], bool),
            )
        except UsageError as error:
            raise DamagedError(f"policy spec is invalid: {error.what}") from error


def _typed(value: object, kind: type) -> Any:
    if type(value) is not kind:
        raise DamagedError(f"policy spec holds {value!r} where a {kind.__name__} belongs")
    return value


def _numbers(values: object) -> tuple[float, ...]:
    if not isinstance(values, list) or any(type(v) not in (int, float) for v in values):
        raise DamagedError(f"policy spec holds {values!r} where a list of numbers belongs")
    try:
        return tuple(float(v) for v in values)
    except OverflowError as error:
        raise DamagedError("policy spec holds a number too large for a float") from error


def _exact(data: object, keys: set[str], name: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping) or set(data) != keys:
        given = sorted(data) if isinstance(data, Mapping) else data
        raise DamagedError(f"{name} has {given!r}, expected the keys {sorted(keys)}")
    return data


def parse_arch(text: str) -> tuple[int, ...]:
    """Parse an architecture as users type it.

    >>> parse_arch("linear"), parse_arch("64,64")
    ((), (64, 64))

    Raises:
        UsageError: The text is neither ``linear`` nor sizes such as ``64,64``.
    """
    if text.strip().lower() in ("linear", "[]"):
        return ()
    try:
        sizes = tuple(int(part) for part in text.strip().strip("[]").split(","))
    except ValueError:
        sizes = (0,)
    if len(sizes) > MAX_LAYERS or any(not 1 <= size <= MAX_WIDTH for size in sizes):
        raise UsageError(
            f"architecture {text!r} is not understood",
            remedy="give 'linear' or sizes such as '32' or '64,64'",
        )
    return sizes


def init_theta(spec: PolicySpec, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw fresh parameters by PyTorch's default initialisation of ``nn.Linear``.

    Weight and bias of a layer with ``in`` inputs are uniform on
    ``[-1/sqrt(in), 1/sqrt(in)]``; ``log_std`` starts at -0.5.

    Returns:
        (D,) float32.
    """
    parts = [np.full(spec.log_std_size, INITIAL_LOG_STD)]
    for out, inp in spec.layers:
        bound = 1.0 / math.sqrt(inp)
        parts.append(rng.uniform(-bound, bound, size=out * inp))
        parts.append(rng.uniform(-bound, bound, size=out))
    return np.concatenate(parts).astype(np.float32)


def perturb(
    theta: NDArray[np.float32], sigma: float, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Return ``theta + epsilon`` with ``epsilon ~ N(0, sigma^2 I)`` (paper, section 4).

    Args:
        theta: (D,) float32, ``log_std`` included.
        sigma: Standard deviation of the noise.
        rng: Source of the noise.
    """
    noise = rng.standard_normal(theta.shape)
    with np.errstate(over="ignore"):  # whoever uses the result refuses what is not finite
        return (theta.astype(np.float64) + sigma * noise).astype(np.float32)


def split_theta(
    spec: PolicySpec, theta: FloatArray
) -> tuple[FloatArray, list[tuple[FloatArray, FloatArray]]]:
    """Split theta (…, D) into ``log_std`` (…, L) and ``(weight (…, out, in), bias (…, out))``.

    Raises:
        UsageError: The last axis is not ``spec.size`` long.
    """
    if theta.shape[-1] != spec.size:
        raise UsageError(
            f"theta has shape {theta.shape}; the last axis of a {spec.arch} policy with "
            f"{spec.obs_dim} observations needs {spec.size}"
        )
    lead = theta.shape[:-1]
    start = spec.log_std_size
    log_std = theta[..., :start]
    layers = []
    for out, inp in spec.layers:
        weight = theta[..., start : start + out * inp].reshape(*lead, out, inp)
        start += out * inp
        layers.append((weight, theta[..., start : start + out]))
        start += out
    return log_std, layers


def renormalise(
    spec: PolicySpec,
    theta: NDArray[np.float32],
    obs_mean: FloatArray,
    obs_std: FloatArray,
    new_mean: FloatArray,
    new_std: FloatArray,
) -> NDArray[np.float32]:
    """Re-express policies in another normaliser, keeping every action.

    The first layer is affine: with ``x = (obs - mean) / std`` and
    ``x' = (obs - mean') / std'`` the weight becomes ``W' = W * std' / std`` and the bias
    ``b' = b + W ((mean' - mean) / std)``, so ``W x + b = W' x' + b'`` for every obs.

    Args:
        spec: Architecture shared by all rows.
        theta: (…, D) float32.
        obs_mean: (…, obs_dim), the present mean.
        obs_std: (…, obs_dim), the present standard deviation.
        new_mean: (obs_dim,), the mean wanted.
        new_std: (obs_dim,), the standard deviation wanted.

    Returns:
        (…, D) float32; rows already in the wanted normaliser come back bit for bit.
    """
    mean = np.broadcast_to(np.asarray(obs_mean, np.float64), (*theta.shape[:-1], spec.obs_dim))
    std = np.broadcast_to(np.asarray(obs_std, np.float64), (*theta.shape[:-1], spec.obs_dim))
    out, inp = spec.layers[0]
    start = spec.log_std_size
    result = np.array(theta, dtype=np.float32)
    changed = np.any((mean != new_mean) | (std != new_std), axis=-1)
    if not np.any(changed):
        return result
    # Only the first layer changes, and deep policies are wide.
    first = slice(start, start + out * inp + out)
    wide = theta[changed, first].astype(np.float64)
    mean, std = mean[changed], std[changed]
    weight = wide[..., : out * inp].reshape(-1, out, inp)
    wide[..., out * inp :] += np.einsum("koi,ki->ko", weight, (new_mean - mean) / std)
    wide[..., : out * inp] = (weight * (new_std / std)[:, None, :]).reshape(-1, out * inp)
    result[changed, first] = wide.astype(np.float32)
    return result


class Actor:
    """One policy ready to act, one observation at a time.

    The float32 parameters and the normaliser are folded into a float64 network once
    (the first layer is affine), so a step costs a few matrix-vector products; the
    result is cast once to the action's own dtype and clipped to its bounds.

    Args:
        spec: Architecture.
        theta: (D,) float32.
        obs_mean: (obs_dim,).
        obs_std: (obs_dim,), positive.
    """

    def __init__(
        self, spec: PolicySpec, theta: FloatArray, obs_mean: FloatArray, obs_std: FloatArray
    ) -> None:
        log_std, layers = split_theta(spec, np.asarray(theta, dtype=np.float64))
        weight, bias = layers[0]
        inverse = 1.0 / np.asarray(obs_std, np.float64)
        first = np.ascontiguousarray(weight * inverse)
        layers[0] = (first, bias - first @ np.asarray(obs_mean, np.float64))
        self._layers = [(np.ascontiguousarray(w), np.ascontiguousarray(b)) for w, b in layers]
        self._spec = spec
        self._std = np.exp(log_std)
        if isinstance(spec.actions, BoxActions):
            low = np.asarray(spec.actions.low, np.float64)
            high = np.asarray(spec.actions.high, np.float64)
            self._dtype = np.dtype(spec.actions.dtype)
            self._half, self._low = (high - low) / 2, low
            # Bounds in the action's own dtype: the space's own, so rounding past them is clipped.
            self._min, self._max = low.astype(self._dtype), high.astype(self._dtype)
            ends = [(low + twice * self._half).astype(self._dtype) for twice in (0.0, 2.0)]
            # Rounding is monotonic: where the ends stay inside, so does all that is between.
            inside = all(np.all((end >= self._min) & (end <= self._max)) for end in ends)
            self._clips = spec.squash != "tanh" or not inside

    def logits(self, obs: NDArray[Any]) -> NDArray[np.float64]:
        """Return the raw network output (outputs,) for one raw observation (obs_dim,)."""
        x: NDArray[np.float64] = obs  # a float64 product follows, whatever the dtype of obs
        last = len(self._layers) - 1
        for k, (weight, bias) in enumerate(self._layers):
            x = weight.dot(x)  # faster than @ for arrays this small
            x += bias
            if k < last:
                np.tanh(x, out=x)
        return x

    def to_action(self, pre: NDArray[np.float64]) -> NDArray[Any]:
        """Map a pre-squash output (act_dim,) to the executed action (act_dim,).

        ``low + (tanh(pre) + 1) / 2 * (high - low)``, cast to the action's dtype, clipped.
        """
        if self._spec.squash == "tanh":
            pre = np.tanh(pre)
            pre += 1.0
            pre *= self._half
            pre += self._low
        action = pre.astype(self._dtype)
        if self._clips:
            np.maximum(action, self._min, out=action)
            np.minimum(action, self._max, out=action)
        return action

    def act(
        self, obs: NDArray[Any], rng: np.random.Generator | None = None
    ) -> tuple[Any, NDArray[np.float64] | None]:
        """Return the action to execute and, for a stochastic box policy, its pre-squash value.

        Args:
            obs: (obs_dim,), raw, as the environment gave it.
            rng: Source of action noise; needed by stochastic policies only.

        Returns:
            ``(action, pre_action)``: (act_dim,) in the action's dtype, or a numpy int64 for
            discrete actions; ``pre_action`` (act_dim,) float64 or None.

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


@dataclass(frozen=True)
class Policies:
    """K policies of one architecture.

    Attributes:
        spec: Architecture shared by all.
        theta: (K, D) float32.
        obs_mean: (K, obs_dim) float64, in the observation's unit.
        obs_std: (K, obs_dim) float64, positive, in the observation's unit.

    Raises:
        UsageError: Shapes do not fit the spec, or values are not finite (std: not positive).
    """

    spec: PolicySpec
    theta: NDArray[np.float32]
    obs_mean: NDArray[np.float64]
    obs_std: NDArray[np.float64]

    def __post_init__(self) -> None:
        rows = self.theta.shape[0] if self.theta.ndim == 2 else -1
        for name, array, width, dtype in (
            ("theta", self.theta, self.spec.size, np.float32),
            ("obs_mean", self.obs_mean, self.spec.obs_dim, np.float64),
            ("obs_std", self.obs_std, self.spec.obs_dim, np.float64),
        ):
            if array.shape != (rows, width) or array.dtype != dtype:
                raise UsageError(
                    f"{name} is {array.dtype} of shape {array.shape}; "
                    f"{np.dtype(dtype)} of shape (K, {width}) with one K for all is expected"
                )
            if not np.all(np.isfinite(array)):
                raise UsageError(f"{name} holds NaN or infinite values")
        if np.any(self.obs_std <= 0):
            raise UsageError("obs_std holds values that are not positive")

    def __len__(self) -> int:
        return int(self.theta.shape[0])

    def select(self, rows: Sequence[int] | NDArray[np.integer[Any]]) -> Policies:
        """Return the given rows as policies."""
        index = np.asarray(rows, dtype=np.int64)
        return Policies(self.spec, self.theta[index], self.obs_mean[index], self.obs_std[index])

    def actor(self, row: int) -> Actor:
        """Return policy ``row`` ready to act."""
        return Actor(self.spec, self.theta[row], self.obs_mean[row], self.obs_std[row])

    def in_normaliser(
        self, mean: NDArray[np.float64], std: NDArray[np.float64]
    ) -> NDArray[np.float32]:
        """Return theta (K, D) re-expressed in one normaliser; see :func:`renormalise`."""
        return renormalise(self.spec, self.theta, self.obs_mean, self.obs_std, mean, std)
