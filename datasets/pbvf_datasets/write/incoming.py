"""Episodes that are about to be written: checked by the rules that every reader applies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.format.episode_rules import spec_fits_spaces
from pbvf_datasets.format.schema import (
    BLOB,
    FIELDS,
    episode_blob,
    field_dtype,
)
from pbvf_datasets.format.spaces import OBS_DTYPES
from pbvf_datasets.read.episodes import (
    IN_ARGUMENTS,
    ArraySource,
    EpisodeChecker,
    MemoryArray,
    RawEpisode,
    checked_episodes,
)
from pbvf_offline.errors import UsageError
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Cut, Episode

if TYPE_CHECKING:
    from pbvf_datasets.format.episode_rules import Spaces

_ATTRIBUTES = {field.name: f" {field.attribute}" for field in FIELDS}


class IncomingEpisodes:
    """Checks the episodes of one dataset and holds them to the first one's form.

    Args:
        spec: Architecture of all policies.
        spaces: Observation and action space of the environment.

    Raises:
        UsageError: The spec does not fit the spaces.
    """

    def __init__(self, spec: PolicySpec, spaces: Spaces) -> None:
        for problem in spec_fits_spaces(spec, spaces):
            raise UsageError(f"the policy spec does not fit the spaces: {problem.what}")
        self._spec = spec
        self._obs_space_dtype = np.dtype(spaces[0].dtype)
        self._checker = EpisodeChecker(spaces, kinds=IN_ARGUMENTS)
        self._tags: dict[Cut, MemoryArray] = {}
        self._targets = {field: field_dtype(field, spec) for field in FIELDS}

    def check(self, episode: Episode, where: str) -> Episode:
        """Return a copy of an episode in the format's dtypes.

        Args:
            episode: Arrays may have other dtypes where the cast loses nothing.
            where: Dataset and episode, for messages.

        Raises:
            UsageError: Shapes, dtypes or values contradict the spec, the spaces, each
                other, or the first episode.
            DivergedError: Values are NaN or infinite.
        """
        seed: object = episode.seed
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer)):
            raise UsageError(
                f"its seed is {seed!r}, which is no whole number",
                where=where,
                remedy="give the integer that env.reset was seeded with, or None",
            )
        raw = RawEpisode(
            index=0,
            where=lambda name: where + _ATTRIBUTES.get(name, ""),
            arrays=self._arrays(episode, where),
            total_steps=int(np.size(episode.rewards)),
            seed=None if seed is None else int(seed),
        )
        (checked,) = checked_episodes([raw], self._checker)
        return checked.episode

    def _arrays(self, episode: Episode, where: str) -> dict[str, ArraySource]:
        arrays: dict[str, ArraySource] = {}
        for field, target in self._targets.items():
            value = getattr(episode, field.attribute)
            if value is not None:
                if np.ma.is_masked(value):
                    raise UsageError(
                        "is a masked array that lacks values",
                        where=f"{where} {field.attribute}",
                        remedy="leave such episodes out, or fill the values in",
                    )
                array = np.asarray(value)
                arrays[field.name] = MemoryArray(_cast(array, target or self._obs_dtype(array)))
        tag = self._tags.get(episode.cut)
        if tag is None:
            data = episode_blob(self._spec, episode.cut)
            tag = self._tags[episode.cut] = MemoryArray(np.frombuffer(data, np.uint8))
        arrays[BLOB] = tag
        return arrays

    def _obs_dtype(self, array: NDArray[Any]) -> np.dtype[Any]:
        """Return the dtype in which observations are stored."""
        if self._checker.form is not None:
            return self._checker.form.obs_dtype
        own = array.dtype.newbyteorder("=")
        same_kind = own.kind == self._obs_space_dtype.kind
        return own if same_kind and str(own) in OBS_DTYPES else self._obs_space_dtype


def _cast(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array in the dtype wanted if every value survives, else as it is."""
    if array.dtype == dtype or array.dtype.kind not in "biuf":
        return array
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    return cast if np.array_equal(cast, array, equal_nan=array.dtype.kind == "f") else array
