"""The dataset format as data: files, names, shapes, dtypes and the tag of an episode.

Writer and reader both work from the one table :data:`FIELDS`, so that they cannot
disagree. Nothing in here opens a data file or runs anything that a file names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import DamagedError
from pbvf_offline.io.formats import check_version
from pbvf_offline.io.strict_json import canonical_json, parse_json
from pbvf_offline.io.work_folder import Layout
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.records import Record, format_version
from pbvf_offline.rollout.episodes import Cut

if TYPE_CHECKING:
    pass

FORMAT: Final = "pbvf-dataset"

DATA_FILE: Final = "data/main_data.hdf5"
METADATA_FILE: Final = "data/metadata.json"
MANIFEST_FILE: Final = "manifest.json"
CARD_FILE: Final = "README.md"
CROISSANT_FILE: Final = "croissant.json"
SIGNATURE_FILE: Final = "manifest.json.sig"
DATASET_FILES: Final = Layout(
    (DATA_FILE, METADATA_FILE, MANIFEST_FILE, CARD_FILE, CROISSANT_FILE, SIGNATURE_FILE),
    marks=(DATA_FILE, METADATA_FILE, MANIFEST_FILE),
)
"""What a dataset's folder holds, so that another dataset may replace it."""
MAX_BLOB_BYTES: Final = 16 * 2**20

# ------------------------------------------------------------------ the episode table

Rows = Literal["T", "T+1", "S"]
Columns = Literal["obs_dim", "action", "act_dim", "D"]


@dataclass(frozen=True)
class Field:
    """One array of an episode.

    Attributes:
        name: Path inside the HDF5 group of the episode.
        attribute: The same array in :class:`pbvf_offline.rollout.episodes.Episode`.
        rows: Length of the first axis: T steps, T + 1 observations or S segments.
        columns: Length of the second axis, or None for a flat array; ``action`` is act_dim
            for boxes and nothing for discrete actions.
        dtype: A dtype name, ``obs`` (any of :data:`OBS_DTYPES`, one for the whole dataset)
            or ``action`` (the box's own, int64 for discrete actions).
        required: Whether every episode has it. The others are in all episodes or in none.
    """

    name: str
    attribute: str
    rows: Rows
    columns: Columns | None
    dtype: str
    required: bool = True


FIELDS: Final = (
    Field("observations", "observations", "T+1", "obs_dim", "obs"),
    Field("actions", "actions", "T", "action", "action"),
    Field("rewards", "rewards", "T", None, "float64"),
    Field("terminations", "terminated", "T", None, "bool"),
    Field("truncations", "truncated", "T", None, "bool"),
    Field("infos/theta", "theta", "S", "D", "float32"),
    Field("infos/segment", "segment", "T+1", None, "int32"),
    Field("infos/obs_mean", "obs_mean", "S", "obs_dim", "float64"),
    Field("infos/obs_std", "obs_std", "S", "obs_dim", "float64"),
    Field("infos/reward_survive", "reward_survive", "T+1", None, "float64", required=False),
    Field("infos/pre_action", "pre_action", "T+1", "act_dim", "float64", required=False),
)
"""Every array of an episode but :data:`BLOB`."""

BLOB: Final = "infos/pbvf"
"""uint8 (n,): canonical JSON of the format version, the spec and ``cut``."""


def field_dtype(field: Field, spec: PolicySpec) -> np.dtype[Any] | None:
    """Return the dtype that a field must have, or None for one of :data:`OBS_DTYPES`."""
    if field.dtype == "obs":
        return None
    if field.dtype == "action":
        actions = spec.actions
        return np.dtype(actions.dtype if isinstance(actions, BoxActions) else "int64")
    return np.dtype(field.dtype)


def field_shape(field: Field, spec: PolicySpec, steps: int, segments: int) -> tuple[int, ...]:
    """Return the shape that a field must have in an episode of T steps and S segments."""
    rows = {"T": steps, "T+1": steps + 1, "S": segments}[field.rows]
    if field.columns is None or (field.columns == "action" and not spec.is_continuous):
        return (rows,)
    if field.columns == "obs_dim":
        return (rows, spec.obs_dim)
    return (rows, spec.size if field.columns == "D" else spec.actions.dim)


@dataclass(frozen=True)
class EpisodeTag(Record):
    """What ``infos/pbvf`` says of an episode, beside the format version."""

    spec: PolicySpec
    cut: Cut


def episode_blob(spec: PolicySpec, cut: Cut) -> bytes:
    """Return what ``infos/pbvf`` holds: format version, spec and ``cut`` of an episode."""
    # No EpisodeTag: whoever writes checks the episode, and says which one it is.
    return canonical_json({"version": spec.format_version, "spec": spec.to_dict(), "cut": cut})


def parse_episode_blob(data: bytes, where: str | os.PathLike[str]) -> tuple[PolicySpec, Cut]:
    """Read what ``infos/pbvf`` holds.

    Raises:
        DamagedError: It is not what :func:`episode_blob` writes.
        IncompatibleError: A newer version of the format wrote it.
    """
    value = parse_json(data, where, max_bytes=MAX_BLOB_BYTES)
    if not isinstance(value, dict):
        raise DamagedError("the policy tag is not a JSON object", where=where)
    check_version(value.pop("version", None), where)
    tag = EpisodeTag.from_dict(value, where)
    return tag.spec, tag.cut


def dataset_version(provenance: Mapping[str, Any]) -> int:
    """Return the lowest format version that knows what a dataset's files say.

    Args:
        provenance: As the manifest holds it.
    """
    every = all_provenance(provenance)
    environments = [p.get("environment") for p in every]
    known = [EnvReference.from_dict(e, "environment") for e in environments if e is not None]
    version = format_version([PolicySpec.from_dict(provenance["spec"], "spec"), *known])
    newer = any(key in p for p in every for key in ("repeatable", "known_as"))
    return max(version, 2) if newer else version


def all_provenance(provenance: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a provenance and those of all datasets behind it, empty where one is not known."""
    return [provenance, *(s["provenance"] or {} for s in provenance.get("sources", ()))]


def is_not_repeatable(provenance: Mapping[str, Any]) -> bool:
    """Whether the data, or some of them, come from an environment that failed the check.

    That is, an episode that was played again from its seed came out otherwise.
    """
    return any(p.get("repeatable") is False for p in all_provenance(provenance))
