"""Numbers that other programs wrote: safetensors state dicts and NPY arrays, never a pickle.

A file is read whole, its header is checked entry by entry, and tensors are views into its
bytes: nothing in the file is run, and nothing is allocated because a header says so.
"""

from __future__ import annotations

import io
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import DamagedError, IncompatibleError, UnsafeError, UsageError
from pbvf_offline.io.reading import read_file
from pbvf_offline.io.strict_json import parse_json
from pbvf_offline.io.tensor_file import refuse_pickle

MAX_WEIGHTS = 128 * 2**20
MAX_NPY = 16 * 2**20
RECIPE = (
    "where it was made, write the module's weights with "
    "safetensors.torch.save_file(module.state_dict(), 'weights.safetensors')"
)
NPY_RECIPE = "write the numbers with numpy.save('mean.npy', array), or give them as JSON"

_MAX_HEADER = 2**20
_MAX_AXES = 16
_PICKLE_NAMES = {".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".zip", ".bin", ".joblib"}
_DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
Weights = dict[str, NDArray[Any]]


def read_weights(path: Path) -> tuple[Weights, bytes]:
    """Read the tensors of a safetensors file that any program may have written.

    Returns:
        The tensors by name, and the file's bytes.

    Raises:
        UsageError: The file does not exist or is not a regular file.
        UnsafeError: It is a pickle, a torch archive or too large.
        DamagedError: It is no safetensors file, or contradicts itself.
        IncompatibleError: It is a file of this project, or holds types that are not numbers here.
    """
    image = read_file(path, MAX_WEIGHTS)
    where = str(path)
    _refuse_pickle(image, path, RECIPE)
    end = 8 + int.from_bytes(image[:8], "little")
    if len(image) < 10 or end - 8 > min(len(image) - 8, _MAX_HEADER) or image[8:9] != b"{":
        if path.suffix.lower() in _PICKLE_NAMES:
            raise UnsafeError(
                "is named like a pickle or archive and is no safetensors file; it was not opened",
                where=where,
                remedy=RECIPE,
            )
        raise DamagedError("is not a complete safetensors file", where=where, remedy=RECIPE)
    header = parse_json(image[8:end], where)
    if not isinstance(header, dict):
        raise DamagedError("its header is not a JSON object", where=where)
    metadata = header.pop("__metadata__", None)
    if isinstance(metadata, dict) and "pbvf" in metadata:
        raise IncompatibleError(
            "is a file of this project, not the weights of a module",
            where=where,
            remedy="it needs no import; 'pbvf info' tells what it is",
        )
    tensors = {name: _tensor(image, end, name, entry, where) for name, entry in header.items()}
    places = sorted(entry["data_offsets"] for entry in header.values())
    ends = [0, *(stop for _, stop in places)]
    if [start for start, _ in places] != ends[:-1] or ends[-1] != len(image) - end:
        raise DamagedError("its tensors overlap or leave bytes between them", where=where)
    return tensors, image


def description_of(image: bytes) -> str:
    """Return the description in a safetensors file that :func:`read_weights` read, if any."""
    header = parse_json(image[8 : 8 + int.from_bytes(image[:8], "little")], "header")
    metadata = header.get("__metadata__")
    text = metadata.get("description") if isinstance(metadata, dict) else None
    return text if isinstance(text, str) else ""


def _refuse_pickle(image: bytes, path: Path, remedy: str) -> None:
    try:
        refuse_pickle(image, str(path))
    except UnsafeError as error:
        raise UnsafeError(error.what, where=error.where, remedy=remedy) from error


def _tensor(image: bytes, start: int, name: str, entry: object, where: str) -> NDArray[Any]:
    """Return one tensor as a view after checking its header entry."""
    place = f"{where}: tensor {name[:80]}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise DamagedError("its header entry is malformed", where=place)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not _counts(shape) or not _counts(offsets):
        raise DamagedError("its header entry is malformed", where=place)
    if dtype not in _DTYPES:
        raise IncompatibleError(
            f"has type {dtype[:20]}", where=place, remedy="save it as float32 or float64"
        )
    size = math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize
    if (
        len(shape) > _MAX_AXES
        or len(offsets) != 2
        or not offsets[0] <= offsets[1] <= len(image) - start
        or offsets[1] - offsets[0] != size
    ):
        raise DamagedError(
            f"of shape {shape} does not lie at bytes {offsets} of the file", where=place
        )
    if size == 0:
        return np.empty(0, np.float32)  # whatever the shape: it may name axes that no array has
    flat: NDArray[Any] = np.frombuffer(image, _DTYPES[dtype], math.prod(shape), start + offsets[0])
    return flat.reshape(shape)


def _counts(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def as_array(value: Any) -> NDArray[Any]:
    """Return a torch tensor or anything like an array as an array; floats of torch in float64."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value).numpy()
    return np.asarray(value)


def read_npy(path: Path) -> NDArray[np.float64]:
    """Read an array of numbers from an NPY file.

    Raises:
        UsageError: The file does not exist or is not a regular file.
        UnsafeError: It holds Python objects, is a pickle or too large.
        DamagedError: It is no NPY file, or contradicts itself.
    """
    image = read_file(path, MAX_NPY)
    where = str(path)
    _refuse_pickle(image, path, NPY_RECIPE)
    stream = io.BytesIO(image)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy mends headers of Python 2, with a warning
            version = np.lib.format.read_magic(stream)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, fortran, dtype = read(stream)
    except Exception as error:  # numpy reads the header with Python's own parser
        raise DamagedError("is not an NPY file", where=where, remedy=NPY_RECIPE) from error
    if dtype.hasobject:
        raise UnsafeError(
            "holds Python objects, which are pickled; it was not opened",
            where=where,
            remedy=NPY_RECIPE,
        )
    if dtype.kind not in "fiu":
        raise UsageError(f"holds {dtype}, not numbers", where=where, remedy=NPY_RECIPE)
    data = image[stream.tell() :]
    if any(n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != len(data):
        raise DamagedError(
            f"its {len(data)} bytes of data are not {dtype} of shape {shape}", where=where
        )
    flat = np.frombuffer(data, dtype).astype(np.float64)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def numbers_or_name(text: str, option: str) -> NDArray[np.float64] | str:
    """Read an option that takes a JSON list of numbers, an NPY file or a tensor's name.

    Returns:
        The numbers, or the text itself as the name of a tensor.

    Raises:
        UsageError: The list holds something else than numbers.
        UnsafeError: The text names a file that is a pickle.
        DamagedError: The text names a file that is no NPY file.
    """
    if text.lstrip().startswith("["):
        try:
            values = parse_json(text, option)
        except DamagedError as error:
            raise UsageError(error.what, where=option, remedy="give a list such as [0, 1.5]") from (
                error
            )
        if any(type(value) not in (int, float) for value in values):
            raise UsageError(
                f"{text[:80]!r} is not a list of numbers",
                where=option,
                remedy="give a list such as [0, 1.5]",
            )
        try:
            return np.array(values, np.float64)
        except OverflowError as error:
            raise UsageError("holds a number too large for a float", where=option) from error
    path = Path(text)
    if path.suffix.lower() == ".npy" or path.is_file():
        return read_npy(path)
    return text
