"""Fitting into a file: continue, extend, snapshot; finished work is never overwritten."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pbvf_offline.critics import TrainingSet
from pbvf_offline.curve import LossEvents, OnEvent
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    DivergedError,
    PbvfError,
    UsageError,
)
from pbvf_offline.fit.critic_context import CriticContext, make_context
from pbvf_offline.fit.critic_file import KIND, CriticFile, finished_file, load_critic
from pbvf_offline.fit.loop import advance, start_fit, training_set
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.fit.steps import Fit
from pbvf_offline.io.durable import remove_file
from pbvf_offline.io.output_file import partial_path, writing
from pbvf_offline.io.work_folder import START_ANEW, refuse_difference
from pbvf_offline.rollout.episodes import Trajectories

CHECKPOINT_SECONDS = 20.0


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


def snapshot_path(out: Path, update: int) -> Path:
    """Return where the snapshot of an update goes: ``NAME-000500.safetensors``."""
    return out.with_name(f"{out.stem}-{update:06d}{out.suffix}")


def stored_seed(out: Path) -> int | None:
    """Return the seed of the critic, finished or not, at ``out``."""
    for path in (partial_path(out), out):
        with contextlib.suppress(PbvfError):
            return load_critic(path).fit.settings.seed
    return None


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
    progress: Callable[[int, int, float], None] | None = None,
    on_event: OnEvent | None = None,
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

    Raises:
        UsageError: A number is out of range.
        ConflictError: ``out`` exists with other settings, or another process writes it.
        DivergedError: The loss became NaN or infinite; the last good file is kept.
        ResourceError: The disk or a permission refuses; finished files and the last
            checkpoint are kept.
    """
    if updates < 1:
        raise UsageError(
            f"{updates} updates were asked for, and at least 1 is needed", where="--updates"
        )
    wanted = sorted(set(snapshots))
    if wanted and not 1 <= wanted[0] <= wanted[-1] <= updates:
        raise UsageError(f"snapshots {wanted} are not in 1 … {updates}", where="--snapshots")
    there = _There(out, settings, dataset, device or torch.device("cpu"))
    files = [snapshot_path(out, update) for update in wanted]
    losses = LossEvents(on_event)
    with writing(out, *files, kind=KIND, overwrite=overwrite) as refusal:
        replacing = overwrite or there.is_replacement()
        done = None if replacing else there.finished(updates)
        missing = [
            update
            for update in wanted
            if overwrite or not there.has_snapshot(update, replacing=replacing)
        ]
        if done is not None and done.fit.updates == updates and not missing:
            if refusal is None:
                with contextlib.suppress(ConflictError):  # not of this fit: it stays
                    there.unfinished()
                    remove_file(there.partial)
                _report_end(done, losses, on_event)
            return FitResult(done, 0.0, 0, files, already_complete=True)
        if refusal is not None:
            raise refusal
        if overwrite:
            remove_file(there.partial)
        # A snapshot that was passed already: the way to it is gone over again.
        found = there.furthest(done, most=min([*missing, updates]))
        fit, context = _begin(data, settings, environment, there, found)
        started, first = time.perf_counter(), fit.updates
        keeper = _Keeper(there.partial, context, updates, progress, losses)
        prepared = training_set(fit, data, there.device)
        result = _advance(fit, data, prepared, out, keeper, missing)
        seconds = time.perf_counter() - started
        remove_file(there.partial)
        _report_end(result, losses, on_event)
    return FitResult(result, seconds, fit.updates - first, files, already_complete=False)


def _report_end(file: CriticFile, losses: LossEvents, on_event: OnEvent | None) -> None:
    """Report what the file of a finished fit holds and was not reported yet."""
    losses(file.fit, finished=True)
    if on_event is not None and file.validation is not None:
        numbers = {k: v for k, v in file.validation.items() if not isinstance(v, list)}
        on_event("validation", file.fit.updates, numbers)


def _begin(
    data: Trajectories,
    settings: FitSettings,
    environment: EnvReference | None,
    there: _There,
    found: CriticFile | None,
) -> tuple[Fit, CriticContext]:
    if found is not None:
        return found.fit, found.context
    fit = start_fit(data, settings, there.device)
    return fit, make_context(data, fit, environment=environment, dataset=there.dataset)


