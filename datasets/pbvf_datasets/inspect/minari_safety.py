"""Whether stock Minari may open a dataset's folder: it checks nothing before it reads."""

from __future__ import annotations

import math
from typing import Final

from pbvf_datasets.format.schema import METADATA_FILE
from pbvf_datasets.read.untrusted import CheckedFolder
from pbvf_datasets.read.untrusted_hdf5 import HDF5_ERRORS, GuardedFile, GuardedGroup
from pbvf_offline.errors import PbvfError, UnsafeError, printable, shorten
from pbvf_offline.io.strict_json import parse_json

MAX_ATTRIBUTE_BYTES: Final = 2**20
"""Attributes of an episode that are larger, all together, could exhaust a reader who takes all."""


def odd_attribute(data: GuardedFile, group: GuardedGroup) -> str | None:
    """Return in words which attribute of an episode Minari should not read, or None.

    Raises:
        DamagedError: One cannot be read.
    """
    from h5py import h5a, h5t

    plain = (h5t.INTEGER, h5t.FLOAT, h5t.ENUM, h5t.STRING)
    total = 0
    try:
        for index in range(h5a.get_num_attrs(group.id)):
            attribute = h5a.open(group.id, index=index)
            kind, shape = attribute.get_type(), attribute.get_space().get_simple_extent_dims()
            count = math.prod(shape or ())
            total += count * kind.get_size()
            text = kind.get_class() == h5t.STRING and kind.is_variable_str()
            if kind.get_class() not in plain or (text and count > 1) or total > MAX_ATTRIBUTE_BYTES:
                name = printable(attribute.name.decode("utf-8", "surrogateescape"))
                return (
                    f"{data.where(group.place)}: its attribute {name} is larger than "
                    f"{MAX_ATTRIBUTE_BYTES:,} bytes with those before, or of a kind without a bound"
                )
    except HDF5_ERRORS as error:
        data.place = group.place
        raise data.damaged(error) from error
    return None


def safe_for_minari(
    folder: CheckedFolder, problems: list[PbvfError], *, walked: bool, odd: str | None
) -> tuple[bool, str]:
    """Return whether Minari may open a folder, and why.

    Args:
        folder: The folder.
        problems: What is wrong with it.
        walked: Whether the kind of every object in the HDF5 file is known.
        odd: What :func:`odd_attribute` returned for the first odd one.
    """
    unsafe = next((p for p in problems if isinstance(p, UnsafeError)), None)
    if unsafe is not None:
        return False, f"{unsafe.where}: {unsafe.what}"
    if not walked:
        return False, not_checked(problems)
    if odd is not None:
        return False, odd
    reason = (
        "both spaces are stored, so no environment is built, and its HDF5 file holds nothing "
        "but plain groups and arrays of numbers that are really there"
    )
    spec = folder.metadata.get("env_spec")
    entry = parse_json(spec, METADATA_FILE, allow_infinity=True) if spec else {}
    wrappers = entry.get("additional_wrappers")
    layers = [entry, *(wrappers if isinstance(wrappers, list) else [])]
    points = [layer.get("entry_point") for layer in layers if isinstance(layer, dict)]
    named = [printable(point) for point in points if isinstance(point, str)]
    if named:
        reason += f"; its recover_environment() would import {shorten(', '.join(named), 400)}"
    return True, reason


def not_checked(problems: list[PbvfError]) -> str:
    """Return in words that not all could be checked, with the first problem."""
    return "it could not be checked to its end" + (f" ({problems[0]})" if problems else "")
