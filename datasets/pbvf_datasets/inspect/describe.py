"""Describe: what is in a dataset, and which datasets there are.

A description needs no transitions: counts, settings and versions stand in the manifest,
and of each episode only what is small is read: its rewards, how it ended, the policy tag
and the normalisers. The shape and type of every array are looked at, none of its values.
Nothing that a file names is imported, built or opened.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.format.identity import parse_plan
from pbvf_datasets.format.manifest import MAX_MANIFEST_BYTES, parse_manifest
from pbvf_datasets.format.schema import (
    BLOB,
    DATA_FILE,
    FIELDS,
    MANIFEST_FILE,
    METADATA_FILE,
    datasets_root,
    parse_episode_blob,
    resolve_dataset,
)
from pbvf_datasets.read.assemble import check_arrays, check_spec, check_tags, read_blob
from pbvf_datasets.read.dataset import check_names, environment_of, episode_arrays
from pbvf_datasets.read.untrusted import (
    MAX_METADATA_BYTES,
    CheckedFolder,
    open_folder,
    parse_metadata,
)
from pbvf_datasets.read.untrusted_hdf5 import GuardedFile, GuardedGroup
from pbvf_offline.errors import (
    DamagedError,
    IncompatibleError,
    PbvfError,
    UnsafeError,
    UsageError,
)
from pbvf_offline.io.tensor_file import read_file
from pbvf_offline.io.work_folder import PLAN_FILE
from pbvf_offline.policies.spec import PolicySpec

MAX_DEPTH: Final = 16
"""Namespaces nested deeper than this are not searched for datasets."""

HISTOGRAM_BINS: Final = 10

_OPTIONAL: Final = tuple(f.name for f in FIELDS if not f.required)
_UNFINISHED: Final = re.compile(r"\.(.+-v[0-9]+)\.([a-z]+ing)")


@dataclass(frozen=True)
class Histogram:
    """How many episodes have a return in which range.

    Attributes:
        edges: bins + 1 ascending numbers, in the reward's unit.
        counts: Episodes in each bin; the last includes its upper edge.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, values: NDArray[np.float64], bins: int = HISTOGRAM_BINS) -> Histogram:
        """Count finite values, at least one, in bins of equal width between the extremes."""
        low, high = float(values.min()), float(values.max())
        # Halved before the difference is taken, so that huge returns cannot overflow.
        if not high / 2 - low / 2 > 0:
            return cls((low, high), (len(values),))
        part = (values / 2 - low / 2) / (high / 2 - low / 2)
        index = np.minimum((part * bins).astype(np.int64), bins - 1)
        inner = [low / bins * (bins - k) + high / bins * k for k in range(1, bins)]
        return cls((low, *inner, high), tuple(np.bincount(index, minlength=bins).tolist()))


