"""Records: one declaration gives the check, the JSON form and its reader."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import numpy as np
import pytest

from pbvf_offline.errors import DamagedError, IncompatibleError, UsageError
from pbvf_offline.records import Record, fields, setting
from pbvf_offline.registry import Registry

THINGS: Registry[int] = Registry("thing", "tests.none", {"a": 1, "b": 2})


@dataclass(frozen=True)
class Inner(Record):
    count: Annotated[int, setting("How many.", ge=1)]


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


def test_a_missing_field_takes_its_recorded_default() -> None:
    assert Example.from_dict({"gamma": 1}, "x") == Example(1.0)


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


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "f: an object is expected"),
        ({}, "f: Object missing required field `gamma`"),
        ({"gamma": "x"}, "f: Expected `float`, got `str` - at `$.gamma`"),
        ({"gamma": 2}, "f: Expected `float` <= 1.0 - at `$.gamma`"),
        ({"gamma": 1, "lr": float("inf")}, "f: inf is not a finite number above 0"),
        ({"gamma": 1, "inner": {"count": 0}}, "f: Expected `int` >= 1 - at `$.inner.count`"),
        ({"gamma": 1, "zeta": 3}, "f: field 'zeta' does not belong there"),
    ],
)
def test_stored_values_are_checked(data: object, message: str) -> None:
    with pytest.raises(DamagedError, match=f"^{re.escape(message)}$"):
        Example.from_dict(data, "f")


def test_a_field_of_a_newer_version_says_what_to_do() -> None:
    with pytest.raises(IncompatibleError, match=r"'zeta' is of a newer version.*upgrade"):
        Example.from_dict({"gamma": 1, "zeta": 3}, "f", newer=True)


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


def test_numbers_of_numpy_are_numbers() -> None:
    assert Example(float(np.float64(0.5))).gamma == 0.5
