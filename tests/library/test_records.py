"""Records: one declaration gives the check, the JSON form and its reader."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import numpy as np
import pytest

from pbvf_offline.errors import DamagedError, IncompatibleError, UsageError
from pbvf_offline.records import Record, fields, format_version, setting, since, to_json
from pbvf_offline.registry import Registry

THINGS: Registry[int] = Registry("thing", "tests.none", {"a": 1, "b": 2})


@dataclass(frozen=True)
class Inner(Record):
    count: Annotated[int, setting("How many.", ge=1)]
    mark: Annotated[str, since(2)] = ""


@dataclass(frozen=True)
class Example(Record):
    gamma: Annotated[float, setting("Discount factor.", ge=0, le=1, symbol="γ")]
    hidden: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=1)], ...], setting("Sizes.", blank="linear")
    ] = ()
    reward: Annotated[Literal["raw", "other"], setting("Which.", option="--which")] = "raw"
    lr: Annotated[float, setting("Learning rate.", gt=0)] = 0.5
    limit: Annotated[int, setting("Limit.", ge=1)] | None = None
    inner: Inner | None = None
    name: Annotated[str, setting("Which.", choices=Registry("thing", "none", {"a": 1, "b": 2}))] = (
        "a"
    )
    activation: str = "relu"
    tempo: Annotated[float, setting("Tempo.", ge=0, since=3)] = 1.0
    others: Annotated[tuple[Inner, ...], since(2)] = ()
    later: Annotated[Inner | None, since(2)] = None
    last: Annotated[Annotated[int, setting("Last.", ge=1)] | None, since(2)] = None


def test_json_comes_back() -> None:
    example = Example(0.5, (3, 4), "other", 1, 7, Inner(2))
    data = example.to_dict()
    assert data == {
        "gamma": 0.5,
        "hidden": [3, 4],
        "reward": "other",
        "lr": 1,
        "limit": 7,
        "inner": {"count": 2},
        "name": "a",
        "activation": "relu",
    }
    assert Example.from_dict(data, "x") == example


def test_a_missing_field_of_a_later_version_takes_its_recorded_default() -> None:
    stored = Example(1.0).to_dict()
    assert not {"tempo", "others", "later"} & set(stored)
    assert Example.from_dict(stored, "x") == Example(1.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gamma": 1.5}, "--gamma: 1.5 is not a number in [0, 1]"),
        ({"gamma": float("nan")}, "--gamma: nan is not a number in [0, 1]"),
        ({"gamma": 1, "lr": 0.0}, "--lr: 0.0 is not a finite number above 0"),
        ({"gamma": 1, "lr": float("inf")}, "--lr: inf is not a finite number above 0"),
        ({"gamma": 1, "lr": 10**400}, f"--lr: 1{'0' * 39} is not a finite number above 0"),
        ({"gamma": True}, "--gamma: True is not a number in [0, 1]"),
        ({"gamma": 1, "hidden": (3, 0)}, "--hidden: 3,0 is not whole numbers from 1 or linear"),
        ({"gamma": 1, "reward": "x"}, "--which: x is not one of raw, other"),
        ({"gamma": 1, "limit": 0}, "--limit: 0 is not a whole number from 1"),
        ({"gamma": 1, "name": "c"}, "--name: there is no thing 'c'; choose one of a, b"),
        ({"gamma": 1, "activation": 3}, "activation: 3 is not a text"),
    ],
)
def test_values_are_checked_at_construction(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        Example(**values)  # type: ignore[arg-type]


STORED = Example(gamma=1).to_dict()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "f: an object is expected"),
        ({}, "f: field 'gamma' is missing"),
        ({"gamma": 1}, "f: field 'hidden' is missing"),
        ({**STORED, "gamma": "x"}, "f: gamma: expected `float`, got `str`"),
        ({**STORED, "gamma": 2}, "f: gamma: expected `float` <= 1.0"),
        ({**STORED, "lr": float("inf")}, "f: lr: inf is not a finite number above 0"),
        ({**STORED, "inner": {"count": 0}}, "f: inner: count: expected `int` >= 1"),
        ({**STORED, "inner": 3}, "f: inner: an object is expected"),
        ({**STORED, "others": 3}, "f: others: a list is expected"),
        ({**STORED, "others": [{"count": 0}]}, "f: others: count: expected `int` >= 1"),
        ({**STORED, "later": {}}, "f: later: field 'count' is missing"),
        ({**STORED, "zeta": 3}, "f: field 'zeta' does not belong there"),
    ],
)
def test_stored_values_are_checked(data: object, message: str) -> None:
    with pytest.raises(DamagedError, match=f"^{re.escape(message)}$"):
        Example.from_dict(data, "f")


def test_a_stored_name_that_nothing_installed_has() -> None:
    message = "f: name: no thing 'c' is installed here; install the package that adds it"
    with pytest.raises(IncompatibleError, match=f"^{re.escape(message)}"):
        Example.from_dict({**STORED, "name": "c"}, "f")


def test_a_field_of_a_later_version_is_written_where_it_is_used() -> None:
    plain = Example(gamma=0.5)
    assert "tempo" not in plain.to_dict()
    assert plain.format_version == 1
    quick = Example(gamma=0.5, tempo=2.0)
    assert quick.to_dict() == {**plain.to_dict(), "tempo": 2.0}
    assert quick.format_version == 3
    deep = Example(gamma=0.5, inner=Inner(count=2, mark="x"), others=(Inner(1),), later=Inner(3))
    assert deep.format_version == 2
    for example in (plain, quick, deep):
        assert Example.from_dict(example.to_dict(), "f") == example
    assert format_version({"a": [plain, deep], "b": None}) == 2
    assert to_json({"a": (Inner(1),)}) == {"a": [{"count": 1}]}


def test_declarations_can_be_read() -> None:
    gamma, _, _, _, limit, inner, *_ = fields(Example)
    assert gamma.about is not None
    assert (gamma.option, gamma.about.help, gamma.about.symbol) == (
        "--gamma",
        "Discount factor.",
        "γ",
    )
    assert limit.about is not None
    assert limit.about.help == "Limit."
    assert inner.about is None
    last = fields(Example)[-1]
    assert last.about is not None
    assert (last.about.help, last.since, last.base) == ("Last.", 2, int)


def test_numbers_of_numpy_are_numbers() -> None:
    assert Example(float(np.float64(0.5))).gamma == 0.5
