"""The episodes of an untrusted folder: every object is checked before it is used."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from pbvf_datasets.format.dataset_rules import episodes_counted, steps_counted
from pbvf_datasets.format.episode_rules import TAGS, Problem
from pbvf_datasets.format.schema import BLOB, FIELDS, METADATA_FILE
from pbvf_datasets.read.episodes import (
    CheckedEpisode,
    EpisodeChecker,
    RawEpisode,
    Report,
    checked_episodes,
    fail,
    with_stand_in,
)
from pbvf_datasets.read.untrusted import CheckedFolder
from pbvf_datasets.read.untrusted_hdf5 import GuardedArray, GuardedFile, GuardedGroup
from pbvf_offline.errors import DamagedError, PbvfError, UnsafeError, printable
from pbvf_offline.policies.spec import PolicySpec

_EPISODE: Final = re.compile(rb"episode_(0|[1-9][0-9]{0,17})")
_NAMES: Final = {name.encode(): name for name in (*(f.name for f in FIELDS), BLOB)}


def folder_episodes(
    folder: CheckedFolder,
    report: Report = fail,
    *,
    indices: Iterable[int] | None = None,
    fields: Iterable[str] | None = None,
    read_unknown: bool = False,
    on_group: Callable[[GuardedGroup], None] | None = None,
    untagged: PolicySpec | None = None,
) -> Iterator[CheckedEpisode]:
    """Yield the episodes of a folder with which nothing is wrong; report what is wrong.

    After the last of all episodes, totals are compared with the metadata, files that are not
    those of the manifest are reported, and the data file must not have changed meanwhile. With
    the default report the first problem is raised; where the file is also dangerous, that is
    raised instead.

    Args:
        folder: What :func:`pbvf_datasets.read.untrusted.open_folder` returned.
        report: Told of each problem.
        indices: Numbers of the episodes to read, in this order; None: all.
        fields: Names of the arrays whose values are read and checked; None: all.
        read_unknown: Also read arrays that the format does not know, which checks their checksums.
        on_group: Called with the group of each episode.
        untagged: For a dataset that does not say which policies acted, their architecture; see
            :func:`pbvf_datasets.read.episodes.with_stand_in`.

    Raises:
        UsageError: ``untagged`` is given, and an episode says which policies acted.
        DamagedError: Something is damaged or contradicts itself, or differs from the manifest.
        UnsafeError: An object could read other files, load code or exhaust the machine.
        IncompatibleError: A newer format, no policy tags, or several architectures.
    """
    data = folder.open_data()
    checker = EpisodeChecker(folder.spaces, fields=fields)
    steps = whole = 0
    try:
        root = data.begin()
        there = _numbers(folder, data, root, report)
        wanted = there if indices is None else _repeatable(data, indices)
        raw = _raw_episodes(data, root, wanted, report, read_unknown, on_group)
        if untagged is not None:
            raw = (with_stand_in(episode, untagged) for episode in raw)
        for episode in checked_episodes(raw, checker, report):
            steps, whole = steps + len(episode), whole + 1
            yield episode
        if indices is not None:
            return
        if whole == folder.total_episodes:
            for problem in steps_counted(steps, folder.total_steps):
                report(problem.kind(problem.what, where=folder.path / METADATA_FILE))
        for mismatch in folder.mismatches:
            report(mismatch)
        try:
            data.check_unchanged()
        except DamagedError as error:
            report(error)
    except DamagedError:
        data.walk()  # a file that is dangerous elsewhere is reported as that
        raise


def is_tagged(folder: CheckedFolder) -> bool:
    """Return whether the first episode of a folder says which policies acted.

    Raises:
        DamagedError: There is none, or it cannot be opened.
        UnsafeError: It could read other files or load code.
    """
    first = folder.open_data().begin().group(b"episode_0")
    infos = first.group(b"infos").members if b"infos" in first.members else {}
    return any(_NAMES.get(b"infos/" + member) in TAGS for member in infos)


def _numbers(
    folder: CheckedFolder, data: GuardedFile, root: GuardedGroup, report: Report
) -> list[int]:
    """Return the numbers of the episodes that are there, ascending."""
    there: list[int] = []
    for name in root.members:
        if _EPISODE.fullmatch(name) is not None:
            there.append(int(name[8:]))
            continue
        try:
            root.check(name)
        except (DamagedError, UnsafeError) as error:
            report(error, unopened=isinstance(error, DamagedError))
        text = printable(name.decode("utf-8", "surrogateescape"))
        _tell(report, data, Problem(DamagedError, text, "this is not an episode"))
    there.sort()
    for problem in episodes_counted(there, folder.total_episodes):
        _tell(report, data, problem)
    return there


def _repeatable(data: GuardedFile, indices: Iterable[int]) -> Iterator[int]:
    """Yield numbers of episodes, any of which may be asked for twice."""
    for i in indices:
        data.forget()
        yield i


def _tell(report: Report, data: GuardedFile, problem: Problem) -> None:
    report(problem.kind(problem.what, where=data.where(problem.at), remedy=problem.remedy))


def _raw_episodes(
    data: GuardedFile,
    root: GuardedGroup,
    indices: Iterable[int],
    report: Report,
    read_unknown: bool,
    on_group: Callable[[GuardedGroup], None] | None,
) -> Iterator[RawEpisode]:
    for i in indices:
        broken = False

        def note(error: PbvfError) -> None:
            nonlocal broken
            broken = True
            report(error, unopened=isinstance(error, DamagedError))

        try:
            group = root.group(b"episode_%d" % i)
        except (DamagedError, UnsafeError) as error:
            note(error)
            continue
        total = seed = None
        try:
            total, seed = group.integer(b"total_steps"), group.integer(b"seed")
            if on_group is not None:
                on_group(group)
        except DamagedError as error:
            broken = True
            report(error)
        arrays: dict[str, GuardedArray] = {}
        _open(group, b"", arrays, note, read_unknown)

        def where(name: str, place: str = group.place) -> str:
            return data.where(f"{place}/{name}" if name else place)

        yield RawEpisode(i, where, arrays, total, seed, broken)


def _open(
    group: GuardedGroup,
    prefix: bytes,
    arrays: dict[str, GuardedArray],
    note: Callable[[PbvfError], None],
    read_unknown: bool,
) -> None:
    """Check all members of an episode and collect the arrays that the format knows."""
    for member in group.members:
        name = _NAMES.get(prefix + member)
        try:
            if name is not None:
                arrays[name] = group.array(member)
            elif member == b"infos" and not prefix:
                _open(group.group(member), b"infos/", arrays, note, read_unknown)
            else:
                group.check(member, read=read_unknown)
        except (DamagedError, UnsafeError) as error:
            note(error)
