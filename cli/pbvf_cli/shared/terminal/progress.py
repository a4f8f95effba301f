"""Progress of long work: a bar with rate and time left, or plain lines now and then."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final

from pbvf_cli.shared.terminal import layout, output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from pbvf_cli.shared.terminal.output import Sink

COMPARING: Final = {
    "climb-imagined": ("comparing, climbing the imagined critic", "steps"),
    "judge-imagined": ("comparing, imagining its policies", "policies"),
    "fit": ("comparing, fitting the default recipe", "updates"),
    "climb-recipe": ("comparing, climbing the default recipe's critic", "steps"),
    "judge-recipe": ("comparing, imagining its policies", "policies"),
}
"""What the stages of the comparison of two critics are called, with their units."""
_LINE_SECONDS = 5.0
_DRAW_SECONDS = 0.2


class Bar:
    """Shows how far one piece of work is; a context manager.

    No thread redraws it, because worker processes are forked only while there is a
    single thread: it redraws at each call of :meth:`update`.

    Args:
        what: What is being done, such as ``collecting``.
        unit: What is counted, such as ``steps``.
        sink: The command's output.
        clock: Seconds, for tests.
        at_once: Whether the first call shows something, however soon it comes.
    """

    def __init__(
        self,
        what: str,
        unit: str,
        *,
        sink: Sink,
        clock: Callable[[], float] = time.monotonic,
        at_once: bool = False,
    ) -> None:
        self._what, self._unit, self._sink, self._clock = what, unit, sink, clock
        self._start: tuple[float, int] | None = None
        self._shown = -math.inf if at_once else clock()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bar from the screen."""
        if self._bar is not None:
            output.drop_live(self._bar.console)
            with contextlib.suppress(OSError):  # the terminal is gone
                self._bar.stop()
            self._bar = None

    def update(self, done: int, total: int | None, detail: str = "") -> None:
        """Show how much is done.

        Args:
            done: Units done, earlier runs included.
            total: Units in all, or None when unknown.
            detail: More to show, such as the loss.
        """
        self._sink.begin()
        if self._sink.quiet:
            return
        now = self._clock()
        if self._start is None:
            # Rates count from here on: what an earlier run did took no time of this one.
            self._start = (now, done)
        terminal = output.is_terminal(sys.stderr)
        due = now - self._shown >= (_DRAW_SECONDS if terminal else _LINE_SECONDS)
        if not due and not (terminal and done == total):
            return
        self._shown = now
        text = self._text(now, done, total, detail)
        if terminal:
            with contextlib.suppress(OSError):  # a terminal that is gone stops no work
                self._draw(text, done, total)
        else:
            output.say(f"{self._what}: {text}")

    def _text(self, now: float, done: int, total: int | None, detail: str) -> str:
        started, first = self._start or (now, done)
        rate = (done - first) / (now - started) if now > started else 0.0
        parts = [f"{done:,} {self._unit}" if total is None else f"{done:,}/{total:,} {self._unit}"]
        if rate > 0:
            parts.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s")
            if total is not None:
                parts.append(f"{duration((total - done) / rate)} left")
        return ", ".join([*parts, detail] if detail else parts)

    def _draw(self, text: str, done: int, total: int | None) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            console: Console = Console(file=sys.stderr, width=layout.terminal_width(sys.stderr))
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[text]}", markup=False),
                console=console,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._task = self._bar.add_task(self._what, total=total, text=text)
            self._bar.start()
            output.take_live(console)
        if self._task is not None:
            self._bar.update(self._task, completed=done, total=total, text=text)
            self._bar.refresh()


class Stages:
    """Shows how far one stage of work after the other is, each from its start; a context manager.

    Args:
        names: What each stage does and what is counted, by its name.
        sink: The command's output.
    """

    def __init__(self, names: Mapping[str, tuple[str, str]], sink: Sink) -> None:
        self._names, self._sink = names, sink
        self._stage = ""
        self._bar: Bar | None = None

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, stage: str, done: int, total: int | None, detail: str = "") -> None:
        """Show how much of a stage is done, and more, such as which trial it is."""
        if stage != self._stage or self._bar is None:
            self.__exit__()
            self._stage = stage
            self._bar = Bar(*self._names[stage], sink=self._sink, at_once=True)
        self._bar.update(done, total, detail)


def duration(seconds: float) -> str:
    """Return a time span for people.

    >>> duration(42.4), duration(200), duration(7300)
    ('42 s', '3 min 20 s', '2 h 1 min')
    """
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
