"""Open Minari datasets, with whatever episodes were chosen in them, as policy-tagged ones.

Opening a folder with Minari is the user's own decision and has happened by then; for untrusted
folders there is :func:`pbvf_datasets.read.dataset.load_dataset`. The same checks are made here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pbvf_datasets.format.schema import BLOB, FIELDS
from pbvf_datasets.format.spaces import parse_space, serialize_space
from pbvf_datasets.read.dataset import Dataset, environment_of
from pbvf_datasets.read.episodes import (
    ArraySource,
    CheckedEpisode,
    EpisodeChecker,
    MemoryArray,
    RawEpisode,
    checked_episodes,
)
from pbvf_datasets.read.flatten import flatten
from pbvf_datasets.read.metadata import check_space_kinds
from pbvf_offline.errors import DamagedError, IncompatibleError, UsageError
from pbvf_offline.io.strict_json import canonical_json
from pbvf_offline.rollout.episodes import Episode, Trajectories

if TYPE_CHECKING:
    from minari import MinariDataset  # type: ignore[import-untyped,unused-ignore]

_TOP = ("rewards", "terminations", "truncations", "observations", "actions")
_INFOS = tuple(
    name.partition("/")[2] for name in (*(f.name for f in FIELDS), BLOB) if name.startswith("infos")
)


def from_minari(dataset: MinariDataset) -> Dataset:
    """Take the episodes that an open Minari dataset points to, and only those.

    Honours ``filter_episodes``, ``minari.split_dataset`` and any other choice of
    ``episode_indices``, in its order. The result is not verified: a manifest is about
    whole folders. ``episodes`` reads through the Minari dataset, which must stay in place.

    Args:
        dataset: What ``minari.load_dataset`` and the like return.

    Raises:
        UsageError: The argument is something else.
        IncompatibleError: Episodes are not policy-tagged, spaces are not supported, or
            policies have several architectures.
        DamagedError: An episode contradicts itself, or none is chosen.
    """
    from minari import MinariDataset

    if not isinstance(dataset, MinariDataset):
        raise UsageError(
            f"from_minari takes an open Minari dataset, not {type(dataset).__name__}",
            remedy="give minari.load_dataset(id), or use load_dataset(id or path)",
        )
    name = str(dataset.id)
    try:
        texts = [serialize_space(s) for s in (dataset.observation_space, dataset.action_space)]
    except UsageError as error:
        raise IncompatibleError(
            error.what,
            where=name,
            remedy="use a dataset with one-dimensional Box observations and Box or Discrete "
            "actions",
        ) from error
    spaces = check_space_kinds(parse_space(texts[0], name), parse_space(texts[1], name), name)
    indices = [int(i) for i in dataset.episode_indices]

    def checked(rows: list[int]) -> Iterator[CheckedEpisode]:
        return checked_episodes(_raw_episodes(dataset, rows, name), EpisodeChecker(spaces))

    def source(chosen: Iterable[int]) -> Iterator[Episode]:
        return (found.episode for found in checked([indices[i] for i in chosen]))

    trajectories = flatten(checked(indices), name, _steps(dataset, indices))
    metadata = dict(dataset.storage.read_raw_metadata(dataset.storage.data_path))
    return Dataset(
        trajectories=trajectories,
        path=Path(dataset.storage.data_path).parent,
        observation_space=spaces[0],
        action_space=spaces[1],
        environment=environment_of(metadata, name),
        license=None,
        digest=content_digest(trajectories),
        verified=False,
        manifest=None,
        metadata=metadata,
        _source=source,
    )


def content_digest(trajectories: Trajectories) -> str:
    """Return the sha256 (hex) of flat arrays with their policies: equal content, equal digest."""
    policies = trajectories.policies
    total = hashlib.sha256(canonical_json(policies.spec.to_dict()))
    columns = {name: getattr(policies, name) for name in ("theta", "obs_mean", "obs_std")}
    columns |= {name: value for name, value in vars(trajectories).items() if name != "policies"}
    for name, array in sorted(columns.items()):
        if array is not None:
            total.update(canonical_json([name, array.dtype.str, list(array.shape)]))
            total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _steps(dataset: MinariDataset, indices: list[int]) -> int:
    share = len(indices) / max(1, int(dataset.storage.total_episodes))
    return int(share * int(dataset.storage.total_steps))


def _raw_episodes(dataset: MinariDataset, indices: list[int], name: str) -> Iterator[RawEpisode]:
    attributes = dataset.storage.get_episode_metadata(indices)
    for data, attribute in zip(dataset.iterate_episodes(indices), attributes, strict=True):
        total, seed = (attribute.get(key) for key in ("total_steps", "seed"))

        def where(array: str, place: str = f"{name}: episode_{data.id}") -> str:
            return f"{place}/{array}" if array else place

        yield RawEpisode(
            index=int(data.id),
            where=where,
            arrays=_arrays(data, where),
            total_steps=None if total is None else int(total),
            seed=None if seed is None else int(seed),
        )


def _arrays(data: Any, where: Callable[[str], str]) -> dict[str, ArraySource]:
    """Return the arrays of a Minari episode by their names in the format."""
    infos = data.infos if isinstance(data.infos, Mapping) else {}
    found = {key: getattr(data, key) for key in _TOP}
    found |= {f"infos/{key}": infos[key] for key in _INFOS if key in infos}
    for key, value in found.items():
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
            raise DamagedError("its values are neither numbers nor booleans", where=where(key))
    return {key: MemoryArray(value) for key, value in found.items()}
