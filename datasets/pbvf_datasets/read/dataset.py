"""Datasets in memory: ``load_dataset`` and what it returns.

The first opening walks the HDF5 file once, checking and reading each object on the
way; later ones check the digests and map the training cache (:mod:`pbvf_datasets.read.cache`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbvf_datasets.format.schema import BLOB, DATA_FILE, FIELDS, METADATA_FILE, resolve_dataset
from pbvf_datasets.read.assemble import ArraySource, Assembler, read_episode
from pbvf_datasets.read.cache import load_cache, store_cache
from pbvf_datasets.read.untrusted import CheckedFolder, open_folder, open_suspect
from pbvf_datasets.read.untrusted_hdf5 import GuardedFile, GuardedGroup
from pbvf_offline.errors import DamagedError, ResourceError, UsageError, printable
from pbvf_offline.io.strict_json import parse_json
from pbvf_offline.rollout.episodes import Episode, Trajectories, Transitions

if TYPE_CHECKING:
    import gymnasium as gym
    import numpy as np
    from numpy.typing import NDArray

    from pbvf_offline.policies.policy import Policies
    from pbvf_offline.policies.spec import PolicySpec

EpisodeSource = Callable[[Iterable[int]], Iterator[Episode]]

_EPISODE = re.compile(rb"episode_(0|[1-9][0-9]{0,17})")
_TOP = {name.encode(): name for name in (*(f.name for f in FIELDS), BLOB) if "/" not in name}
_INFOS = {
    name.rpartition("/")[2].encode(): name
    for name in (*(f.name for f in FIELDS), BLOB)
    if name.startswith("infos/")
}


class Episodes:
    """The episodes of a dataset one by one, as stored, without holding them all.

    Args:
        count: How many there are.
        source: Yields the episodes of the given indices.
    """

    def __init__(self, count: int, source: EpisodeSource) -> None:
        self._count = count
        self._source = source

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Episode]:
        return self._source(range(self._count))

    def select(self, indices: Iterable[int]) -> Iterator[Episode]:
        """Yield the episodes of the given indices, in the given order.

        Raises:
            UsageError: An index is out of range.
        """
        rows = [int(i) for i in indices]
        for row in rows:
            if not 0 <= row < self._count:
                raise UsageError(f"there is no episode {row}; there are {self._count}")
        return self._source(rows)


@dataclass(frozen=True, repr=False)
class Dataset:
    """A policy-tagged dataset: N steps of E episodes, made by P policies.

    ``len`` is the number of episodes, as for a Minari dataset.

    Attributes:
        trajectories: Everything as flat arrays, raw.
        path: The folder it is from.
        observation_space: A one-dimensional Box.
        action_space: A one-dimensional Box or Discrete.
        environment: ``id``, ``module``, ``kwargs`` and ``withheld`` as the file names them,
            or None. Only a description: nothing was built or imported.
        license: As the manifest says, or None.
        digest: Content digest (sha256, hex).
        verified: Whether a manifest vouches for the content.
        manifest: ``manifest.json``, or None.
        metadata: ``data/metadata.json``.
    """

    trajectories: Trajectories
    path: Path
    observation_space: gym.spaces.Box
    action_space: gym.spaces.Box | gym.spaces.Discrete
    environment: dict[str, Any] | None
    license: str | None
    digest: str
    verified: bool
    manifest: dict[str, Any] | None
    metadata: dict[str, Any]
    _source: EpisodeSource = field(repr=False)

    @property
    def id(self) -> str:
        """The dataset's id as its metadata give it, else the folder's name."""
        given = self.metadata.get("dataset_id")
        return given if isinstance(given, str) else self.path.name

    @property
    def policies(self) -> Policies:
        """The P distinct policies that acted."""
        return self.trajectories.policies

    @property
    def spec(self) -> PolicySpec:
        """Architecture of all policies."""
        return self.policies.spec

    @property
    def theta(self) -> NDArray[np.float32]:
        """(P, D) parameters, one row a distinct policy."""
        return self.policies.theta

    @property
    def obs_mean(self) -> NDArray[np.float64]:
        """(P, obs_dim) mean of each policy's normaliser, in the observation's unit."""
        return self.policies.obs_mean

    @property
    def obs_std(self) -> NDArray[np.float64]:
        """(P, obs_dim) standard deviation of each policy's normaliser."""
        return self.policies.obs_std

    @property
    def transitions(self) -> Transitions:
        """The N steps as equal-length arrays in collection order; built at each access."""
        return self.trajectories.transitions

    @property
    def episodes(self) -> Episodes:
        """The episodes one by one, read from the file when iterated."""
        return Episodes(len(self), self._source)

    def __len__(self) -> int:
        return self.trajectories.episodes

    def __repr__(self) -> str:
        return (
            f"Dataset({self.id!r}: {len(self)} episodes, {len(self.trajectories)} steps, "
            f"{len(self.policies)} policies ({self.spec.arch}), "
            f"{'verified' if self.verified else 'unverified'})"
        )


