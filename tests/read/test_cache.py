"""The training cache speeds things up and can do no harm."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hostile
from pbvf_datasets import load_dataset
from pbvf_datasets.read import cache
from pbvf_datasets.read.cache import cache_file, cache_folder, load_cache, store_cache
from pbvf_offline.rollout.episodes import Trajectories, stack_episodes

DIGEST = "ab" * 32


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PBVF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _trajectories(episodes: int = 3) -> Trajectories:
    return stack_episodes(hostile.BOX_SPEC, [hostile.episode(i) for i in range(episodes)])


def _reseal(path: Path, data: bytes) -> None:
    """Write cache bytes with the checksum that fits."""
    start, rest = data[:8], data[8 + 32 :]
    path.write_bytes(start + hashlib.sha256(rest).digest() + rest)


def test_where_it_lives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("PBVF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "pbvf-offline"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "pbvf-offline"


def test_it_is_private_and_outside_the_dataset(folder: Path, tmp_path: Path) -> None:
    dataset = hostile.make(tmp_path / "root")
    before = sorted(dataset.rglob("*"))
    data = load_dataset(dataset)
    assert sorted(dataset.rglob("*")) == before
    path = cache_file(data.digest)
    assert path.parent == folder
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(folder.iterdir()) == [path]


def test_without_cache_nothing_is_written(folder: Path, tmp_path: Path) -> None:
    load_dataset(hostile.make(tmp_path / "root"), cache=False)
    assert not folder.exists()


def test_arrays_are_mapped_and_cannot_be_written_to() -> None:
    assert store_cache(DIGEST, _trajectories())
    first = load_cache(DIGEST)
    assert first is not None
    assert first.rewards.base is not None
    for array in (first.rewards, first.policies.theta):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 7
    assert all(
        getattr(first, n).ctypes.data % 64 == 0 for n in ("rewards", "observations", "start")
    )


def test_the_first_opening_is_like_later_ones(folder: Path, tmp_path: Path) -> None:
    dataset = hostile.make(tmp_path / "root")
    plain = load_dataset(dataset, cache=False).trajectories
    assert plain.rewards.flags.writeable
    for _ in ("first", "later"):
        data = load_dataset(dataset).trajectories
        assert not data.rewards.flags.writeable
        for name, array in vars(plain).items():
            if isinstance(array, np.ndarray):
                np.testing.assert_array_equal(getattr(data, name), array)
        assert [path.suffix for path in folder.iterdir()] == [".cache"]


def test_without_room_for_files_arrays_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = hostile.make(tmp_path / "root")

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    monkeypatch.setattr(tempfile, "mkstemp", full)
    assert load_dataset(dataset).trajectories.rewards.flags.writeable


@pytest.mark.parametrize("cut", [0, 1, 20, 47, 48, 100, 1000, -1])
def test_a_cut_file_is_not_used(cut: int) -> None:
    store_cache(DIGEST, _trajectories())
    path = cache_file(DIGEST)
    path.write_bytes(path.read_bytes()[:cut])
    assert load_cache(DIGEST) is None


def test_no_flipped_byte_goes_unnoticed() -> None:
    store_cache(DIGEST, _trajectories(1))
    path = cache_file(DIGEST)
    data = path.read_bytes()
    for at in [*range(60), *np.random.default_rng(0).integers(60, len(data), 60).tolist()]:
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert load_cache(DIGEST) is None, at
    path.write_bytes(data)
    assert load_cache(DIGEST) is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"digest":"abab', b'"digest":"abac'),
        (b'"digest"', b'"digesT"'),
        (b'"spec"', b'"Spec"'),
        (b'["theta","<f4"', b'["theta","|O8"'),
        (b'["rewards","<f8"', b'["rewards","<i8"'),
        (b'["rewards","<f8",[60]', b'["rewards","<f8",[61]'),
        (b'["rewards","<f8",[60]', b'["rewards","<f8",[-1'),
        (b'["rewards"', b'["rewardz"'),
        (b'["seeds","<i8",[3]', b'["seeds","<i8",[2]'),
        (b'{"arrays"', b'["arrays"'),
    ],
)
def test_a_malformed_header_with_a_good_checksum_is_not_used(old: bytes, new: bytes) -> None:
    store_cache(DIGEST, _trajectories())
    path = cache_file(DIGEST)
    data = path.read_bytes()
    assert data.count(old) == 1
    _reseal(path, data)
    assert load_cache(DIGEST) is not None
    _reseal(path, data.replace(old, new))
    assert load_cache(DIGEST) is None


def test_a_header_longer_than_the_file_is_not_used() -> None:
    store_cache(DIGEST, _trajectories())
    path = cache_file(DIGEST)
    data = bytearray(path.read_bytes())
    data[40:48] = (2**62).to_bytes(8, "little")
    _reseal(path, bytes(data))
    assert load_cache(DIGEST) is None


@pytest.mark.parametrize(
    "change",
    [
        {"policy": np.full(60, 6, np.int32)},
        {"policy": np.full(60, -1, np.int32)},
        {"start": np.array([0, 20, 20, 60])},
        {"start": np.array([1, 20, 40, 60])},
        {"start": np.array([0, 20, 40, 2**40])},
    ],
)
def test_indices_out_of_range_are_not_used(change: dict[str, Any]) -> None:
    good = _trajectories()
    store_cache(DIGEST, Trajectories(**{**vars(good), **change}))
    assert cache_file(DIGEST).exists()
    assert load_cache(DIGEST) is None


def test_a_spoiled_cache_is_silently_built_anew(tmp_path: Path) -> None:
    dataset = hostile.make(tmp_path / "root")
    data = load_dataset(dataset)
    path = cache_file(data.digest)
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    again = load_dataset(dataset)
    np.testing.assert_array_equal(again.trajectories.rewards, data.trajectories.rewards)
    assert path.read_bytes() == good


def test_only_plain_files_of_this_user_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_cache(DIGEST, _trajectories())
    path = cache_file(DIGEST)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 12_345)
        assert load_cache(DIGEST) is None
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert load_cache(DIGEST) is None
    path.unlink()
    os.mkfifo(path)
    assert load_cache(DIGEST) is None
    path.unlink()
    path.mkdir()
    assert load_cache(DIGEST) is None


def test_failing_to_write_is_no_error(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = hostile.make(tmp_path / "root")
    folder.write_text("a file where the folder should be")
    assert len(load_dataset(dataset)) == 3
    folder.unlink()

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        assert not store_cache(DIGEST, _trajectories())
    assert list(folder.iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
        patch.delenv("PBVF_CACHE")
        patch.delenv("XDG_CACHE_HOME", raising=False)
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
        assert len(load_dataset(dataset)) == 3


def test_the_least_recently_used_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "KEEP_FILES", 3)
    digests = [f"{i:064x}" for i in range(5)]
    for i, digest in enumerate(digests[:3]):
        store_cache(digest, _trajectories(1))
        os.utime(cache_file(digest), (1000 + i, 1000 + i))
    assert load_cache(digests[0]) is not None  # now the most recently used
    (folder / "notes.txt").write_text("not ours")
    old, new = folder / ".tmp-old", folder / ".tmp-new"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (1000, 1000))
    store_cache(digests[3], _trajectories(1))
    left = {p.name for p in folder.iterdir()}
    kept = {cache_file(digests[i]).name for i in (0, 2, 3)}
    assert left == kept | {"notes.txt", ".tmp-new"}
    monkeypatch.setattr(cache, "KEEP_BYTES", cache_file(digests[3]).stat().st_size + 1)
    time.sleep(0.01)
    store_cache(digests[4], _trajectories(1))
    assert {p.name for p in folder.glob("*.cache")} == {cache_file(digests[4]).name}
