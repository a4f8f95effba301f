"""Spaces that datasets can hold, and their text form in Minari's metadata."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pbvf_offline.errors import DamagedError, IncompatibleError, UsageError, shorten
from pbvf_offline.io.strict_json import parse_json

if TYPE_CHECKING:
    import gymnasium as gym

OBS_DTYPES: Final = (
    *("float64", "float32", "float16"),
    *("int64", "int32", "int16", "int8"),
    *("uint64", "uint32", "uint16", "uint8"),
)
"""Observation dtypes that are stored; the environment's own is kept."""

MAX_SPACE_DIM: Final = 250_000
SUPPORTED_SPACES: Final = (
    "supported are observations in a one-dimensional Box of numbers and actions in a "
    f"one-dimensional floating-point Box or Discrete, of at most {MAX_SPACE_DIM:,} dimensions"
)


def check_spaces(
    observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> tuple[gym.spaces.Box, gym.spaces.Box | gym.spaces.Discrete]:
    """Return the spaces when datasets can hold them.

    Raises:
        UsageError: One is of a kind that is not supported.
    """
    from gymnasium import spaces

    from pbvf_offline.envs.actions import action_help
    from pbvf_offline.envs.observations import observation_help

    def one_dimensional(space: gym.Space[Any]) -> bool:
        return (
            isinstance(space, spaces.Box)
            and len(space.shape) == 1
            and 1 <= space.shape[0] <= MAX_SPACE_DIM
            and str(space.dtype) in OBS_DTYPES
        )

    continuous = one_dimensional(action_space) and np.issubdtype(action_space.dtype, np.floating)
    discrete = isinstance(action_space, spaces.Discrete)
    for name, space, good, helps in (
        ("observation", observation_space, one_dimensional(observation_space), observation_help),
        ("action", action_space, continuous or discrete, action_help),
    ):
        if not good:
            raise UsageError(
                f"the {name} space {shorten(space, 200)} is not supported",
                remedy=f"{SUPPORTED_SPACES}; {helps(space)}",
            )
    return observation_space, action_space  # type: ignore[return-value]


def serialize_space(space: gym.Space[Any]) -> str:
    """Return a one-dimensional Box or a Discrete in the text form that Minari reads.

    Raises:
        UsageError: It is another kind of space.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return json.dumps(
            {
                "type": "Box",
                "dtype": str(space.dtype),
                "shape": list(space.shape),
                "low": space.low.tolist(),
                "high": space.high.tolist(),
            }
        )
    if isinstance(space, spaces.Discrete):
        return json.dumps(
            {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
        )
    raise UsageError(f"the space {shorten(space, 200)} is not supported")


def parse_space(
    text: object, where: str | os.PathLike[str]
) -> gym.spaces.Box | gym.spaces.Discrete:
    """Read a space in Minari's text form, strictly, without running anything.

    Raises:
        DamagedError: The text is malformed or contradicts itself.
        IncompatibleError: It is a space of a kind that this format does not hold.
    """
    from gymnasium import spaces

    if not isinstance(text, str):
        raise DamagedError(f"a space is {type(text).__name__}, not text", where=where)
    value = parse_json(text, where, allow_infinity=True)
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "Discrete":
        if set(value) != {"type", "dtype", "start", "n"}:
            raise DamagedError(f"a Discrete space has the keys {sorted(value)}", where=where)
        start, n = value["start"], value["n"]
        if (
            type(start) is not int
            or type(n) is not int
            or not 1 <= n <= 2**31
            or not -(2**62) <= start <= 2**62
        ):
            raise DamagedError(
                f"a Discrete space has n={shorten(n, 40)}, start={shorten(start, 40)}", where=where
            )
        return spaces.Discrete(n, start=start)
    if kind != "Box":
        raise IncompatibleError(
            f"a space of type {shorten(kind, 40)!r} is not supported",
            where=where,
            remedy="use a dataset with Box observations and Box or Discrete actions",
        )
    if set(value) != {"type", "dtype", "shape", "low", "high"}:
        raise DamagedError(f"a Box space has the keys {sorted(value)}", where=where)
    dtype, shape = value["dtype"], value["shape"]
    if not isinstance(shape, list) or any(type(n) is not int for n in shape):
        raise DamagedError(f"a Box has the shape {shorten(shape, 60)}", where=where)
    if dtype not in OBS_DTYPES or len(shape) != 1 or not 1 <= shape[0] <= MAX_SPACE_DIM:
        raise IncompatibleError(
            f"a Box of shape {shape} and dtype {shorten(dtype, 40)} is not supported; "
            f"one dimension of 1 … {MAX_SPACE_DIM:,} numbers is",
            where=where,
        )
    low, high = (_bounds(value[side], shape[0], dtype, where) for side in ("low", "high"))
    if not bool(np.all(low <= high)):
        raise DamagedError("a Box has a lower bound above its upper bound", where=where)
    return spaces.Box(low=low, high=high, dtype=np.dtype(dtype).type)


def _bounds(
    values: object, length: int, dtype: str, where: str | os.PathLike[str]
) -> np.ndarray[Any, np.dtype[Any]]:
    kinds = (int, float) if dtype.startswith("float") else (int,)
    if (
        not isinstance(values, list)
        or len(values) != length
        or any(type(v) not in kinds for v in values)
    ):
        raise DamagedError(f"a Box of {length} values has malformed bounds", where=where)
    try:
        with np.errstate(over="ignore"):
            return np.array(values, dtype=dtype)
    except OverflowError as error:
        raise DamagedError(f"a Box has bounds out of range for {dtype}", where=where) from error
