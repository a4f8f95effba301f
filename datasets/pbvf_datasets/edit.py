"""Merge, filter and split: datasets made of the episodes of others.

An episode is self-contained, so all three only choose episodes and copy them: seeds, tags,
``cut`` and every array stay, and equal policies are one policy again when the result is read.
What the inputs were stands in the manifest, as one flat list however often data were merged.

Inputs come in through the door (:mod:`pbvf_datasets.door`), are hashed once and read one episode
at a time; the result goes out through :class:`pbvf_datasets.writer.DatasetWriter`. So memory
holds a shard, never a dataset, and the same call goes on where it was killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.assemble import check_spec, check_tags, read_episode
from pbvf_datasets.checks import EpisodeChecker, show
from pbvf_datasets.door import open_folder
from pbvf_datasets.environments import safe_env_spec, safe_environment
from pbvf_datasets.manifest import MAX_MANIFEST_BYTES
from pbvf_datasets.reader import _check_names, _members, environment_of
from pbvf_datasets.schema import (
    FIELDS,
    METADATA_FILE,
    check_dataset_id,
    dataset_path,
    resolve_dataset,
    serialize_space,
)
from pbvf_datasets.writer import DatasetWriter
from pbvf_offline.batches import Episode
from pbvf_offline.errors import (
    DamagedError,
    DivergedError,
    IncompatibleError,
    PbvfError,
    UnsafeError,
    UsageError,
)
from pbvf_offline.seeding import Stream, check_seed, generator
from pbvf_offline.strict_json import canonical_json, parse_json

if TYPE_CHECKING:
    from pbvf_datasets.guarded import GuardedFile, GuardedGroup
    from pbvf_offline.policies import PolicySpec

Progress = Callable[[int, int], None]
"""Called with episodes done and episodes wanted."""
Ranges = tuple[tuple[int, int], ...]
"""Whole numbers from 0 as pairs ``(first, last)``, both included."""
SplitBy = Literal["episode", "policy"]
Pathlike = str | os.PathLike[str]

_ENGINES: Final = ("gymnasium", "mujoco")
_PART_NAMES: Final = {2: ("train", "test"), 3: ("train", "validation", "test")}
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_NAMES: Final = {field.attribute: field.name for field in FIELDS}


# --------------------------------------------------------------------------- what is asked


@dataclass(frozen=True)
class FilterSettings:
    """Which episodes to keep: those that pass every criterion given.

    The return is undiscounted and raw. Episodes that a step budget cut short have none, so
    every criterion on returns leaves them out.

    Attributes:
        min_return: Least return.
        max_return: Greatest return.
        top: Of the episodes that pass all else, this fraction with the highest returns: their
            number is rounded up, of equal returns the earlier go first.
        min_steps: Least number of steps.
        max_steps: Greatest number of steps.
        terminated: True: the task ended. False: a limit or a budget ended the episode.
        no_cut: Leave out episodes that a step budget cut short.
        episodes: Numbers of episodes, from 0.
        seeds: What the environment was reset with.

    Raises:
        UsageError: A value is out of range, or there is no criterion.
    """

    min_return: float | None = None
    max_return: float | None = None
    top: float | None = None
    min_steps: int | None = None
    max_steps: int | None = None
    terminated: bool | None = None
    no_cut: bool = False
    episodes: Ranges | None = None
    seeds: Ranges | None = None

    def __post_init__(self) -> None:
        for name in ("min_return", "max_return"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise UsageError(f"{value} is not a finite number", where=_option(name))
        if self.top is not None and not 0 < self.top <= 1:
            raise UsageError(f"{self.top} is not above 0 and at most 1", where="--top")
        for name in ("min_steps", "max_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{value} is not at least 1", where=_option(name))
        if all(getattr(self, field.name) == field.default for field in fields(self)):
            raise UsageError("there is nothing to filter by", remedy="give --min-return, --top, …")

    @property
    def by_return(self) -> bool:
        """Whether a criterion asks for returns."""
        return not (self.min_return is None and self.max_return is None and self.top is None)

    def to_dict(self) -> dict[str, Any]:
        """Return the criteria in JSON form."""
        return {
            field.name: ranges_text(value) if isinstance(value, tuple) else value
            for field in fields(self)
            for value in (getattr(self, field.name),)
        }


@dataclass(frozen=True)
class SplitSettings:
    """How to split: whole episodes, drawn by a seed.

    Attributes:
        fractions: Share of each part; they add up to 1.
        names: Name of each part, which becomes part of its id; empty: ``train`` and ``test``,
            ``train``, ``validation`` and ``test``, or ``part-1``, ``part-2``, …
        by: ``policy``: episodes that share a policy stay together, so no policy is in two parts.
        seed: Seed of the draw.

    Raises:
        UsageError: Fractions or names are not as they should be.
    """

    fractions: tuple[float, ...]
    names: tuple[str, ...] = ()
    by: SplitBy = "episode"
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        where = "--fractions"
        if len(self.fractions) < 2 or not all(0 < f < 1 for f in self.fractions):
            raise UsageError(
                f"{list(self.fractions)} are not two or more numbers between 0 and 1",
                where=where,
                remedy="give fractions such as 0.8,0.2",
            )
        if not math.isclose(math.fsum(self.fractions), 1, abs_tol=1e-9):
            raise UsageError(f"they add up to {math.fsum(self.fractions):.12g}, not 1", where=where)
        if not self.names:
            count = len(self.fractions)
            default = _PART_NAMES.get(count, tuple(f"part-{k + 1}" for k in range(count)))
            object.__setattr__(self, "names", default)
        if len(self.names) != len(self.fractions) or len(set(self.names)) != len(self.names):
            raise UsageError(
                f"{len(self.fractions)} different names are needed, not {list(self.names)}",
                where="--names",
            )

    def dataset_ids(self, dataset_id: str) -> tuple[str, ...]:
        """Return the id of each part: ``lab/x-v0`` becomes ``lab/x-train-v0``.

        Raises:
            UsageError: The id is malformed, or a name does not fit into one.
        """
        namespace, name, version = check_dataset_id(dataset_id)
        ids = tuple(
            f"{namespace}/{name}-{part}-v{version}".removeprefix("/") for part in self.names
        )
        for part in ids:
            check_dataset_id(part)
        return ids


def parse_ranges(text: str, where: str) -> Ranges:
    """Read numbers and ranges such as ``0-99,200``; sorted, and joined where they meet.

    >>> parse_ranges("7,0-2,3", "--episodes")
    ((0, 3), (7, 7))

    Raises:
        UsageError: It is something else.
    """
    pairs = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if _NUMBER.fullmatch(first) is None or _NUMBER.fullmatch(last) is None:
            raise UsageError(f"{show(text)!r} is not such as 0-99,200", where=where)
        if int(last) < int(first):
            raise UsageError(f"the range {part.strip()} ends before it begins", where=where)
        pairs.append((int(first), int(last)))
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(pairs):
        if joined and begin <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return tuple(joined)


def ranges_text(ranges: Ranges) -> str:
    """Return ranges in the form that :func:`parse_ranges` reads."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


