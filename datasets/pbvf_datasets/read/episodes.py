"""One iterator over checked episodes, for everybody who reads, verifies, edits or writes.

A source yields :class:`RawEpisode` (:mod:`pbvf_datasets.read.folder_episodes` from a folder,
:mod:`pbvf_datasets.read.minari_bridge` from an open Minari dataset, the writer from memory).
:class:`EpisodeChecker` applies :mod:`pbvf_datasets.format.episode_rules` and reads the values
of arrays only when their form is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Never, Protocol

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.format.episode_rules import (
    TAGS,
    VALUE_RULES,
    ArrayForm,
    DatasetForm,
    Problem,
    Values,
    action_bounds,
    same_spec,
    seed_in_range,
    spec_fits_spaces,
    tagged,
    true_length,
    well_formed,
)
from pbvf_datasets.format.schema import (
    BLOB,
    FIELDS,
    MAX_BLOB_BYTES,
    episode_blob,
    field_dtype,
    parse_episode_blob,
)
from pbvf_datasets.format.statistics import Tally, row_keys
from pbvf_offline.errors import (
    DamagedError,
    DivergedError,
    IncompatibleError,
    PbvfError,
    UsageError,
)
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Cut, Episode

if TYPE_CHECKING:
    from pbvf_datasets.format.episode_rules import Spaces

_TAGS: Final = 8  # policy tags that are remembered; a dataset has two, for whole and cut episodes
_FORMS: Final = 256  # forms that are remembered, of episodes of different lengths


class ArraySource(ArrayForm, Protocol):
    """An array that is not in memory yet, or whose owner may change it."""

    def read_into(self, out: NDArray[Any]) -> None:
        """Read it into a contiguous array of the same shape, converting to its dtype."""


class MemoryArray:
    """An array in memory as a source."""

    __slots__ = ("_array", "dtype", "shape")

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")

    def read_into(self, out: NDArray[Any]) -> None:
        """Copy it into an array of the same shape, converting to its dtype."""
        if out.dtype.kind == "i" and out.dtype != self.dtype:
            # As HDF5 converts: what does not fit becomes the end of the range, and is found there.
            bounds = np.iinfo(out.dtype)
            out[...] = np.clip(self._array, bounds.min, bounds.max)
        else:
            out[...] = self._array


@dataclass(frozen=True, slots=True)
class RawEpisode:
    """An episode of which nothing is known yet.

    Attributes:
        index: Its number in the dataset.
        where: From the name of an array (empty: the episode) to its place, for messages.
        arrays: By their names in the format; others are left out.
        total_steps: What it says about its own length, or None.
        seed: What the environment was reset with, or None.
        broken: Whether some of its objects could not be opened, which was reported.
    """

    index: int
    where: Callable[[str], str]
    arrays: Mapping[str, ArraySource]
    total_steps: int | None
    seed: int | None
    broken: bool = False


@dataclass(frozen=True, slots=True)
class CheckedEpisode:
    """An episode without a problem.

    Attributes:
        index: Its number in the dataset.
        spec: Architecture of its policies.
        cut: Whether a step budget ended it.
        seed: What the environment was reset with, or None.
        steps: Number of steps T.
        segments: Number of policies S.
        arrays: Those that were asked for, by their names in the format, in its dtypes.
    """

    index: int
    spec: PolicySpec
    cut: Cut
    seed: int | None
    steps: int
    segments: int
    arrays: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return self.steps

    @property
    def episode(self) -> Episode:
        """The episode as a record; all of its arrays must have been asked for."""
        arrays = {f.attribute: self.arrays[f.name] for f in FIELDS if f.name in self.arrays}
        return Episode(**arrays, seed=self.seed, cut=self.cut)

    def count_in(self, tally: Tally) -> None:
        """Count it; rewards, terminations and normalisers must have been read.

        Its policies are counted where their parameters have been read.
        """
        arrays = self.arrays
        tally.add(
            arrays["rewards"],
            terminated=bool(arrays["terminations"][-1]),
            cut=self.cut,
            normalisers=(arrays["infos/obs_mean"], arrays["infos/obs_std"]),
            theta=arrays.get("infos/theta"),
        )

    def policy_keys(self) -> Iterator[bytes]:
        """Yield a digest of the theta and normaliser of each of its S policies."""
        arrays = self.arrays
        return row_keys(arrays["infos/theta"], arrays["infos/obs_mean"], arrays["infos/obs_std"])


class Report(Protocol):
    """Told of each problem, in order; what it raises ends the iteration."""

    def __call__(self, error: PbvfError, /, *, unopened: bool = False) -> None:
        """Take in a problem.

        Args:
            error: The problem.
            unopened: Whether an object could not be opened, so that nobody knows what it is.
        """


def fail(error: PbvfError, /, *, unopened: bool = False) -> Never:
    """Raise the first problem: the report of those who need good episodes only."""
    del unopened
    try:
        raise error
    finally:
        del error  # else the frame and the error hold each other, and open files with them


Kinds = Mapping[type[PbvfError], tuple[type[PbvfError], str | None]]

IN_FILES: Final[Kinds] = {DivergedError: (DamagedError, None)}
"""What problems of each kind are in a file."""

IN_ARGUMENTS: Final[Kinds] = {
    DamagedError: (UsageError, None),
    IncompatibleError: (UsageError, None),
    DivergedError: (
        DivergedError,
        "the environment or the policy diverged; try a smaller sigma",
    ),
}
"""What they are in an episode that a caller wants to store, with a remedy."""


class EpisodeChecker:
    """Checks episodes of one dataset, which all must have the form of the first.

    Args:
        spaces: Observation and action space of the dataset.
        fields: Names of the arrays whose values are read and checked; None: all of them. The
            form of all is checked.
        kinds: The error that each kind of problem becomes, with a remedy where the problem
            has none.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        fields: Iterable[str] | None = None,
        kinds: Kinds = IN_FILES,
    ) -> None:
        self._spaces = spaces
        self._fields = frozenset(f.name for f in FIELDS) if fields is None else frozenset(fields)
        self._kinds = kinds
        self._spec: PolicySpec | None = None
        self._bounds: tuple[Any, Any] = (0, 0)
        self.form: DatasetForm | None = None
        self._tags: dict[bytes, tuple[PolicySpec, Cut]] = {}
        self._dtypes: dict[Any, dict[str, np.dtype[Any]]] = {}
        self._untagged = False

    def check(self, raw: RawEpisode, report: Report = fail) -> CheckedEpisode | None:
        """Return an episode when nothing is wrong with it, else None.

        Args:
            raw: The episode.
            report: Told of each problem. When it returns, the search for others goes on.
        """
        wrong = raw.broken

        def note(problem: Problem) -> None:
            nonlocal wrong
            wrong = True
            kind, remedy = self._kinds.get(problem.kind, (problem.kind, None))
            where = raw.where(problem.at)
            report(kind(problem.what, where=where, remedy=problem.remedy or remedy))

        tag = dtypes = None
        if not raw.broken:
            tag = self._tag(raw, note)
        if tag is not None:
            dtypes = self._form(raw, tag[0], note)
        arrays, unread = self._read(raw, dtypes, with_tag=tag is None)
        for error in unread:
            wrong = True
            report(error)
        cut: Cut = "none" if tag is None else tag[1]
        segments = 0 if dtypes is None else raw.arrays["infos/theta"].shape[0]
        values = Values(arrays, cut, segments, self._bounds)
        for needed, rule in VALUE_RULES if dtypes is not None else VALUE_RULES[:1]:
            if needed <= arrays.keys():
                for problem in rule(values):
                    note(problem)
        if wrong or tag is None:
            return None
        steps = raw.arrays["rewards"].shape[0]
        return CheckedEpisode(raw.index, tag[0], cut, raw.seed, steps, segments, arrays)

    def _tag(
        self, raw: RawEpisode, note: Callable[[Problem], None]
    ) -> tuple[PolicySpec, Cut] | None:
        """Return what the policy tag says, when it is right and that of this dataset."""
        problems = list(tagged(raw.arrays))
        if problems:
            if problems[0].kind is not IncompatibleError:
                note(problems[0])
            elif not self._untagged:  # Minari's own datasets have none anywhere
                self._untagged = True
                note(problems[0])
            return None
        array = raw.arrays[BLOB]
        if len(array.shape) != 1 or array.dtype != np.uint8 or array.shape[0] > MAX_BLOB_BYTES:
            form = f"{array.dtype} of shape {array.shape}"
            note(Problem(DamagedError, BLOB, f"it is {form}; uint8 bytes are expected"))
            return None
        out = np.empty(array.shape, np.uint8)
        try:
            array.read_into(out)
            data = out.tobytes()
            known = self._tags.get(data)
            if known is not None:
                return known
            tag = parse_episode_blob(data, "")
        except (DamagedError, IncompatibleError) as error:
            note(Problem(type(error), BLOB, error.what, error.remedy))
            return None
        problems = [*spec_fits_spaces(tag[0], self._spaces), *same_spec(tag[0], self._spec)]
        for problem in problems:
            note(problem)
        if problems:
            return None
        if self._spec is None:
            self._spec = tag[0]
            self._bounds = action_bounds(tag[0], self._spaces)
        _remember(self._tags, data, tag, _TAGS)
        return tag

    def _form(
        self, raw: RawEpisode, spec: PolicySpec, note: Callable[[Problem], None]
    ) -> dict[str, np.dtype[Any]] | None:
        """Return the dtypes to read arrays in, when the form of all is right."""
        key = tuple([(name, array.shape, array.dtype) for name, array in raw.arrays.items()])
        dtypes = self._dtypes.get(key)
        if dtypes is None:
            problems = list(well_formed(raw.arrays, spec, self.form))
            for problem in problems:
                note(problem)
            if problems:
                return None
            self.form = self.form or DatasetForm.of(raw.arrays)
            dtypes = {f.name: field_dtype(f, spec) or self.form.obs_dtype for f in FIELDS}
            _remember(self._dtypes, key, dtypes, _FORMS)
        for problem in (*true_length(raw.total_steps, raw.arrays), *seed_in_range(raw.seed)):
            note(problem)
        return dtypes

    def _read(
        self, raw: RawEpisode, dtypes: Mapping[str, np.dtype[Any]] | None, *, with_tag: bool
    ) -> tuple[dict[str, NDArray[Any]], list[PbvfError]]:
        """Return the values of the arrays asked for, and what is wrong with those unreadable.

        Arrays are read as they are when the form of one is wrong: they may hold other problems.
        """
        arrays: dict[str, NDArray[Any]] = {}
        errors: list[PbvfError] = []
        for name, source in raw.arrays.items():
            if name in self._fields or (with_tag and name == BLOB):
                out = np.empty(source.shape, source.dtype if dtypes is None else dtypes[name])
                try:
                    source.read_into(out)
                except DamagedError as error:
                    errors.append(error)
                else:
                    arrays[name] = out
        return arrays, errors


