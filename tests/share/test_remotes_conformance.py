"""What every remote must do: one test for each promise, every remote through all of them."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_tools import content
from pbvf_datasets.share.remote import MissingFileError, Remote, WritableRemote
from pbvf_datasets.share.remotes import REMOTES, remote_at
from pbvf_datasets.share.remotes.folder import FolderRemote
from pbvf_datasets.share.transfer import pull
from pbvf_offline.errors import DamagedError, NetworkError, PbvfError, UsageError
from pbvf_runs.share import bundles
from share_tools import NAME, largest

SECRET = "s3cr3t"
MEMBERS = list(dict.fromkeys(REMOTES[scheme] for scheme in REMOTES))


class Place:
    """An empty place to test a remote with, and the folder behind it."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self._folder = address, folder

    def put(self, name: str, data: bytes) -> None:
        """Put a file there, by other means where the remote only reads."""
        remote, file = remote_at(self.address), self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        if isinstance(remote, WritableRemote):
            remote.put(name, file, lambda _: None)


@pytest.fixture(params=[*MEMBERS, "s3"], ids=lambda member: getattr(member, "__name__", member))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    folder = tmp_path / "local"
    folder.mkdir()
    if request.param == "s3":  # the real protocol, where its packages are installed
        request.getfixturevalue("s3")
        yield Place(f"s3://lab/{os.urandom(4).hex()}", folder)
        return
    made = request.param.local(folder)
    if isinstance(made, str):
        pytest.skip(made)
    with made as address:
        yield Place(address, folder)


@pytest.fixture
def remote(place: Place) -> Remote:
    return remote_at(place.address)


def read(remote: Remote, name: str, start: int = 0, most: int = 7) -> bytes:
    with remote.open(name, start) as incoming:
        assert incoming.start in (0, start)
        parts = []
        while part := incoming.read(most):
            assert len(part) <= most
            parts.append(part)
        return b"".join(parts)[start - incoming.start :]


def test_a_file_comes_as_it_is_also_from_its_middle(place: Place, remote: Remote) -> None:
    data = bytes(range(256)) * 40
    place.put("data/x.bin", data)
    for start in (0, 1, 5_000, len(data) - 1):
        assert read(remote, "data/x.bin", start, 1000) == data[start:]
    with remote.open("data/x.bin") as incoming:
        assert incoming.total in (None, len(data))
    place.put("empty", b"")
    assert read(remote, "empty") == b""


def test_a_missing_file_is_told_from_an_error(place: Place, remote: Remote) -> None:
    place.put("there", b"x")
    for name in ("none", "data/none"):
        with pytest.raises(MissingFileError):
            read(remote, name)


def test_an_address_is_shown_without_its_credentials(place: Place, remote: Remote) -> None:
    assert remote.shown == place.address
    if not isinstance(remote, FolderRemote):
        secret = place.address.replace("//", f"//me:{SECRET}@", 1) + f"/?sig={SECRET}"
        assert SECRET not in remote_at(secret).shown
        with pytest.raises(PbvfError) as error:
            pull(secret, NAME)
        assert SECRET not in str(error.value)


def test_what_is_sent_is_there_whole_and_can_be_removed(remote: Remote, tmp_path: Path) -> None:
    if not isinstance(remote, WritableRemote):
        return
    file = tmp_path / "file"
    file.write_bytes(os.urandom(100_000))
    assert remote.size("data/x.bin") is None
    told: list[int] = []
    remote.put("data/x.bin", file, told.append)
    assert remote.size("data/x.bin") == 100_000
    assert read(remote, "data/x.bin", 0, 30_000) == file.read_bytes()
    assert told == sorted(told)
    file.write_bytes(b"another")
    remote.put("data/x.bin", file, told.append)
    assert read(remote, "data/x.bin") == b"another"
    for _ in range(2):
        remote.remove("data/x.bin")
        assert remote.size("data/x.bin") is None


def test_a_dataset_or_bundle_there_and_back(
    place: Place, remote: Remote, thing: Path, root: Path
) -> None:
    if isinstance(remote, WritableRemote | FolderRemote):
        assert not bundles.push([thing], place.address).already_complete
        assert bundles.push([thing], place.address).already_complete
    else:
        with pytest.raises(UsageError, match="for pull alone"):
            bundles.push([thing], place.address)
        for name, data in content(thing).items():
            place.put(name, data)
    assert not bundles.pull(place.address, NAME).already_complete
    assert content(root / NAME) == content(thing)
    assert bundles.pull(place.address, NAME).already_complete


def test_other_bytes_than_the_manifest_lists_never_arrive(
    place: Place, thing: Path, root: Path
) -> None:
    files = content(thing)
    large = largest(thing)
    data = files[large]
    for wrong in (data[:-1], data + b"x", data[:-1] + bytes([data[-1] ^ 1])):
        for name, whole in {**files, large: wrong}.items():
            place.put(name, whole)
        with pytest.raises((DamagedError, NetworkError)):
            bundles.pull(place.address, NAME)
        assert not (root / NAME).exists()
        shutil.rmtree(root / "lab", ignore_errors=True)  # with what arrived
    place.put(large, data)
    assert bundles.pull(place.address, NAME).digest
    assert content(root / NAME) == files


def test_an_interrupted_transfer_goes_on_where_it_was(
    place: Place, remote: Remote, thing: Path, root: Path
) -> None:
    files = content(thing)
    for name, whole in files.items():
        place.put(name, whole)
    large = largest(thing)
    data, half = files[large], len(files[large]) // 2
    work = root / "lab/.toy-v0.arriving"
    work.mkdir(parents=True)
    (work / f"part-{hashlib.sha256(data).hexdigest()}").write_bytes(data[:half])
    with remote.open(large, half) as incoming:
        kept = incoming.start  # 0 where it cannot go on in the middle
    arrived = bundles.pull(place.address, NAME)
    assert arrived.fetched == sum(map(len, files.values())) - kept
    assert content(root / NAME) == files
