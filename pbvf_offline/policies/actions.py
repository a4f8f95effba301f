"""Action spaces of policies, and how a network's outputs become actions (numpy)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import UsageError, shorten
from pbvf_offline.setting_types import Squash

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

    def __str__(self) -> str:
        bounds = [f"[{low:g}, {high:g}]" for low, high in zip(self.low, self.high, strict=True)]
        told = bounds[:1] if len(set(bounds)) == 1 else bounds
        noun = "number" if self.dim == 1 else "numbers"
        return f"{self.dim} {noun} ({self.dtype}) in {shorten(' x '.join(told))}"

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

    def __str__(self) -> str:
        noun = "choice" if self.n == 1 else "choices"
        return f"{self.n} {noun} counted from {self.start}"

    @property
    def dim(self) -> int:
        """Number of stored values per action."""
        return 1

    @property
    def outputs(self) -> int:
        """Number of network outputs (one logit per action)."""
        return self.n


def box_action(
    actions: BoxActions, squash: Squash
) -> Callable[[NDArray[np.float64]], NDArray[Any]]:
    """Return the function from pre-squash outputs (…, act_dim) to executed actions (…, act_dim).

    ``low + (tanh(out) + 1) / 2 * (high - low)`` with ``squash="tanh"``, else ``out`` itself; then
    cast to the action's dtype and clipped to its bounds.
    """
    low = np.asarray(actions.low, np.float64)
    half = (np.asarray(actions.high, np.float64) - low) / 2
    dtype = np.dtype(actions.dtype)
    # Bounds in the action's own dtype: the space's own, so rounding past them is clipped.
    least, most = low.astype(dtype), np.asarray(actions.high, np.float64).astype(dtype)
    ends = [(low + twice * half).astype(dtype) for twice in (0.0, 2.0)]
    # Rounding is monotonic: where the ends stay inside, so does all that is between.
    inside = all(np.all((end >= least) & (end <= most)) for end in ends)
    squashes = squash == "tanh"
    clips = not (squashes and inside)

    def to_action(out: NDArray[np.float64]) -> NDArray[Any]:
        if squashes:
            out = np.tanh(out)
            out += 1.0
            out *= half
            out += low
        action = out.astype(dtype)
        if clips:
            np.maximum(action, least, out=action)
            np.minimum(action, most, out=action)
        return action

    return to_action
