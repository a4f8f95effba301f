"""What a dataset is made from: compared before anything is resumed or kept.

The *identity* of a dataset is all that must be equal for it to be the same one. It stands
in the manifest of a finished dataset and in the plan (``plan.json``) of an unfinished one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pbvf_datasets.format.manifest import parse_manifest, read_plain, verify_files
from pbvf_datasets.format.names import dataset_path
from pbvf_datasets.format.schema import DATASET_FILES, MANIFEST_FILE, dataset_version
from pbvf_offline.errors import DamagedError, PbvfError
from pbvf_offline.io.formats import check_version
from pbvf_offline.io.strict_json import parse_json
from pbvf_offline.io.work_folder import WorkFolder, refuse_difference
from pbvf_offline.records import Record, fields, since

START_ANEW: Final = "give another dataset id, or --overwrite to start over"
_MORE: Final = (
    "a dataset is not extended: give another dataset id and another --seed (with the same one it "
    "would begin with the same episodes; 'pbvf dataset merge' puts both together), or --overwrite "
    "to start over"
)
_AMOUNT: Final = frozenset({"steps", "episodes"})


@dataclass(frozen=True)
class _Identity(Record):
    settings: dict[str, Any]
    environment: dict[str, Any] | None
    spec: dict[str, Any]
    seed: int | None
    license: str | None
    authors: tuple[str, ...]


@dataclass(frozen=True)
class _Plan(Record):
    """What ``plan.json`` holds, beside the format version."""

    identity: _Identity
    command: str | None
    overwrite: bool
    state: dict[str, Any] | None
    repeatable: Annotated[bool, since(2)] = True


_IDENTITY = tuple(field.name for field in fields(_Identity))


def dataset_work(path: Path, suffix: str = "collecting") -> WorkFolder:
    """Return the folder in which the dataset at ``path`` is made, or made otherwise."""

    def check(build: Path) -> None:
        where = build / MANIFEST_FILE
        verify_files(build, parse_manifest(read_plain(where), where))

    return WorkFolder(path, suffix, layout=DATASET_FILES, check=check)


def identity_of(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity inside a manifest's provenance."""
    return {key: provenance[key] for key in _IDENTITY}


def refuse_other(there: Mapping[str, Any], now: Mapping[str, Any], where: Path) -> None:
    """Refuse to touch a dataset that was made, or begun, from something else.

    Args:
        there: The identity of what is there.
        now: The identity of what is asked for.
        where: Its folder.

    Raises:
        ConflictError: They differ.
    """
    rest = [
        {**one, "settings": {k: v for k, v in one["settings"].items() if k not in _AMOUNT}}
        for one in (there, now)
    ]
    drawn = "perturb_every" in now["settings"]
    refuse_difference(there, now, where, _MORE if drawn and rest[0] == rest[1] else START_ANEW)


def plan_of(identity: Mapping[str, Any], command: str | None, *, overwrite: bool) -> dict[str, Any]:
    """Return what ``plan.json`` says of a dataset that is begun."""
    version = dataset_version(identity)
    return {
        "version": version,
        "identity": dict(identity),
        "command": command,
        "overwrite": overwrite,
        "state": None,
    }


def parse_plan(data: bytes, where: Path) -> dict[str, Any]:
    """Read the bytes of ``plan.json``.

    Returns:
        ``version``, ``identity``, ``command``, ``overwrite``, ``state`` and, where an episode came
        out otherwise when it was played again, ``repeatable``: false.

    Raises:
        DamagedError: They are not what was written there.
        IncompatibleError: A newer version wrote them.
    """
    try:
        plan = parse_json(data, where)
        if not isinstance(plan, dict):
            raise DamagedError("an object is expected", where=where)
        version = plan.pop("version", None)
        check_version(version, where)
        _Plan.from_dict(plan, where)
    except DamagedError as error:
        raise DamagedError(
            f"the plan of an unfinished dataset is malformed: {error.what}",
            where=where,
            remedy=START_ANEW,
        ) from error
    return {"version": version, **plan}


def stored_settings(dataset_id: str, root: Path | None = None) -> dict[str, Any] | None:
    """Return with what settings a complete or partial dataset of this id was made.

    Only a small file is read and nothing else checked; :class:`DatasetWriter` does that.

    Args:
        dataset_id: ``namespace/name-vN``.
        root: Folder of datasets; default as for :class:`DatasetWriter`.

    Returns:
        ``{"complete": bool, "settings", "environment", "spec", "seed", "license",
        "authors"}`` of the dataset, else of the work folder; None when neither can be read.

    Raises:
        UsageError: The id is malformed.
    """
    path = dataset_path(dataset_id, root)
    where = path / MANIFEST_FILE
    with contextlib.suppress(PbvfError, OSError):
        manifest = parse_manifest(read_plain(where), where)
        return {"complete": True, **identity_of(manifest["provenance"])}
    where = dataset_work(path).plan
    with contextlib.suppress(PbvfError, OSError):
        return {"complete": False, **parse_plan(read_plain(where), where)["identity"]}
    return None
