"""The dataset format as data: names, shapes, dtypes, JSON and spaces.

Writer and reader both work from the one table :data:`FIELDS`, so that they cannot
disagree. Nothing in here opens a data file or runs anything that a file names.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import DamagedError, IncompatibleError, UsageError, shorten
from pbvf_offline.io.formats import check_version
from pbvf_offline.io.strict_json import canonical_json, parse_json
from pbvf_offline.io.work_folder import Layout
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.records import Record, format_version
from pbvf_offline.rollout.episodes import Cut

if TYPE_CHECKING:
    import gymnasium as gym

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

OBS_DTYPES: Final = (
    *("float64", "float32", "float16"),
    *("int64", "int32", "int16", "int8"),
    *("uint64", "uint32", "uint16", "uint8"),
)
"""Observation dtypes that are stored; the environment's own is kept."""

MAX_SPACE_DIM: Final = 250_000
SUPPORTED_SPACES: Final = (
    "supported are observations in a one-dimensional Box of numbers and actions in a "
    f"one-dimensional floating-point Box or Discrete, of at most {MAX_SPACE_DIM:,} dimensions"
)
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


# ----------------------------------------------------------------------------- spaces


def check_spaces(
    observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> tuple[gym.spaces.Box, gym.spaces.Box | gym.spaces.Discrete]:
    """Return the spaces when datasets can hold them.

    Raises:
        UsageError: One is of a kind that is not supported.
    """
    from gymnasium import spaces

    from pbvf_offline.envs.actions import action_help
    from pbvf_offline.envs.observations import observation_help

    def one_dimensional(space: gym.Space[Any]) -> bool:
        return (
            isinstance(space, spaces.Box)
            and len(space.shape) == 1
            and 1 <= space.shape[0] <= MAX_SPACE_DIM
            and str(space.dtype) in OBS_DTYPES
        )

    continuous = one_dimensional(action_space) and np.issubdtype(action_space.dtype, np.floating)
    discrete = isinstance(action_space, spaces.Discrete)
    for name, space, good, helps in (
        ("observation", observation_space, one_dimensional(observation_space), observation_help),
        ("action", action_space, continuous or discrete, action_help),
    ):
        if not good:
            raise UsageError(
                f"the {name} space {shorten(space, 200)} is not supported",
                remedy=f"{SUPPORTED_SPACES}; {helps(space)}",
            )
    return observation_space, action_space  # type: ignore[return-value]


def serialize_space(space: gym.Space[Any]) -> str:
    """Return a one-dimensional Box or a Discrete in the text form that Minari reads.

    Raises:
        UsageError: It is another kind of space.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return json.dumps(
            {
                "type": "Box",
                "dtype": str(space.dtype),
                "shape": list(space.shape),
                "low": space.low.tolist(),
                "high": space.high.tolist(),
            }
        )
    if isinstance(space, spaces.Discrete):
        return json.dumps(
            {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
        )
    raise UsageError(f"the space {shorten(space, 200)} is not supported")


def parse_space(
    text: object, where: str | os.PathLike[str]
) -> gym.spaces.Box | gym.spaces.Discrete:
    """Read a space in Minari's text form, strictly, without running anything.

    Raises:
        DamagedError: The text is malformed or contradicts itself.
        IncompatibleError: It is a space of a kind that this format does not hold.
    """
    from gymnasium import spaces

    if not isinstance(text, str):
        raise DamagedError(f"a space is {type(text).__name__}, not text", where=where)
    value = parse_json(text, where, allow_infinity=True)
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "Discrete":
        if set(value) != {"type", "dtype", "start", "n"}:
            raise DamagedError(f"a Discrete space has the keys {sorted(value)}", where=where)
        start, n = value["start"], value["n"]
        if (
            type(start) is not int
            or type(n) is not int
            or not 1 <= n <= 2**31
            or not -(2**62) <= start <= 2**62
        ):
            raise DamagedError(
                f"a Discrete space has n={shorten(n, 40)}, start={shorten(start, 40)}", where=where
            )
        return spaces.Discrete(n, start=start)
    if kind != "Box":
        raise IncompatibleError(
            f"a space of type {shorten(kind, 40)!r} is not supported",
            where=where,
            remedy="use a dataset with Box observations and Box or Discrete actions",
        )
    if set(value) != {"type", "dtype", "shape", "low", "high"}:
        raise DamagedError(f"a Box space has the keys {sorted(value)}", where=where)
    dtype, shape = value["dtype"], value["shape"]
    if not isinstance(shape, list) or any(type(n) is not int for n in shape):
        raise DamagedError(f"a Box has the shape {shorten(shape, 60)}", where=where)
    if dtype not in OBS_DTYPES or len(shape) != 1 or not 1 <= shape[0] <= MAX_SPACE_DIM:
        raise IncompatibleError(
            f"a Box of shape {shape} and dtype {shorten(dtype, 40)} is not supported; "
            f"one dimension of 1 … {MAX_SPACE_DIM:,} numbers is",
            where=where,
        )
    low, high = (_bounds(value[side], shape[0], dtype, where) for side in ("low", "high"))
    if not bool(np.all(low <= high)):
        raise DamagedError("a Box has a lower bound above its upper bound", where=where)
    return spaces.Box(low=low, high=high, dtype=np.dtype(dtype).type)


def _bounds(
    values: object, length: int, dtype: str, where: str | os.PathLike[str]
) -> np.ndarray[Any, np.dtype[Any]]:
    kinds = (int, float) if dtype.startswith("float") else (int,)
    if (
        not isinstance(values, list)
        or len(values) != length
        or any(type(v) not in kinds for v in values)
    ):
        raise DamagedError(f"a Box of {length} values has malformed bounds", where=where)
    try:
        with np.errstate(over="ignore"):
            return np.array(values, dtype=dtype)
    except OverflowError as error:
        raise DamagedError(f"a Box has bounds out of range for {dtype}", where=where) from error


# ------------------------------------------------------------------------ names, paths

# Minari's own pattern for ids, but with a version, and each component by itself.
_COMPONENT = re.compile(r"[-_\w]+")
_NAME = re.compile(r"(?P<name>[-_\w]+?)-v(?P<version>0|[1-9][0-9]{0,8})")
_ID_REMEDY = "give an id such as 'lab/swimmer-fragments-v0'"


def datasets_root() -> Path:
    """Return the folder of local datasets: ``MINARI_DATASETS_PATH`` or Minari's default.

    Raises:
        UsageError: It begins with ``~``, which Minari takes for the name of a folder.
    """
    given = os.environ.get("MINARI_DATASETS_PATH")
    if given and given.startswith("~"):
        raise UsageError(
            f"{given!r} begins with ~, which only a shell expands",
            where="MINARI_DATASETS_PATH",
            remedy=f"give the whole path, such as {Path(given).expanduser()}",
        )
    return Path(given) if given else Path.home() / ".minari" / "datasets"


def check_dataset_id(dataset_id: str) -> tuple[str, str, int]:
    """Split ``namespace/name-vN`` into namespace (may be empty), name and version.

    Raises:
        UsageError: It is not such an id, or one that Minari's listing would trip over.
    """
    *namespace, last = dataset_id.split("/")
    match = _NAME.fullmatch(last)
    if match is None or any(_COMPONENT.fullmatch(part) is None for part in namespace):
        raise UsageError(f"{dataset_id!r} is not a dataset id", remedy=_ID_REMEDY)
    if namespace and len("/".join(namespace)) < 2:
        raise UsageError(
            f"the namespace of {dataset_id!r} is shorter than the two letters Minari wants",
            remedy=_ID_REMEDY,
        )
    if "data" in namespace:
        # Minari takes every folder with a 'data' inside for a dataset.
        raise UsageError(
            f"the namespace of {dataset_id!r} contains 'data', which hides its neighbours "
            "from Minari",
            remedy="choose another namespace",
        )
    if any(len(os.fsencode(part)) > 200 for part in (*namespace, last)):
        raise UsageError(f"{dataset_id[:60]!r}… is too long", remedy=_ID_REMEDY)
    return "/".join(namespace), match["name"], int(match["version"])


def dataset_path(dataset_id: str, root: Path | None = None) -> Path:
    """Return where a dataset of this id lives, whether it exists or not.

    Raises:
        UsageError: It is not an id.
    """
    check_dataset_id(dataset_id)
    return (datasets_root() if root is None else root).joinpath(*dataset_id.split("/"))


def new_dataset_path(dataset_id: str, root: Path | None = None) -> Path:
    """Return where a dataset of this id will be written.

    Raises:
        UsageError: It is not an id, or the folder is inside another dataset.
    """
    root = datasets_root() if root is None else root
    path = dataset_path(dataset_id, root)
    for above in path.relative_to(root).parents[:-1]:
        if (root / above / "data").exists():
            raise UsageError(
                f"{dataset_id} would lie inside the dataset {root / above}",
                remedy="choose another namespace",
            )
    return path


def resolve_dataset(name_or_path: str | os.PathLike[str], root: Path | None = None) -> Path:
    """Return the folder of a dataset given by id (under ``root``) or by path.

    Args:
        name_or_path: ``namespace/name-v0``, or the path of a folder.
        root: Folder of local datasets; default :func:`datasets_root`.

    Raises:
        UsageError: There is no such dataset, or the name is malformed.
    """
    text = os.fspath(name_or_path)
    root = datasets_root() if root is None else root
    is_id = False
    malformed: UsageError | None = None
    if isinstance(name_or_path, str):
        try:
            path = dataset_path(text, root)
            is_id = True
        except UsageError as error:
            malformed = error
        if is_id and path.is_dir():
            return path
    if "\0" in text or not text:
        raise UsageError(f"{text!r} is neither a dataset id nor a folder", remedy=_ID_REMEDY)
    path = Path(text).expanduser()
    if path.is_dir():
        return path
    if is_id:
        raise UsageError(
            f"there is no dataset {text} under {root}",
            remedy="check the name, or set MINARI_DATASETS_PATH",
        )
    if path.exists():
        raise UsageError("this is a file; a dataset is a folder", where=path)
    raise UsageError(
        f"{text!r} is neither a dataset id nor an existing folder", remedy=_ID_REMEDY
    ) from malformed