def load_dataset(
    dataset: str | os.PathLike[str], *, require_manifest: bool = False, cache: bool = True
) -> Dataset:
    """Open a policy-tagged dataset: checked, and without running anything it names.

    Args:
        dataset: A Minari id (``namespace/name-v0``) or the path of a dataset folder.
        require_manifest: Refuse a folder without a manifest instead of warning.
        cache: Use and keep a flat copy of the arrays in the user's cache folder.

    Raises:
        UsageError: There is no such dataset.
        DamagedError: A file is damaged or contradicts itself.
        UnsafeError: A file could run code, read other files or exhaust the machine, or a
            manifest is required and missing.
        IncompatibleError: A newer format, spaces that are not supported, no policy tags, or
            policies of several architectures.
        ResourceError: A file may not be read, or memory is short.
    """
    path = resolve_dataset(dataset)
    with open_suspect(path, require_manifest=require_manifest) as folder:
        trajectories = load_cache(folder.digest) if cache and folder.mismatch is None else None
        if trajectories is None:
            trajectories = read_trajectories(folder)
            if cache:
                store_cache(folder.digest, trajectories)
    manifest = folder.manifest
    spec, digest = trajectories.policies.spec, folder.digest

    def source(indices: Iterable[int]) -> Iterator[Episode]:
        return _stream(path, digest, spec, indices)

    return Dataset(
        trajectories=trajectories,
        path=path,
        observation_space=folder.observation_space,
        action_space=folder.action_space,
        environment=_environment(folder),
        license=None if manifest is None else manifest["provenance"]["license"],
        digest=digest,
        verified=folder.verified,
        manifest=manifest,
        metadata=folder.metadata,
        _source=source,
    )


def read_trajectories(folder: CheckedFolder) -> Trajectories:
    """Check and read all episodes of a folder in one pass over its HDF5 file.

    Raises:
        DamagedError: Something is damaged or contradicts itself, or differs from the manifest.
        UnsafeError: An object could read other files, load code or exhaust the machine.
        IncompatibleError: A newer format, no policy tags, or several architectures.
        ResourceError: Memory is short.
    """
    data = folder.open_data()
    try:
        trajectories = _assemble(folder, data)
    except DamagedError:
        data.walk()  # a file that is dangerous elsewhere is reported as that
        raise
    except MemoryError as error:
        raise ResourceError("there is not enough memory to load it", where=folder.path) from error
    if folder.mismatch is not None:
        raise folder.mismatch
    data.check_unchanged()
    return trajectories


