"""One fit into a file: what is found of it, and what is left to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pbvf_offline.curve import LossEvents, OnEvent
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import ConflictError, DamagedError, DivergedError, PbvfError, counted
from pbvf_offline.fit.critic_context import CriticContext, make_context
from pbvf_offline.fit.critic_file import CriticFile, finished_file, load_critic
from pbvf_offline.fit.loop import start_fit
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.fit.steps import Fit
from pbvf_offline.io.output_file import TrainingPlace
from pbvf_offline.rollout.episodes import Trajectories


def snapshot_path(out: Path, update: int) -> Path:
    """Return where the snapshot of an update goes: ``NAME-000500.safetensors``."""
    return out.with_name(f"{out.stem}-{update:06d}{out.suffix}")


@dataclass(frozen=True)
class FitPlace(TrainingPlace[CriticFile]):
    """The files of one fit as they are found."""

    settings: FitSettings
    dataset: str
    device: torch.device

    def read(self, path: Path) -> CriticFile:
        """Read a critic file."""
        return load_critic(path, self.device)

    def compared(self, file: CriticFile) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what a file was made from, and what this fit is made from."""
        model = None if file.imagined is None else file.imagined.model
        theirs = {**file.fit.settings.to_dict(), "dataset": file.context.dataset, "model": model}
        return theirs, {**self.settings.to_dict(), "dataset": self.dataset, "model": None}

    def updates_of(self, file: CriticFile) -> int:
        """Return how many updates a file has."""
        return file.fit.updates

    def progress_of(self, file: CriticFile) -> str:
        """Return how many updates a file has, in words; it does not tell how many it is to have."""
        return counted(file.fit.updates, "update")

    def has_snapshot(self, update: int, *, replacing: bool) -> bool:
        """Return whether the snapshot of an update of this very fit is there.

        Raises:
            ConflictError: One that was made with other settings is, and is not replaced.
        """
        path = snapshot_path(self.out, update)
        try:
            return path.exists() and self.load(path).fit.updates == update
        except DamagedError:
            return False
        except ConflictError:
            if not replacing:
                raise
            return False

    def furthest(self, done: CriticFile | None, *, updates: int, most: int) -> CriticFile | None:
        """Return the finished or unfinished fit with the most updates up to ``most``.

        Raises:
            ConflictError: The unfinished one was made otherwise, or has more than ``updates``.
        """
        files = [file for file in (done, self.to_go_on(updates, done)) if file is not None]
        usable = [file for file in files if file.fit.updates <= most]
        return max(usable, key=lambda file: file.fit.updates, default=None)


@dataclass
class Work:
    """One of the fits: what was found of it, and what is left to do.

    Attributes:
        place: Its files.
        on_event: Takes the events of its curve.
        losses: Reports the losses to it.
        refusal: Why nothing may be written, if so.
        updates: Gradient steps wanted.
        files: The snapshots wanted.
        missing: Updates of those that are not there.
        done: The finished file.
        now: Gradient steps taken now.
        seconds: Time spent in them.
        error: Why it was given up, if so.
    """

    place: FitPlace
    on_event: OnEvent | None
    losses: LossEvents
    refusal: PbvfError | None
    updates: int
    files: list[Path]
    missing: list[int]
    done: CriticFile | None
    now: int = 0
    seconds: float = 0.0
    error: DivergedError | None = None

    @classmethod
    def found(
        cls,
        place: FitPlace,
        on_event: OnEvent | None,
        refusal: PbvfError | None,
        updates: int,
        wanted: Sequence[int],
        overwrite: bool,
    ) -> Work:
        """Look at what is there.

        Raises:
            ConflictError: It was made otherwise, or has more updates than asked for.
        """
        replacing = overwrite or place.is_replacement()
        return cls(
            place,
            on_event,
            LossEvents(on_event),
            refusal,
            updates,
            files=[snapshot_path(place.out, update) for update in wanted],
            done=None if replacing else place.finished(updates),
            missing=[
                update
                for update in wanted
                if overwrite or not place.has_snapshot(update, replacing=replacing)
            ],
        )

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        return self.done is not None and self.done.fit.updates == self.updates and not self.missing

    def settle(self, note: Callable[[str], None] | None) -> None:
        """Report the curve of a complete fit, and remove what an interruption left beside it.

        Unless that is of a longer one, of which ``note`` is told.
        """
        if self.refusal is None and self.done is not None:
            self.place.settle(self.done, note)
            self.report_end(self.done)

    def begin(self, data: Trajectories, environment: EnvReference | None) -> Begun:
        """Return the fit where it is gone on with.

        Raises:
            ConflictError: What was interrupted was made otherwise, or has more updates than wanted.
        """
        # A snapshot that was passed already: the way to it is gone over again.
        most = min([*self.missing, self.updates])
        found = self.place.furthest(self.done, updates=self.updates, most=most)
        if found is not None:
            return Begun(self, found.fit, found.context)
        fit = start_fit(data, self.place.settings, self.place.device)
        context = make_context(data, fit, environment=environment, dataset=self.place.dataset)
        return Begun(self, fit, context)

    def report_end(self, file: CriticFile) -> None:
        """Report what the file of a finished fit holds and was not reported yet."""
        self.losses(file.fit, finished=True)
        if self.on_event is not None and file.validation is not None:
            numbers = {k: v for k, v in file.validation.items() if not isinstance(v, list)}
            self.on_event("validation", file.fit.updates, numbers)


@dataclass(frozen=True)
class Begun:
    """A fit that is under way, with what its file keeps of the data."""

    work: Work
    fit: Fit
    context: CriticContext

    def save(self, path: Path, data: Trajectories) -> CriticFile:
        """Write the file of the fit as it stands, with its validation."""
        file = finished_file(self.fit, data, self.context)
        file.save(path)
        return file

    def keep(self) -> None:
        """Write the unfinished fit, if it has begun and is between two updates."""
        if self.fit.whole and self.fit.updates > 0:
            CriticFile(self.fit, self.context).save(self.work.place.partial)
