"""A few damages of every kind of file; ``benchmarks/damage.py`` does a thousand."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from cli_tools import ROOT


@pytest.fixture(scope="module")
def damage() -> ModuleType:
    spec = importlib.util.spec_from_file_location("damage", ROOT / "benchmarks" / "damage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made(damage: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage")
    before = dict(os.environ)
    try:
        damage.make_files(folder)
    finally:
        os.environ.clear()
        os.environ.update(before)
    return folder


def test_no_damage_goes_unnoticed_and_none_crashes(damage: ModuleType, made: Path) -> None:
    for kind, (name, read) in damage.KINDS.items():
        assert damage.outcome(read, made / name) == "unnoticed", kind  # nothing was done yet
        size = (made / name).stat().st_size
        found = damage.damages(size, 20, 5, np.random.default_rng(1))
        outcomes = set(damage.damage_file(kind, made, found))
        if "warns" in kind:
            assert outcomes == {"warned"}
        else:
            assert all(outcome.startswith("exit ") for outcome in outcomes), (kind, outcomes)
            assert "exit 1" not in outcomes


def test_outcomes_are_told_apart(damage: ModuleType, tmp_path: Path) -> None:
    def fail(_: Path) -> None:
        raise ZeroDivisionError("x")

    assert damage.outcome(fail, tmp_path) == "crashed: ZeroDivisionError: x"
    assert damage.outcome(lambda path: path, tmp_path) == "unnoticed"
    missing = damage.KINDS["critic"][1]
    assert damage.outcome(missing, tmp_path / "none") == "exit 2"
