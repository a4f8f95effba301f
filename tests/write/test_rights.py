"""Licence and authors are set, whole or not at all, and the data stay as they are."""

from __future__ import annotations

import gc
import itertools
import json
import shutil
import warnings
from pathlib import Path

import pytest

import hostile
from cli_tools import content, digest
from faults import Killed, bound, sabotaged
from pbvf_datasets import load_dataset, set_rights
from pbvf_datasets.format.manifest import (
    known_as,
    manifest_bytes,
    manifest_digest,
    parse_manifest,
)
from pbvf_datasets.format.schema import CROISSANT_FILE, DATA_FILE, METADATA_FILE, SIGNATURE_FILE
from pbvf_datasets.inspect.listing import list_datasets
from pbvf_datasets.inspect.verify import verify
from pbvf_datasets.read.untrusted import CardWarning
from pbvf_datasets.write import rights as module
from pbvf_datasets.write.delete import delete, plan_deletion
from pbvf_offline.errors import ConflictError, DamagedError, ResourceError, UsageError
from pbvf_offline.io import work_folder
from pbvf_offline.io.lock import OutputLock

NAME = "lab/toy-v0"


@pytest.fixture
def made(root: Path) -> Path:
    return hostile.make(root, authors=["Ada"])


def intact(path: Path) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return verify(path).status == "intact"


def test_all_texts_say_it_and_the_data_are_the_same_file(root: Path, made: Path) -> None:
    old, data, file = digest(root, NAME), load_dataset(NAME), (made / DATA_FILE).stat()
    result = set_rights(NAME, license="CC-BY-4.0", authors=["Grace", "Alan"])
    assert (result.known_as, result.path) == (old, made)
    assert result.digest == digest(root, NAME) != old
    after = (made / DATA_FILE).stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_nlink) == (file.st_ino, file.st_mtime_ns, 1)
    assert intact(made)
    assert [p.name for p in (root / "lab").iterdir()] == ["toy-v0"]
    again = load_dataset(NAME)
    assert (again.license, again.digest) == ("CC-BY-4.0", data.digest)
    card = (made / "README.md").read_text()
    assert 'license: "cc-by-4.0"' in card
    assert "Grace and Alan" in card
    assert json.loads((made / CROISSANT_FILE).read_bytes())["license"] == "CC-BY-4.0"
    assert json.loads((made / METADATA_FILE).read_bytes())["author"] == ["Grace", "Alan"]
    # What is given in the end is what a dataset made with it would say.
    other = hostile.make(root, "lab/other-v0", license="CC-BY-4.0", authors=["Grace", "Alan"])
    assert card.replace("toy-v0", "other-v0") == (other / "README.md").read_text().replace(
        "format version 1", "format version 2"
    )


def test_one_stays_where_the_other_is_set_and_nothing_is_done_twice(root: Path, made: Path) -> None:
    first = set_rights(NAME, license="MIT")
    assert first.authors == ("Ada",)
    before = content(made)
    assert set_rights(made, license="MIT").already_complete
    assert content(made) == before
    second = set_rights(NAME, authors=["Grace"])
    assert (second.license, second.known_as) == ("MIT", first.known_as)
    with pytest.raises(UsageError, match="nothing to set"):
        set_rights(NAME)


