"""Work folders: what may be replaced, what two settings differ in, and who may write."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from faults import bound, read_only
from pbvf_offline.errors import ConflictError, DamagedError, ResourceError, UnsafeError
from pbvf_offline.io.lock import OutputLock, temporary_folder
from pbvf_offline.io.work_folder import (
    Layout,
    WorkFolder,
    refuse_difference,
    refuse_foreign,
    same_settings,
)

OWN = Layout(("a.bin", "data/b.bin", "README.md"), marks=("a.bin", "data/b.bin"))


def whole(build: Path) -> None:
    if not (build / "a.bin").exists():
        raise DamagedError("not whole", where=build)


def work(path: Path) -> WorkFolder:
    return WorkFolder(path, "working", layout=OWN, check=whole)


def make(path: Path, text: str) -> Path:
    (path / "data").mkdir(parents=True)
    for name in ("a.bin", "data/b.bin"):
        (path / name).write_text(text)
    return path


def content(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


# ----------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("there", "now", "text"),
    [
        ({"seed": 1}, {"seed": 2}, "seed is 1 there and 2 here"),
        ({"settings": {"lr": 0.5}}, {"settings": {"lr": 1.0}}, "lr is 0.5 there and 1.0 here"),
        ({"spec": {"arch": "linear"}}, {"spec": {"arch": "8"}}, 'spec.arch is "linear" there'),
        ({"a": {"b": 1}}, {"a": {}}, "a.b is 1 there and absent here"),
        ({}, {"hidden": (4, 4)}, "hidden is absent there and [4,4] here"),
        ({"a": 1, "b": 2}, {"a": 0, "b": 3}, "a is 1 there and 0 here; b is 2 there and 3 here"),
        ({}, dict.fromkeys("abcdefg", 1), "e is absent there and 1 here; and 2 more; choose"),
        ({"noise": None}, {"noise": 0.0}, "noise is not given there and 0.0 here"),
        ({"n_step": 1, "e": {"n_s": 1}}, {}, "e.n_s is 1 there and absent here; n-step is 1"),
        ({"dataset": "f" * 64}, {"dataset": "e"}, f'dataset is "{"f" * 38}… there'),
    ],
)
def test_a_difference_is_named_with_both_values(
    there: dict[str, Any], now: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(ConflictError) as caught:
        refuse_difference(there, now, tmp_path)
    assert text in str(caught.value)
    assert "--overwrite" in str(caught.value)
    assert not same_settings(there, now)


@pytest.mark.parametrize(
    ("there", "now"),
    [
        ({"hidden": [4]}, {"hidden": (4,)}),
        ({"lr": 1}, {"lr": 1.0}),
        ({}, {"new_setting": None}),
        ({"settings": {"a": {"b": None}}}, {"settings": {}}),
    ],
)
def test_the_same_in_another_form_is_no_difference(
    there: dict[str, Any], now: dict[str, Any], tmp_path: Path
) -> None:
    assert same_settings(there, now)
    refuse_difference(there, now, tmp_path)


# -------------------------------------------------------------------------------- guard


FOREIGN = {
    "a file": "notes.txt",
    "a hidden file": ".notes",
    "a file inside": "data/notes.txt",
    "a folder": "mine/a.bin",
    "a folder of a known name": "a.bin/notes.txt",
    "another's temporary file": ".notes.txt.tmp",
}


@pytest.mark.parametrize("name", FOREIGN.values(), ids=FOREIGN)
def test_a_folder_that_holds_anything_else_is_not_replaced(name: str, tmp_path: Path) -> None:
    path = make(tmp_path / "out", "old")
    if name.startswith("a.bin"):
        (path / "a.bin").unlink()
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_text("mine")
    before = content(path)
    with pytest.raises(ConflictError) as caught:
        refuse_foreign(path, OWN)
    assert caught.value.exit_code == 7
    assert name.split("/", maxsplit=1)[0] in str(caught.value)
    assert "--overwrite" not in str(caught.value)
    folder = work(path)
    folder.hold()
    make(folder.build, "new")
    with pytest.raises(ConflictError):
        folder.publish(replace=True)
    folder.close()
    assert content(path) == before
    assert content(folder.build)["a.bin"] == "new"  # nothing of the work is lost either


def test_what_may_be_replaced(tmp_path: Path) -> None:
    refuse_foreign(tmp_path / "none", OWN)
    (tmp_path / "empty").mkdir()
    refuse_foreign(tmp_path / "empty", OWN)
    path = make(tmp_path / "out", "old")
    (path / ".a.bin.tmp").write_text("half")
    (path / "data/.tmp-b.bin").write_text("half, of version 0.1")
    (path / "README.md").write_text("of the output")
    refuse_foreign(path, OWN)
    shutil.rmtree(path / "data")
    refuse_foreign(path, OWN)  # a damaged one may be replaced too
    (path / "a.bin").unlink()
    with pytest.raises(ConflictError, match=r"README\.md|a\.bin\.tmp"):
        refuse_foreign(path, OWN)


def test_a_file_or_a_link_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(make(tmp_path / "out", "old"))
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link", "dangling"):
        with pytest.raises(ConflictError, match="file or a link"):
            refuse_foreign(tmp_path / name, OWN)


# ------------------------------------------------------------------------------- folder


def test_a_folder_takes_its_name_by_one_rename_and_nothing_else_stays(tmp_path: Path) -> None:
    for text, replace in (("one", False), ("two", True)):
        folder = work(tmp_path / "new/out")
        folder.hold()
        make(folder.build, text)
        folder.publish(replace=replace)
        assert not folder.held
        assert content(tmp_path / "new/out") == {"a.bin": text, "data/b.bin": text}
        assert [p.name for p in (tmp_path / "new").iterdir()] == ["out"]


def test_a_name_that_was_taken_meanwhile(tmp_path: Path) -> None:
    folder = work(tmp_path / "out")
    folder.hold()
    make(folder.build, "new")
    make(tmp_path / "out", "theirs")
    with pytest.raises(ConflictError, match="meanwhile"):
        folder.publish(replace=False)
    assert content(tmp_path / "out")["a.bin"] == "theirs"
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").write_text("theirs")
    with pytest.raises(ConflictError, match="meanwhile"):
        folder.publish(replace=False)
    folder.close()


@pytest.mark.parametrize("aside", [".out.replaced", ".out.working/replaced"])
@pytest.mark.parametrize("complete", [True, False])
def test_a_replacement_that_was_killed_between_its_renames(
    aside: str, complete: bool, tmp_path: Path
) -> None:
    folder = work(tmp_path / "out")
    make(folder.build, "new")
    if not complete:
        (folder.build / "a.bin").unlink()
    make(tmp_path / aside, "old")
    folder.hold()
    assert content(tmp_path / "out")["a.bin"] == ("new" if complete else "old")
    folder.close()
    work(tmp_path / "out").remove_leftovers()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("replace", [WorkFolder.swap, partial(WorkFolder.publish, replace=True)])
def test_what_permissions_keep_is_not_replaced(
    replace: Callable[[WorkFolder], None], tmp_path: Path
) -> None:
    make(tmp_path / "out", "old")
    folder = work(tmp_path / "out")
    folder.hold()
    make(folder.build, "new")
    with bound(tmp_path / "out" / "data"), pytest.raises(ResourceError, match=r"chmod.*out$") as e:
        replace(folder)
    folder.close()
    assert e.value.where == str(tmp_path / "out" / "data")
    assert content(tmp_path / "out")["a.bin"] == "old"
    assert not folder.replacing


def test_what_was_replaced_and_cannot_be_removed_is_named(tmp_path: Path) -> None:
    make(tmp_path / "out", "new")
    aside = make(tmp_path / ".out.replaced", "old")
    with read_only(aside, errno.EACCES), pytest.raises(ResourceError) as caught:
        work(tmp_path / "out").hold()
    assert caught.value.where == str(aside)
    assert f"rm -r {aside}" in str(caught.value.remedy)
    OutputLock(tmp_path / "out").release()


def test_a_lock_that_cannot_be_made_is_not_named(tmp_path: Path) -> None:
    with read_only(tmp_path, errno.EACCES), pytest.raises(PermissionError) as refused:
        OutputLock(tmp_path / "out")
    assert refused.value.filename == str(tmp_path)
    with pytest.raises(OSError, match="too long") as long:
        OutputLock(tmp_path / ("x" * 250))
    assert long.value.filename == str(tmp_path / ("x" * 250))


def test_one_writer_an_output(tmp_path: Path) -> None:
    folder = work(tmp_path / "out")
    folder.hold()
    with pytest.raises(ConflictError, match="another process"):
        work(tmp_path / "out").hold()
    work(tmp_path / "out").remove_leftovers()  # not while another process works there
    assert folder.folder.is_dir()
    folder.close()
    lock = OutputLock(tmp_path / "out")
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_forked_worker_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = OutputLock(tmp_path / "out")
    reader, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(end)
        os.read(reader, 1)  # lives on until the parent lets go
        os._exit(0)
    lock.release()
    OutputLock(tmp_path / "out").release()
    os.close(end)
    os.waitpid(pid, 0)
    os.close(reader)


def test_on_a_read_only_disk(tmp_path: Path) -> None:
    with read_only(tmp_path):
        with pytest.raises(OSError, match="Read-only"):
            work(tmp_path / "out").hold()
        work(tmp_path / "out").remove_leftovers()


def test_a_link_in_its_place_is_refused_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").touch()
    folder = work(tmp_path / "out")
    folder.folder.symlink_to(tmp_path / "mine")
    with pytest.raises(UnsafeError, match="remove the link"):
        folder.hold()
    folder.folder.unlink()
    folder.hold()  # it is not locked
    folder.close()
    assert (tmp_path / "mine/file").exists()


def test_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = work(tmp_path / "out")
    folder.hold()
    folder.require_space(1)
    with pytest.raises(ResourceError, match="MB are needed"):
        folder.require_space(2**60)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3_100_000))
    words = "about 3 MB are needed, 300 kB more than are free; free space"
    with pytest.raises(ResourceError, match=words):
        folder.require_space(3_400_000)
    folder.close()


def test_a_temporary_folder_that_a_kill_left_is_removed_and_one_in_use_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = (
        "import os, signal\nfrom pbvf_offline.io.lock import temporary_folder\n"
        "with temporary_folder() as folder:\n"
        "    (folder / 'data').mkdir()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    place = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", killed], env=place, check=False)
    assert ran.returncode == -signal.SIGKILL
    (left,) = tmp_path.glob("pbvf-*")
    with temporary_folder() as used:
        assert not left.exists()
        with temporary_folder() as other:
            assert set(tmp_path.glob("pbvf-*")) == {used, other}
    assert list(tmp_path.iterdir()) == []
