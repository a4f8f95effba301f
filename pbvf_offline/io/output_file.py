"""One file that a command writes: locked, never in the place of something else, continued."""

from __future__ import annotations

import contextlib
import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    IncompatibleError,
    PbvfError,
    UnsafeError,
    UsageError,
)
from pbvf_offline.io.durable import remove_file, resource_error, temporary_path
from pbvf_offline.io.lock import locked
from pbvf_offline.io.tensor_file import refuse_other_kind
from pbvf_offline.io.work_folder import START_ANEW, refuse_difference, same_settings
from pbvf_offline.records import Record

F = TypeVar("F")
_DROP: Final = "or remove this file to drop it"
FINISH_OR_DROP: Final = f"finish it by its own command without --overwrite, {_DROP}"


def partial_path(out: Path) -> Path:
    """Return where an unfinished output is kept: a hidden file beside it."""
    return out.with_name(f".{out.name}.partial")


def unfinished_file(out: Path, read: Callable[[Path], F]) -> F | None:
    """Return what an interrupted training left beside ``out``; None: nothing, or a damaged file.

    Args:
        out: The finished file.
        read: Reads a file of such a training.

    Raises:
        IncompatibleError: It is whole, but of a newer version or of another kind, so it is not to
            be lost.
        ResourceError: It cannot be read.
    """
    path = partial_path(out)
    try:
        return read(path)
    except IncompatibleError as error:
        remedy = ", ".join([*filter(None, [error.remedy]), _DROP])
        raise IncompatibleError(error.what, where=path, remedy=remedy) from error
    except (UsageError, DamagedError, UnsafeError):
        return None  # only ever our own leftovers


def note_staying(error: PbvfError, note: Callable[[str], None] | None) -> None:
    """Tell beside a finished file that the unfinished one, which ``error`` is about, stays."""
    if note is not None:
        words = "; ".join(filter(None, [error.what, error.remedy]))
        note(f"note: {error.where} stays: {words}")


@contextlib.contextmanager
def writing(out: Path, *more: Path, kind: str, overwrite: bool) -> Iterator[PbvfError | None]:
    """Hold the lock of a tensor file that is to be written, and of the files beside it.

    What a kill left of writing one of them is removed.

    Args:
        out: The file; its lock guards the others too.
        more: Files that are written beside it.
        kind: Their kind.
        overwrite: Whether they are about to be replaced unread.

    Yields:
        None; where nothing may be written, the error to raise unless all is done there.

    Raises:
        ConflictError: Another process writes it, or a file of another kind is there.
        ResourceError: The lock file cannot be made, or a name is too long.
    """
    for path in (out, *more):
        _refuse_long_name(path)
    with locked(out, look=True) as refusal:
        for path in (out, *more):
            refuse_other_kind(path, kind, overwrite=overwrite)
        if refusal is None:
            for path in (out, partial_path(out), *more):
                remove_file(temporary_path(path))
        yield refusal


def _refuse_long_name(path: Path) -> None:
    """Refuse a name that leaves no letters for those of the hidden files beside it."""
    try:
        temporary_path(partial_path(path)).lstat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise resource_error(error, path) from error