def test_all_earlier_digests_stay_known_up_to_a_limit(
    root: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = []
    for license in ("MIT", "ISC", "MIT"):
        digests.append(digest(root, NAME))
        set_rights(NAME, license=license)
    manifest = parse_manifest((made / "manifest.json").read_bytes(), made)
    assert known_as(manifest) == digests
    assert len(set(digests)) == 3
    monkeypatch.setattr(module, "MAX_KNOWN_AS", 3)
    with pytest.raises(UsageError, match="set 3 times already"):
        set_rights(NAME, license="ISC")


def test_a_digest_that_the_data_never_had_is_refused(root: Path, made: Path) -> None:
    set_rights(NAME, license="MIT")
    set_rights(NAME, license="ISC")
    other = hostile.make(root, "lab/other-v0", episodes=[hostile.episode(3)])
    set_rights("lab/other-v0", license="MIT")
    file = other / "manifest.json"
    good = json.loads(file.read_bytes())
    entries = json.loads((made / "manifest.json").read_bytes())["provenance"]["known_as"]
    data = {DATA_FILE: json.loads((made / "manifest.json").read_bytes())["files"][DATA_FILE]}
    for claimed, text in (
        (entries[:1], "never had"),
        ([entries[0] | {"files": entries[0]["files"] | data}], "never had"),
        (entries[1:], "never had"),
        ([*good["provenance"]["known_as"], entries[0]], "never had"),
        ([good["provenance"]["known_as"][0] | {"digest": entries[0]["digest"]}], "never had"),
        (entries[0]["digest"], "no list"),
        (entries[:1] * 21, "no list of at most 20"),
        ([entries[0]["digest"]], "known_as"),
        ([{"digest": entries[0]["digest"]}], "lacks"),
    ):
        manifest = good | {"provenance": good["provenance"] | {"known_as": claimed}}
        file.write_bytes(manifest_bytes(manifest | {"digest": manifest_digest(manifest)}))
        with pytest.raises(DamagedError, match=text):
            load_dataset("lab/other-v0")
    file.write_bytes(manifest_bytes(good))
    assert intact(other)


def test_an_edited_card_and_a_signature(root: Path, made: Path) -> None:
    (made / SIGNATURE_FILE).write_bytes(bytes(64))
    (made / "README.md").write_text("# Mine")
    result = set_rights(NAME, license="MIT")
    assert (result.signature_removed, result.card_kept) == (True, True)
    assert not (made / SIGNATURE_FILE).exists()
    with pytest.warns(CardWarning, match="edited"):
        load_dataset(NAME)
    set_rights(NAME, license="ISC")
    assert (made / "README.md").read_text() == "# Mine"


def test_what_is_not_touched(root: Path, made: Path) -> None:
    (made / "notes.txt").write_text("mine")
    before = content(made)
    with pytest.raises(ConflictError, match=r"notes\.txt"):
        set_rights(NAME, license="MIT")
    assert content(made) == before
    (made / "notes.txt").unlink()
    lock = OutputLock(made)
    with pytest.raises(ConflictError, match="another process"):
        set_rights(NAME, license="MIT")
    lock.release()
    (made / "manifest.json").unlink()
    with pytest.raises(UsageError, match="dataset merge"):
        set_rights(NAME, license="MIT")
    assert [p.name for p in (root / "lab").iterdir()] == ["toy-v0"]


@pytest.mark.slow
@pytest.mark.parametrize("exchanged", [True, False])
def test_a_kill_anywhere_leaves_the_old_or_the_new(
    root: Path, made: Path, tmp_path: Path, exchanged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchanged:
        monkeypatch.setattr(work_folder, "exchange", lambda one, other: False)
    kept = shutil.copytree(made, tmp_path / "kept")
    states = set()
    for at in itertools.count(1):
        shutil.rmtree(root)
        shutil.copytree(kept, made)
        _, outcome = sabotaged(lambda: set_rights(NAME, license="MIT"), at, "kill")
        gc.collect()
        if outcome is None:
            break
        if exchanged or made.exists():
            assert intact(made)
            states.add(load_dataset(NAME).license)
        else:
            states.add("none")
        assert set_rights(NAME, license="MIT").license == "MIT"
        assert intact(made)
        assert [p.name for p in (root / "lab").iterdir()] == ["toy-v0"]
    assert states == {None, "MIT"} | ({"none"} if not exchanged else set())


@pytest.fixture
def torn(root: Path, made: Path) -> Path:
    """The place of a dataset whose licence was being set, without a name since a kill."""

    def stop(folder: Path) -> None:
        if not made.exists():
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work_folder, "exchange", lambda one, other: False)
        patch.setattr(work_folder, "sync_folder", stop)
        with pytest.raises(Killed):
            set_rights(NAME, license="MIT")
    left = {p.name for p in (root / "lab").iterdir()}
    assert left == {".toy-v0.relicense", ".toy-v0.replaced"}
    return made


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("named", ["id", "folder", "path", "relative"])
def test_a_kill_between_two_renames_is_made_good_by_the_same_again(
    root: Path, torn: Path, named: str, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [(one.dataset, one.state) for one in list_datasets(root)] == [(NAME, "unfinished")]
    with pytest.raises(UsageError, match="interrupted; run 'pbvf dataset set' again, or 'pbvf dat"):
        load_dataset(NAME)
    if not whole:
        (root / "lab/.toy-v0.relicense/build" / DATA_FILE).unlink()
    monkeypatch.chdir(root / "lab")
    names: dict[str, str | Path] = {"id": NAME, "folder": str(torn), "path": torn}
    done = set_rights(names.get(named, torn.name), license="MIT")
    assert (done.license, done.path, done.already_complete) == ("MIT", torn, whole)
    assert intact(torn)
    assert [p.name for p in (root / "lab").iterdir()] == ["toy-v0"]


def test_after_such_a_kill_nothing_else_is_set_and_the_dataset_is_not_deleted(
    root: Path, torn: Path
) -> None:
    before = content(root)
    for name in ("lab/none-v0", "", "a\0b", root / "lab/none-v0"):
        with pytest.raises(UsageError):
            set_rights(name, license="MIT")
    assert content(root) == before
    delete(plan_deletion(NAME, unfinished=True))
    assert load_dataset(NAME).license == "MIT"
    assert [p.name for p in (root / "lab").iterdir()] == ["toy-v0"]


def test_a_dataset_from_which_nothing_may_be_removed_stays(root: Path, made: Path) -> None:
    before = content(made)
    with bound(made, made / "data"), pytest.raises(ResourceError, match=f"{made}: permission.*ch"):
        set_rights(NAME, license="MIT")
    assert content(made) == before
    assert [p.name for p in (root / "lab").iterdir()] == ["toy-v0"]


def test_where_folders_cannot_be_exchanged_nor_files_linked(
    root: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_folder, "exchange", lambda one, other: False)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(module.os, "link", refuse)
    set_rights(NAME, license="MIT")
    assert load_dataset(NAME).license == "MIT"
    assert intact(made)
    assert [p.name for p in (root / "lab").iterdir()] == ["toy-v0"]
