"""What held-out episodes say of learned environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pbvf_offline.models.check import CHECK_STEPS
from pbvf_report.content import Chart, Guide, Section, Series, Table
from pbvf_report.sources import Source

if TYPE_CHECKING:
    from pbvf_offline.models.check import HorizonCheck

_TEXT = (
    "Held-out pieces of episodes were rolled out in each learned environment, and sums of "
    "predicted rewards compared with the stored ones. Actions were chosen by the policy that had "
    "acted, unless a note says otherwise. Slope: of stored sums regressed on predicted ones. "
    "Error: mean absolute error of the sums; spread: standard deviation of the stored sums. In "
    "interval: share of stored sums inside the networks' own 90 % interval; calibrated: inside one "
    "as wide as the errors on other pieces ask for."
)
_MEASURES: tuple[tuple[str, Callable[[HorizonCheck], float | None], tuple[Guide, ...]], ...] = (
    ("correlation", lambda h: h.correlation, (Guide("y", "at least", 0.7),)),
    ("slope", lambda h: h.slope, (Guide("y", "at least", 0.5), Guide("y", "at most", 2.0))),
    ("error (in spreads)", lambda h: h.relative_error, (Guide("y", "at most", 0.75),)),
    ("in interval (share)", lambda h: h.coverage, (Guide("y", "aimed at", 0.9),)),
)
_HEADER = (
    "model",
    "after steps",
    "last so long",
    "error",
    "spread",
    *(title for title, _, _ in _MEASURES),
    "calibrated (share)",
    "missed",
)


def section(sources: Sequence[Source]) -> Section:
    """Return a chart for each number of the check, and a table."""
    checks = [(at, s, s.model.check) for at, s in enumerate(sources) if s.model is not None]
    charts, rows, notes = [], [], []
    for title, measure, guides in _MEASURES:
        series = []
        for at, _, check in checks:
            horizons = () if check is None else check.horizons
            known = [(h.steps, value) for h in horizons if (value := measure(h)) is not None]
            if known:
                steps, values = map(np.array, zip(*known, strict=True))
                places = np.searchsorted(CHECK_STEPS, steps)
                series.append(Series("check", at, places, values, "line", more={"steps": steps}))
        if series:
            ticks = [f"{steps} steps" for steps in CHECK_STEPS]
            name = title.split(" (")[0]
            charts.append(
                Chart(f"{name.capitalize()} by horizon", "horizon", title, series,
                      guides=guides, ticks=ticks)
            )  # fmt: skip
    for _, source, check in checks:
        if check is None:
            notes.append(f"{source.name} is not finished, so it was not checked.")
            continue
        if check.replayed:
            notes.append(
                f"{source.name}: stored actions were replayed, since its data name no policies."
            )
        notes.append(f"{source.name} is fit for: {', '.join(check.fit_for) or 'nothing'}.")
        if check.unseen is not None:
            notes.append(f"Not checked of {source.name}: {check.unseen}.")
        if check.held_words is not None:
            notes.append(f"Intervals of {source.name} hold {check.held_words}.")
        rows += [_row(source.name, horizon) for horizon in check.horizons]
    tables = [Table("Check", _HEADER, rows)] if rows else []
    return Section("Learned environments", _TEXT, charts, tables, notes=notes)


def _row(name: str, horizon: HorizonCheck) -> list[str]:
    """Return the cells of :data:`_HEADER`."""
    reached = "?" if horizon.reached is None else horizon.reached
    measured = [horizon.error, horizon.spread, *(measure(horizon) for _, measure, _ in _MEASURES)]
    return [
        name,
        f"{horizon.steps}",
        f"{reached} of {horizon.pieces}",
        *(_text(value) for value in (*measured, horizon.calibrated)),
        ", ".join(horizon.missed) or "nothing",
    ]


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