@dataclass(frozen=True)
class Description:
    """What is in a dataset.

    Attributes:
        dataset: Its id as its metadata give it, else the folder's name.
        path: The folder.
        verified: Whether a manifest vouches for its content.
        digest: The manifest's digest; without a manifest, one of the files' hashes.
        lengths: (E,) steps of each episode.
        returns: Undiscounted returns of the whole episodes, in the reward's unit.
        policies: Number of distinct policies; None when it has no policy tags.
        segments: Number of stretches in which one policy acts, over all episodes.
        terminated: Episodes whose task ended.
        truncated: Episodes that a time limit or the writer ended.
        cut: Episodes that a step budget cut short.
        spec: Architecture of the policies.
        normalisers: Number of distinct normalisers.
        obs_mean: (obs_dim,) of the normaliser when there is just one.
        obs_std: (obs_dim,) likewise.
        observation_space: In words.
        action_space: In words.
        environment: ``id``, ``module``, ``kwargs`` and ``withheld``, or None.
        provenance: Of the manifest, or None.
        metadata: Minari's.
        sizes: Bytes of each file.
    """

    dataset: str
    path: Path
    verified: bool
    digest: str
    lengths: NDArray[np.int64]
    returns: NDArray[np.float64]
    policies: int | None
    segments: int
    terminated: int
    truncated: int
    cut: int
    spec: PolicySpec | None
    normalisers: int
    obs_mean: NDArray[np.float64] | None
    obs_std: NDArray[np.float64] | None
    observation_space: str
    action_space: str
    environment: Mapping[str, Any] | None
    provenance: Mapping[str, Any] | None
    metadata: Mapping[str, Any]
    sizes: Mapping[str, int]

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(self.lengths)

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.lengths.sum())

    @property
    def env(self) -> str | None:
        """The environment as a user would type it."""
        return environment_name(self.environment)

    @property
    def license(self) -> str | None:
        """The licence's identifier, or None when none was given."""
        given = None if self.provenance is None else self.provenance["license"]
        return given if isinstance(given, str) else None

    @property
    def histogram(self) -> Histogram | None:
        """Returns of the whole episodes; None when there are none to count."""
        finite = self.returns[np.isfinite(self.returns)]
        return Histogram.of(finite) if finite.size else None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        provenance = self.provenance or {}
        histogram, spec = self.histogram, self.spec
        return {
            "dataset": self.dataset,
            "path": os.fspath(self.path),
            "verified": self.verified,
            "digest": self.digest,
            "episodes": self.episodes,
            "steps": self.steps,
            "policies": self.policies,
            "segments": self.segments,
            "ends": {"terminated": self.terminated, "truncated": self.truncated, "cut": self.cut},
            "length": _summary(self.lengths),
            "return": _summary(self.returns),
            "histogram": None
            if histogram is None
            else {"edges": list(histogram.edges), "counts": list(histogram.counts)},
            "policy": None
            if spec is None
            else {**spec.to_dict(), "arch": spec.arch, "parameters": spec.size},
            "normalisers": self.normalisers,
            "obs_mean": None if self.obs_mean is None else self.obs_mean.tolist(),
            "obs_std": None if self.obs_std is None else self.obs_std.tolist(),
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "env": self.env,
            "environment": None if self.environment is None else dict(self.environment),
            "license": self.license,
            "authors": provenance.get("authors", self.metadata.get("author")),
            "tool": provenance.get("tool"),
            "versions": provenance.get("versions"),
            "minari_version": self.metadata.get("minari_version"),
            "seed": provenance.get("seed"),
            "settings": provenance.get("settings"),
            "warmup_steps": provenance.get("warmup_steps"),
            "command": provenance.get("command"),
            "sources": [
                {key: source[key] for key in ("id", "digest", "episodes", "steps")}
                for source in provenance.get("sources", ())
            ],
            "provenance": self.provenance,
            "sizes": dict(self.sizes),
            "size": sum(self.sizes.values()),
        }


def environment_name(environment: Mapping[str, Any] | None) -> str | None:
    """Return an environment as a user would type it, ``module:Name-v0`` or the id alone."""
    if environment is None:
        return None
    module = environment["module"]
    return environment["id"] if module is None else f"{module}:{environment['id']}"


def _summary(values: NDArray[Any]) -> dict[str, float] | None:
    if not values.size:
        return None
    mean = float(np.mean(values / 2)) * 2  # halves keep a sum of huge returns finite
    return {"mean": mean, "min": values.min().item(), "max": values.max().item()}


# ----------------------------------------------------------------------------- one of them


def describe(dataset: str | os.PathLike[str], *, require_manifest: bool = False) -> Description:
    """Look into a dataset without reading its transitions.

    Args:
        dataset: A Minari id (``namespace/name-v0``) or the path of a dataset folder.
        require_manifest: Refuse a folder without a manifest instead of warning.

    Raises:
        UsageError: There is no such dataset.
        DamagedError: A file is damaged or contradicts itself.
        UnsafeError: A file could run code, read other files or exhaust the machine, or a
            manifest is required and missing.
        IncompatibleError: A newer format, spaces that are not supported, no policy tags, or
            policies of several architectures.
        ResourceError: A file may not be read.
    """
    path = resolve_dataset(dataset)
    with open_folder(path, require_manifest=require_manifest) as folder:
        data = folder.open_data()
        try:
            found = _Census(folder, data)
            found.take()
        except DamagedError:
            data.walk()  # a file that is dangerous elsewhere is reported as that
            raise
        folder.check_unchanged()
        manifest = folder.manifest
        provenance = None if manifest is None else manifest["provenance"]
        metadata = folder.metadata
        name = metadata.get("dataset_id")
        if provenance is None:
            environment = environment_of(metadata, str(path / METADATA_FILE))
        else:
            environment = provenance["environment"]
        one = found.normaliser if len(found.normalisers) == 1 else None
        return Description(
            dataset=name if isinstance(name, str) else path.name,
            path=path,
            verified=folder.verified,
            digest=folder.digest,
            lengths=np.array(found.lengths, np.int64),
            returns=np.array(found.returns),
            policies=len(found.policies) if provenance is None else provenance["stats"]["policies"],
            segments=found.segments,
            terminated=found.ends["terminated"],
            truncated=found.ends["truncated"],
            cut=found.ends["cut"],
            spec=found.spec,
            normalisers=len(found.normalisers),
            obs_mean=None if one is None else one[0],
            obs_std=None if one is None else one[1],
            observation_space=str(folder.observation_space),
            action_space=str(folder.action_space),
            environment=environment,
            provenance=provenance,
            metadata=metadata,
            sizes=_sizes(path),
        )


