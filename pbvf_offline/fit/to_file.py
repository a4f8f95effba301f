"""Fitting into a file: continue, extend, snapshot; finished work is never overwritten."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    DivergedError,
    PbvfError,
    UsageError,
)
from pbvf_offline.fit.critic_file import (
    CriticContext,
    CriticFile,
    finished_file,
    load_critic,
    make_context,
)
from pbvf_offline.fit.loop import Fit, advance, start_fit, training_set
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.io.durable import remove_file, temporary_path
from pbvf_offline.io.lock import locked
from pbvf_offline.io.tensor_file import refuse_other_kind
from pbvf_offline.io.work_folder import refuse_difference
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


def partial_path(out: Path) -> Path:
    """Return where an unfinished fit is kept: a hidden file beside the output."""
    return out.with_name(f".{out.name}.partial")


def stored_seed(out: Path) -> int | None:
    """Return the seed of the critic, finished or not, that stands at ``out``."""
    for path in (partial_path(out), out):
        if path.exists():
            try:
                return load_critic(path).fit.settings.seed
            except PbvfError:
                continue
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
        overwrite: Start anew whatever is there. It stays until the new fit is finished; the
            same call without ``overwrite`` goes on where such a fit was interrupted, unless
            what stands there is the same fit with more updates.
        device: Where to compute; the CPU when None.
        progress: Called with updates done, updates wanted and the last loss.

    Raises:
        UsageError: A number is out of range.
        ConflictError: ``out`` exists with other settings, or another process writes it.
        DivergedError: The loss became NaN or infinite; the last good file is kept.
        ResourceError: The disk or a permission refuses; finished files and the last
            checkpoint are kept.
    """
    if updates < 1:
        raise UsageError(f"{updates} updates are not at least 1", where="--updates")
    wanted = sorted(set(snapshots))
    if wanted and not 1 <= wanted[0] <= wanted[-1] <= updates:
        raise UsageError(f"snapshots {wanted} are not in 1 … {updates}", where="--snapshots")
    device = device or torch.device("cpu")
    partial = partial_path(out)
    files = [snapshot_path(out, u) for u in wanted]
    with locked(out, look=True) as refusal:
        for path in (out, *files):
            refuse_other_kind(path, "critic", overwrite=overwrite)
        if refusal is None:
            for path in (out, partial, *files):
                remove_file(temporary_path(path))  # a kill may have left it
        replacing = overwrite or _replaces(partial, out, settings, dataset, device)
        done = None if replacing else _finished(out, settings, updates, dataset, device)
        missing = []
        for u, path in zip(wanted, files, strict=True):
            try:
                there = not overwrite and _is_snapshot(path, u, settings, dataset, device)
            except ConflictError:
                if not replacing:
                    raise
                there = False
            if not there:
                missing.append(u)
        if done is not None and done.fit.updates == updates and not missing:
            if refusal is None:
                with contextlib.suppress(ConflictError):  # not of this fit: it stays
                    _unfinished(partial, settings, dataset, device)
                    remove_file(partial)
            return FitResult(done, 0.0, 0, files, already_complete=True)
        if refusal is not None:
            raise refusal
        if overwrite:
            remove_file(partial)
        left = _unfinished(partial, settings, dataset, device)
        # A snapshot that was passed already: the way to it is gone over again.
        found = _furthest((done, left), min([*missing, updates]))
        fit, context = _begin(data, settings, environment, dataset, device, found)
        prepared = training_set(fit, data, device)
        keeper = _Keeper(partial, context, updates, progress)
        started, first = time.perf_counter(), fit.updates
        try:
            for stop in sorted({*missing, updates}):
                advance(fit, prepared, stop, after_update=keeper)
                if stop in missing:
                    finished_file(fit, data, context).save(snapshot_path(out, stop))
            seconds = time.perf_counter() - started
            result = finished_file(fit, data, context)
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
        remove_file(partial)
    return FitResult(result, seconds, fit.updates - first, files, already_complete=False)


