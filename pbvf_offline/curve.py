"""The curve of a fit or a synthesis: events that are reported while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

OnEvent = Callable[[str, int, Mapping[str, Any]], None]
"""Takes one event: its kind, the step on its axis, and JSON values by name."""


class Recorded(Protocol):
    """A fit that keeps the mean losses of stretches of updates in its file."""

    updates: int
    record: list[tuple[int, float]]
    pending: list[float]


class LossEvents:
    """Reports the losses that a fit has recorded, each once and from the first.

    The record is in the fit's file, so a fit that goes on, or is complete, reports the curve of
    an uninterrupted one.

    Args:
        on_event: What takes them, if anything does.
        kind: The kind of the events.
    """

    def __init__(self, on_event: OnEvent | None, kind: str = "fit") -> None:
        self._on_event, self._kind, self._reported = on_event, kind, 0

    def __call__(self, fit: Recorded, *, finished: bool = False) -> None:
        """Report what was recorded since the last call, and if ``finished`` the rest."""
        new = fit.record[self._reported :]
        self._reported = len(fit.record)
        if finished and fit.pending:
            new = [*new, (fit.updates, float(np.mean(fit.pending)))]
        if self._on_event is not None:
            for update, loss in new:
                self._on_event(self._kind, update, {"loss": loss})


def last_loss(fit: Recorded) -> float | None:
    """Return the mean loss of the last stretch that was recorded; None before the first update."""
    if fit.record:
        return fit.record[-1][1]
    return float(np.mean(fit.pending)) if fit.pending else None
