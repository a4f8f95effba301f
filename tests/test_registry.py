"""Registries: names without imports, members of installed packages, unknown names."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pbvf_offline.errors import UsageError
from pbvf_offline.registry import Registry

OWN = {"join": "posixpath:join", "none": "no_such_module:x"}


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a distribution with entry points on the import path."""
    (folder / "added.py").write_text("def mine(): return 'mine'\n")
    info = folder / "added-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[pbvf_offline.tests]\nmine = added:mine\njoin = added:mine\n"
    )
    monkeypatch.syspath_prepend(str(folder))


def test_members_are_imported_when_asked_for() -> None:
    registry: Registry[object] = Registry("thing", "pbvf_offline.tests", OWN)
    assert list(registry) == ["join", "none"]
    assert "none" in registry
    assert registry["join"] is sys.modules["posixpath"].join
    with pytest.raises(ModuleNotFoundError):
        registry["none"]
    with pytest.raises(KeyError):
        registry["absent"]


def test_an_installed_package_adds_members_but_replaces_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch)
    registry: Registry[object] = Registry("thing", "pbvf_offline.tests", OWN)
    assert list(registry) == ["join", "none", "mine"]
    assert registry["join"] is sys.modules["posixpath"].join
    assert registry["mine"]() == "mine"  # type: ignore[operator]


def test_an_unknown_name_lists_those_there_are() -> None:
    registry: Registry[object] = Registry("thing", "pbvf_offline.tests", OWN)
    message = "--thing: there is no thing 'x'; choose one of join, none"
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        registry.choose("x", where="--thing")
