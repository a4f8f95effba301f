from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from pbvf_offline import errors

CODES = {
    "UsageError": 2,
    "DamagedError": 3,
    "UnsafeError": 4,
    "IncompatibleError": 5,
    "ResourceError": 6,
    "ConflictError": 7,
    "DivergedError": 8,
    "WorkerError": 9,
    "NetworkError": 10,
}


def test_exit_codes_are_those_of_the_interface() -> None:
    kinds = {k.__name__: k.exit_code for k in errors.PbvfError.__subclasses__()}
    assert kinds == CODES
    assert errors.PbvfError.exit_code == 1


def test_message_is_one_line_with_place_and_remedy() -> None:
    error = errors.DamagedError("is\n cut short", where=Path("a/b.h5"), remedy="copy it\nagain")
    assert str(error) == "a/b.h5: is cut short; copy it again"
    assert str(errors.UsageError("no")) == "no"
    assert error.args == (str(error),)


def test_what_is_not_known_differs_from_nothing() -> None:
    one = {"limit": 5, "module": errors.UNKNOWN, "name": "a"}
    assert errors.differences(one, {"limit": 6, "module": "m", "name": "a"}) == "limit 5 against 6"
    assert errors.differences(one, {"limit": errors.UNKNOWN, "module": "m", "name": "a"}) == ""


@pytest.mark.parametrize("name", CODES)
def test_survives_pickling_between_processes(name: str) -> None:
    error = getattr(errors, name)("what", where="here", remedy="do that")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (again.what, again.where, again.remedy) == ("what", "here", "do that")
    assert str(again) == str(error)
