"""Registries: names without imports, members of installed packages, unknown names."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pbvf_offline.errors import UsageError
from pbvf_offline.registry import Member, Registry

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


def test_a_package_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch)
    (tmp_path / "added.py").write_text("raise RuntimeError('no')\n")
    monkeypatch.delitem(sys.modules, "added", raising=False)
    registry: Registry[object] = Registry("thing", "pbvf_offline.tests", OWN)
    message = (
        "the thing 'mine' of the package added cannot be imported: RuntimeError: no, "
        f"at {tmp_path}/added.py:1 (in <module>); mend or uninstall added; "
        "--debug shows the traceback"
    )
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        registry.choose("mine")


def test_members_may_be_given_as_they_are() -> None:
    registry: Registry[int] = Registry("number", "pbvf_offline.tests", {"one": 1})
    assert (len(registry), registry["one"], "two" in registry) == (1, 1, False)


def test_a_listing_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch)
    own = {"join": "posixpath:join", "none": Member("no_such_module:x", "nothing at all")}
    registry: Registry[object] = Registry("thing", "pbvf_offline.tests", own)
    assert registry.listing() == "join; none: nothing at all; mine: of the package added"


def test_an_unknown_name_lists_those_there_are() -> None:
    registry: Registry[object] = Registry("thing", "pbvf_offline.tests", OWN)
    message = "--thing: there is no thing 'x'; choose one of join, none"
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        registry.choose("x", where="--thing")
