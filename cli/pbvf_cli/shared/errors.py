"""The one error boundary: every way a command can end, as one line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import typer

from pbvf_cli.shared.terminal.output import note_line, one_line, say
from pbvf_offline.errors import DamagedError, PbvfError

BUG = 1
RESOURCES = 6

_REFUSALS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.EFBIG,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
}
"""What the machine refuses; any other OSError that gets this far is a bug."""

_REPEAT_SECONDS = 1.0
_LONG_WORD = re.compile(r"(?<!\S)(\S{200})\S{100,}(\S{60})(?!\S)")
"""A word that hides the rest of a message; of a long path both ends are of use."""

_MEND = "; copy it or make it again"  # what to do about damage where nothing else is said


_WORDS = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "hung up"}


def stopping_signals() -> list[signal.Signals]:
    """Return the signals that stop a command: not SIGHUP where ``nohup`` has it ignored."""
    found = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
        found.append(hangup)
    return found


class Stopped(BaseException):
    """SIGINT, SIGTERM or SIGHUP arrived; unwinds through ``finally``, so that work is saved.

    Not an Exception: nothing that handles errors may take it for one.

    Attributes:
        exit_code: 128 and the signal's number.
        word: What happened, in a word or two.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number
        self.word = _WORDS.get(signal.Signals(number).name, "stopped")


class Signals:
    """Turns SIGINT, SIGTERM and SIGHUP into :class:`Stopped` while its ``with`` block runs.

    Attributes:
        continues: Whether the command that runs keeps what it has finished, so that the same
            command goes on from there; it says so.
        starts_anew: Whether it was given ``--overwrite``, without which it goes on.
    """

    def __init__(self) -> None:
        self.continues = self.starts_anew = False
        self._owner = 0
        self._first = -math.inf
        self._pending: int | None = None
        self._holding = False
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Signals:
        """Install the handlers; only a main thread can, elsewhere this does nothing."""
        self._owner, self._first, self._pending = os.getpid(), -math.inf, None
        with contextlib.suppress(ValueError):
            for number in stopping_signals():
                self._before[number] = signal.signal(number, self._arrive)
        return self

    def __exit__(self, *_: object) -> None:
        """Put the earlier handlers back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _arrive(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self._owner:
            # A fresh worker before it set its own handlers: the parent decides on Ctrl-C, and
            # when the terminal is gone.
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        now = time.monotonic()
        again = self._first > 0
        if now - self._first < _REPEAT_SECONDS:
            return  # a wrapper and the terminal both sent it; the first is being handled
        self._first = now
        if self._holding and not again:
            self._pending = number
            return
        raise Stopped(number)

    def check(self) -> None:
        """Stop here if a signal arrived while :meth:`held`.

        Raises:
            Stopped: One did.
        """
        if self._pending is not None:
            number, self._pending = self._pending, None
            raise Stopped(number)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold a first signal back until :meth:`check`, where stopping leaves things whole.

        A second signal stops at once.
        """
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        self.check()


signals = Signals()
"""The handlers of this process; :func:`guarded` installs them."""


def guarded(run: Callable[[], int | None], argv: Sequence[str]) -> int:
    """Run a command and return its exit code; errors become one line on stderr.

    Args:
        run: The command; returns an exit code, or None for 0.
        argv: Its arguments. ``--debug`` among them adds tracebacks.
    """
    debug = "--debug" in argv
    signals.continues = signals.starts_anew = False
    unraisable = sys.unraisablehook
    if not debug:
        # A renderer or file that failed half-way may fail again when it is swept up.
        sys.unraisablehook = lambda _: None
    try:
        return _ended(run, debug=debug)
    finally:
        sys.unraisablehook = unraisable


def _ended(run: Callable[[], int | None], *, debug: bool) -> int:
    try:
        with _warnings_as_lines(), signals:
            return run() or 0
    except BaseException as caught:
        error = _stopped_inside(caught) or caught
        text, code = text_and_code(error)
        if text is not None:
            if debug or code == BUG:
                say("".join(traceback.format_exception(error)).rstrip())
            stopped = isinstance(error, Stopped | KeyboardInterrupt | typer.Abort)
            line = _LONG_WORD.sub(r"\1…\2", one_line(text))
            note_line(line if stopped else f"error: {line}")
        return code


def _stopped_inside(error: BaseException) -> Stopped | None:
    """Return the signal that compiled code took for a failure of its own, if it did."""
    if not isinstance(error, SystemError):
        return None
    behind = error.__cause__ or error.__context__
    return behind if isinstance(behind, Stopped) else None


def text_and_code(error: BaseException) -> tuple[str | None, int]:
    """Return an error's line (None: nothing to say) and exit code. This is the error table."""
    if isinstance(error, PbvfError):
        usual = isinstance(error, DamagedError) and error.remedy is None
        return f"{error}{_MEND if usual else ''}", error.exit_code
    if isinstance(error, Stopped):
        return f"{error.word}; {_how_to_go_on()}", error.exit_code
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return f"interrupted; {_how_to_go_on()}", 130
    if isinstance(error, typer.TyperException):
        message = error.format_message().rstrip(".")
        # Without arguments the help was printed already, and there is nothing to add.
        return message + _help_hint(error) if message else None, error.exit_code
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else BUG
        left = isinstance(error.__context__, BrokenPipeError)  # a reader of the help
        return None, 0 if left else code
    return _of_machine(error)


def _how_to_go_on() -> str:
    if not signals.continues:
        return "the same command starts over"
    without = " without --overwrite" if signals.starts_anew else ""
    return f"what was finished is safe, the same command{without} continues"


def _of_machine(error: BaseException) -> tuple[str, int]:
    """Return the line and exit code of what the machine refuses, else of a bug."""
    from pbvf_offline.foreign import is_memory

    if is_memory(error):
        if type(error).__name__ == "OutOfMemoryError":  # torch's, which need not be loaded
            what = "the device has not enough memory; use --device cpu, or ask for less"
            return what, RESOURCES
        return "there is not enough memory; close other programs, or ask for less", RESOURCES
    if isinstance(error, OSError) and error.errno in _REFUSALS:
        from pbvf_offline.io.durable import read_error, resource_error

        named = isinstance(error.filename, str | bytes)  # it may be the number of an open file
        place = Path(os.fsdecode(error.filename)) if named else Path.cwd()
        refusal = (read_error if _is_closed(place) else resource_error)(error, place)
        return str(refusal), refusal.exit_code
    return f"this is a bug in pbvf: {type(error).__name__}: {error}", BUG


def _is_closed(path: Path) -> bool:
    """Return whether permissions keep a path from being read or looked at."""
    from pbvf_offline.io.durable import path_exists

    unread = path_exists(path) and not os.access(path, os.R_OK)
    return unread or not os.access(path.parent, os.X_OK)


def _help_hint(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    return "" if context is None else f"; see '{context.command_path} --help'"


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Show Python warnings as single lines, each once; filters that make errors stay in force."""
    said: set[str] = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: object = None,
        line: str | None = None,
    ) -> None:
        del category, filename, lineno, file, line
        text = one_line(str(message))
        if text not in said:  # a file may be opened twice
            said.add(text)
            note_line(f"warning: {text}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def finish_stdout() -> None:
    """Flush stdout; a reader that left early (``| head``) is no error."""
    try:
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):  # left early, or closed by someone else's code
        # Python flushes once more at exit, and would complain.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
