"""What :mod:`pbvf_offline.exchange.exporter` wrote, read back for people: nothing in it is run."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import DamagedError, IncompatibleError, PbvfError, UnsafeError
from pbvf_offline.exchange.onnx_graph import INPUT, OUTPUT, PRODUCER, onnx_package
from pbvf_offline.exchange.weight_files import MAX_WEIGHTS, description_of, read_weights
from pbvf_offline.io.reading import open_regular, read_file
from pbvf_offline.io.tensor_file import read_header

_GRAPH: Final = re.compile(rb"\x08[\x01-\x7f]\x12" + bytes([len(PRODUCER)]) + PRODUCER.encode())
"""How an exported graph begins: protobuf puts its version and its producer first."""
_SUMMARY: Final = "A policy: "
_SIZES: Final = re.compile(r"A policy: \w+ network (\d+(?: - \d+)+);")


@dataclass(frozen=True)
class Tensor:
    """One array of an exported policy: its name, type and shape; None in a shape: any length."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class ExportedFile:
    """One policy in a file that other programs read.

    Attributes:
        file_format: ``torch`` or ``onnx``.
        summary: What it is, in words.
        tensors: Its parameters, normaliser and bounds.
        inputs: What it takes; of weights none are named.
        outputs: What it gives.
        operators: How often each operator occurs in a graph.
    """

    file_format: Literal["torch", "onnx"]
    summary: str
    tensors: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    operators: Mapping[str, int] | None = None


def is_exported_graph(start: bytes) -> bool:
    """Return whether a file with these first bytes is a graph that was exported here."""
    return _GRAPH.match(start) is not None


def is_exported_weights(metadata: object) -> bool:
    """Return whether the metadata of a safetensors file are those of an export."""
    text = metadata.get("description") if isinstance(metadata, dict) else None
    return isinstance(text, str) and text.startswith(_SUMMARY)


def is_exported(path: Path, file_format: str) -> bool:
    """Return whether a file was exported here as ``torch`` or ``onnx``, be its rest damaged."""
    with contextlib.suppress(PbvfError, OSError), open_regular(path) as file:
        if file_format == "onnx":
            return is_exported_graph(file.read(64))
        return is_exported_weights(read_header(file, path).get("__metadata__"))
    return False


def read_exported_weights(path: Path) -> ExportedFile:
    """Read and check an exported state dict.

    Raises:
        UsageError: The file does not exist.
        UnsafeError: It is a pickle or too large.
        DamagedError: It is no safetensors file, contradicts itself, or holds NaN.
        IncompatibleError: It was not exported here.
    """
    tensors, image = read_weights(path)
    description = description_of(image)
    if not description.startswith(_SUMMARY):
        raise IncompatibleError("does not say that it is an exported policy", where=path)
    summary = description.partition(" In plain PyTorch:")[0]
    _check_numbers(tensors, path)
    _check_shapes({name: array.shape for name, array in tensors.items()}, summary, path)
    return ExportedFile("torch", summary, tuple(_tensor(n, a) for n, a in tensors.items()))


def read_exported_graph(path: Path) -> ExportedFile:
    """Read and check an exported ONNX graph.

    Raises:
        UsageError: The file does not exist, or onnx is not installed.
        UnsafeError: It is too large, or names other files or operators of other libraries.
        DamagedError: It is no valid graph, or holds NaN.
        IncompatibleError: It was not exported here.
    """
    onnx = onnx_package(path, "reads")
    image = read_file(path, MAX_WEIGHTS)
    if not is_exported_graph(image):
        raise IncompatibleError("is not a graph that was exported here", where=path)
    try:
        model = onnx.load_model_from_string(image)
    except Exception as error:  # protobuf's own errors have no common class
        raise DamagedError("is not a complete ONNX graph", where=path) from error
    _refuse_foreign_parts(model, path)
    try:
        onnx.checker.check_model(model)
        constants = {c.name: onnx.numpy_helper.to_array(c) for c in model.graph.initializer}
    except Exception as error:
        raise DamagedError("is no valid ONNX graph", where=path) from error
    _check_numbers(constants, path)
    inputs = tuple(map(_end, model.graph.input))
    outputs = tuple(map(_end, model.graph.output))
    if [end.name for end in (*inputs, *outputs)] != [INPUT, OUTPUT]:
        raise DamagedError(f"does not take {INPUT} and give {OUTPUT}", where=path)
    return ExportedFile(
        "onnx",
        model.doc_string,
        tuple(_tensor(name, array) for name, array in constants.items()),
        inputs,
        outputs,
        dict(sorted(Counter(node.op_type for node in model.graph.node).items())),
    )


def _refuse_foreign_parts(model: Any, path: Path) -> None:
    """Refuse what a runtime would take from other files or libraries.

    Raises:
        UnsafeError: There is such a part.
    """
    graph = model.graph
    if any(c.data_location or c.external_data for c in graph.initializer):
        raise UnsafeError("its numbers are in another file", where=path)
    domains = {node.domain for node in graph.node} | {entry.domain for entry in model.opset_import}
    nested = any(a.HasField("g") or a.graphs for node in graph.node for a in node.attribute)
    if domains - {"", "ai.onnx"} or model.functions or nested or graph.sparse_initializer:
        raise UnsafeError("asks for more than the plain operators of ONNX", where=path)


def _check_numbers(tensors: Mapping[str, NDArray[Any]], path: Path) -> None:
    for name, array in tensors.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise DamagedError(f"{name[:80]} holds NaN or infinite values", where=path)
    std = tensors.get("obs_std")
    if std is not None and not (std > 0).all():
        raise DamagedError("obs_std is not positive", where=path)


def _check_shapes(shapes: Mapping[str, tuple[int, ...]], summary: str, path: Path) -> None:
    """Compare the tensors with each other and with the sizes in the summary, where it has some.

    Raises:
        DamagedError: They do not fit.
    """
    needed = {"obs_mean", "obs_std"}
    needed |= {"action_start"} if "action_start" in shapes else {"action_low", "action_high"}
    if missing := sorted(needed - set(shapes)):
        raise DamagedError(f"lacks {' and '.join(missing)}", where=path)
    expected = {"obs_std": shapes["obs_mean"], "action_start": ()}
    expected["action_high"] = shapes.get("action_low", ())
    if match := _SIZES.match(summary):
        sizes = [int(size) for size in match[1].split(" - ")]
        expected |= {"obs_mean": (sizes[0],), "obs_std": (sizes[0],), "action_low": (sizes[-1],)}
        for k, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
            expected |= {f"net.{2 * k}.weight": (outputs, inputs), f"net.{2 * k}.bias": (outputs,)}
    for name, shape in expected.items():
        if name in shapes and shapes[name] != shape:
            raise DamagedError(f"{name} is of shape {shapes[name]}, expected {shape}", where=path)
        if name.startswith("net.") and name not in shapes:
            raise DamagedError(f"lacks {name}", where=path)


def _tensor(name: str, array: NDArray[Any]) -> Tensor:
    return Tensor(name, array.dtype.name, array.shape)


def _end(value: Any) -> Tensor:
    """Return an input or an output of a graph."""
    from onnx import helper

    kind = value.type.tensor_type
    shape = tuple(d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim)
    return Tensor(value.name, helper.tensor_dtype_to_np_dtype(kind.elem_type).name, shape)
