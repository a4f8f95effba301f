"""Untrusted JSON, read strictly, and JSON in its one canonical form."""

from __future__ import annotations

import json
import math
import os
import re
from typing import Any

from pbvf_offline.errors import DamagedError, UnsafeError, UsageError

MAX_JSON_BYTES = 32 * 2**20
MAX_JSON_DEPTH = 32
MAX_JSON_MEMORY = 96 * 2**20
"""Bytes of memory that the values of an untrusted text may take; see :func:`_memory`."""

# What one more of each sign can add in memory at most, whatever stands between them: an
# empty list costs 64 bytes and three of text, a key of its own 250 and seven of text.
_COSTS = ((",", 48), ("[", 96), ("{", 256), ('"', 40), (":", 280))
_SMALL = 2**20

# Every escape of a JSON text in turn, so that an escaped backslash does not seem to begin one;
# the group is a surrogate that is no half of a pair.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<lone>u[dD][89a-fA-F]..)|.)", re.DOTALL
)


def canonical_json(value: object) -> bytes:
    """Return the one byte string that stands for a JSON value.

    >>> canonical_json({"b": 1, "a": [0.5, None]})
    b'{"a":[0.5,null],"b":1}'

    Raises:
        UsageError: The value holds NaN, infinity, half a surrogate pair, which no reader takes, or
            something JSON has no word for.
    """
    try:
        text = json.dumps(
            value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True
        )
        if "\\ud" in text:  # a surrogate: encoding tells whether it is half a pair
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        part = error.object[max(error.start - 20, 0) : error.end + 20]
        raise UsageError(
            f"a text cannot be written as JSON: {part!a} holds half a surrogate pair"
        ) from error
    except (TypeError, ValueError) as error:
        raise UsageError(f"a value cannot be written as JSON: {error}") from error
    return text.encode("ascii")


def parse_json(
    data: bytes | str,
    where: str | os.PathLike[str],
    *,
    allow_infinity: bool = False,
    max_bytes: int = MAX_JSON_BYTES,
    max_memory: int = MAX_JSON_MEMORY,
) -> Any:
    """Read untrusted JSON: no duplicate keys, NaN or lone surrogates; bounded size, depth, memory.

    Args:
        data: The text, UTF-8 when bytes.
        where: The file (and object) it is from, for messages.
        allow_infinity: Accept ``Infinity`` and ``-Infinity``, as Minari writes in spaces.
        max_bytes: Longest text accepted.
        max_memory: Bytes of memory that its values may take.

    Raises:
        DamagedError: The text is anything else.
        UnsafeError: Its values would fill the memory.
    """
    if len(data) > max_bytes:
        raise DamagedError(f"JSON of {len(data):,} bytes is over {max_bytes:,}", where=where)
    # A short text cannot cost much, and counting costs time.
    memory = _memory(data) if len(data) > _SMALL else 0
    if memory > max_memory:
        raise UnsafeError(
            f"JSON of {len(data):,} bytes whose values would take about {memory:,} in memory, "
            f"over the limit of {max_memory:,}",
            where=where,
        )

    def constant(name: str) -> float:
        if allow_infinity and name != "NaN":
            return float(name)
        raise ValueError(f"{name} is not allowed")

    def number(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise ValueError(f"the number {text[:40]} is out of range")
        return value

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            seen: set[str] = set()
            twice = next(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise ValueError(f"the key {twice[:80]!r} appears twice")
        return result

    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        _refuse_lone_surrogates(text)
        value = json.loads(
            text, object_pairs_hook=pairs, parse_constant=constant, parse_float=number
        )
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"not valid JSON: {error}", where=where) from error
    _check_depth(value, where)
    return value


def _memory(data: bytes | str) -> int:
    """Return an upper bound of the memory that the values of a JSON text take."""
    # A single wide character, also an escaped one, makes all of its text wide.
    if isinstance(data, bytes):
        wide = not data.isascii() or b"\\u" in data
        marks = sum(cost * data.count(sign.encode()) for sign, cost in _COSTS)
    else:
        wide = not data.isascii() or "\\u" in data
        marks = sum(cost * data.count(sign) for sign, cost in _COSTS)
    return marks + (8 if wide else 2) * len(data)


def _refuse_lone_surrogates(text: str) -> None:
    """Raise ValueError if a text holds half a character, which no encoding can write again."""
    if not text.isascii():
        text.encode("utf-8")
    if "\\ud" in text or "\\uD" in text:
        for escape in _ESCAPE.finditer(text):
            if escape["lone"]:
                raise ValueError(f"the surrogate {escape['lone']} is half of a character")


def _check_depth(value: object, where: str | os.PathLike[str]) -> None:
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner += [v for v in item.values() if isinstance(v, dict | list)]
            elif isinstance(item, list):
                inner += [v for v in item if isinstance(v, dict | list)]
        if not inner:
            return
        level = inner
    raise DamagedError(f"JSON is nested deeper than {MAX_JSON_DEPTH} levels", where=where)