def _advance(
    fit: Fit,
    data: Trajectories,
    prepared: TrainingSet,
    out: Path,
    keeper: _Keeper,
    snapshots: Sequence[int],
) -> CriticFile:
    """Make the updates that are left, and write the critic and the snapshots."""
    try:
        for stop in sorted({*snapshots, keeper.total}):
            advance(fit, prepared, stop, after_update=keeper)
            if stop in snapshots:
                finished_file(fit, data, keeper.context).save(snapshot_path(out, stop))
        result = finished_file(fit, data, keeper.context)
        result.save(out)
    except DivergedError:
        raise
    except PbvfError:  # a full disk: what still finds room is kept, and this is the news
        with contextlib.suppress(PbvfError):
            keeper.keep(fit)
        raise
    except BaseException:
        if fit.whole:  # Ctrl-C, SIGTERM: every whole update is kept
            keeper.keep(fit)
        raise
    return result


@dataclass(frozen=True)
class _There:
    """The files of one fit as they are found."""

    out: Path
    settings: FitSettings
    dataset: str
    device: torch.device

    @property
    def partial(self) -> Path:
        return partial_path(self.out)

    def _load(self, path: Path) -> CriticFile:
        """Load a file of this very fit.

        Raises:
            ConflictError: It was made with other settings or from other data.
            PbvfError: It cannot be loaded.
        """
        file = load_critic(path, self.device)
        model = None if file.imagined is None else file.imagined.model
        theirs = {**file.fit.settings.to_dict(), "dataset": file.context.dataset, "model": model}
        ours = {**self.settings.to_dict(), "dataset": self.dataset, "model": None}
        refuse_difference(theirs, ours, path)
        return file

    def finished(self, updates: int) -> CriticFile | None:
        """Return the finished fit, if there is one.

        Raises:
            ConflictError: It was made otherwise, or has more updates than asked for.
        """
        if not self.out.exists():
            return None
        file = self._load(self.out)
        if file.fit.updates > updates:
            raise ConflictError(
                f"exists with {file.fit.updates} updates, {updates} were asked for",
                where=self.out,
                remedy=START_ANEW,
            )
        return file

    def unfinished(self) -> CriticFile | None:
        """Return what an interrupted fit left, if it is of use.

        Raises:
            ConflictError: It was made otherwise.
        """
        try:
            return self._load(self.partial)
        except ConflictError:
            raise
        except PbvfError:
            return None  # none, or damaged: only ever our own leftovers

    def is_replacement(self) -> bool:
        """Return whether this fit was begun with ``overwrite`` and has yet to replace another."""
        try:
            if not self.out.exists() or self.unfinished() is None:
                return False
        except ConflictError:
            return False
        try:
            self._load(self.out)
        except ConflictError:
            return True  # which only a fit with overwrite was let begin beside
        except PbvfError:
            pass
        return False

    def has_snapshot(self, update: int, *, replacing: bool) -> bool:
        """Return whether the snapshot of an update of this very fit is there.

        Raises:
            ConflictError: One that was made with other settings is, and is not replaced.
        """
        path = snapshot_path(self.out, update)
        try:
            return path.exists() and self._load(path).fit.updates == update
        except DamagedError:
            return False
        except ConflictError:
            if not replacing:
                raise
            return False

    def furthest(self, done: CriticFile | None, *, most: int) -> CriticFile | None:
        """Return the finished or unfinished fit with the most updates up to ``most``."""
        files = [file for file in (done, self.unfinished()) if file is not None]
        usable = [file for file in files if file.fit.updates <= most]
        return max(usable, key=lambda file: file.fit.updates, default=None)


@dataclass
class _Keeper:
    """Writes the unfinished fit every so often, reports progress and losses."""

    partial: Path
    context: CriticContext
    total: int
    progress: Callable[[int, int, float], None] | None
    losses: LossEvents
    last: float = dataclasses.field(default_factory=time.monotonic)

    def __call__(self, fit: Fit) -> None:
        if self.progress is not None:
            self.progress(
                fit.updates, self.total, fit.pending[-1] if fit.pending else fit.record[-1][1]
            )
        self.losses(fit)
        if time.monotonic() - self.last > CHECKPOINT_SECONDS:
            self.keep(fit)

    def keep(self, fit: Fit) -> None:
        CriticFile(fit, self.context).save(self.partial)
        self.last = time.monotonic()
