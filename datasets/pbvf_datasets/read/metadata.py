"""Minari's ``metadata.json`` of an untrusted folder, read strictly: nothing it names is run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pbvf_datasets.format.spaces import SUPPORTED_SPACES, check_spaces
from pbvf_offline.errors import (
    DamagedError,
    IncompatibleError,
    UnsafeError,
    UsageError,
    printable,
)
from pbvf_offline.io.strict_json import parse_json

if TYPE_CHECKING:
    import gymnasium as gym

    from pbvf_datasets.format.episode_rules import Spaces

MAX_METADATA_BYTES: Final = 16 * 2**20


def parse_metadata(data: bytes, where: str | os.PathLike[str]) -> dict[str, Any]:
    """Read Minari's ``metadata.json`` strictly.

    Raises:
        DamagedError: It is malformed.
        UnsafeError: A space is missing: stock Minari would run code that the file names.
        IncompatibleError: The data are not in HDF5.
    """
    metadata = parse_json(data, where, max_bytes=MAX_METADATA_BYTES)
    if not isinstance(metadata, dict):
        raise DamagedError("it holds no JSON object", where=where)
    for key in ("observation_space", "action_space"):
        if metadata.get(key) is None:
            raise UnsafeError(
                f"it has no {key}; to find one, Minari would build the environment that the "
                "file names, which runs code",
                where=where,
                remedy="never open this folder with Minari; ask its author for the spaces",
            )
    data_format = metadata.get("data_format")
    if data_format != "hdf5":
        raise IncompatibleError(
            f"its data_format is {printable(str(data_format))[:40]!r}; only 'hdf5' is read",
            where=where,
        )
    for key in ("total_episodes", "total_steps"):
        value = metadata.get(key)
        if type(value) is not int or not 0 <= value < 2**62:
            raise DamagedError(f"its {key} is no non-negative integer", where=where)
    for key in ("env_spec", "eval_env_spec"):
        _check_env_spec(metadata, key, where)
    return metadata


def _check_env_spec(metadata: Mapping[str, Any], key: str, where: str | os.PathLike[str]) -> None:
    text = metadata.get(key)
    if text is None:
        return
    if not isinstance(text, str):
        raise DamagedError(f"its {key} is no text", where=where)
    if not isinstance(parse_json(text, f"{os.fspath(where)}: {key}", allow_infinity=True), dict):
        raise DamagedError(f"its {key} holds no JSON object", where=where)


def check_space_kinds(
    observation_space: gym.Space[Any], action_space: gym.Space[Any], place: str
) -> Spaces:
    """Return the spaces of a file when datasets can hold them.

    Raises:
        IncompatibleError: One is of a kind that is not supported.
    """
    try:
        return check_spaces(observation_space, action_space)
    except UsageError as error:
        raise IncompatibleError(error.what, where=place, remedy=SUPPORTED_SPACES) from error