# ------------------------------------------------------------------------- what came of it


@dataclass(frozen=True)
class SourceUse:
    """One input of an edit.

    Attributes:
        id: The dataset's id, as its metadata give it.
        digest: Its manifest's digest; without a manifest, one of its files.
        verified: Whether a manifest vouches for it.
        episodes: Number of its episodes.
        steps: Number of its steps.
    """

    id: str
    digest: str
    verified: bool
    episodes: int
    steps: int


@dataclass(frozen=True)
class EditResult:
    """What an edit came to.

    Attributes:
        dataset: The new dataset's id.
        path: Its folder.
        episodes: Number of its episodes.
        steps: Number of its steps.
        policies: Number of its distinct policies.
        cut: Number of its episodes that a step budget cut short.
        returns: Mean, min and max undiscounted return of whole episodes, or None.
        license: Its licence, or None.
        authors: Names.
        sources: The inputs in order.
        left_out: Number of episodes of the inputs that are not in it.
        notes: What is worth knowing, a sentence each.
        seconds: From the first episode read to the final rename.
        steps_per_second: Steps written now over these seconds; None when nothing was left to do.
        already_complete: Whether nothing had to be done.
    """

    dataset: str
    path: Path
    episodes: int
    steps: int
    policies: int
    cut: int
    returns: dict[str, float] | None
    license: str | None
    authors: tuple[str, ...]
    sources: tuple[SourceUse, ...]
    left_out: int
    notes: tuple[str, ...]
    seconds: float
    steps_per_second: float | None
    already_complete: bool


# ------------------------------------------------------------------------------- the three


