"""What a node has to share with the command that gives it work."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pbvf_offline.errors import IncompatibleError
from pbvf_offline.rollout.cluster import Place, _connect, _RayPool


class Absolute:
    """A job that takes absolute values."""

    def start(self) -> Callable[[int], int]:
        return abs


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """That of a command in a folder of its own, with a mark beside its output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PBVF_CACHE", "here")
    (tmp_path / ".out.ray").write_text("mark")
    return Place.here((str(tmp_path / ".out.ray"), "mark"))


def test_a_node_becomes_like_the_command(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setenv("PBVF_CACHE", "there")
    dataclasses.replace(place, path=(*place.path, "/modules")).enter("n1")
    assert (str(Path.cwd()), os.environ["PBVF_CACHE"]) == (place.folder, "here")
    assert sys.path.count("/modules") == 1


@pytest.mark.parametrize("content", [None, "another"])
def test_a_node_that_does_not_share_the_output_is_refused(
    content: str | None, place: Place
) -> None:
    mark = Path(".out.ray")
    mark.unlink() if content is None else mark.write_text(content)
    with pytest.raises(IncompatibleError, match="node n1 does not see the folder"):
        place.enter("n1")


def test_a_node_without_the_current_folder_is_refused(place: Place, tmp_path: Path) -> None:
    elsewhere = dataclasses.replace(place, folder=str(tmp_path / "none"))
    with pytest.raises(IncompatibleError, match=f"node n1 has no folder {tmp_path}/none"):
        elsewhere.enter("n1")


def test_a_node_of_other_versions_is_refused(place: Place) -> None:
    other = dataclasses.replace(place, versions=place.versions | {"torch": "0.1", "numpy": "0.2"})
    with pytest.raises(IncompatibleError, match=r"n1 has torch .*\(not 0.1\), numpy .*\(not 0.2\)"):
        other.enter("n1")


def test_as_many_tasks_are_under_way_as_are_asked_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray starts every task for which a core is free, so none may wait in its hands."""
    under_way: list[object] = []

    class Function:
        def options(self, **_: object) -> Function:
            return self

        def remote(self, *_: object) -> object:
            under_way.append(object())
            return under_way[-1]

    ray = SimpleNamespace(remote=lambda _: Function(), put=lambda value: value)
    monkeypatch.setitem(sys.modules, "ray", ray)
    pool = _RayPool(place, Absolute(), iter(range(20)), 3, 600.0, 2)
    pool.hand_out()
    assert pool.in_hand == len(under_way) == 3


def test_ray_on_this_machine_has_the_cores_that_this_program_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container may use fewer than there are, and not every system tells which are allowed."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr("pbvf_offline.rollout.cluster.usable_cores", lambda: 3)
    asked: dict[str, Any] = {}

    def init(**how: Any) -> None:
        asked.update(how)
        raise KeyboardInterrupt

    ray = SimpleNamespace(init=init, shutdown=lambda: None)
    with pytest.raises(KeyboardInterrupt), contextlib.ExitStack() as stack:
        _connect(ray, "local", None, stack)
    assert asked["num_cpus"] == 3
