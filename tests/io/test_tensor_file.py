from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from faults import read_only
from libtools import box_spec, make_policies
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    IncompatibleError,
    PbvfError,
    ResourceError,
    UnsafeError,
    UsageError,
)
from pbvf_offline.io import tensor_file as files
from pbvf_offline.io.durable import remove_file, temporary_path, write_file
from pbvf_offline.io.lock import locked
from pbvf_offline.io.reading import file_digest, read_file
from pbvf_offline.io.tensor_file import MAX_HEADER, decode, encode, read_tensor_file
from pbvf_offline.policies.files import PoliciesFile

ARRAYS: dict[str, Any] = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([[1.5], [-2.5]]),
    "c": np.array([2**40, -1]),
    "d": np.array(7, np.int32),
    "e": np.array([], np.uint8),
    "f": np.zeros((0, 3), np.float32),
}
CONTENT = {"x": 1, "y": [0.1, None, "ü"], "n": {"sha256": "no"}}


def sample(kind: str = "sample") -> bytes:
    return encode(kind, CONTENT, ARRAYS)


def test_round_trip() -> None:
    content, tensors = decode("sample", sample(), "here")
    assert content == CONTENT
    assert set(tensors) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert tensors[name].dtype == array.dtype
        assert tensors[name].shape == array.shape
        assert np.array_equal(tensors[name], array)


def test_equal_arguments_give_equal_bytes() -> None:
    backwards = dict(reversed(ARRAYS.items()))
    fortran = {**ARRAYS, "a": np.asfortranarray(ARRAYS["a"])}
    assert encode("sample", dict(reversed(CONTENT.items())), backwards) == sample()
    assert encode("sample", CONTENT, fortran) == sample()


def test_other_programs_can_read_the_tensors() -> None:
    loaded = safetensors.numpy.load(sample())
    assert np.array_equal(loaded["a"], ARRAYS["a"])


def test_every_flipped_byte_is_noticed() -> None:
    image = sample()
    for at in range(len(image)):
        for flip in (0x01, 0x80, 0xFF):
            bad = bytearray(image)
            bad[at] ^= flip
            with pytest.raises((DamagedError, IncompatibleError, UnsafeError)):
                decode("sample", bytes(bad), "here")


def test_every_truncation_and_extension_is_noticed() -> None:
    image = sample()
    for size in range(len(image)):
        with pytest.raises((DamagedError, IncompatibleError, UnsafeError)):
            decode("sample", image[:size], "here")
    for more in (b"\0", b"x" * 100):
        with pytest.raises(DamagedError):
            decode("sample", image + more, "here")


def test_swapped_arrays_are_noticed() -> None:
    # safetensors itself has no checksum: the second array's bytes moved into the first.
    image = encode("sample", {}, {"a": np.zeros(4), "b": np.ones(4)})
    zeros, ones = np.zeros(4).tobytes(), np.ones(4).tobytes()
    assert image.endswith(zeros + ones)
    with pytest.raises(DamagedError, match="digest"):
        decode("sample", image[:-64] + ones + zeros, "here")


def test_a_digest_in_the_content_does_not_mislead() -> None:
    content = {"z": 'x"sha256":"' + "a" * 64 + '"', "sha256": "b" * 64}
    got, _ = decode("sample", encode("sample", content, {}), "here")
    assert got == content


class Attack:
    def __reduce__(self) -> Any:
        return (os.mkdir, ("attack-has-run",))


def pickles() -> list[Any]:
    found = []
    for name, value in (("attack", Attack()), ("dict", {"w": 1}), ("big", list(range(999)))):
        found += [
            pytest.param(pickle.dumps(value, p), id=f"{name}-{p}") for p in (0, 1, 2, 3, 4, 5)
        ]
    for zipped in (True, False):
        buffer = io.BytesIO()
        torch.save({"w": torch.zeros(3)}, buffer, _use_new_zipfile_serialization=zipped)
        found.append(pytest.param(buffer.getvalue(), id=f"torch-{zipped}"))
    archive = io.BytesIO()
    np.savez(archive, a=np.zeros(3))
    found.append(pytest.param(archive.getvalue(), id="npz"))
    return found


