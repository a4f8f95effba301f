"""The one output sink: data to stdout, everything else to stderr."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from pbvf_offline.errors import ResourceError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from pbvf_cli.shared.settings import Setting

_UNBOUNDED = 10_000
_WIDTH = 200  # columns where no terminal says how many; a path must not be folded
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
    """Write one line to stderr, above a progress bar if one is on screen."""
    if _live:
        with contextlib.suppress(OSError):
            _live[-1].print(text, markup=False, highlight=False, soft_wrap=True)
    else:
        say(text)


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


NO_RETURN: Final[Mapping[str, None]] = {"mean": None, "min": None, "max": None}


def return_range(returns: Mapping[str, float] | None) -> str:
    """Return mean, min and max return of episodes for people; None: there was no whole one."""
    if returns is None:
        return "no whole episode"
    return f"mean {number(returns['mean'])}, {number(returns['min'])} to {number(returns['max'])}"


def time_taken(seconds: float, rate: float | None, unit: str) -> str:
    """Return how long work took and how fast it was, for people."""
    return "nothing to do" if rate is None else f"{seconds:.1f} s ({rate:,.4g} {unit}/s)"


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
            self._held += "\n" + one_line(text)

    def settings(self, title: str, settings: Sequence[Setting]) -> None:
        """Show the settings, and where each comes from, when work begins."""
        if not self.quiet:
            rows = [(s.name, s.shown, s.source) for s in settings]
            self._held = _render(_table(title, ("setting", "value", "from"), rows), sys.stderr)

    def begin(self) -> None:
        """Show the settings, unless they were shown; a command that fails at once stays brief."""
        if self._held is not None:
            say(self._held)
            self._held = None

    def result(
        self,
        payload: Mapping[str, Any],
        rows: Iterable[tuple[str, str]],
        *,
        table: tuple[Sequence[str], Iterable[Sequence[str]]] | None = None,
        place: object = None,
    ) -> None:
        """Print the result of the command on stdout.

        Args:
            payload: What ``--json`` prints.
            rows: The same for people, name and value.
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
            text = _render(_table(None, None, rows), self._data)
            if table is not None:
                header, lines = table
                text += "\n" + _render(_table(None, header, lines), self._data)
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
    title: str | None, header: Sequence[str] | None, rows: Iterable[Sequence[str]]
) -> RenderableType:
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    rows = [tuple(one_line(cell) for cell in row) for row in rows]
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None if header is None else SIMPLE,
        show_header=header is not None,
        pad_edge=False,
    )
    for k in range(max((len(row) for row in rows), default=0)):
        table.add_column("" if header is None else header[k], overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: a name is no markup
    return table


def _render(renderable: RenderableType, stream: TextIO) -> str:
    """Return what rich makes of something, for a stream that may be no terminal."""
    from rich.console import Console

    terminal = is_terminal(stream)
    console = Console(
        file=io.StringIO(),
        force_terminal=terminal,
        width=None if terminal else _WIDTH,
        no_color=None if terminal else True,
    )
    if terminal:
        # A terminal breaks long lines itself, and gives back ids and digests in one piece.
        unbounded = console.options.update(max_width=_UNBOUNDED)
        console.width = max(console.width, console.measure(renderable, options=unbounded).maximum)
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at a stream."""
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False