def merge(
    datasets: Sequence[Pathlike],
    dataset_id: str,
    *,
    license: str | None = None,
    keep_duplicates: bool = False,
    require_manifest: bool = False,
    root: Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> EditResult:
    """Make one dataset of the episodes of several, in the order given.

    An episode that two inputs share is taken once: the same arrays and ``cut``, and the same
    seed where both know it. Episodes that are equal inside one input all stay.

    Args:
        datasets: Ids or folders.
        dataset_id: The new dataset's id.
        license: Its licence; needed when the inputs have different ones.
        keep_duplicates: Take episodes as often as they occur.
        require_manifest: Refuse inputs without a manifest instead of warning.
        root: Folder of datasets; Minari's when None.
        overwrite: Start anew whatever is there.
        progress: Called now and then.

    Raises:
        UsageError: An input does not exist, licences differ, or an input is the output.
        DamagedError: An input is damaged.
        UnsafeError: An input could do harm, or has no manifest and needs one.
        IncompatibleError: The inputs do not fit together; each difference is named.
        ConflictError: The output exists with other settings, or another process writes it.
        ResourceError: The disk or a permission refuses; what is finished is safe.
    """
    if not datasets:
        raise UsageError("there is nothing to merge", remedy="name one or more datasets")
    with contextlib.ExitStack() as stack:
        sources = [
            stack.enter_context(_Source(name, root, require_manifest=require_manifest))
            for name in datasets
        ]
        _check_compatible(sources)
        given = license
        license = _common_license(sources) if given is None else given
        authors = tuple(dict.fromkeys(name for source in sources for name in source.authors))
        words = ["merge", *(source.id for source in sources), "--dataset", dataset_id]
        words += [] if given is None else ["--license", given]
        words += ["--keep-duplicates"] if keep_duplicates else []
        writer = stack.enter_context(
            _writer(
                dataset_id,
                sources,
                operation="merge",
                settings={"keep_duplicates": keep_duplicates},
                words=words,
                license=license,
                authors=authors,
                root=root,
                overwrite=overwrite,
            )
        )
        started, before = time.perf_counter(), writer.steps_done
        fresh = not writer.complete
        if fresh:
            with _nothing_left_of_bad_inputs(writer):
                left_out = [set[int]() for _ in sources] if keep_duplicates else _repeats(sources)
                chosen = [
                    [i for i in range(source.episodes) if i not in dropped]
                    for source, dropped in zip(sources, left_out, strict=True)
                ]
                _copy(writer, sources, chosen, progress)
        result = _finish(writer, sources, started, before if fresh else None)
        notes = list(_version_notes(sources))
        if result.left_out:
            notes.append(
                f"{result.left_out:,} episodes are in more than one input and were taken once"
            )
        return _with_notes(result, notes)


def filter_dataset(
    dataset: Pathlike,
    dataset_id: str,
    settings: FilterSettings,
    *,
    require_manifest: bool = False,
    root: Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> EditResult:
    """Make a dataset of those episodes of another that pass all criteria, in their order.

    Takes the arguments and raises the errors of :func:`merge`, and:

    Raises:
        UsageError: No episode passes.
    """
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(_Source(dataset, root, require_manifest=require_manifest))
        writer = stack.enter_context(
            _writer(
                dataset_id,
                [source],
                operation="filter",
                settings=settings.to_dict(),
                words=["filter", source.id, "--dataset", dataset_id, *_filter_words(settings)],
                license=source.license,
                authors=source.authors,
                root=root,
                overwrite=overwrite,
            )
        )
        started, before = time.perf_counter(), writer.steps_done
        fresh = not writer.complete
        if fresh:
            with _nothing_left_of_bad_inputs(writer):
                _copy(writer, [source], [_select(_facts(source), settings, source)], progress)
        return _finish(writer, [source], started, before if fresh else None)


def split(
    dataset: Pathlike,
    dataset_id: str,
    settings: SplitSettings,
    *,
    require_manifest: bool = False,
    root: Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> tuple[EditResult, ...]:
    """Make several datasets of the episodes of one; each episode goes to one part, in order.

    Takes the arguments and raises the errors of :func:`merge`, and:

    Returns:
        One result a part; the parts' ids are :meth:`SplitSettings.dataset_ids`.

    Raises:
        UsageError: A part would be empty.
    """
    ids = settings.dataset_ids(dataset_id)
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(_Source(dataset, root, require_manifest=require_manifest))
        words = ["split", source.id, "--dataset", dataset_id]
        words += ["--fractions", ",".join(map(repr, settings.fractions))]
        words += ["--names", ",".join(settings.names), "--by", settings.by]
        words += ["--seed", str(settings.seed)]
        # All at once, so that a part that is in the way is found before anything is written.
        writers = [
            stack.enter_context(
                _writer(
                    part_id,
                    [source],
                    operation="split",
                    settings={
                        "fractions": list(settings.fractions),
                        "names": list(settings.names),
                        "part": part,
                        "by": settings.by,
                    },
                    words=words,
                    license=source.license,
                    authors=source.authors,
                    root=root,
                    overwrite=overwrite,
                    seed=settings.seed,
                    share=share,
                )
            )
            for part_id, part, share in zip(ids, settings.names, settings.fractions, strict=True)
        ]
        fresh = [not writer.complete for writer in writers]
        started = time.perf_counter()
        chosen: list[list[int]] = [[] for _ in writers]
        if any(fresh):
            with _nothing_left_of_bad_inputs(*writers):
                chosen = _deal(_facts(source), settings, source)
        results = []
        for writer, indices, is_fresh in zip(writers, chosen, fresh, strict=True):
            before = writer.steps_done
            if is_fresh:
                with _nothing_left_of_bad_inputs(writer):
                    _copy(writer, [source], [indices], progress)
            results.append(_finish(writer, [source], started, before if is_fresh else None))
            started = time.perf_counter()
        return tuple(results)


# ------------------------------------------------------------------------------ the inputs


class _Source:
    """One input, checked and hashed once; a context manager.

    Its HDF5 file is open only inside :meth:`reading`: HDF5 keeps megabytes for each open one.

    Args:
        name: Id or folder.
        root: Folder of datasets.
        require_manifest: Refuse a folder without a manifest.
    """

    def __init__(self, name: Pathlike, root: Path | None, *, require_manifest: bool) -> None:
        self.name = os.fspath(name)
        self.folder = open_folder(resolve_dataset(name, root), require_manifest=require_manifest)
        try:
            self._look()
        except BaseException:
            self.folder.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.folder.close()

    def _look(self) -> None:
        """Read what is small: counts, the first episode's form, what the files say of origins."""
        folder = self.folder
        self.episodes, self.steps = folder.total_episodes, folder.total_steps
        if self.episodes == 0:
            raise DamagedError("it holds no episode", where=folder.data_file)
        self._identity = _identity(folder.data_file)
        with self.reading() as data:
            steps = sum(data.total_steps(i) for i in range(self.episodes))
            if steps != self.steps:
                raise DamagedError(
                    f"its total_steps is {self.steps:,}, but the episodes have {steps:,} steps",
                    where=folder.path / METADATA_FILE,
                )
            first = data.first()
        self.spec: PolicySpec = first[0]
        check_spec(
            self.spec, folder.observation_space, folder.action_space, f"{folder.path}: episode_0"
        )
        self.obs_dtype: str = str(first[1].observations.dtype)
        self.optional = tuple(
            field.name
            for field in FIELDS
            if not field.required and getattr(first[1], field.attribute) is not None
        )
        provenance = None if folder.manifest is None else folder.manifest["provenance"]
        self.provenance: dict[str, Any] | None = provenance
        where = str(folder.path / METADATA_FILE)
        given = folder.metadata.get("dataset_id")
        self.id: str = given if isinstance(given, str) else folder.path.name
        try:
            text = folder.metadata.get("env_spec")
            self.env_spec: str | None = None if text is None else safe_env_spec(text)
            named = environment_of(folder.metadata, where) if provenance is None else None
            self.environment: dict[str, Any] | None = (
                named if provenance is None else provenance["environment"]
            )
            if self.environment is not None:
                self.environment = safe_environment(self.environment)
        except UsageError as error:
            raise DamagedError(error.what, where=where) from error
        self.license: str | None = None if provenance is None else provenance["license"]
        self.authors: tuple[str, ...] = _authors(folder.metadata, provenance)

    @property
    def time_limit(self) -> object:
        """Steps after which the environment truncates, where the files tell."""
        if self.env_spec is None:
            return None
        return parse_json(self.env_spec, "env_spec", allow_infinity=True).get("max_episode_steps")

    @contextlib.contextmanager
    def reading(self) -> Iterator[_Reader]:
        """Open the HDF5 file.

        Raises:
            DamagedError: It is not the file that was hashed any more.
        """
        data = self.folder.open_data()
        try:
            if _identity(self.folder.data_file) != self._identity:
                raise DamagedError(
                    "the file changed while it was being read", where=self.folder.data_file
                )
            yield _Reader(self, data)
            data.check_unchanged()
        finally:
            self.folder.close_data()

    def entry(self) -> dict[str, Any]:
        """Return what the manifest of a dataset made of this one holds about it."""
        origin = self.provenance
        made_of = origin["settings"].get("sources") if origin and "sources" in origin else None
        return {
            "id": self.id,
            "digest": self.folder.digest,
            "verified": self.folder.verified,
            "episodes": self.episodes,
            "steps": self.steps,
            "from": made_of if isinstance(made_of, list) else [],
            "provenance": None
            if origin is None
            else {k: v for k, v in origin.items() if k not in ("sources", "spec")},
        }


def _identity(path: Path) -> tuple[int, int, int, int]:
    info = path.stat()
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def _authors(metadata: Mapping[str, Any], provenance: Mapping[str, Any] | None) -> tuple[str, ...]:
    named = metadata.get("author") if provenance is None else provenance["authors"]
    if isinstance(named, str):
        named = [named]
    if not isinstance(named, list):
        return ()
    return tuple(dict.fromkeys(name for name in named if isinstance(name, str)))


class _Reader:
    """The open HDF5 file of one input, an episode at a time."""

    def __init__(self, source: _Source, data: GuardedFile) -> None:
        self._source = source
        self._data = data
        self._root = data.begin()
        _check_names(source.folder, self._root)

    def _group(self, i: int) -> GuardedGroup:
        self._data.forget()
        return self._root.group(b"episode_%d" % i)

    def _where(self, i: int) -> Callable[[str], str]:
        def where(name: str) -> str:
            return self._data.where(f"episode_{i}/{name}" if name else f"episode_{i}")

        return where

    def total_steps(self, i: int) -> int:
        """Return what an episode says about its own length."""
        total = self._group(i).integer(b"total_steps")
        if total is None:
            raise DamagedError("it has no attribute total_steps", where=self._where(i)(""))
        return total

    def first(self) -> tuple[PolicySpec, Episode]:
        """Return the first episode and its policies' architecture."""
        return self._read(0)

    def episode(self, i: int) -> Episode:
        """Return an episode as it is stored, after checks of its form.

        Raises:
            DamagedError: It is malformed.
            IncompatibleError: It is not like the first one.
        """
        source, where = self._source, self._where(i)
        spec, episode = self._read(i)
        if spec != source.spec:
            raise IncompatibleError(
                "its policy has another architecture than those before",
                where=where("infos/pbvf"),
                remedy="keep policies of different architectures in datasets of their own",
            )
        if str(episode.observations.dtype) != source.obs_dtype:
            raise DamagedError(
                f"it is {episode.observations.dtype}, but {source.obs_dtype} before",
                where=where("observations"),
            )
        for field in FIELDS:
            array = getattr(episode, field.attribute)
            if not field.required and (array is not None) != (field.name in source.optional):
                raise IncompatibleError(
                    "some episodes have it and some do not", where=where(field.name)
                )
            if array is not None and array.dtype == np.bool_ and array.view(np.uint8).max() > 1:
                raise DamagedError("it is neither 0 nor 1", where=where(field.name))
        return episode

    def _read(self, i: int) -> tuple[PolicySpec, Episode]:
        where = self._where(i)
        group = self._group(i)
        arrays = _members(group)
        check_tags(arrays, where)
        total = group.integer(b"total_steps")
        spec, episode = read_episode(arrays, group.integer(b"seed"), where)
        if total != len(episode):
            raise DamagedError(
                f"its total_steps is {total}, but it has {len(episode)} rewards", where=where("")
            )
        return spec, episode

    def likeness(self, i: int) -> int:
        """Return a number that is equal for equal episodes, from their smaller arrays."""
        group = self._group(i)
        digest = hashlib.blake2b(digest_size=8)
        digest.update(group.array(b"rewards").read().tobytes())
        digest.update(group.group(b"infos").array(b"theta").read().tobytes())
        return int.from_bytes(digest.digest(), "little")

    def damage(self, error: PbvfError, i: int) -> DamagedError:
        """Return what a check of an episode's values found as an error of this file."""
        name = _NAMES.get((error.where or "").rpartition(" ")[2], "")
        return DamagedError(error.what, where=self._where(i)(name))


# ----------------------------------------------------------------------- do they fit at all


def _check_compatible(sources: Sequence[_Source]) -> None:
    """Check that episodes of all inputs can stand in one dataset.

    Raises:
        IncompatibleError: They cannot; the message names all that differs from the first.
    """
    first = sources[0]
    for other in sources[1:]:
        differences = list(_differences(first, other))
        if differences:
            raise IncompatibleError(
                f"it does not fit {first.name}: {'; '.join(differences)}",
                where=other.name,
                remedy="merge only what has the same environment, spaces and policy architecture",
            )


def _differences(one: _Source, other: _Source) -> Iterator[str]:
    sides = [_traits(one), _traits(other)]
    for name in sides[0]:
        a, b = (side[name] for side in sides)
        if a is not _UNKNOWN and b is not _UNKNOWN and a != b:
            yield f"{name} {show(b)} against {show(a)}"


_UNKNOWN: Final = object()


def _traits(source: _Source) -> dict[str, Any]:
    """Return all that must be equal, by the name it has in messages."""
    spec, environment = source.spec, source.environment
    traits: dict[str, Any] = {"environment": "not named" if environment is None else None}
    for name in ("module", "arguments", "withheld arguments", "time limit"):
        traits[name] = _UNKNOWN
    if environment is not None:
        kwargs = {k: v for k, v in environment["kwargs"].items() if k != "max_episode_steps"}
        traits["environment"] = environment["id"]
        traits["arguments"] = canonical_json(kwargs).decode()
        if source.env_spec is not None:
            traits["time limit"] = source.time_limit
    if environment is not None and source.provenance is not None:
        # Minari's metadata, all there is without a manifest, know neither of these.
        traits["module"] = environment["module"]
        traits["withheld arguments"] = _withheld(source, environment)
    traits["observation space"] = serialize_space(source.folder.observation_space)
    traits["action space"] = serialize_space(source.folder.action_space)
    traits["architecture"] = spec.arch
    traits["squash"] = spec.squash
    traits["stochastic"] = spec.stochastic
    traits["policy's actions"] = str(spec.actions)
    traits["type of stored observations"] = source.obs_dtype
    for field in FIELDS:
        if not field.required:
            has = field.name in source.optional
            traits[f"array {field.name}"] = "present" if has else "absent"
    return traits


def _withheld(source: _Source, environment: Mapping[str, Any]) -> str:
    """Return the names of arguments whose values no file holds, and digests that tell them apart."""
    names = environment["withheld"]
    if not names or source.provenance is None:
        return "none" if not names else ", ".join(names)
    origins = [source.provenance]
    origins += [e["provenance"] or {} for e in source.provenance.get("sources", [])]
    settings = [origin.get("settings", {}) for origin in origins]
    digests = sorted({s["env_kwargs"] for s in settings if isinstance(s.get("env_kwargs"), str)})
    return f"{', '.join(names)} ({', '.join(d[:16] for d in digests)})"


def _common_license(sources: Sequence[_Source]) -> str | None:
    by_license: dict[str | None, str] = {}
    for source in sources:
        by_license.setdefault(source.license, source.name)
    if len(by_license) > 1:
        found = ", ".join(f"{name}: {given or 'none'}" for given, name in by_license.items())
        raise UsageError(
            f"the licences of the inputs differ ({found})",
            where="--license",
            remedy="give one that all of them permit",
        )
    return next(iter(by_license))


def _version_notes(sources: Sequence[_Source]) -> Iterator[str]:
    for engine in _ENGINES:
        found: set[str] = set()
        for entry in _ledger(sources):
            versions = {} if entry["provenance"] is None else entry["provenance"]["versions"]
            if not entry["from"] and isinstance(versions.get(engine), str):
                found.add(versions[engine])
        if len(found) > 1:
            yield f"the inputs were collected with different versions of {engine}: " + ", ".join(
                sorted(found)
            )


# ----------------------------------------------------------------------------- the outputs


def _ledger(sources: Sequence[_Source]) -> list[dict[str, Any]]:
    """Return the inputs and all that they were made of, each once, the earliest first."""
    entries: dict[str, dict[str, Any]] = {}
    for source in sources:
        older = [] if source.provenance is None else source.provenance.get("sources", [])
        for entry in (*older, source.entry()):
            entries.setdefault(entry["digest"], entry)
    # What an input says of itself goes before what another one says of it.
    entries.update({source.folder.digest: source.entry() for source in sources})
    return list(entries.values())


def _writer(
    dataset_id: str,
    sources: Sequence[_Source],
    *,
    operation: str,
    settings: Mapping[str, Any],
    words: Sequence[str],
    license: str | None,
    authors: Sequence[str],
    root: Path | None,
    overwrite: bool,
    seed: int | None = None,
    share: float = 1.0,
) -> DatasetWriter:
    """Open the output, after a look that it is none of the inputs."""
    path = dataset_path(dataset_id, root)
    for source in sources:
        if path.exists() and path.samefile(source.folder.path):
            raise UsageError(
                f"{source.name} would replace itself, and could not be made again",
                where="--dataset",
                remedy="give another id",
            )
    ledger = _ledger(sources)
    image = canonical_json(ledger)
    if len(image) > MAX_MANIFEST_BYTES // 2:
        raise UsageError(
            f"there are {len(ledger):,} datasets behind this one, too many for its manifest",
            remedy="merge fewer at once",
        )
    # The manifest puts it two levels deeper, and must be readable.
    parse_json(b"[[" + image + b"]]", "the provenance of the inputs")
    first = next((s for s in sources if s.provenance is not None), sources[0])
    env_spec = next((s.env_spec for s in sources if s.env_spec is not None), None)
    if operation == "merge":
        collected = [e["provenance"] for e in ledger if e["provenance"] and not e["from"]]
        warmup = sum(origin["warmup_steps"] for origin in collected)
    else:
        warmup = 0 if first.provenance is None else first.provenance["warmup_steps"]
    return DatasetWriter(
        dataset_id,
        first.spec,
        observation_space=first.folder.observation_space,
        action_space=first.folder.action_space,
        environment=first.environment,
        env_spec_json=env_spec,
        settings={
            "operation": operation,
            "sources": [source.folder.digest for source in sources],
            **settings,
        },
        seed=seed,
        warmup_steps=warmup,
        license=license,
        authors=authors,
        command=shlex.join(["pbvf", "dataset", *words]),
        sources=ledger,
        root=root,
        overwrite=overwrite,
        expected_bytes=int(share * sum(s.folder.data_file.stat().st_size for s in sources)),
    )


@contextlib.contextmanager
def _nothing_left_of_bad_inputs(*writers: DatasetWriter) -> Iterator[None]:
    """Drop unfinished work when an input turns out to be bad: with a good one, it is another."""
    try:
        yield
    except (DamagedError, IncompatibleError, UnsafeError):
        for writer in writers:
            with contextlib.suppress(PbvfError, OSError):
                writer.discard()
        raise


def _copy(
    writer: DatasetWriter,
    sources: Sequence[_Source],
    chosen: Sequence[Sequence[int]],
    progress: Progress | None,
) -> None:
    """Add the chosen episodes of each input, from the first that is not there yet."""
    total, skip = sum(map(len, chosen)), writer.episodes_done
    for source, indices in zip(sources, chosen, strict=True):
        rest, skip = indices[skip:], max(0, skip - len(indices))
        if not rest:
            continue
        with source.reading() as data:
            for i in rest:
                episode = data.episode(i)
                try:
                    writer.add(episode)
                except (UsageError, DivergedError) as error:
                    raise data.damage(error, i) from error
                if progress is not None:
                    progress(writer.episodes_done, total)


def _finish(
    writer: DatasetWriter, sources: Sequence[_Source], started: float, before: int | None
) -> EditResult:
    """Finish the output; ``before`` is the number of steps it had, None when it was complete."""
    written = None if before is None else writer.steps_done - before
    manifest = writer.finish()
    seconds = 0.0 if written is None else time.perf_counter() - started
    provenance = manifest["provenance"]
    stats = provenance["stats"]
    return EditResult(
        dataset=writer.dataset_id,
        path=writer.path,
        episodes=stats["episodes"],
        steps=stats["steps"],
        policies=stats["policies"],
        cut=stats["cut"],
        returns=stats["return"],
        license=provenance["license"],
        authors=tuple(provenance["authors"]),
        sources=tuple(
            SourceUse(s.id, s.folder.digest, s.folder.verified, s.episodes, s.steps)
            for s in sources
        ),
        left_out=sum(source.episodes for source in sources) - stats["episodes"],
        notes=(),
        seconds=seconds,
        steps_per_second=None if written is None else written / max(seconds, 1e-9),
        already_complete=written is None,
    )


def _with_notes(result: EditResult, notes: Iterable[str]) -> EditResult:
    from dataclasses import replace

    return replace(result, notes=tuple(notes))


# ------------------------------------------------------------------------------ duplicates


def _repeats(sources: Sequence[_Source]) -> list[set[int]]:
    """Return the episodes of each input that another input has too and that are left out.

    Rewards and parameters are looked at first; only where both are equal, all arrays are.
    """
    left_out: list[set[int]] = [set() for _ in sources]
    suspects = _alike(sources)
    groups: dict[bytes, list[tuple[int, int, int | None]]] = {}
    for s, source in enumerate(sources):
        rows = np.flatnonzero(suspects[s]).tolist()
        if rows:
            with source.reading() as data:
                for i in rows:
                    episode = data.episode(i)
                    groups.setdefault(_content(episode), []).append((s, i, episode.seed))
    for group in groups.values():
        for s, i in _surplus(group):
            left_out[s].add(i)
    return left_out


def _alike(sources: Sequence[_Source]) -> list[NDArray[np.bool_]]:
    """Return for each input which episodes look like one of another input."""
    keys = []
    for source in sources:
        with source.reading() as data:
            keys.append(
                np.fromiter(
                    (data.likeness(i) for i in range(source.episodes)), np.uint64, source.episodes
                )
            )
    every = np.concatenate(keys)
    owner = np.repeat(np.arange(len(sources)), [len(k) for k in keys])
    values, row = np.unique(every, return_inverse=True)
    low, high = np.full(len(values), len(sources)), np.full(len(values), -1)
    np.minimum.at(low, row, owner)
    np.maximum.at(high, row, owner)
    shared = (low < high)[row]
    return np.split(shared, np.cumsum([len(k) for k in keys])[:-1])


def _content(episode: Episode) -> bytes:
    """Return a digest of all of an episode but its seed."""
    digest = hashlib.blake2b(episode.cut.encode(), digest_size=20)
    for field in FIELDS:
        array = getattr(episode, field.attribute)
        if array is not None:
            digest.update(canonical_json([field.name, array.dtype.str, list(array.shape)]))
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.digest()


def _surplus(group: Sequence[tuple[int, int, int | None]]) -> Iterator[tuple[int, int]]:
    """Yield which of equal episodes to leave out, so that no two inputs bring the same one.

    An episode matches one of an earlier input with the same seed, or either has none; of such
    a pair the one with a seed stays. Inside one input, equal episodes never match.

    Args:
        group: ``(input, episode, seed)`` of episodes with equal content, inputs in order.
    """
    kept: dict[int | None, list[tuple[int, int]]] = {}
    for s in dict.fromkeys(entry[0] for entry in group):
        free = Counter({seed: len(places) for seed, places in kept.items()})
        anyone = list(free.elements())
        new: list[tuple[int | None, tuple[int, int]]] = []
        own = [entry for entry in group if entry[0] == s]
        for _, i, seed in sorted(own, key=lambda entry: entry[2] is None):
            match = seed if free[seed] else None
            if not free[match] and seed is None:
                while anyone and not free[anyone[-1]]:
                    anyone.pop()
                match = anyone[-1] if anyone else None
            if not free[match]:
                new.append((seed, (s, i)))
                continue
            free[match] -= 1
            if match is None and seed is not None:
                yield kept[None].pop(0)
                new.append((seed, (s, i)))
            else:
                yield s, i
        for seed, place in new:
            kept.setdefault(seed, []).append(place)


# ------------------------------------------------------------------------ filter and split


@dataclass(frozen=True)
class _Facts:
    """What is known of each of E episodes.

    Attributes:
        steps: (E,) number of steps.
        returns: (E,) undiscounted return, of cut episodes too.
        terminated: (E,) whether the task ended.
        cut: (E,) whether a step budget ended it.
        seeds: (E,) what the environment was reset with; -1 when unknown.
        policies: The rows, in no order, of the policies that acted in each.
    """

    steps: NDArray[np.int64]
    returns: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    cut: NDArray[np.bool_]
    seeds: NDArray[np.int64]
    policies: list[list[int]]


def _facts(source: _Source) -> _Facts:
    """Read and check all episodes of an input, chosen or not."""
    folder = source.folder
    checker = EpisodeChecker(source.spec, (folder.observation_space, folder.action_space))
    rows: dict[bytes, int] = {}
    found: list[tuple[int, float, bool, bool, int]] = []
    policies: list[list[int]] = []
    with source.reading() as data:
        for i in range(source.episodes):
            episode = data.episode(i)
            try:
                checker.check(episode, "episode")
                total = _total(episode)
            except (UsageError, DivergedError) as error:
                raise data.damage(error, i) from error
            seed = -1 if episode.seed is None else episode.seed
            ended = bool(episode.terminated[-1])
            found.append((len(episode), total, ended, episode.cut != "none", seed))
            policies.append([rows.setdefault(key, len(rows)) for key in _policy_keys(episode)])
    steps, returns, terminated, cut, seeds = zip(*found, strict=True)
    return _Facts(
        np.array(steps, np.int64),
        np.array(returns, np.float64),
        np.array(terminated, np.bool_),
        np.array(cut, np.bool_),
        np.array(seeds, np.int64),
        policies,
    )


def _total(episode: Episode) -> float:
    try:
        return math.fsum(episode.rewards.tolist())
    except OverflowError as error:
        raise DivergedError(
            "the rewards of an episode add up to infinity", where="rewards"
        ) from error


def _policy_keys(episode: Episode) -> Iterator[bytes]:
    for parts in zip(episode.theta, episode.obs_mean, episode.obs_std, strict=True):
        yield hashlib.blake2b(b"".join(p.tobytes() for p in parts), digest_size=16).digest()


def _select(facts: _Facts, settings: FilterSettings, source: _Source) -> list[int]:
    """Return the episodes that pass.

    Raises:
        UsageError: None does, or there are fewer than ``--episodes`` names.
    """
    count = len(facts.steps)
    keep = np.ones(count, np.bool_)
    if settings.episodes is not None:
        last = settings.episodes[-1][1]
        if last >= count:
            raise UsageError(
                f"there is no episode {last}: {source.name} has 0 to {count - 1}",
                where="--episodes",
            )
        keep &= _inside(np.arange(count), settings.episodes)
    if settings.seeds is not None:
        keep &= _inside(facts.seeds, settings.seeds)
    if settings.min_steps is not None:
        keep &= facts.steps >= settings.min_steps
    if settings.max_steps is not None:
        keep &= facts.steps <= settings.max_steps
    if settings.terminated is not None:
        keep &= facts.terminated == settings.terminated
    if settings.no_cut or settings.by_return:
        keep &= ~facts.cut
    if settings.min_return is not None:
        keep &= facts.returns >= settings.min_return
    if settings.max_return is not None:
        keep &= facts.returns <= settings.max_return
    rows: NDArray[np.int64] = np.flatnonzero(keep)
    if settings.top is not None and rows.size:
        best = rows[np.argsort(-facts.returns[rows], kind="stable")]
        # Without the last digits, a tenth of 50 would be 6.
        rows = np.sort(best[: math.ceil(round(settings.top * rows.size, 9))])
    if not rows.size:
        raise UsageError(
            f"none of the {count:,} episodes of {source.name} passes",
            remedy="loosen what is asked for",
        )
    chosen: list[int] = rows.tolist()
    return chosen


def _inside(values: NDArray[np.int64], ranges: Ranges) -> NDArray[np.bool_]:
    inside = np.zeros(values.shape, np.bool_)
    for first, last in ranges:
        inside |= (values >= first) & (values <= last)
    return inside


def _deal(facts: _Facts, settings: SplitSettings, source: _Source) -> list[list[int]]:
    """Return the episodes of each part.

    Raises:
        UsageError: A part gets none.
    """
    count = len(facts.steps)
    exact = [fraction * count for fraction in settings.fractions]
    sizes = [math.floor(round(size, 9)) for size in exact]
    for k in sorted(range(len(sizes)), key=lambda k: sizes[k] - exact[k])[: count - sum(sizes)]:
        sizes[k] += 1
    if settings.by == "policy":
        groups = _tied(facts.policies)
    else:
        groups = [[i] for i in range(count)]
    order = generator(settings.seed, Stream.DATASET_SPLIT).permutation(len(groups)).tolist()
    parts: list[list[int]] = [[] for _ in sizes]
    # The largest first, each to the part that lacks most: the sizes come out as near as can be.
    for k in sorted(order, key=lambda k: -len(groups[k])):
        lacking = [size - len(part) for size, part in zip(sizes, parts, strict=True)]
        parts[lacking.index(max(lacking))] += groups[k]
    for name, part in zip(settings.names, parts, strict=True):
        if not part:
            what = "groups of episodes that share policies" if settings.by == "policy" else "them"
            raise UsageError(
                f"the part {name} would be empty: {source.name} has {count:,} episodes, "
                f"{len(groups):,} {what}"
                if settings.by == "policy"
                else f"the part {name} would be empty: {source.name} has {count:,} episodes",
                where="--fractions",
            )
    return [sorted(part) for part in parts]


def _tied(policies: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return groups of episodes such that no policy acts in two groups, as many as there can be."""
    parent = list(range(len(policies)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    first: dict[int, int] = {}
    for i, rows in enumerate(policies):
        for row in rows:
            a, b = root(first.setdefault(row, i)), root(i)
            parent[max(a, b)] = min(a, b)
    groups: dict[int, list[int]] = {}
    for i in range(len(policies)):
        groups.setdefault(root(i), []).append(i)
    return list(groups.values())


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _filter_words(settings: FilterSettings) -> list[str]:
    """Return the options that ask for these criteria."""
    words: list[str] = []
    for name, value in settings.to_dict().items():
        if name == "terminated" and value is not None:
            words.append("--terminated" if value else "--truncated")
        elif value is True:
            words.append(_option(name))
        elif value is not None and value is not False:
            words += [_option(name), value if isinstance(value, str) else repr(value)]
    return words