@pytest.mark.parametrize("image", pickles())
def test_every_pickle_is_unsafe(
    image: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsafeError) as caught:
        decode("critic", image, "critic.safetensors")
    assert caught.value.exit_code == 4
    assert "weights_only" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_headers_of_every_length_are_not_taken_for_pickles() -> None:
    # A header of 0x0280 … 0x0580 bytes starts like a pickle: 80 02.
    seen = set()
    for pad in range(300, 1500):
        image = encode("sample", {"pad": "x" * pad}, {})
        decode("sample", image, "here")
        seen.add(image[:2])
    assert {b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"} <= seen


def with_version(version: Any) -> bytes:
    content = SimpleNamespace(format_version=version, to_dict=lambda: {"a": 1})
    return encode("sample", content, {"x": np.zeros(2)})


def test_newer_version() -> None:
    with pytest.raises(IncompatibleError, match=r"version 99.*upgrade") as caught:
        decode("sample", with_version(99), "here")
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("version", [0, -1, "1", 1.0, True, None])
def test_impossible_version(version: Any) -> None:
    with pytest.raises(DamagedError, match="format version"):
        decode("sample", with_version(version), "here")


def test_other_kind() -> None:
    words = r"is a policies file, not a critic file; 'pbvf fit-critic' makes .* take policies"
    with pytest.raises(IncompatibleError, match=words):
        decode("critic", sample("policies"), "here")
    with pytest.raises(IncompatibleError, match=r"is a sample file, not a thing file$"):
        decode("thing", sample("sample"), "here")


def test_safetensors_of_others() -> None:
    arrays = {"w": np.zeros(3)}
    for image in (
        safetensors.numpy.save(arrays),
        safetensors.numpy.save(arrays, metadata={"format": "pt"}),
    ):
        with pytest.raises(IncompatibleError, match="no pbvf header entry"):
            decode("sample", image, "here")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"kind":"sample"}', '{"a":1,"a":1}', "NaN"])
def test_malformed_entries(text: str) -> None:
    image = safetensors.numpy.save({}, metadata={"pbvf": text})
    with pytest.raises(DamagedError):
        decode("sample", image, "here")


@pytest.mark.parametrize(
    "image",
    [
        b"",
        b"\0" * 8,
        b"\xff" * 100,
        (2**62).to_bytes(8, "little") + b"{" * 100,
        (10).to_bytes(8, "little") + b"{" * 10,
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{}",
        (4).to_bytes(8, "little") + b"\xff\xfe{}",
    ],
)
def test_what_is_not_safetensors(image: bytes) -> None:
    with pytest.raises((DamagedError, IncompatibleError)):
        decode("sample", image, "here")


def test_write_makes_folders_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_file(path, b"one")
    write_file(path, b"two")
    assert read_file(path) == b"two"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace", "write"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_failed_write_keeps_the_old_file(
    call: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    if call == "fsync":
        monkeypatch.setattr(os, "fsync", refuse)
    elif call == "replace":
        monkeypatch.setattr(Path, "replace", refuse)
    else:
        monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(ResourceError) as caught:
        write_file(path, b"new")
    monkeypatch.undo()
    assert caught.value.exit_code == 6
    assert caught.value.where == str(path)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_takes_a_few_bytes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda to, data: write(to, bytes(data)[:3]))
    write_file(tmp_path / "file", b"all of it")
    assert (tmp_path / "file").read_bytes() == b"all of it"


def test_a_link_at_the_temporary_name_is_not_written_through(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"mine")
    temporary_path(tmp_path / "file").symlink_to(elsewhere)
    with pytest.raises(ResourceError):
        write_file(tmp_path / "file", b"data")
    assert elsewhere.read_bytes() == b"mine"
    assert not (tmp_path / "file").exists()


