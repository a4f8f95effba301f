"""Open Minari datasets, with whatever episodes were chosen in them, as policy-tagged ones.

Opening with Minari is the user's own decision and has happened by then; strangers'
folders are for :func:`pbvf_datasets.read.dataset.load_dataset`. The episodes go through the
same checks as there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.format.schema import BLOB, FIELDS, parse_space, serialize_space
from pbvf_datasets.read.assemble import ArraySource, Assembler, read_episode
from pbvf_datasets.read.dataset import Dataset, environment_of
from pbvf_datasets.read.untrusted import check_space_kinds
from pbvf_offline.errors import DamagedError, IncompatibleError, UsageError
from pbvf_offline.io.strict_json import canonical_json
from pbvf_offline.rollout.episodes import Episode, Trajectories

if TYPE_CHECKING:
    from minari import MinariDataset  # type: ignore[import-untyped,unused-ignore]

_TOP = ("rewards", "terminations", "truncations", "observations", "actions")
_INFOS = tuple(
    name.partition("/")[2] for name in (*(f.name for f in FIELDS), BLOB) if name.startswith("infos")
)


class _MemoryArray:
    """An array in memory in the form that the assembler takes."""

    __slots__ = ("_array", "dtype", "shape")

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = array.dtype.newbyteorder("=")

    def read_into(self, out: NDArray[Any]) -> None:
        if out.dtype.kind == "i":
            # As HDF5 converts: what does not fit becomes the end of the range, and is found there.
            bounds = np.iinfo(out.dtype)
            out[...] = np.clip(self._array, bounds.min, bounds.max)
        else:
            out[...] = self._array


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
    assembler = Assembler(name, *spaces, steps=_steps(dataset, indices))
    attributes = dataset.storage.get_episode_metadata(indices)
    for data, attribute in zip(dataset.iterate_episodes(), attributes, strict=True):
        total = attribute.get("total_steps")
        assembler.add(
            f"episode_{data.id}",
            _arrays(data, name),
            total_steps=None if total is None else int(total),
            seed=_seed(attribute),
        )
    trajectories = assembler.finish()
    metadata = dict(dataset.storage.read_raw_metadata(dataset.storage.data_path))

    def source(chosen: Iterable[int]) -> Iterator[Episode]:
        rows = [indices[i] for i in chosen]
        found = dataset.storage.get_episode_metadata(rows)
        for data, attribute in zip(dataset.iterate_episodes(rows), found, strict=True):
            place = f"{name}: episode_{data.id}"
            yield read_episode(
                _arrays(data, name),
                _seed(attribute),
                lambda array, place=place: f"{place}/{array}",  # type: ignore[misc]
            )[1]

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


def _seed(attributes: Mapping[str, Any]) -> int | None:
    seed = attributes.get("seed")
    return None if seed is None else int(seed)


def _arrays(data: Any, name: str) -> dict[str, ArraySource]:
    """Return the arrays of a Minari episode by their names in the format."""
    infos = data.infos if isinstance(data.infos, Mapping) else {}
    found = {key: getattr(data, key) for key in _TOP}
    found |= {f"infos/{key}": infos[key] for key in _INFOS if key in infos}
    for key, value in found.items():
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
            raise DamagedError(
                "its values are neither numbers nor booleans",
                where=f"{name}: episode_{data.id}/{key}",
            )
    return {key: _MemoryArray(value) for key, value in found.items()}
