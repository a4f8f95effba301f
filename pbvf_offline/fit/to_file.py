"""Fitting into files: continue, extend, snapshot; finished work is never overwritten."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from pbvf_offline.critics import TrainingSet
from pbvf_offline.curve import OnEvent
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import DivergedError, PbvfError, UsageError
from pbvf_offline.fit.critic_file import KIND, CriticFile
from pbvf_offline.fit.loop import advance_several, training_set
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.fit.steps import Group
from pbvf_offline.fit.work import Begun, FitPlace, Work, snapshot_path
from pbvf_offline.io.durable import remove_file
from pbvf_offline.io.output_file import writing
from pbvf_offline.rollout.episodes import Trajectories

CHECKPOINT_SECONDS = 20.0
Progress = Callable[[int, int, float], None]
Note = Callable[[str], None]


@dataclass(frozen=True)
class FitJob:
    """One of several fits to the same data.

    Attributes:
        settings: What decides the fit.
        out: The critic file.
        on_event: Takes the events of its curve, as of :func:`fit_to_file`.
    """

    settings: FitSettings
    out: Path
    on_event: OnEvent | None = None


@dataclass(frozen=True)
class FitResult:
    """What a fit into a file came to.

    Attributes:
        file: The critic at the number of updates asked for.
        seconds: Time spent in gradient steps now; 0 when it was complete before.
        updates_done_now: Gradient steps taken now.
        snapshots: The snapshot files, in order.
        already_complete: Whether nothing had to be done.
    """

    file: CriticFile
    seconds: float
    updates_done_now: int
    snapshots: list[Path]
    already_complete: bool


def seed_path(out: Path, seed: int) -> Path:
    """Return where the critic of one of several seeds goes: ``NAME-seed-3.safetensors``."""
    return out.with_name(f"{out.stem}-seed-{seed}{out.suffix}")


def stored_seed(out: Path, settings: FitSettings, dataset: str) -> int | None:
    """Return the seed of the critic, finished or not, at ``out``.

    Of a finished and an unfinished one, it is that of the one that was made with these settings,
    whatever their seed, from this dataset.
    """
    return FitPlace(out, settings, dataset, torch.device("cpu")).stored_seed()


def fit_to_file(
    data: Trajectories,
    settings: FitSettings,
    out: Path,
    *,
    updates: int,
    snapshots: Sequence[int] = (),
    environment: EnvReference | None,
    dataset: str,
    overwrite: bool = False,
    device: torch.device | None = None,
    progress: Progress | None = None,
    on_event: OnEvent | None = None,
    note: Note | None = None,
) -> FitResult:
    """Fit a critic and write it to ``out``.

    The same call again finds it complete; an interrupted one continues; more updates
    extend it; in each case the file ends with the bytes of an undisturbed fit.

    Args:
        data: The dataset.
        settings: What decides the fit.
        out: The critic file.
        updates: Gradient steps in all.
        snapshots: Updates at which to write ``NAME-UPDATE.safetensors`` as well; each equals
            what a fit of so many updates writes.
        environment: The dataset's environment.
        dataset: The dataset's digest.
        overwrite: Start over whatever is there. It stays until the new fit is finished; the
            same call without ``overwrite`` goes on where such a fit was interrupted, unless
            what is there is the same fit with more updates.
        device: Where to compute; the CPU when None.
        progress: Called with updates done, updates wanted and the last loss.
        on_event: Called with each event of the curve from the first on, also of a fit that goes
            on or is complete: ``fit`` at every 100th update, the mean loss since the one
            before, and ``validation`` at the last one.
        note: Told in a line where beside a fit that is complete lies what was interrupted of a
            longer one.

    Raises:
        UsageError: A number is out of range.
        ConflictError: ``out`` exists with other settings or more updates, what was interrupted
            has more updates, or another process writes it.
        DivergedError: The loss became NaN or infinite; the last good file is kept.
        ResourceError: The disk or a permission refuses; finished files and the last
            checkpoint are kept.
    """
    (result,) = fit_several_to_files(
        data,
        [FitJob(settings, out, on_event)],
        updates=updates,
        snapshots=snapshots,
        environment=environment,
        dataset=dataset,
        overwrite=overwrite,
        device=device,
        progress=progress,
        note=note,
    )
    return result


def fit_several_to_files(
    data: Trajectories,
    jobs: Sequence[FitJob],
    *,
    updates: int,
    snapshots: Sequence[int] = (),
    environment: EnvReference | None,
    dataset: str,
    overwrite: bool = False,
    device: torch.device | None = None,
    progress: Progress | None = None,
    note: Note | None = None,
) -> list[FitResult]:
    """Fit critics that differ in their seeds alone, all at once, each to its file.

    Each file is the one that :func:`fit_to_file` writes, but for last digits: sums of several
    are added up in another order. What is said there holds for each. Fits that are behind catch
    up first, and finished ones stay as they are.

    Args:
        data: The dataset.
        jobs: The fits.
        updates: Gradient steps of each in all.
        snapshots: As of :func:`fit_to_file`, of each.
        environment: The dataset's environment.
        dataset: The dataset's digest.
        overwrite: As of :func:`fit_to_file`.
        device: Where to compute; the CPU when None.
        progress: Called with the updates of those that are furthest behind, the updates wanted
            and the mean of their last losses.
        note: As of :func:`fit_to_file`, of each.

    Raises:
        UsageError: A number is out of range, or the fits differ in other settings than seeds.
        IncompatibleError: Critics of this kind can only be fitted one at a time.
        ConflictError: One of the files exists with other settings or more updates, what was
            interrupted of it has more updates, or another process writes it; nothing was done.
        DivergedError: A loss became NaN or infinite. All other fits were finished before; the
            message is of the first that failed, and names its seed where there are several.
        ResourceError: As of :func:`fit_to_file`.
    """
    if updates < 1:
        raise UsageError(
            f"{updates} updates were asked for, and at least 1 is needed", where="--updates"
        )
    wanted = sorted(set(snapshots))
    if wanted and not 1 <= wanted[0] <= wanted[-1] <= updates:
        raise UsageError(f"snapshots {wanted} are not in 1 … {updates}", where="--snapshots")
    _check_jobs(jobs)
    device = device or torch.device("cpu")
    with contextlib.ExitStack() as locks:
        works = []
        for job in jobs:
            place = FitPlace(job.out, job.settings, dataset, device)
            files = [snapshot_path(job.out, update) for update in wanted]
            refusal = locks.enter_context(writing(job.out, *files, kind=KIND, overwrite=overwrite))
            works.append(Work.found(place, job.on_event, refusal, updates, wanted, overwrite))
        for work in works:
            if work.refusal is not None and not work.complete:
                raise work.refusal
        for work in works:
            if work.complete:
                work.settle(note)
            elif overwrite:
                remove_file(work.place.partial)
        left = [work for work in works if not work.complete]
        if left:
            _fit(data, left, updates, environment, device, progress)
    return _results(works)


def _check_jobs(jobs: Sequence[FitJob]) -> None:
    alike = {dataclasses.replace(job.settings, seed=0) for job in jobs}
    if len(alike) != 1 or len({job.out for job in jobs}) != len(jobs):
        raise UsageError("fits at once must differ in their seeds and files, and in nothing else")


def _fit(
    data: Trajectories,
    works: Sequence[Work],
    updates: int,
    environment: EnvReference | None,
    device: torch.device,
    progress: Progress | None,
) -> None:
    """Make the updates that are left of several fits, and write the critics and the snapshots."""
    begun = [work.begin(data, environment) for work in works]
    started, first = time.perf_counter(), [each.fit.updates for each in begun]
    prepared: list[TrainingSet] = []
    for each in begun:
        prepared.append(training_set(each.fit, data, device, prepared[0] if prepared else None))
    try:
        _advance(begun, data, prepared, _Keeper(begun, updates, progress))
    except PbvfError:  # a full disk: what still finds room is kept, and this is the news
        for each in begun:
            with contextlib.suppress(PbvfError):
                each.keep()
        raise
    except BaseException:  # Ctrl-C, SIGTERM: every whole update is kept
        for each in begun:
            each.keep()
        raise
    seconds = time.perf_counter() - started
    for each, before in zip(begun, first, strict=True):
        work = each.work
        work.now, work.seconds = each.fit.updates - before, seconds
        if work.error is not None:
            remove_file(work.place.partial)  # the same fit from there would diverge again
        elif work.done is not None:
            remove_file(work.place.partial)
            work.report_end(work.done)


def _advance(
    begun: Sequence[Begun],
    data: Trajectories,
    prepared: Sequence[TrainingSet],
    keeper: _Keeper,
) -> None:
    """Take all gradient steps, with a stop at each snapshot; those that diverge stay behind."""
    stops = {stop for each in begun for stop in each.work.missing}
    for stop in sorted({*stops, keeper.total}):
        going = [k for k, each in enumerate(begun) if each.work.error is None]
        fits, sets = [begun[k].fit for k in going], [prepared[k] for k in going]
        wrong = advance_several(fits, sets, stop, after_update=keeper)
        for place, k in enumerate(going):
            work = begun[k].work
            work.error = wrong.get(place)
            if work.error is None and stop in work.missing:
                begun[k].save(snapshot_path(work.place.out, stop), data)
    for each in begun:
        if each.work.error is None:
            each.work.done = each.save(each.work.place.out, data)


def _results(works: Sequence[Work]) -> list[FitResult]:
    """Return what the fits came to.

    Raises:
        DivergedError: One of them was given up.
    """
    failed = [work for work in works if work.error is not None]
    if failed and failed[0].error is not None:
        error, out = failed[0].error, failed[0].place.out
        if len(works) == 1:
            raise DivergedError(error.what, where=out, remedy=error.remedy) from error
        seed, many = failed[0].place.settings.seed, f"{len(failed)} of {len(works)} seeds failed"
        rest = "" if len(failed) == len(works) else ", the others are finished"
        what = f"seed {seed}: {error.what} ({many}{rest})"
        raise DivergedError(what, where=out, remedy=error.remedy) from error
    return [
        FitResult(work.done, work.seconds, work.now, work.files, already_complete=work.seconds == 0)
        for work in works
        if work.done is not None
    ]


@dataclass
class _Keeper:
    """Writes the unfinished fits every so often, reports progress and losses."""

    begun: Sequence[Begun]
    total: int
    progress: Progress | None
    last: float = dataclasses.field(default_factory=time.monotonic)

    def __call__(self, group: Group) -> None:
        if self.progress is not None:
            last = [fit.pending[-1] if fit.pending else fit.record[-1][1] for fit in group.fits]
            self.progress(group.fits[0].updates, self.total, float(np.mean(last)))
        for each in self.begun:
            each.work.losses(each.fit)
        if time.monotonic() - self.last > CHECKPOINT_SECONDS:
            group.settle()
            for each in self.begun:
                each.keep()
            self.last = time.monotonic()