def test_removing_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    remove_file(path)
    path.write_bytes(b"x")
    with read_only(tmp_path), pytest.raises(ResourceError, match="read-only"):
        remove_file(path)
    remove_file(path)
    assert not path.exists()


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "inside", tmp_path / "folder", tmp_path / ("x" * 300)):
        with pytest.raises((ResourceError, UsageError)) as caught:
            write_file(path, b"data")
        assert caught.value.exit_code in (2, 6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_reading_refuses(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist") as caught:
        read_file(tmp_path / "none")
    assert caught.value.exit_code == 2
    big = tmp_path / "big"
    big.write_bytes(b"12345")
    with pytest.raises(UnsafeError, match="over the limit of 4"):
        read_file(big, 4)
    assert read_file(big, 5) == b"12345"
    with pytest.raises(PbvfError):
        read_file(tmp_path)


def _sparse(path: Path, start: bytes, size: int) -> Path:
    path.write_bytes(start)
    os.truncate(path, size)
    return path


def _traced(read: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(PbvfError) as caught:
            read()
        assert caught.value.exit_code in (3, 4)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_sparse_files_are_not_read(tmp_path: Path) -> None:
    giant = 8 * 2**30
    honest = json.dumps(
        {"a": {"dtype": "U8", "shape": [giant - 1000], "data_offsets": [0, giant - 1000]}}
    ).ljust(992)
    said = len(honest).to_bytes(8, "little") + honest.encode()
    for name, path in (
        ("holes", _sparse(tmp_path / "holes", b"", giant)),
        ("its header tells of less", _sparse(tmp_path / "small", encode("x", {}, {}), giant)),
        ("its header tells the truth", _sparse(tmp_path / "true", said, giant)),
    ):
        assert _traced(lambda path=path: read_tensor_file(path)) < 2**21, name
        assert _traced(lambda path=path: read_file(path)) < 2**21, name
    short = _sparse(tmp_path / "short", b"", 2**20)  # which are harmless
    assert read_file(short) == bytes(2**20)


def test_a_tensor_file_is_not_read_beyond_what_its_header_tells(tmp_path: Path) -> None:
    image = encode("x", {}, {"a": np.zeros(3)})
    path = tmp_path / "file"
    path.write_bytes(image)
    assert read_tensor_file(path) == image
    path.write_bytes(image + b"\1" * (32 * 2**20))
    assert _traced(lambda: read_tensor_file(path)) < 2**20
    with pytest.raises(
        DamagedError, match=rf"{len(image) + 2**25:,} bytes, .* tells of {len(image):,};"
    ):
        read_tensor_file(path)
    for wrong in (b"", b"12345678", b"\xff" * 8 + b"{", image[:100], image[:-1]):
        path.write_bytes(wrong)
        with pytest.raises(DamagedError):
            read_tensor_file(path)
    path.write_bytes(image[:8] + image[8:].replace(b"[0,24]", b'["",8]', 1))
    with pytest.raises(DamagedError, match="tells of"):
        read_tensor_file(path)
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(UnsafeError, match="pickle"):
        read_tensor_file(path)


def test_links_are_followed_only_where_that_is_meant(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    assert read_file(tmp_path / "link") == b"x"
    with pytest.raises(UnsafeError, match="symbolic link"):
        read_file(tmp_path / "link", follow=False)


def test_a_named_pipe_does_not_hang(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    outcome: list[Any] = []

    def read() -> None:
        try:
            outcome.append(read_file(pipe))
        except PbvfError as error:
            outcome.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(2)
    if thread.is_alive():
        os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))  # frees the reader
        thread.join(2)
        pytest.fail("reading a named pipe waits for a writer")
    assert isinstance(outcome[0], PbvfError)


def test_file_digest(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    # The well-known SHA-256 of "abc".
    assert file_digest(tmp_path / "f").startswith("ba7816bf8f01cfea")
    with pytest.raises(UsageError, match="does not exist"):
        file_digest(tmp_path / "none")


def test_lock_is_exclusive_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out"
    with locked(path):
        with pytest.raises(ConflictError, match="another process") as caught, locked(path):
            pytest.fail("locked twice")
        assert caught.value.exit_code == 7
    with locked(path):
        pass
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_where_no_lock_can_be_made(code: int, tmp_path: Path) -> None:
    with read_only(tmp_path, code):
        with pytest.raises(ResourceError) as caught, locked(tmp_path / "out"):
            pytest.fail("locked")
        with locked(tmp_path / "out", look=True) as refusal:
            assert isinstance(refusal, ResourceError)
            assert str(refusal) == str(caught.value)
        with locked(tmp_path / "new" / "out", look=True) as refusal:
            assert isinstance(refusal, ResourceError)
    assert list(tmp_path.iterdir()) == []


def test_a_look_is_locked_where_it_can_be(tmp_path: Path) -> None:
    with locked(tmp_path / "out", look=True) as refusal:
        assert refusal is None
        with pytest.raises(ConflictError), locked(tmp_path / "out", look=True):
            pytest.fail("locked twice")
    with (
        read_only(tmp_path, errno.ENOSPC),
        pytest.raises(ResourceError, match="no space"),
        locked(tmp_path / "out", look=True),
    ):
        pytest.fail("a full disk is no reason to go on without a lock")


def test_lock_held_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "out"
    code = (
        "import sys; from pathlib import Path; from pbvf_offline.io.lock import locked\n"
        "with locked(Path(sys.argv[1])):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    root = Path(files.__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ConflictError), locked(path):
            pass
        other.kill()  # a killed process holds no lock: its file alone does not block
        other.wait()
    assert (tmp_path / ".out.lock").exists()
    with locked(path):
        assert (tmp_path / ".out.lock").exists()


def test_lock_is_released_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), locked(tmp_path / "out"):
        raise KeyboardInterrupt
    with locked(tmp_path / "out"):
        pass


def test_lock_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / ".out.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PbvfError), locked(tmp_path / "out"):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_an_empty_tensor_of_an_absurd_shape() -> None:
    image = encode("x", {}, {"a": np.zeros((0, 11), np.float32)})
    at = image.index(b"[0,11]")
    longer = image[:at] + b"[0,%d]" % 2**62 + image[at + 6 :]
    length = int.from_bytes(image[:8], "little") + len(longer) - len(image)
    length += -length % 8
    longer = length.to_bytes(8, "little") + longer[8:].ljust(length)
    digits = longer.index(b'sha256\\":\\"') + 11
    longer = longer[:digits] + b"0" * 64 + longer[digits + 64 :]
    longer = longer.replace(b"0" * 64, hashlib.sha256(longer).hexdigest().encode(), 1)
    with pytest.raises(DamagedError, match="tensor a has a shape that no array can have"):
        decode("x", longer, "file")


def test_a_header_that_would_not_be_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def image(text: str) -> bytes:
        return encode("policies", {"text": text}, {"a": np.zeros(3, np.float32)})

    length = int.from_bytes(image("x" * 800)[:8], "little")
    monkeypatch.setattr(files, "MAX_HEADER", length)
    assert decode("policies", image("x" * 800), "file")[0] == {"text": "x" * 800}
    with pytest.raises(UsageError, match=f"header of {length + 8:,} bytes; at most {length:,}"):
        image("x" * 808)  # headers are padded to multiples of 8


def test_a_file_with_too_long_a_header_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    spec = box_spec()
    file = PoliciesFile(make_policies(spec, 1), None, {"notes": "x" * MAX_HEADER})
    with pytest.raises(UsageError, match="at most 16,777,216 are read") as caught:
        file.save(tmp_path / "new" / "p.safetensors")
    assert caught.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []
