"""The one output sink: data to stdout, everything else to stderr."""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from pbvf_cli.shared.terminal import layout
from pbvf_offline.errors import ResourceError

if TYPE_CHECKING:
    from rich.console import Console

    from pbvf_cli.shared.settings import Setting
    from pbvf_runs.compare.statistics import Estimate

_PREFIXES = ("B", "kB", "MB", "GB", "TB")
_live: list[Console] = []  # of the progress bar on screen, which redraws below what it prints


def one_line(text: str) -> str:
    """Return text on one line without control characters, which a file could smuggle in."""
    joined = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in joined)


def say(text: str) -> None:
    """Write lines to stderr; a stderr that is gone stops no work."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def note_line(text: str) -> None:
    """Write one line to stderr, above a progress bar if one is on screen.

    On a terminal it is folded between words.
    """
    if _live:
        with contextlib.suppress(OSError):
            _live[-1].print(folded(text), markup=False, highlight=False, soft_wrap=True)
    else:
        say(folded(text))


def folded(text: str) -> str:
    """Return a line for stderr, folded between words where that is a terminal."""
    width = layout.terminal_width(sys.stderr) if is_terminal(sys.stderr) else None
    return "\n".join(layout.wrap(text, width))


def take_live(console: Console) -> None:
    """From now on lines go through the console of a progress bar."""
    _live.append(console)


def drop_live(console: Console) -> None:
    """The progress bar of a console is gone."""
    with contextlib.suppress(ValueError):
        _live.remove(console)


def plain(value: Any) -> Any:
    """Return a value as JSON holds it: no numpy, no NaN (null in its place), paths as text.

    >>> plain({"a": (1.5, float("nan"))})
    {'a': [1.5, None]}
    """
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, Path):
        return os.fspath(value)
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "tolist"):  # numpy arrays and scalars
        return plain(value.tolist())
    if isinstance(value, Iterable):
        return [plain(v) for v in value]
    raise TypeError(f"{type(value).__name__} has no JSON form")


def as_payload(result: object, *left_out: str) -> dict[str, Any]:
    """Return the fields of a result as keys of ``--json``, without those left out."""
    return {name: value for name, value in vars(result).items() if name not in left_out}


def number(value: float | None, digits: int = 6) -> str:
    """Return a number for people; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}"


def estimate_text(found: Estimate) -> str:
    """Return a statistic with its 95 % interval, where it has one, for people."""
    value = number(float(found.value))
    if found.low is None or found.high is None:
        return value
    return f"{value} (95 %: {number(float(found.low))} to {number(float(found.high))})"


def size_text(size: int) -> str:
    """Return a number of bytes for people.

    >>> size_text(999), size_text(12_345_678)
    ('999 B', '12.3 MB')
    """
    value, prefix = float(size), 0
    while value >= 999.95 and prefix < len(_PREFIXES) - 1:
        value, prefix = value / 1000, prefix + 1
    return f"{size} B" if prefix == 0 else f"{value:.1f} {_PREFIXES[prefix]}"


def pairs(values: Mapping[str, Any]) -> str:
    """Return names and values in one line for people; those that are None are left out."""
    return ", ".join(
        f"{key} {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in sorted(values.items())
        if value is not None
    )


NO_RETURN: Final[Mapping[str, None]] = {"mean": None, "min": None, "max": None}


def return_range(returns: Mapping[str, float] | None) -> str:
    """Return mean, min and max return of episodes for people; None: there was no whole one."""
    if returns is None:
        return "no whole episode"
    mean, low, high = (number(float(returns[name])) for name in ("mean", "min", "max"))
    return f"mean {mean}, {low} to {high}"


def time_taken(
    seconds: float,
    rate: float | None,
    unit: str,
    of_seconds: float | None = None,
    *,
    done: tuple[int, int] | None = None,
) -> str:
    """Return how long work took and how fast it was, for people.

    Args:
        seconds: The time that this command took.
        rate: Units a second; None where there was nothing to do.
        unit: What was counted.
        of_seconds: The part of the time that the rate is of; None: all of it.
        done: Units done by this command, and those that there are with what an earlier one did;
            None: all were done now.

    >>> time_taken(2.0, 5.0, "updates", done=(10, 100))
    '2.0 s for the last 10 of 100 updates (5 updates/s)'
    """
    if rate is None:
        return "nothing to do"
    speed = f"{rate:,.0f}" if rate >= 1_000 else f"{rate:.4g}"
    part = "" if of_seconds is None else f" in {of_seconds:.1f} s of it"
    which = ""
    if done is not None and done[0] < done[1]:
        which = f" for the last {done[0]:,} of {done[1]:,} {unit}"
    return f"{seconds:.1f} s{which} ({speed} {unit}/s{part})"


