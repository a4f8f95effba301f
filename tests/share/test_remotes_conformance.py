"""What every remote must do: one test for each promise, every remote through all of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli_tools import content
from pbvf_datasets.share.remotes import REMOTES, remote_at
from pbvf_datasets.share.remotes.base import MissingFileError, Remote, WritableRemote
from pbvf_datasets.share.remotes.folder import FolderRemote
from pbvf_datasets.share.transfer import pull, push
from pbvf_offline.errors import DamagedError, NetworkError, PbvfError, UsageError
from share_tools import NAME, licensed, serving, without_pauses

SECRET = "s3cr3t"


@dataclass(frozen=True)
class Place:
    """A remote to test.

    Attributes:
        address: Of an empty folder there.
        put: Puts a file there by other means.
        secret: An address with a password in it, for the same kind of remote.
    """

    address: str
    put: Callable[[str, bytes], object]
    secret: str | None = None


def write(folder: Path, name: str, data: bytes) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def folder(tmp_path: Path, _: Any) -> Iterator[Place]:
    place = tmp_path / "remote"
    yield Place(str(place), lambda name, data: write(place, name, data))


def file_address(tmp_path: Path, _: Any) -> Iterator[Place]:
    place = tmp_path / "remote"
    yield Place(f"file://{place}", lambda name, data: write(place, name, data))


def http(tmp_path: Path, _: Any) -> Iterator[Place]:
    served = tmp_path / "served"
    served.mkdir()
    with serving(served) as web:
        secret = web.url.replace("//", f"//me:{SECRET}@") + f"/?sig={SECRET}"
        yield Place(web.url, lambda name, data: write(served, name, data), secret)


def memory(_: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    fs = request.getfixturevalue("memory")
    yield Place("memory://sets/toy", lambda name, data: fs.pipe_file(f"/sets/toy/{name}", data))


def s3(_: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    client = request.getfixturevalue("s3")
    prefix = f"conformance/{os.urandom(4).hex()}"

    def put(name: str, data: bytes) -> None:
        client.put_object(Bucket="lab", Key=f"{prefix}/{name}", Body=data)

    yield Place(f"s3://lab/{prefix}", put)


MAKERS = {"folder": folder, "file": file_address, "http": http, "memory": memory, "s3": s3}


@pytest.fixture(params=MAKERS)
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    without_pauses(monkeypatch)
    yield from MAKERS[request.param](tmp_path, request)


@pytest.fixture
def remote(place: Place) -> Remote:
    return remote_at(place.address)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return licensed(tmp_path_factory.mktemp("made"))


def read(remote: Remote, name: str, start: int = 0, most: int = 7) -> bytes:
    with remote.open(name, start) as incoming:
        assert incoming.start in (0, start)
        parts = []
        while part := incoming.read(most):
            assert len(part) <= most
            parts.append(part)
        return b"".join(parts)[start - incoming.start :]


def test_every_remote_is_tested_here() -> None:
    used = {type(remote_at(address)) for address in ("/x", "http://x", "memory://x")}
    assert {REMOTES[name] for name in REMOTES} == used


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
    assert remote.shown == place.address.removeprefix("file://")
    for address in (place.secret, f"{place.address}/{NAME}"):
        if address is not None:
            with pytest.raises(PbvfError) as error:
                pull(address, NAME)
            assert SECRET not in str(error.value)
            assert SECRET not in remote_at(address).shown


@pytest.mark.parametrize("place", ["memory", "s3"], indirect=True)
def test_what_is_sent_is_there_whole_and_can_be_removed(remote: Remote, tmp_path: Path) -> None:
    assert isinstance(remote, WritableRemote)
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


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    return tmp_path / "root"


def test_a_dataset_there_and_back(place: Place, remote: Remote, made: Path, root: Path) -> None:
    if isinstance(remote, WritableRemote | FolderRemote):
        assert not push(made, place.address).already_complete
        assert push(made, place.address).already_complete
    else:
        with pytest.raises(UsageError, match="for pull alone"):
            push(made, place.address)
        for name, data in content(made).items():
            place.put(name, data)
    assert not pull(place.address, NAME).already_complete
    assert content(root / NAME) == content(made)
    assert pull(place.address, NAME).already_complete


def test_other_bytes_than_the_manifest_lists_never_arrive(
    place: Place, made: Path, root: Path
) -> None:
    files = content(made)
    data = files["data/main_data.hdf5"]
    for wrong in (data[:-1], data + b"x", data[:-1] + bytes([data[-1] ^ 1])):
        for name, whole in {**files, "data/main_data.hdf5": wrong}.items():
            place.put(name, whole)
        with pytest.raises((DamagedError, NetworkError)):
            pull(place.address, NAME)
        assert not (root / NAME).exists()
    place.put("data/main_data.hdf5", data)
    assert pull(place.address, NAME).digest
    assert content(root / NAME) == files


def test_an_interrupted_transfer_goes_on_where_it_was(place: Place, made: Path, root: Path) -> None:
    files = content(made)
    for name, whole in files.items():
        place.put(name, whole)
    data = files["data/main_data.hdf5"]
    work = root / "lab/.toy-v0.arriving"
    work.mkdir(parents=True)
    (work / f"part-{hashlib.sha256(data).hexdigest()}").write_bytes(data[:50_000])
    arrived = pull(place.address, NAME)
    assert arrived.fetched == sum(map(len, files.values())) - 50_000
    assert content(root / NAME) == files
