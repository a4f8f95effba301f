"""Which datasets there are in the folder of datasets; only small files are read."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pbvf_datasets.format.identity import parse_plan
from pbvf_datasets.format.manifest import mismatch, parse_manifest, read_plain
from pbvf_datasets.format.names import datasets_root
from pbvf_datasets.format.schema import DATA_FILE, MANIFEST_FILE, METADATA_FILE
from pbvf_datasets.format.statistics import Ends
from pbvf_datasets.inspect.describe import environment_name
from pbvf_datasets.read.dataset import environment_of
from pbvf_datasets.read.metadata import MAX_METADATA_BYTES, parse_metadata
from pbvf_offline.errors import (
    DamagedError,
    IncompatibleError,
    PbvfError,
    UnsafeError,
    UsageError,
)
from pbvf_offline.io.work_folder import PLAN_FILE

MAX_DEPTH: Final = 16
"""Namespaces nested deeper than this are not searched for datasets."""

_UNFINISHED: Final = re.compile(r"\.(.+-v[0-9]+)\.([a-z]+ing|relicense)")


@dataclass(frozen=True)
class Listed:
    """A dataset, or the beginning of one, in the folder of datasets.

    Attributes:
        dataset: Its id, from where it lies.
        path: Its folder; of an unfinished one the folder in which work goes on.
        state: ``ours``; ``foreign`` when it has no manifest, so another program made it;
            ``unfinished``; ``incompatible`` when only a newer or another program can read
            it; ``damaged`` or ``unsafe`` when its small files show that. Digests are for
            :mod:`pbvf_datasets.inspect.verify`.
        episodes: As its metadata claim, or None when not known; likewise what follows.
        ends: How they ended, as its manifest claims.
        steps: As claimed.
        policies: As claimed.
        env: As claimed.
        license: As claimed.
        size: Bytes of the data file.
        problem: What is wrong, or None.
    """

    dataset: str
    path: Path
    state: str
    episodes: int | None = None
    steps: int | None = None
    policies: int | None = None
    env: str | None = None
    license: str | None = None
    size: int | None = None
    problem: str | None = None
    ends: Ends | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        ends = None if self.ends is None else self.ends.to_dict()
        return {**vars(self), "path": os.fspath(self.path), "ends": ends}


def list_datasets(root: Path | None = None) -> list[Listed]:
    """Return all datasets under a root, sorted by id; one that is damaged is one of them.

    Args:
        root: Folder of local datasets; default ``MINARI_DATASETS_PATH``, else Minari's.

    Raises:
        UsageError: The root is a file.
    """
    root = datasets_root() if root is None else root
    if not root.is_dir():
        if os.path.lexists(root):
            raise UsageError("this is no folder", where=root, remedy="set MINARI_DATASETS_PATH")
        return []
    return sorted(_search(root, "", set()), key=lambda found: (found.dataset, found.state))


def _search(folder: Path, namespace: str, seen: set[tuple[int, int]]) -> Iterator[Listed]:
    try:
        # A loop of links has no end, and Minari would follow it.
        status = folder.stat()
        if (status.st_dev, status.st_ino) in seen or namespace.count("/") > MAX_DEPTH:
            return
        seen.add((status.st_dev, status.st_ino))
        entries = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        yield Listed(namespace.rstrip("/"), folder, "damaged", problem=problem)
        return
    for entry in entries:
        unfinished = _UNFINISHED.fullmatch(entry.name)
        if unfinished is not None:
            yield _unfinished(namespace + unfinished[1], entry)
        elif not entry.name.startswith("."):
            if os.path.lexists(entry / "data"):
                yield _listed(namespace + entry.name, entry)
            else:
                yield from _search(entry, f"{namespace}{entry.name}/", seen)


def _listed(name: str, path: Path) -> Listed:
    """Return what the small files of a dataset say."""
    known: dict[str, Any] = {}
    state, problem = "foreign", None
    try:
        if not stat.S_ISDIR((path / "data").lstat().st_mode):
            raise UnsafeError("this is no folder, or a link to one", where=path / "data")
        known["size"] = size = _size(path / DATA_FILE)
        raw = read_plain(path / METADATA_FILE, MAX_METADATA_BYTES)
        metadata = parse_metadata(raw, path / METADATA_FILE)
        known |= {"episodes": metadata["total_episodes"], "steps": metadata["total_steps"]}
        if os.path.lexists(path / MANIFEST_FILE):
            state = "ours"
            manifest = parse_manifest(read_plain(path / MANIFEST_FILE), path / MANIFEST_FILE)
            provenance = manifest["provenance"]
            known |= {
                "policies": provenance["stats"]["policies"],
                "ends": Ends.of(provenance["stats"]),
                "env": environment_name(provenance["environment"]),
                "license": provenance["license"],
            }
            for file, there in ((DATA_FILE, size), (METADATA_FILE, len(raw))):
                wrong = mismatch(manifest["files"][file], there, None, path / file)
                if wrong is not None:
                    raise wrong
        else:
            environment = environment_of(metadata, str(path / METADATA_FILE))
            known["env"] = environment_name(environment)
    except UnsafeError as error:
        state, problem = "unsafe", str(error)
    except IncompatibleError as error:
        state, problem = "incompatible", str(error)
    except PbvfError as error:
        state, problem = "damaged", str(error)
    except OSError as error:
        state, problem = "damaged", f"{path}: cannot be read: {error.strerror}"
    return Listed(name, path, state, problem=problem, **known)


def _size(path: Path) -> int:
    """Return the bytes of a file that is no link.

    Raises:
        DamagedError: It is missing.
        UnsafeError: It is something else.
    """
    try:
        status = path.lstat()
    except FileNotFoundError as error:
        raise DamagedError("the file is missing", where=path) from error
    if not stat.S_ISREG(status.st_mode):
        raise UnsafeError("this is not a regular file", where=path)
    return status.st_size


def _unfinished(name: str, path: Path) -> Listed:
    """Return what the plan of an unfinished dataset says."""
    known: dict[str, Any] = {}
    problem = None
    try:
        if os.path.lexists(path / PLAN_FILE):
            plan = parse_plan(read_plain(path / PLAN_FILE), path / PLAN_FILE)
            identity = plan["identity"]
            environment = identity["environment"]
            if isinstance(environment, dict) and {"id", "module"} <= set(environment):
                known["env"] = environment_name(environment)
            if isinstance(identity["license"], str):
                known["license"] = identity["license"]
    except (PbvfError, OSError) as error:
        problem = str(error)
    return Listed(name, path, "unfinished", problem=problem, **known)
