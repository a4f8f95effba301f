"""``pbvf dataset delete``: what is asked for, and nothing else."""

from __future__ import annotations

import errno
import gc
import io
import itertools
import shutil
import sys
from pathlib import Path

import pytest

import hostile
from cli_tools import content, pbvf
from faults import bound, read_only, sabotaged
from pbvf_datasets.inspect.listing import list_datasets
from pbvf_datasets.write.delete import delete, plan_deletion
from pbvf_offline.io.lock import OutputLock

A, B = "lab/a-v0", "lab/b-v0"


@pytest.fixture
def root(here: Path) -> Path:
    hostile.make(here / "datasets", A)
    hostile.make(here / "datasets", B)
    return here / "datasets"


def states(root: Path) -> list[tuple[str, str]]:
    return [(one.dataset, one.state) for one in list_datasets(root)]


def begin(root: Path, name: str) -> Path:
    """Begin a dataset and leave it unfinished."""
    observations, actions = hostile.spaces_of(hostile.BOX_SPEC)
    with hostile.DatasetWriter(
        name, hostile.BOX_SPEC, observation_space=observations, action_space=actions, root=root
    ) as writer:
        writer.add(hostile.episode(0))
    return root / "lab" / f".{name.removeprefix('lab/')}.collecting"


def test_by_id_and_by_folder(root: Path) -> None:
    size = sum(map(len, content(root / A).values()))
    ran = pbvf("dataset", "delete", A, root / A, root / "lab/../lab/b-v0", "--yes", "--json").ok()
    first = ran.json["deleted"][0]
    assert (first["dataset"], first["folders"], first["bytes"]) == (A, [str(root / A)], size)
    assert len(ran.json["deleted"]) == 2
    assert list((root / "lab").iterdir()) == []


def test_nobody_to_ask(root: Path) -> None:
    pbvf("dataset", "delete", A).refused(2, "--yes")
    assert states(root) == [(A, "ours"), (B, "ours")]


@pytest.mark.parametrize(("answer", "left"), [("y\n", 1), ("n\n", 2), ("\n", 2), ("", 2)])
def test_the_person_at_the_terminal_is_asked(
    root: Path, answer: str, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pbvf_cli.commands.dataset.delete.is_terminal", lambda stream: True)
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    ran = pbvf("dataset", "delete", A).ok()
    assert f"delete {root / A} (" in ran.err
    assert ("nothing was deleted" in ran.err) == (left == 2)
    assert len(states(root)) == left


def test_what_is_refused_and_then_nothing_is_deleted(root: Path, here: Path) -> None:
    (root / B / "notes.txt").write_text("mine")
    pbvf("dataset", "delete", A, B, "--yes").refused(7, "notes.txt")
    (root / B / "notes.txt").unlink()
    lock = OutputLock(root / B)
    pbvf("dataset", "delete", A, B, "--yes").refused(7, "another process")
    lock.release()
    (root / "lab/link-v0").symlink_to(root / B)
    pbvf("dataset", "delete", A, "lab/link-v0", "--yes").refused(4, "link-v0", "symbolic link")
    (here / "bundle").mkdir()
    (here / "bundle/manifest.json").write_text('{"format":"pbvf-bundle"}')
    words = f"not a dataset folder but a bundle; only datasets are deleted; use rm -r {here}/bundle"
    pbvf("dataset", "delete", A, here / "bundle", "--yes").refused(2, words)
    with bound(root / B):
        pbvf("dataset", "delete", A, B, "--yes").refused(6, f"{B}: permission", "chmod -R u+w")
    with read_only(root / "lab", errno.EACCES):
        for command in (("delete", A, "--yes"), ("set", A, "--license", "MIT")):
            words = f"error: {root}/lab: cannot write: Permission denied; "
            pbvf("dataset", *command).refused(6, words, "allow writing there")
    (root / B / "README.md").unlink()
    (root / B / "README.md").symlink_to(here / "elsewhere")
    pbvf("dataset", "delete", B, "--yes").refused(4, "README.md")
    pbvf("dataset", "delete", A, "lab/none-v0", "--yes").refused(2, "no dataset lab/none-v0")
    (here / "empty").mkdir()
    pbvf("dataset", "delete", A, here / "empty", "--yes").refused(2, "not a dataset")
    assert (A, "ours") in states(root)
    assert (here / "empty").is_dir()


def test_what_was_begun(root: Path) -> None:
    folder = begin(root, "lab/c-v0")
    assert ("lab/c-v0", "unfinished") in states(root)
    begun = (
        "lab/c-v0: it is unfinished; run the command that makes it again, or 'pbvf dataset delete"
    )
    for command in (
        ("info",),
        ("fit-critic", "--critic", "psvf", "--out", "x"),
        ("dataset", "delete"),
    ):
        pbvf(*command, "lab/c-v0").refused(2, f"{begun} lab/c-v0 --unfinished' removes it")
    ran = pbvf("dataset", "delete", "lab/c-v0", "--unfinished", "--yes", "--json").ok()
    assert ran.json["deleted"][0]["folders"] == [str(folder)]
    assert states(root) == [(A, "ours"), (B, "ours")]
    pbvf("dataset", "delete", A, "--unfinished", "--yes").refused(2, "nothing unfinished")


def test_an_interrupted_deletion_says_how_to_finish_it(root: Path) -> None:
    (root / A).rename(root / "lab" / ".a-v0.deleting")
    pbvf("dataset", "delete", A, "--yes").refused(
        2, "was interrupted; finish that with 'pbvf dataset delete lab/a-v0 --unfin"
    )
    pbvf("dataset", "delete", A, "--unfinished", "--yes").ok()
    assert states(root) == [(B, "ours")]


@pytest.mark.slow
def test_a_kill_leaves_a_whole_dataset_or_none(root: Path, here: Path) -> None:
    kept = shutil.copytree(root, here / "kept")
    seen = set()
    for at in itertools.count(1):
        shutil.rmtree(root)
        shutil.copytree(kept, root)
        _, outcome = sabotaged(lambda: delete(plan_deletion(A, root=root)), at, "kill")
        gc.collect()
        if outcome is None:
            break
        there = states(root)
        seen.add(tuple(there))
        if (A, "ours") in there:
            assert content(root / A) == content(kept / A)
        else:
            assert not (root / A).exists()
        if (A, "unfinished") in there:
            pbvf("dataset", "delete", A, "--unfinished", "--yes").ok()
        if (root / A).exists():
            pbvf("dataset", "delete", A, "--yes").ok()
        assert states(root) == [(B, "ours")]
        left = {p.name for p in (root / "lab").iterdir()}
        assert left <= {"b-v0", ".a-v0.lock"}  # which locks nothing without a process
    assert ((A, "unfinished"), (B, "ours")) in seen
