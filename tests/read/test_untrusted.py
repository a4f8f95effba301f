"""Untrusted folders: files, digests, card and manifest are checked before anything is read."""

from __future__ import annotations

import gc
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

import hostile
import watching
from pbvf_datasets.format.schema import DATA_FILE, METADATA_FILE
from pbvf_datasets.read.dataset import load_dataset
from pbvf_datasets.read.untrusted import CardWarning, UnverifiedWarning, open_folder
from pbvf_offline.errors import (
    DamagedError,
    IncompatibleError,
    ResourceError,
    UnsafeError,
    UsageError,
    printable,
)

pytestmark = pytest.mark.usefixtures("root")


@pytest.mark.parametrize("name", sorted(hostile.UNSAFE))
def test_a_walk_alone_refuses_what_is_unsafe(name: str, folder: Path, tmp_path: Path) -> None:
    case = hostile.UNSAFE[name]
    secret = hostile.outside(tmp_path / "outside")
    case.spoil(folder, secret)
    hostile.SEALS[case.seals[0]](folder)

    def open_all() -> None:
        with open_folder(folder, warn=False) as checked:
            checked.open_checked()

    with watching.watching(secret) as watch, pytest.raises(UnsafeError) as caught:
        open_all()
    assert case.words[0] in str(caught.value)
    assert watch.touched == []


def test_a_good_folder_opens_and_holds_what_was_written(folder: Path) -> None:
    with open_folder(folder) as checked:
        assert checked.verified
        assert (checked.total_episodes, checked.total_steps) == (3, 60)
        assert checked.observation_space.shape == (3,)
        file = checked.open_checked()
        np.testing.assert_array_equal(file["episode_2/rewards"][()], hostile.episode(2).rewards)
        assert checked.manifest is not None
        assert checked.digest == checked.manifest["digest"]


def test_no_descriptor_is_left_open(folder: Path) -> None:
    gc.collect()  # files that earlier tests left to the garbage collector are closed before
    before = len(list(Path("/dev/fd").iterdir()))
    with open_folder(folder) as checked:
        checked.open_checked()
    hostile.DAMAGED["3 actions beside 20 rewards"].spoil(folder, folder)
    with pytest.raises(DamagedError):
        load_dataset(folder)
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_without_manifest_one_warning_or_refusal(folder: Path) -> None:
    hostile.unseal(folder)
    with pytest.warns(UnverifiedWarning, match="manifest") as caught:
        data = load_dataset(folder)
    assert len(caught) == 1
    assert Path(caught[0].filename) == Path(__file__)
    assert not data.verified
    with pytest.raises(UnsafeError, match=r"manifest\.json.*--require-manifest"):
        load_dataset(folder, require_manifest=True)


def test_an_edited_card_only_warns(folder: Path) -> None:
    digest = load_dataset(folder, require_manifest=True).digest
    card = folder / "README.md"
    text = card.read_text()
    for change in (text + "More.\n", text.replace("e", "E", 1), ""):
        card.write_text(change)
        with pytest.warns(CardWarning, match=r"README\.md.*edited"):
            assert load_dataset(folder).digest == digest
    card.unlink()
    with pytest.warns(CardWarning, match=r"README\.md.*missing"):
        assert load_dataset(folder).digest == digest


def test_other_files_in_the_folder_are_left_alone(folder: Path) -> None:
    (folder / ".DS_Store").write_bytes(b"x")
    (folder / "plots").mkdir()
    (folder / "plots" / "link").symlink_to("/etc")
    assert len(load_dataset(folder)) == 3


def test_a_moved_folder_and_a_symlink_to_it_are_fine(folder: Path, tmp_path: Path) -> None:
    moved = folder.rename(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(moved)
    assert load_dataset(moved).digest == load_dataset(tmp_path / "link").digest


def test_there_is_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        open_folder(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="does not exist"):
        open_folder(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_a_matter_of_resources(folder: Path) -> None:
    (folder / DATA_FILE).chmod(0)
    with pytest.raises(ResourceError, match=r"main_data\.hdf5"):
        open_folder(folder)


def test_oversized_json_is_refused_unread(folder: Path) -> None:
    with (folder / METADATA_FILE).open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(UnsafeError, match=r"metadata\.json.*1,099,511,627,776"):
        open_folder(folder)
    with (folder / "manifest.json").open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(UnsafeError, match=r"manifest\.json"):
        open_folder(folder)


def test_a_folder_of_very_many_entries_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pbvf_datasets.read.untrusted.MAX_ENTRIES", 2)
    with pytest.raises(UnsafeError, match="more than 2 entries"):
        open_folder(folder)


def test_a_file_swapped_between_check_and_use_is_noticed(folder: Path, tmp_path: Path) -> None:
    with open_folder(folder) as checked:
        shutil.copy(folder / DATA_FILE, tmp_path / "other")
        (tmp_path / "other").replace(folder / DATA_FILE)
        with pytest.raises(UnsafeError, match="replaced"):
            checked.open_data()


def test_a_file_written_to_while_it_is_read_is_noticed(folder: Path) -> None:
    with open_folder(folder) as checked:
        checked.open_checked()
        time.sleep(0.01)
        with (folder / DATA_FILE).open("r+b") as file:
            file.write(b"\x89")
        with pytest.raises(DamagedError, match="changed"):
            checked.open_data().check_unchanged()


def test_a_stale_manifest_is_reported_with_both_digests(folder: Path) -> None:
    path = folder / METADATA_FILE
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(DamagedError, match=r"metadata\.json.*bytes.*manifest says"):
        load_dataset(folder)
    with pytest.raises(DamagedError, match=r"metadata\.json.*bytes.*manifest says"):
        open_folder(folder)
    path.write_bytes(path.read_bytes()[:-1].replace(b"policies", b"Policies"))
    with pytest.raises(DamagedError, match=r"metadata\.json.*sha256.*manifest says"):
        open_folder(folder)


@pytest.mark.parametrize(
    ("there", "flipped"),
    [
        (b'"hdf5"', b'"hdf4"'),
        (b'"observation_space"', b'"obserwation_space"'),
        (b'"action_space"', b'"actiom_space"'),
        (b"Box", b"Cox"),
        (b"float64", b"flo!t64"),
    ],
)
def test_metadata_that_a_manifest_shows_to_be_damaged_are_not_believed(
    folder: Path, there: bytes, flipped: bytes
) -> None:
    path = folder / METADATA_FILE
    data = path.read_bytes()
    assert there in data
    path.write_bytes(data.replace(there, flipped, 1))
    for read in (load_dataset, open_folder):
        with pytest.raises(DamagedError, match=r"metadata\.json.*sha256.*manifest says"):
            read(folder)
    hostile.reseal(folder)  # vouched for, they are what they say
    with pytest.raises((UnsafeError, IncompatibleError)):
        open_folder(folder)


def test_a_data_file_of_holes_is_not_hashed(folder: Path) -> None:
    with (folder / DATA_FILE).open("r+b") as file:
        file.truncate(2**42)
    before = time.monotonic()
    for _ in range(2):
        with pytest.raises(UnsafeError, match=r"main_data\.hdf5.*sparse"):
            open_folder(folder, warn=False)
        (folder / "manifest.json").unlink(missing_ok=True)
    assert time.monotonic() - before < 10


def test_names_from_files_are_safe_to_print() -> None:
    assert printable("episode_1") == "episode_1"
    assert printable("\x1b[31m\u202e") == "\\x1b[31m\\u202e"
    assert len(printable("x" * 1000)) == 120
