from __future__ import annotations

import math
from typing import Any

import pytest

from pbvf_offline.errors import DamagedError, UsageError
from pbvf_offline.strict_json import MAX_JSON_DEPTH, canonical_json, parse_json


def test_canonical_json() -> None:
    assert canonical_json({"b": "ü", "a": [1, 0.5, None]}) == b'{"a":[1,0.5,null],"b":"\\u00fc"}'
    value = {"z": {"y": [1.0, 1e300, -0.0]}, "a": True}
    assert parse_json(canonical_json(value), "x") == value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, {1, 2}, b"x", {"a": [object()]}])
def test_what_json_has_no_word_for(value: Any) -> None:
    with pytest.raises(UsageError, match="JSON"):
        canonical_json({"a": value})


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        '{"b":{"a":1,"a":2}}',
        "NaN",
        "[Infinity]",
        "[-Infinity]",
        "1e999",
        "[-1e999]",
        "[" * (MAX_JSON_DEPTH + 1) + "]" * (MAX_JSON_DEPTH + 1),
        '{"a":' * (MAX_JSON_DEPTH + 1) + "1" + "}" * (MAX_JSON_DEPTH + 1),
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        "",
        "{'a':1}",
        "{} {}",
        b"\xff\xfe",
        "1" * 5000,
        '"\x00"',
    ],
    ids=range(17),
)
def test_strict_json(text: str | bytes) -> None:
    with pytest.raises(DamagedError, match="JSON") as caught:
        parse_json(text, "meta.json")
    assert caught.value.exit_code == 3
    assert caught.value.where == "meta.json"
    assert len(str(caught.value)) < 300


def test_json_within_the_limits_is_read() -> None:
    assert parse_json("[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH, "x") is not None
    assert parse_json(b'{"a":[1,2.5,"x{[",null,true]}', "x") == {"a": [1, 2.5, "x{[", None, True]}
    assert parse_json('"' + "[" * 100 + '"', "x") == "[" * 100


def test_size_is_bounded() -> None:
    assert parse_json("[1,2]", "x", max_bytes=5) == [1, 2]
    with pytest.raises(DamagedError, match="6 bytes is over 5"):
        parse_json("[1,23]", "x", max_bytes=5)


def test_infinity_where_minari_writes_it() -> None:
    assert parse_json("[Infinity,-Infinity]", "x", allow_infinity=True) == [math.inf, -math.inf]
    for text in ("NaN", "1e999"):
        with pytest.raises(DamagedError):
            parse_json(text, "x", allow_infinity=True)