class _Census:
    """What one pass over the episodes finds out about them."""

    def __init__(self, folder: CheckedFolder, data: GuardedFile) -> None:
        self._folder, self._data = folder, data
        # With a manifest the number of policies is known; thetas can be large.
        self._counting = folder.manifest is None
        self._blobs: dict[bytes, tuple[PolicySpec, str]] = {}
        self._obs_dtype: np.dtype[Any] | None = None
        self._optional: frozenset[str] | None = None
        self.spec: PolicySpec | None = None
        self.lengths: list[int] = []
        self.returns: list[float] = []
        self.ends = {"terminated": 0, "truncated": 0, "cut": 0}
        self.segments = 0
        self.policies: set[bytes] = set()
        self.normalisers: set[bytes] = set()
        self.normaliser: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    def take(self) -> None:
        """Look at all episodes."""
        folder = self._folder
        root = self._data.begin()
        check_names(folder, root)
        for i in range(folder.total_episodes):
            self._episode(root.group(b"episode_%d" % i))
        steps = sum(self.lengths)
        if not self.lengths:
            raise DamagedError("it holds no episode", where=self._data.path)
        if steps != folder.total_steps:
            raise DamagedError(
                f"its total_steps is {folder.total_steps:,}, but the episodes have {steps:,} steps",
                where=folder.path / METADATA_FILE,
            )

    def _episode(self, group: GuardedGroup) -> None:
        arrays = episode_arrays(group)

        def where(name: str) -> str:
            return self._data.where(f"{group.place}/{name}" if name else group.place)

        check_tags(arrays, where)
        spec, cut = self._tag(read_blob(arrays[BLOB], where(BLOB)), where(BLOB))
        steps, segments = check_arrays(arrays, spec, self._obs_dtype, where)
        total = group.integer(b"total_steps")
        if total is None:
            raise DamagedError("it has no attribute total_steps", where=where(""))
        if total != steps:
            raise DamagedError(
                f"its total_steps is {total}, but it has {steps} rewards", where=where("")
            )
        optional = frozenset(name for name in _OPTIONAL if name in arrays)
        if self._optional is None:
            self._optional, self._obs_dtype = optional, arrays["observations"].dtype
        for name in sorted(self._optional ^ optional):
            raise IncompatibleError("some episodes have it and some do not", where=where(name))

        def read(name: str, dtype: str) -> NDArray[Any]:
            values = np.empty(arrays[name].shape, dtype)
            arrays[name].read_into(values)
            return values

        self.lengths.append(steps)
        self.segments += segments
        if cut != "none":
            self.ends["cut"] += 1
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                self.returns.append(float(read("rewards", "float64").sum()))
            done = bool(read("terminations", "bool")[-1])
            self.ends["terminated" if done else "truncated"] += 1
        mean, std = read("infos/obs_mean", "float64"), read("infos/obs_std", "float64")
        theta = read("infos/theta", "float32") if self._counting else None
        last = b""
        for row in range(segments):
            key = _digest(mean[row], std[row])
            if key != last:
                last = key
                self.normalisers.add(key)
                self.normaliser = mean[row], std[row]
            if theta is not None:
                self.policies.add(_digest(theta[row], mean[row], std[row]))

    def _tag(self, blob: bytes, where: str) -> tuple[PolicySpec, str]:
        known = self._blobs.get(blob)
        if known is not None:
            return known
        spec, cut = parse_episode_blob(blob, where)
        if self.spec is None:
            check_spec(spec, self._folder.observation_space, self._folder.action_space, where)
            self.spec = spec
        elif spec != self.spec:
            raise IncompatibleError(
                f"its policies ({spec.arch}) have another architecture than those before "
                f"({self.spec.arch})",
                where=where,
                remedy="keep policies of different architectures in datasets of their own",
            )
        self._blobs[blob] = spec, cut
        return spec, cut


