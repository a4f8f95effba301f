"""Episodes as flat columns: one array per field for all of them, and back, bit for bit.

Minari's layout costs about a millisecond an episode to read; columns cost nothing an
episode. Shards of unfinished datasets and the training cache are columns in one
safetensors file image.

Columns of E episodes, besides the fields of :data:`pbvf_datasets.format.schema.FIELDS` laid
end to end under the names of their ``Episode`` attributes:

- ``length`` (E,) int64: steps T of each episode,
- ``segments`` (E,) int64: policies S of each episode,
- ``seed`` (E,) int64 and ``has_seed`` (E,) bool,
- ``cut`` (E,) bool: whether a step budget ended it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.format.schema import FIELDS
from pbvf_offline.errors import DamagedError, UsageError
from pbvf_offline.io.strict_json import canonical_json, parse_json
from pbvf_offline.rollout.episodes import Episode

Columns = dict[str, NDArray[Any]]

_INDEX: Final = {
    **dict.fromkeys(("length", "segments", "seed"), np.int64),
    **dict.fromkeys(("has_seed", "cut"), np.bool_),
}
META_KEY: Final = "pbvf"
"""The one metadata entry of an image: with a second one the bytes would depend on order."""


def pack_columns(episodes: Sequence[Episode]) -> Columns:
    """Lay episodes end to end.

    Raises:
        UsageError: There is none, or they disagree in dtypes, widths or optional arrays.
    """
    if not episodes:
        raise UsageError("there are no episodes to pack")
    columns: Columns = {
        "length": np.array([len(e) for e in episodes], np.int64),
        "segments": np.array([e.theta.shape[0] for e in episodes], np.int64),
        "seed": np.array([0 if e.seed is None else e.seed for e in episodes], np.int64),
        "has_seed": np.array([e.seed is not None for e in episodes], np.bool_),
        "cut": np.array([e.cut != "none" for e in episodes], np.bool_),
    }
    for field in FIELDS:
        parts = [getattr(e, field.attribute) for e in episodes]
        kinds = {None if p is None else (p.dtype, p.shape[1:]) for p in parts}
        if len(kinds) > 1:
            raise UsageError(f"episodes disagree in the dtype, width or presence of {field.name}")
        if kinds == {None}:
            if field.required:
                raise UsageError(f"episodes lack {field.name}")
            continue
        columns[field.attribute] = np.concatenate(parts)
    return columns


def unpack_columns(
    columns: Mapping[str, NDArray[Any]], where: str | os.PathLike[str]
) -> list[Episode]:
    """Cut columns into episodes; the arrays are views of the columns.

    Raises:
        DamagedError: Columns are missing or do not add up.
    """
    need = {*_INDEX, *(f.attribute for f in FIELDS if f.required)}
    known = need | {f.attribute for f in FIELDS}
    if not need <= set(columns) <= known:
        odd = sorted(need.difference(columns)) or sorted(set(columns) - known)
        raise DamagedError(f"columns are missing or unknown: {', '.join(odd)}", where=where)
    for name, dtype in _INDEX.items():
        if columns[name].dtype != dtype or columns[name].ndim != 1:
            what = f"column {name} is {columns[name].dtype} of shape {columns[name].shape}"
            raise DamagedError(
                f"{what}; one dimension of {np.dtype(dtype)} is expected", where=where
            )
    length, segments = columns["length"], columns["segments"]
    count = length.shape[0]
    if any(columns[name].shape != (count,) for name in _INDEX):
        raise DamagedError("columns disagree about the number of episodes", where=where)
    if count == 0 or length.min() < 1 or segments.min() < 1:
        raise DamagedError("columns hold no episode or an empty one", where=where)
    ends = {
        "T": np.cumsum(length),
        "T+1": np.cumsum(length + 1),
        "S": np.cumsum(segments),
    }
    parts: dict[str, list[NDArray[Any]]] = {}
    for field in FIELDS:
        array = columns.get(field.attribute)
        if array is None:
            continue
        if array.ndim < 1 or array.shape[0] != ends[field.rows][-1]:
            raise DamagedError(
                f"column {field.attribute} has shape {array.shape}; "
                f"{int(ends[field.rows][-1])} rows are expected",
                where=where,
            )
        stops = ends[field.rows].tolist()
        parts[field.attribute] = [
            array[start:stop] for start, stop in zip([0, *stops[:-1]], stops, strict=True)
        ]
    seeds, has_seed = columns["seed"].tolist(), columns["has_seed"].tolist()
    cut = columns["cut"].tolist()
    return [
        Episode(
            **{name: rows[i] for name, rows in parts.items()},
            seed=seeds[i] if has_seed[i] else None,
            cut="budget" if cut[i] else "none",
        )
        for i in range(count)
    ]


def columns_to_image(columns: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> bytes:
    """Return columns and a little JSON as the bytes of one safetensors file.

    Equal input gives equal bytes.
    """
    from safetensors.numpy import save

    text = canonical_json(dict(meta)).decode("ascii")
    arrays = {name: np.ascontiguousarray(array) for name, array in columns.items()}
    return bytes(save(arrays, metadata={META_KEY: text}))


def image_to_columns(data: bytes, where: str | os.PathLike[str]) -> tuple[Columns, dict[str, Any]]:
    """Return the columns (read-only arrays) and the JSON in the bytes of a safetensors file.

    Raises:
        DamagedError: They are not such bytes.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        columns: Columns = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise DamagedError(f"not a safetensors file: {error}", where=where) from error
    size = int.from_bytes(data[:8], "little")
    header = parse_json(data[8 : 8 + size], where)
    text = header.get("__metadata__", {}).get(META_KEY)
    if not isinstance(text, str):
        raise DamagedError(f"it has no {META_KEY!r} entry in its header", where=where)
    meta = parse_json(text, where)
    if not isinstance(meta, dict):
        raise DamagedError(f"its {META_KEY!r} entry is not a JSON object", where=where)
    return columns, meta
