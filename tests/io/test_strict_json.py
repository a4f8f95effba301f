from __future__ import annotations

import math
import tracemalloc
from typing import Any

import pytest

from pbvf_offline.errors import DamagedError, UnsafeError, UsageError
from pbvf_offline.io import strict_json
from pbvf_offline.io.strict_json import MAX_JSON_DEPTH, canonical_json, parse_json


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
        r'{"a":["\ud800"]}',
        r'{"\uDFFF":1}',
        r'"\ud83d\ud83d\ude00"',
        r'"\\\ud83d\\ude00"',
        '"\udc80"',
        b'"\xed\xa0\x80"',
    ],
    ids=range(23),
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


def test_pairs_of_surrogates_are_read() -> None:
    assert parse_json(r'{"\ud83d\uDE00":"\\ud800 \\\uD83D\ude00"}', "x") == {
        "\U0001f600": "\\ud800 \\\U0001f600"
    }


def test_size_is_bounded() -> None:
    assert parse_json("[1,2]", "x", max_bytes=5) == [1, 2]
    with pytest.raises(DamagedError, match="6 bytes is over 5"):
        parse_json("[1,23]", "x", max_bytes=5)


def test_infinity_where_minari_writes_it() -> None:
    assert parse_json("[Infinity,-Infinity]", "x", allow_infinity=True) == [math.inf, -math.inf]
    for text in ("NaN", "1e999"):
        with pytest.raises(DamagedError):
            parse_json(text, "x", allow_infinity=True)


def _full(piece: str, size: int) -> str:
    return "[" + piece * (size // len(piece)) + "0]"


def _distinct_keys(size: int, value: str) -> str:
    return "{" + ",".join(f'"{i:x}":{value}' for i in range(size // (9 + len(value)))) + "}"


BOMBS = {
    "lists": lambda n: _full("[],", n),
    "dicts": lambda n: _full("{},", n),
    "lists of one": lambda n: _full("[0],", n),
    "nested lists": lambda n: _full("[" * 20 + "]" * 20 + ",", n),
    "dicts of one": lambda n: _full('{"a":[]},', n),
    "keys": lambda n: _distinct_keys(n, "0"),
    "keys of dicts": lambda n: _distinct_keys(n, "{}"),
    "floats": lambda n: _full("1e1,", n),
    "integers": lambda n: _full("9999999999,", n),
    "texts": lambda n: _full('"ab",', n),
    "wide texts": lambda n: _full('"\u0100",', n),
    "a wide text": lambda n: '"\U0001f600' + "a" * n + '"',
    "a text with a wide escape": lambda n: r'"\ud83d\ude00' + "a" * n + '"',
}


@pytest.mark.parametrize("name", BOMBS)
def test_the_memory_of_values_is_bounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # 16 MiB of text is what the largest JSON files may have.
    data = BOMBS[name](16 * 2**20).encode()
    tracemalloc.start()
    try:
        with pytest.raises(UnsafeError, match="in memory") as caught:
            parse_json(data, "x")
        assert caught.value.exit_code == 4
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    # What is let in takes no more than was thought.
    data = BOMBS[name](2**17).encode()
    thought = strict_json._memory(data)  # private: the estimate behind the public refusal
    monkeypatch.setattr(strict_json, "MAX_JSON_MEMORY", thought)
    monkeypatch.setattr(strict_json, "_SMALL", 0)
    tracemalloc.start()
    try:
        parse_json(data, "x")
        assert tracemalloc.get_traced_memory()[1] < thought + 2**14
    finally:
        tracemalloc.stop()


def test_long_honest_texts_are_read() -> None:
    # A run of a million short episodes, inside a header.
    numbers = [1.234567890123456 * i for i in range(500_000)]
    assert parse_json(canonical_json(numbers), "x") == numbers


def test_half_a_surrogate_pair_is_not_written() -> None:
    for value in ({"name": "ab\ud800"}, {"\udc00": 1}, ["\udfff\ud800"]):
        with pytest.raises(UsageError, match=r"\\ud.* holds half a surrogate pair"):
            canonical_json(value)
    assert parse_json(canonical_json(["\U0001f600", "\\ud800"]), "x") == ["\U0001f600", "\\ud800"]
