"""Merge, filter and split: datasets made of the episodes of others.

An episode is self-contained, so all three only choose episodes and copy them: seeds, tags,
``cut`` and every array stay, and equal policies are one policy again when the result is read.
What the inputs were stands in the manifest, as one flat list however often data were merged.

Inputs are opened by :mod:`pbvf_datasets.read.untrusted`, hashed once and read one episode
at a time; the result goes out through :class:`pbvf_datasets.write.writer.DatasetWriter`. So memory
holds a shard, never a dataset, and the same call goes on where it was killed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pbvf_datasets.format.manifest import MAX_MANIFEST_BYTES
from pbvf_datasets.format.names import dataset_path
from pbvf_datasets.format.statistics import Ends
from pbvf_datasets.write.duplicates import repeats
from pbvf_datasets.write.edit_inputs import (
    Source,
    check_compatible,
    common_license,
    infinite_return_is_damage,
    input_history,
    read_facts,
    version_notes,
)
from pbvf_datasets.write.edit_settings import FilterSettings, SplitSettings
from pbvf_datasets.write.selection import assign_parts, select
from pbvf_datasets.write.writer import DatasetWriter
from pbvf_offline.errors import (
    DamagedError,
    IncompatibleError,
    PbvfError,
    UnsafeError,
    UsageError,
    counted,
)
from pbvf_offline.io.strict_json import canonical_json, parse_json

Pathlike = str | os.PathLike[str]
Progress = Callable[[int, int], None]
"""Called with episodes done and episodes wanted."""
Chosen = Sequence[Sequence[int]]
"""Numbers of the episodes chosen of each input."""


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
        ends: How its episodes ended.
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
    ends: Ends
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
        overwrite: Start over whatever is there.
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
            stack.enter_context(Source(name, root, require_manifest=require_manifest))
            for name in datasets
        ]
        check_compatible(sources)
        words = ["merge", *(source.id for source in sources), "--dataset", dataset_id]
        words += [] if license is None else ["--license", license]
        words += ["--keep-duplicates"] if keep_duplicates else []
        stored = {"operation": "merge", "keep_duplicates": keep_duplicates}
        writer = stack.enter_context(
            open_output(
                dataset_id, sources, stored, words, root, license=license, overwrite=overwrite
            )
        )

        def choose() -> list[Chosen]:
            if keep_duplicates and writer.episodes_done:
                for source in sources:  # what was copied before is not read again
                    source.check()
            left_out = [set[int]() for _ in sources] if keep_duplicates else repeats(sources)
            pairs = zip(sources, left_out, strict=True)
            return [[[i for i in range(s.episode_count) if i not in out] for s, out in pairs]]

        (result,) = _edit(sources, [writer], choose, progress)
        notes = list(version_notes(sources))
        if result.left_out:
            notes.append(
                f"{result.left_out:,} episodes are in more than one input and were taken once"
                if result.left_out > 1
                else "1 episode is in more than one input and was taken once"
            )
        return replace(result, notes=tuple(notes))


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
    with Source(dataset, root, require_manifest=require_manifest) as source:
        words = ["filter", source.id, "--dataset", dataset_id, *settings.command_words()]
        stored = {"operation": "filter", **settings.to_dict()}
        with open_output(dataset_id, [source], stored, words, root, overwrite=overwrite) as writer:
            (result,) = _edit(
                [source],
                [writer],
                lambda: [[select(read_facts(source), settings, source.name)]],
                progress,
            )
            return result


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
        source = stack.enter_context(Source(dataset, root, require_manifest=require_manifest))
        words = ["split", source.id, "--dataset", dataset_id]
        words += settings.words("fractions", "names", "by", "seed")
        stored = {
            "operation": "split",
            "fractions": list(settings.fractions),
            "names": list(settings.names),
            "by": settings.by,
        }
        # All at once, so that a part that is in the way is found before anything is written.
        writers = [
            stack.enter_context(
                open_output(
                    part_id,
                    [source],
                    {**stored, "part": part},
                    words,
                    root,
                    overwrite=overwrite,
                    seed=settings.seed,
                    share=share,
                )
            )
            for part_id, part, share in zip(ids, settings.names, settings.fractions, strict=True)
        ]

        def choose() -> list[Chosen]:
            return [[rows] for rows in assign_parts(read_facts(source), settings, source.name)]

        return _edit([source], writers, choose, progress)


# ----------------------------------------------------------------------------- the outputs


def open_output(
    dataset_id: str,
    sources: Sequence[Source],
    settings: Mapping[str, Any],
    words: Sequence[str],
    root: Path | None,
    *,
    overwrite: bool,
    license: str | None = None,
    authors: Sequence[str] | None = None,
    seed: int | None = None,
    share: float = 1.0,
) -> DatasetWriter:
    """Open the output, which must be none of the inputs; ``words`` are those of its command.

    Licence and authors are those of the inputs where they are None.
    """
    license = common_license(sources) if license is None else license
    if authors is None:
        authors = tuple(dict.fromkeys(name for source in sources for name in source.authors))
    path = dataset_path(dataset_id, root)
    for source in sources:
        if path.exists() and path.samefile(source.folder.path):
            raise UsageError(
                f"{source.name} would replace itself, and could not be made again",
                where="--dataset",
                remedy="give another id",
            )
    entries = input_history(sources)
    _check_readable(entries)
    collected = [e["provenance"] for e in entries if e["provenance"] and not e["from"]]
    first = next((s for s in sources if s.provenance is not None), sources[0])
    return DatasetWriter(
        dataset_id,
        first.spec,
        observation_space=first.folder.observation_space,
        action_space=first.folder.action_space,
        environment=first.environment,
        env_spec_json=next((s.env_spec for s in sources if s.env_spec is not None), None),
        settings={**settings, "sources": [source.folder.digest for source in sources]},
        seed=seed,
        warmup_steps=sum(origin["warmup_steps"] for origin in collected),
        license=license,
        authors=authors,
        command=shlex.join(["pbvf", "dataset", *words]),
        sources=entries,
        root=root,
        overwrite=overwrite,
        expected_bytes=int(share * sum(s.folder.data_file.stat().st_size for s in sources)),
    )


def _check_readable(entries: Sequence[Mapping[str, Any]]) -> None:
    """Check that a manifest which holds these datasets can be read again.

    Raises:
        UsageError: They are too many.
        DamagedError: One is nested so deep that it could stand in its own manifest only.
    """
    image = canonical_json(list(entries))
    # Twice, as room for the rest of the manifest; two levels down, where it stands in there.
    twice = b"[[" + image + b"," + image + b"]]"
    try:
        if len(image) <= MAX_MANIFEST_BYTES // 2:
            parse_json(twice, "the provenance of the inputs")
            return
    except UnsafeError:
        pass
    raise UsageError(
        f"it goes back to {counted(len(entries), 'dataset')}, too many for its manifest",
        remedy="merge fewer at once",
    )


@contextlib.contextmanager
def nothing_left_of_bad_inputs(*writers: DatasetWriter) -> Iterator[None]:
    """Drop unfinished work when an input turns out to be bad: with a good one, it is another."""
    try:
        yield
    except (DamagedError, IncompatibleError, UnsafeError):
        for writer in writers:
            with contextlib.suppress(PbvfError, OSError):
                writer.discard()
        raise


def _edit(
    sources: Sequence[Source],
    writers: Sequence[DatasetWriter],
    choose: Callable[[], Sequence[Chosen]],
    progress: Progress | None,
) -> tuple[EditResult, ...]:
    """Choose episodes, copy them to the outputs that are not complete, and finish those."""
    started = time.perf_counter()
    before = [None if writer.complete else writer.steps_done for writer in writers]
    chosen: Sequence[Chosen] = [[] for _ in writers]
    if before.count(None) < len(writers):
        with nothing_left_of_bad_inputs(*writers):
            chosen = choose()
    results = []
    for writer, rows, steps in zip(writers, chosen, before, strict=True):
        if steps is not None:
            with nothing_left_of_bad_inputs(writer):
                _copy(writer, sources, rows, progress)
        results.append(finish_output(writer, sources, started, steps))
        started = time.perf_counter()
    return tuple(results)


def _copy(
    writer: DatasetWriter,
    sources: Sequence[Source],
    chosen: Chosen,
    progress: Progress | None,
) -> None:
    """Add the chosen episodes of each input, from the first that is not there yet."""
    total, skip = sum(map(len, chosen)), writer.episodes_done
    for source, indices in zip(sources, chosen, strict=True):
        rest, skip = indices[skip:], max(0, skip - len(indices))
        # None: all of them, so that the totals are checked too.
        wanted = None if len(rest) == source.episode_count else rest
        for episode in source.episodes(wanted) if rest else ():
            with infinite_return_is_damage(source, episode):
                writer.add(episode.episode)
            if progress is not None:
                progress(writer.episodes_done, total)


def finish_output(
    writer: DatasetWriter, sources: Sequence[Source], started: float, before: int | None
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
        ends=Ends.of(stats),
        returns=stats["return"],
        license=provenance["license"],
        authors=tuple(provenance["authors"]),
        sources=tuple(
            SourceUse(s.id, s.folder.digest, s.folder.verified, s.episode_count, s.step_count)
            for s in sources
        ),
        left_out=sum(source.episode_count for source in sources) - stats["episodes"],
        notes=(),
        seconds=seconds,
        steps_per_second=None if written is None else written / max(seconds, 1e-9),
        already_complete=written is None,
    )