def _assemble(folder: CheckedFolder, data: GuardedFile) -> Trajectories:
    root = data.begin()
    check_names(folder, root)
    # A step takes eight bytes for its reward alone, so the file bounds a claim too large.
    hint = min(folder.total_steps, data.size // 8)
    assembler = Assembler(str(data.path), folder.observation_space, folder.action_space, steps=hint)
    for i in range(folder.total_episodes):
        group = root.group(b"episode_%d" % i)
        total = group.integer(b"total_steps")
        if total is None:
            raise DamagedError("it has no attribute total_steps", where=data.where(group.place))
        assembler.add(
            group.place, episode_arrays(group), total_steps=total, seed=group.integer(b"seed")
        )
    trajectories = assembler.finish()
    if len(trajectories) != folder.total_steps:
        raise DamagedError(
            f"its total_steps is {folder.total_steps:,}, but the episodes have "
            f"{len(trajectories):,} steps",
            where=folder.path / METADATA_FILE,
        )
    return trajectories


def check_names(folder: CheckedFolder, root: GuardedGroup) -> None:
    """Check that the file holds episode 0, 1, … as many as the metadata say.

    Raises:
        DamagedError: One is missing or too many, or something else is there.
        UnsafeError: That is dangerous.
    """
    file, expected = folder.path / DATA_FILE, folder.total_episodes
    names = set(root.members)
    for name in root.members:
        if _EPISODE.fullmatch(name) is None:
            root.check(name)
            text = printable(name.decode("utf-8", "surrogateescape"))
            raise DamagedError("this is not an episode", where=f"{file}: {text}")
    for i in range(expected):
        if b"episode_%d" % i not in names:
            raise DamagedError(
                f"the episode is missing: there are {len(names)}, but {METADATA_FILE} says "
                f"total_episodes {expected}",
                where=f"{file}: episode_{i}",
            )
    if len(names) > expected:
        extra = min(int(name[8:]) for name in names if int(name[8:]) >= expected)
        raise DamagedError(
            f"the episode is not counted: there are {len(names)}, but {METADATA_FILE} says "
            f"total_episodes {expected}",
            where=f"{file}: episode_{extra}",
        )


def episode_arrays(group: GuardedGroup) -> dict[str, ArraySource]:
    """Return the arrays of an episode; whatever else it holds is checked and left alone.

    Raises:
        DamagedError: One cannot be read.
        UnsafeError: One is dangerous.
    """
    arrays: dict[str, ArraySource] = {}
    for member in group.members:
        name = _TOP.get(member)
        if name is not None:
            arrays[name] = group.array(member)
        elif member == b"infos":
            infos = group.group(member)
            for inner in infos.members:
                name = _INFOS.get(inner)
                if name is not None:
                    arrays[name] = infos.array(inner)
                else:
                    infos.check(inner)
        else:
            group.check(member)
    return arrays


def _stream(path: Path, digest: str, spec: PolicySpec, indices: Iterable[int]) -> Iterator[Episode]:
    with open_folder(path, warn=False) as folder:
        if folder.digest != digest:
            raise DamagedError("the dataset changed since it was loaded", where=path)
        data = folder.open_data()
        root = data.begin()
        for i in indices:
            data.forget()
            group = root.group(b"episode_%d" % i)
            found, episode = read_episode(
                episode_arrays(group),
                group.integer(b"seed"),
                lambda name, group=group: data.where(f"{group.place}/{name}"),  # type: ignore[misc]
            )
            if found != spec:
                raise DamagedError("the policy changed since it was loaded", where=path)
            yield episode


def _environment(folder: CheckedFolder) -> dict[str, Any] | None:
    """Return what the files say about the environment, without building anything."""
    if folder.manifest is not None:
        environment = folder.manifest["provenance"]["environment"]
        return None if environment is None else dict(environment)
    return environment_of(folder.metadata, str(folder.path / METADATA_FILE))


def environment_of(metadata: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """Return the environment named in Minari's metadata, as a manifest would name it.

    Raises:
        DamagedError: ``env_spec`` is malformed.
    """
    text = metadata.get("env_spec")
    if text is None:
        return None
    spec = parse_json(text, f"{where}: env_spec", allow_infinity=True)
    name = spec.get("id") if isinstance(spec, dict) else None
    kwargs = spec.get("kwargs", {}) if isinstance(spec, dict) else None
    if not isinstance(name, str) or not isinstance(kwargs, dict):
        raise DamagedError("it names no environment", where=f"{where}: env_spec")
    return {"id": name, "module": None, "kwargs": kwargs, "withheld": []}
