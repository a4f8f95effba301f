"""Numbers that other programs wrote, also hostile ones."""

from __future__ import annotations

import builtins
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from exchange_tools import network, save
from pbvf_offline.errors import DamagedError, IncompatibleError, UnsafeError, UsageError
from pbvf_offline.exchange.weight_files import numbers_or_name, read_npy, read_weights


def image(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [1, 3], "data_offsets": [0, 12], **changes}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 8,
        b"{}",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 10) + b"{}",
        image(b"{"),
        image(b'{"a": NaN}'),
        image(b'{"w": 1, "w": 2}'),
        image({"w": 1}),
        image(entry(shape="x"), b"\0" * 12),
        image(entry(shape=[-1, -3]), b"\0" * 12),
        image(entry(shape=[1, 3.0]), b"\0" * 12),
        image(entry(shape=[True, 3]), b"\0" * 12),
        image(entry(shape=[1, 4]), b"\0" * 12),
        image(entry(shape=[10**6, 10**6], data_offsets=[0, 4 * 10**12]), b"\0" * 12),
        image(entry(data_offsets=[4, 16]), b"\0" * 12),
        image(entry(data_offsets=[12, 0]), b"\0" * 12),
        image(entry(data_offsets=[0]), b"\0" * 12),
        image(entry(dtype=5), b"\0" * 12),
        image({"w": {"dtype": "F32", "shape": [1, 3]}}),
        image(entry(), b"\0" * 16),
        image({**entry(), "v": entry()["w"]}, b"\0" * 12),
        image(b"[" * 5000 + b"]" * 5000),
        image(entry(shape=[1] * 30, data_offsets=[0, 4]), b"\0" * 12),
    ],
)
def test_damaged_weights(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(DamagedError):
        read_weights(path)


def test_every_truncation_of_weights_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path / "w", network(3, 4, 1).state_dict())
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises((DamagedError, UnsafeError)):
            read_weights(path)


def test_odd_but_valid_weights(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(
        image(
            {
                "scalar": {"dtype": "I64", "shape": [], "data_offsets": [0, 8]},
                "none": {"dtype": "F32", "shape": [0, 10**30], "data_offsets": [8, 8]},
                "at3": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]},
            },
            struct.pack("<qf", 7, 1.5),
        )
    )
    tensors, _ = read_weights(path)
    assert (tensors["scalar"], tensors["at3"].tolist()) == (7, [1.5])
    assert tensors["none"].size == 0
    for dtype in ("F8_E4M3", "BF16"):
        path.write_bytes(image(entry(dtype=dtype), b"\0" * 12))
        with pytest.raises(IncompatibleError, match=dtype):
            read_weights(path)
    path.write_bytes(image({**entry(), "__metadata__": {"pbvf": "{}"}}, b"\0" * 12))
    with pytest.raises(IncompatibleError, match="a file of this project"):
        read_weights(path)


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (builtins.open, (str(self.target), "w"))


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.safetensors", "w.npy"])
@pytest.mark.parametrize("legacy", [False, True])
def test_pickles_are_refused_with_a_recipe(tmp_path: Path, name: str, legacy: bool) -> None:
    path, boom = tmp_path / name, tmp_path / "boom"
    torch.save({"0.weight": Bomb(boom)}, path, _use_new_zipfile_serialization=not legacy)
    reads = [read_weights, read_npy, lambda p: numbers_or_name(str(p), "--obs-mean")]
    for read in reads:
        with pytest.raises(UnsafeError) as caught:
            read(path)
        assert "save" in str(caught.value)
        assert "weights_only" not in str(caught.value)
        assert "torch.load" not in str(caught.value)
    assert not boom.exists()


def test_a_broken_torch_archive_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    path.write_bytes(b"\x00\x01\x02 not a zip any more")
    with pytest.raises(UnsafeError, match="save_file"):
        read_weights(path)


def test_a_file_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    with path.open("wb") as file:
        file.truncate(300 * 2**20)
    with pytest.raises(UnsafeError, match=r"over the limit|sparse"):
        read_weights(path)


def test_arrays_of_numpy(tmp_path: Path) -> None:
    path = tmp_path / "mean.npy"
    for array in (
        np.array([1.0, 2.5]),
        np.array([1, 2], np.int32),
        np.array([[1.0], [2.0]], np.float32),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(3.0),
    ):
        np.save(path, array)
        read = read_npy(path)
        assert read.dtype == np.float64
        np.testing.assert_array_equal(read, array)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedError):
            read_npy(path)
    np.save(path, np.array(["a"]))
    with pytest.raises(UsageError, match="not numbers"):
        read_npy(path)
    np.save(path, np.array([Bomb(tmp_path / "boom")], dtype=object), allow_pickle=True)
    with pytest.raises(UnsafeError, match="pickled"):
        read_npy(path)
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1L,), }",  # Python 2
        "{'descr': 'nope', 'fortran_order': False, 'shape': (1,), }",
        "__import__('os').system('true')",
        "(" * 3000,
        "[]",
    ],
)
def test_headers_of_numpy_that_promise_too_much(tmp_path: Path, header: str) -> None:
    path = tmp_path / "mean.npy"
    text = header.encode() + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + b"\0" * 8)
    with pytest.raises(DamagedError):
        read_npy(path)


def test_numbers_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("m.npy", np.array([1.0, 2.0]))
    np.testing.assert_array_equal(numbers_or_name("m.npy", "--obs-mean"), [1, 2])
    np.testing.assert_array_equal(numbers_or_name(" [1, 2.5e3]", "--obs-mean"), [1, 2500])
    assert numbers_or_name("rms.mean", "--obs-mean") == "rms.mean"
    for text in ("[1, 'a']", '[1, "a"]', "[1, [2]]", "[NaN]", "[true]", "[1" + "0" * 400 + "]"):
        with pytest.raises(UsageError, match="--obs-mean"):
            numbers_or_name(text, "--obs-mean")
    with pytest.raises(UsageError, match="does not exist"):
        numbers_or_name("other.npy", "--obs-mean")