@dataclass(frozen=True)
class Shown:
    """What a command prints on stdout.

    Attributes:
        payload: What ``--json`` prints.
        rows: The same for people, name and value.
        table: A second table, header and rows.
    """

    payload: Mapping[str, Any]
    rows: Sequence[tuple[str, str]]
    table: tuple[Sequence[str], Iterable[Sequence[str]]] | None = None


_claimed: list[TextIO] = []


def _claim_stdout() -> TextIO:
    """Return a stream for data alone; whatever else is printed from now on goes to stderr.

    An environment may print, in Python, in C or in a worker process; a script that reads our
    one JSON object must not find it there. Only the process's real stdout is claimed.
    """
    if _claimed:
        return _claimed[0]
    try:
        if sys.stdout.fileno() != 1:
            return sys.stdout
        sys.stdout.flush()
        data = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="backslashreplace")
        os.dup2(2, 1)
    except (OSError, ValueError, AttributeError):  # replaced or closed
        return sys.stdout
    _claimed.append(data)
    atexit.register(data.close)  # else the interpreter may complain that nobody did
    return data


class Sink:
    """The output of one command.

    Args:
        json_only: Print one JSON object instead of a table.
        quiet: No settings, notes or progress.
    """

    def __init__(self, *, json_only: bool, quiet: bool) -> None:
        self.json_only = json_only
        self.quiet = quiet
        self._held: str | None = None
        self._data = _claim_stdout()

    def note(self, text: str) -> None:
        """Print a note on stderr, after the settings."""
        if self.quiet:
            return
        if self._held is None:
            note_line(one_line(text))
        else:
            self._held += "\n" + folded(one_line(text))

    def settings(self, title: str, settings: Sequence[Setting]) -> None:
        """Show the settings, and where each comes from, when work begins."""
        if not self.quiet:
            rows = [(s.name, s.shown, s.source) for s in settings]
            self._held = _table(title, ("setting", "value", "from"), rows, sys.stderr)

    def begin(self) -> None:
        """Show the settings, unless they were shown; a command that fails at once stays brief."""
        if self._held is not None:
            say(self._held)
            self._held = None

    def result(
        self,
        payload: Mapping[str, Any],
        rows: Iterable[Sequence[str]],
        *,
        header: Sequence[str] | None = None,
        table: tuple[Sequence[str], Iterable[Sequence[str]]] | None = None,
        place: object = None,
    ) -> None:
        """Print the result of the command on stdout.

        Args:
            payload: What ``--json`` prints.
            rows: The same for people, name and value.
            header: Names of the columns of rows that are something else.
            table: A second table, header and rows.
            place: What was made; a note names it where it was complete before.

        Raises:
            ResourceError: stdout refuses it.
        """
        if place is not None and payload["already_complete"]:
            self.note(f"already complete: {place}")
        self.begin()
        if self.json_only:
            text = json.dumps(plain(payload), allow_nan=False)
        else:
            text = _table(None, header, rows, self._data)
            if table is not None:
                text += "\n\n" + _table(None, *table, self._data)
        try:
            self._data.write(text + "\n")
            self._data.flush()
        except OSError as error:
            if self._data in _claimed:  # Python tries once more at exit, and would complain
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._data.fileno())
            if not isinstance(error, BrokenPipeError):  # that reader has seen enough
                raise ResourceError(
                    f"cannot be written: {(error.strerror or str(error)).lower()}",
                    where="stdout",
                    remedy="what was made is in its place; send stdout elsewhere",
                ) from error


def _table(
    title: str | None,
    header: Sequence[str] | None,
    rows: Iterable[Sequence[str]],
    stream: TextIO,
) -> str:
    """Return a table for a stream: as wide as it needs to be where nobody looks."""
    cells = [tuple(_cell(cell) for cell in row) for row in rows]
    terminal = is_terminal(stream)
    top, lines = layout.table(header, cells, layout.terminal_width(stream) if terminal else None)
    if title is not None:
        top = [title, "", *top]
    if terminal and os.environ.get("TERM") not in (None, "", "dumb", "unknown"):
        top = [line if set(line) <= {" ", "─"} else f"\x1b[1m{line}\x1b[0m" for line in top]
    return "\n".join(line.rstrip() for line in [*top, *lines])


def _cell(text: str) -> str:
    line = one_line(text)
    return layout.CommandText(line) if isinstance(text, layout.CommandText) else line


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at a stream."""
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False