def _digest(*parts: NDArray[Any]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part.data)
    return digest.digest()


def _sizes(path: Path) -> dict[str, int]:
    """Return the bytes of each file of a dataset that the door has let in."""
    sizes = {}
    for folder in (path, path / "data"):
        for entry in sorted(folder.iterdir()):
            status = entry.lstat()
            if stat.S_ISREG(status.st_mode):
                sizes[str(entry.relative_to(path))] = status.st_size
    return sizes


# ----------------------------------------------------------------------------- all of them


@dataclass(frozen=True)
class Listed:
    """A dataset, or the beginning of one, in the folder of datasets.

    Attributes:
        dataset: Its id, from where it lies.
        path: Its folder; of an unfinished one the folder in which work goes on.
        state: ``ours``; ``foreign`` when it has no manifest, so another program made it;
            ``unfinished``; ``incompatible`` when only a newer or another program can read
            it; ``damaged`` or ``unsafe`` when a glance shows that. Digests are for
            :mod:`pbvf_datasets.inspect.verify`.
        episodes: As its metadata claim, or None when not known; likewise what follows.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**vars(self), "path": os.fspath(self.path)}


def list_datasets(root: Path | None = None) -> list[Listed]:
    """Return all datasets under a root, sorted by id; one that is damaged is one of them.

    Args:
        root: Folder of local datasets; default as for :func:`describe`.

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
            yield _begun(namespace + unfinished[1], entry)
        elif not entry.name.startswith("."):
            if os.path.lexists(entry / "data"):
                yield _glance(namespace + entry.name, entry)
            else:
                yield from _search(entry, f"{namespace}{entry.name}/", seen)


def _glance(name: str, path: Path) -> Listed:
    """Look at the small files of a dataset."""
    known: dict[str, Any] = {}
    state, problem = "foreign", None
    try:
        if not stat.S_ISDIR((path / "data").lstat().st_mode):
            raise UnsafeError("this is no folder, or a link to one", where=path / "data")
        size = _size(path / DATA_FILE)
        known["size"] = size
        metadata_size = _size(path / METADATA_FILE)
        has_manifest = os.path.lexists(path / MANIFEST_FILE)
        metadata = parse_metadata(
            read_file(path / METADATA_FILE, MAX_METADATA_BYTES), path / METADATA_FILE
        )
        known |= {"episodes": metadata["total_episodes"], "steps": metadata["total_steps"]}
        if has_manifest:
            state = "ours"
            _size(path / MANIFEST_FILE)
            manifest = parse_manifest(
                read_file(path / MANIFEST_FILE, MAX_MANIFEST_BYTES), path / MANIFEST_FILE
            )
            provenance = manifest["provenance"]
            known |= {
                "policies": provenance["stats"]["policies"],
                "env": environment_name(provenance["environment"]),
                "license": provenance["license"],
            }
            for file, there in ((DATA_FILE, size), (METADATA_FILE, metadata_size)):
                if manifest["files"][file]["size"] != there:
                    raise DamagedError("its size is not the one in its manifest", where=path / file)
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


def _begun(name: str, path: Path) -> Listed:
    """Look at the plan of an unfinished dataset."""
    known: dict[str, Any] = {}
    problem = None
    try:
        if os.path.lexists(path / PLAN_FILE):
            _size(path / PLAN_FILE)
            plan = parse_plan(read_file(path / PLAN_FILE, MAX_MANIFEST_BYTES), path / PLAN_FILE)
            identity = plan["identity"]
            environment = identity["environment"]
            if isinstance(environment, dict) and {"id", "module"} <= set(environment):
                known["env"] = environment_name(environment)
            if isinstance(identity["license"], str):
                known["license"] = identity["license"]
    except (PbvfError, OSError) as error:
        problem = str(error)
    return Listed(name, path, "unfinished", problem=problem, **known)
