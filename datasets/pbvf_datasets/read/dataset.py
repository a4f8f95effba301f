"""Datasets in memory: ``load_dataset`` and what it returns.

The first opening reads the HDF5 file once and checks each object before it is used; later ones
check the digests and map the training cache (:mod:`pbvf_datasets.read.cache`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pbvf_datasets.format.manifest import known_as
from pbvf_datasets.format.names import resolve_dataset
from pbvf_datasets.format.schema import METADATA_FILE
from pbvf_datasets.read.cache import load_cache, scratch_folder, store_cache
from pbvf_datasets.read.flatten import ScratchError, flatten
from pbvf_datasets.read.folder_episodes import folder_episodes, is_tagged
from pbvf_datasets.read.untrusted import CheckedFolder, open_folder
from pbvf_offline.errors import (
    DamagedError,
    IncompatibleError,
    ResourceError,
    UsageError,
    counted,
    shorten,
)
from pbvf_offline.io.strict_json import parse_json
from pbvf_offline.rollout.episodes import Episode, Trajectories, Transitions

if TYPE_CHECKING:
    import gymnasium as gym
    from numpy.typing import NDArray

    from pbvf_offline.policies.policy import Policies
    from pbvf_offline.policies.spec import PolicySpec

EpisodeSource = Callable[[Iterable[int]], Iterator[Episode]]


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
        digest: Content digest (sha256, hex): the manifest's, or the first one that it had before
            licence or authors were set. What is fitted to the data names them by it.
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
            f"Dataset({self.id!r}: {counted(len(self), 'episode')}, "
            f"{counted(len(self.trajectories), 'step')}, "
            f"{counted(len(self.policies), 'policy')} ({self.spec.arch}), "
            f"{'verified' if self.verified else 'unverified'})"
        )


def load_dataset(
    dataset: str | os.PathLike[str],
    *,
    require_manifest: bool = False,
    cache: bool = True,
    untagged: bool = False,
) -> Dataset:
    """Open a policy-tagged dataset: checked, and without running anything it names.

    Args:
        dataset: A Minari id (``namespace/name-v0``) or the path of a dataset folder.
        require_manifest: Refuse a folder without a manifest instead of warning.
        cache: Use and keep a flat copy of the arrays in the user's cache folder.
        untagged: Take a dataset that does not say which policies acted, too: then there are no
            policies, and every step's ``policy`` is -1. No copy of it is kept.

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
    stand_in: PolicySpec | None = None
    with open_folder(path, require_manifest=require_manifest, keep_mismatches=True) as folder:
        trajectories = load_cache(folder.digest) if cache and not folder.mismatches else None
        if trajectories is None:
            # A step takes eight bytes for its reward alone, so the file bounds a claim too large.
            steps = min(folder.total_steps, folder.open_data().size // 8)
            without = untagged and folder.manifest is None and not is_tagged(folder)
            stand_in = _stand_in(folder) if without else None
            try:
                trajectories = _flattened(folder, steps, stand_in, cache=cache)
            except MemoryError as error:
                what = "there is not enough memory to load it"
                raise ResourceError(what, where=path) from error
            if stand_in is not None:
                nobody = np.full(len(trajectories), -1, np.int32)
                none = trajectories.policies.select([])
                trajectories = replace(trajectories, policies=none, policy=nobody)
            elif cache and store_cache(folder.digest, trajectories):
                # Mapped from there, what was laid out on the way need not stay on the disk.
                trajectories = load_cache(folder.digest) or trajectories
    manifest, digest = folder.manifest, folder.digest
    license = None if manifest is None else manifest["provenance"]["license"]
    earlier = [] if manifest is None else known_as(manifest)

    def source(indices: Iterable[int]) -> Iterator[Episode]:
        with open_folder(path, warn=False) as again:
            if again.digest != digest:
                raise DamagedError("the dataset changed since it was loaded", where=path)
            for checked in folder_episodes(again, indices=indices, untagged=stand_in):
                yield checked.episode if stand_in is None else _without_policies(checked.episode)

    return Dataset(
        trajectories=trajectories,
        path=path,
        observation_space=folder.observation_space,
        action_space=folder.action_space,
        environment=folder_environment(folder),
        license=license,
        digest=earlier[0] if earlier else digest,
        verified=folder.verified,
        manifest=manifest,
        metadata=folder.metadata,
        _source=source,
    )


def _flattened(
    folder: CheckedFolder, steps: int, stand_in: PolicySpec | None, *, cache: bool
) -> Trajectories:
    """Return the arrays of a folder: in files without a name where there may be a cache."""
    where = str(folder.data_file)
    with contextlib.suppress(ScratchError):
        if cache and (scratch := scratch_folder()) is not None:
            return flatten(folder_episodes(folder, untagged=stand_in), where, steps, scratch)
    return flatten(folder_episodes(folder, untagged=stand_in), where, steps)


def _stand_in(folder: CheckedFolder) -> PolicySpec:
    """Return a policy spec that fits the spaces of a folder, for the policies that it lacks.

    Raises:
        IncompatibleError: No policy can act in all of its action space.
    """
    from pbvf_offline.policies.spaces import actions_of
    from pbvf_offline.policies.spec import PolicySpec

    actions = actions_of(folder.action_space)
    if actions is None:
        raise IncompatibleError(
            f"the action space {shorten(folder.action_space)} is not bounded",
            where=folder.path / METADATA_FILE,
            remedy="tag it with 'pbvf dataset tag': policies have bounds of their own",
        )
    return PolicySpec(folder.observation_space.shape[0], (), actions)


def _without_policies(episode: Episode) -> Episode:
    return replace(
        episode,
        theta=episode.theta[:0],
        obs_mean=episode.obs_mean[:0],
        obs_std=episode.obs_std[:0],
        segment=np.full_like(episode.segment, -1),
    )


def folder_environment(folder: CheckedFolder) -> dict[str, Any] | None:
    """Return what the files of a folder say about the environment, without building anything.

    Raises:
        DamagedError: ``env_spec`` of the metadata is malformed.
    """
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