@dataclass(frozen=True)
class TrainingPlace(ABC, Generic[F]):
    """The finished and the unfinished file of one training, as they are found.

    Beside a finished file may lie the unfinished one of another training, which was begun with
    ``--overwrite`` and interrupted. It stays until that one is finished, or its user drops it.

    Attributes:
        out: The finished file.
        settings: What decides the training.
    """

    out: Path
    settings: Record

    @abstractmethod
    def read(self, path: Path) -> F:
        """Read a file of such a training.

        Raises:
            PbvfError: It cannot be read.
        """

    @abstractmethod
    def compared(self, file: F) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what a file was made from, and what this training is made from."""

    @abstractmethod
    def updates_of(self, file: F) -> int:
        """Return how many updates a finished file has; the fewest an unfinished one can end at."""

    @abstractmethod
    def progress_of(self, file: F) -> str:
        """Return how many updates an unfinished file has, in words."""

    @property
    def partial(self) -> Path:
        """Where an unfinished training is kept."""
        return partial_path(self.out)

    def load(self, path: Path, remedy: str = START_ANEW) -> F:
        """Load a file of this very training.

        Raises:
            ConflictError: It was made with other settings or from other data; ``remedy`` says
                what to do.
            PbvfError: It cannot be read.
        """
        file = self.read(path)
        theirs, ours = self.compared(file)
        refuse_difference(theirs, ours, path, remedy, settings=type(self.settings))
        return file

    def finished(self, updates: int) -> F | None:
        """Return the finished training, if there is one.

        Raises:
            ConflictError: It was made otherwise, or has more updates than asked for.
        """
        if not self.out.exists():
            return None
        file = self.load(self.out)
        if self.updates_of(file) > updates:
            raise ConflictError(
                f"exists with {self.updates_of(file)} updates, {updates} were asked for",
                where=self.out,
                remedy=START_ANEW,
            )
        return file

    def unfinished(self, done: F | None = None) -> F | None:
        """Return what an interrupted training left, if it is of use.

        Args:
            done: The finished training that is to be extended, if one is.

        Raises:
            ConflictError: It was made otherwise.
            PbvfError: See :func:`unfinished_file`.
        """
        remedy = START_ANEW if done is None else FINISH_OR_DROP
        return unfinished_file(self.out, lambda path: self.load(path, remedy))

    def to_go_on(self, updates: int, done: F | None) -> F | None:
        """Return what an interrupted training left, if it is of use; see :meth:`unfinished`.

        Raises:
            ConflictError: It was made otherwise, or cannot end at so few updates, so that what
                it has would be lost.
            PbvfError: See :func:`unfinished_file`.
        """
        file = self.unfinished(done)
        if file is not None and self.updates_of(file) > updates:
            raise ConflictError(
                f"it has {self.progress_of(file)} of an interrupted fit, and {updates:,} were "
                "asked for",
                where=self.partial,
                remedy=f"go on with it by --updates {self.updates_of(file)} or more, "
                + (START_ANEW if done is None else _DROP),
            )
        return file

    def is_replacement(self) -> bool:
        """Return whether this one was begun with ``overwrite`` and has yet to replace another."""
        try:
            if not self.out.exists() or self.unfinished() is None:
                return False
        except PbvfError:
            return False
        try:
            self.load(self.out)
        except ConflictError:
            return True  # which only a training with overwrite was let begin beside
        except PbvfError:
            pass
        return False

    def settle(self, done: F, note: Callable[[str], None] | None) -> None:
        """Remove what an interruption left beside the finished file, if it goes no further.

        A longer one stays, and so does what was begun of another training, or by a newer version.

        Args:
            done: The finished training.
            note: Told in a line of a longer one, and of one that this version cannot read.
        """
        try:
            file = self.unfinished()
        except ConflictError:
            return
        except PbvfError as error:
            note_staying(error, note)
            return
        if file is None or self.updates_of(file) <= self.updates_of(done):
            remove_file(self.partial)
        elif note is not None:
            note(
                f"note: {self.partial} has {self.progress_of(file)} of an interrupted fit and "
                f"stays; --updates {self.updates_of(file)} or more goes on with it"
            )

    def stored_seed(self) -> int | None:
        """Return the seed of the training that is there, unfinished or finished.

        One that differs from this one in nothing but its seed goes first.
        """
        found: list[int] = []
        for path in (self.partial, self.out):
            with contextlib.suppress(PbvfError):
                theirs, ours = self.compared(self.read(path))
                if type(seed := theirs.get("seed")) is not int:
                    continue
                if same_settings(theirs, ours | {"seed": seed}):
                    return seed
                found.append(seed)
        return found[-1] if found else None