def _begin(
    data: Trajectories,
    settings: FitSettings,
    environment: EnvReference | None,
    dataset: str,
    device: torch.device,
    found: CriticFile | None,
) -> tuple[Fit, CriticContext]:
    if found is not None:
        return found.fit, found.context
    fit = start_fit(data, settings, device)
    context = make_context(data, fit.normaliser, settings, environment=environment, dataset=dataset)
    return fit, context


def _replaces(
    partial: Path, out: Path, settings: FitSettings, dataset: str, device: torch.device
) -> bool:
    """Return whether this fit was begun with ``overwrite`` and has yet to replace another."""
    try:
        if not out.exists() or _unfinished(partial, settings, dataset, device) is None:
            return False
    except ConflictError:
        return False
    try:
        _refuse_difference(load_critic(out, device), settings, dataset, out)
    except ConflictError:
        return True  # which only a fit with overwrite was let begin beside
    except PbvfError:
        pass
    return False


def _finished(
    out: Path, settings: FitSettings, updates: int, dataset: str, device: torch.device
) -> CriticFile | None:
    """Return the finished fit at ``out``, if there is one.

    Raises:
        ConflictError: It was made otherwise, or has more updates than asked for.
    """
    if not out.exists():
        return None
    file = load_critic(out, device)
    _refuse_difference(file, settings, dataset, out)
    if file.fit.updates > updates:
        raise ConflictError(
            f"exists with {file.fit.updates} updates, {updates} were asked for",
            where=out,
            remedy="choose another --out, or start anew with --overwrite",
        )
    return file


def _unfinished(
    partial: Path, settings: FitSettings, dataset: str, device: torch.device
) -> CriticFile | None:
    """Return what an interrupted fit left, if it is of use.

    Raises:
        ConflictError: It was made otherwise.
    """
    try:
        file = load_critic(partial, device)
    except PbvfError:
        return None  # none, or damaged: only ever our own leftovers
    _refuse_difference(file, settings, dataset, partial)
    return file


def _furthest(files: Iterable[CriticFile | None], most: int) -> CriticFile | None:
    """Return the fit with the most updates up to ``most``."""
    usable = [file for file in files if file is not None and file.fit.updates <= most]
    return max(usable, key=lambda file: file.fit.updates, default=None)


def _is_snapshot(
    path: Path, update: int, settings: FitSettings, dataset: str, device: torch.device
) -> bool:
    """Return whether a snapshot of this very fit stands at ``path``.

    Raises:
        ConflictError: A snapshot made with other settings stands there.
    """
    if not path.exists():
        return False
    try:
        file = load_critic(path, device)
    except DamagedError:
        return False
    _refuse_difference(file, settings, dataset, path)
    return file.fit.updates == update


def _refuse_difference(file: CriticFile, settings: FitSettings, dataset: str, path: Path) -> None:
    theirs: dict[str, Any] = {
        **file.fit.settings.to_dict(),
        "dataset": file.context.dataset,
        "model": None if file.imagined is None else file.imagined.model,
    }
    ours: dict[str, Any] = {**settings.to_dict(), "dataset": dataset, "model": None}
    refuse_difference(theirs, ours, path)


@dataclass
class _Keeper:
    """Writes the unfinished fit every so often and reports progress."""

    partial: Path
    context: CriticContext
    total: int
    progress: Callable[[int, int, float], None] | None
    last: float = dataclasses.field(default_factory=time.monotonic)

    def __call__(self, fit: Fit) -> None:
        if self.progress is not None:
            self.progress(
                fit.updates, self.total, fit.pending[-1] if fit.pending else fit.record[-1][1]
            )
        if time.monotonic() - self.last > CHECKPOINT_SECONDS:
            self.keep(fit)

    def keep(self, fit: Fit) -> None:
        CriticFile(fit, self.context).save(self.partial)
        self.last = time.monotonic()