def with_stand_in(episode: RawEpisode, spec: PolicySpec) -> RawEpisode:
    """Return an episode that names no policies, tagged with one whose parameters are all zero.

    So the rules for tagged episodes hold for it too. What acted is not known: whoever asks for
    this puts the right policy in its place, or uses none.

    Raises:
        UsageError: It says already which policies acted.
    """
    if any(name in episode.arrays for name in TAGS):
        raise UsageError(
            "it says already which policies acted",
            where=episode.where(""),
            remedy="use it as it is, or make others of it with 'pbvf dataset filter'",
        )
    rewards = episode.arrays.get("rewards")
    steps = rewards.shape[0] if rewards is not None and len(rewards.shape) == 1 else 0
    tag: dict[str, NDArray[Any]] = {
        "infos/theta": np.zeros((1, spec.size), np.float32),
        "infos/segment": np.zeros(steps + 1, np.int32),
        "infos/obs_mean": np.zeros((1, spec.obs_dim)),
        "infos/obs_std": np.ones((1, spec.obs_dim)),
        BLOB: np.frombuffer(episode_blob(spec, "none"), np.uint8),
    }
    arrays = {**episode.arrays, **{name: MemoryArray(array) for name, array in tag.items()}}
    return replace(episode, arrays=arrays)


def _remember(known: dict[Any, Any], key: Any, value: Any, limit: int) -> None:
    """Keep a value, and memory bounded."""
    if len(known) >= limit:
        known.clear()
    known[key] = value


def checked_episodes(
    episodes: Iterable[RawEpisode], checker: EpisodeChecker, report: Report = fail
) -> Iterator[CheckedEpisode]:
    """Yield the episodes with which nothing is wrong.

    Args:
        episodes: Where they come from.
        checker: Of their dataset.
        report: Told of each problem with the others.
    """
    for raw in episodes:
        checked = checker.check(raw, report)
        if checked is not None:
            yield checked
