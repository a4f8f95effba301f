"""Curves: of training runs, fits, rounds of imagination and ascents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pbvf_report.content import Chart, Section, Series
from pbvf_report.sources import Source, numbers

_RETURN = "return (sum of rewards)"
_LOSS = "mean loss since the point before"
_ROUNDS = {"believed": "the critic's", "mean": "imagined, mean", "cautious": "imagined, cautious"}


def section(sources: Sequence[Source]) -> Section:
    """Return the curves that the sources hold."""
    runs: list[Series] = []
    losses: dict[str, list[Series]] = {"critic": [], "model": []}
    rounds: list[Series] = []
    ascents: list[Series] = []
    for at, source in enumerate(sources):
        runs += _run(at, source)
        for kind, file in (("critic", source.critic), ("model", source.model)):
            if file is not None and file.fit.record:
                updates, loss = np.array(file.fit.record).T
                losses[kind].append(Series("loss", at, updates, loss, "line"))
        rounds += _rounds(at, source)
        ascents += _ascent(at, source)
    charts = [
        Chart("Training runs", "environment steps", _RETURN, runs, unit="episode"),
        *(
            Chart(f"Fit of the {kind}", "updates", _LOSS, some, log=_positive(some))
            for kind, some in losses.items()
        ),
        Chart("Rounds of imagination", "round", _RETURN, rounds),
        Chart("Ascents", "gradient steps", "return (predicted: the critic's unit)", ascents),
    ]
    return Section(
        "Curves",
        "Bands go from the lowest to the highest: of the episodes of an evaluation, or of the "
        "policies of an ascent.",
        [chart for chart in charts if chart.series],
    )


def _positive(series: Sequence[Series]) -> bool:
    return all(bool((one.y > 0).all()) for one in series)


def _band(name: str, at: int, steps: Sequence[float], values: Sequence[Any]) -> Series:
    """Return the mean of each (n,) list of values, and from its lowest to its highest."""
    return Series(
        name,
        at,
        np.array(steps),
        np.array([np.mean(some) for some in values]),
        "band",
        more={
            "low": np.array([np.min(some) for some in values]),
            "high": np.array([np.max(some) for some in values]),
        },
    )


def _run(at: int, source: Source) -> list[Series]:
    if source.progress is None:
        return []
    series = []
    if source.progress.training_returns:
        steps, returns = np.array(source.progress.training_returns).T
        rows = np.arange(len(steps))
        series.append(Series("training, perturbed", at, steps, returns, value=returns, index=rows))
    if evaluations := source.progress.evaluations:
        series.append(
            _band(
                "learned policy",
                at,
                [e.step for e in evaluations],
                [e.returns for e in evaluations],
            )
        )
    return series


def _rounds(at: int, source: Source) -> list[Series]:
    imagined = None if source.critic is None else source.critic.imagined
    if imagined is None:
        return []
    some = [r for r in imagined.rounds if r.attempt == imagined.kept.attempt]
    numbered = np.array([r.number for r in some])
    return [
        Series(words, at, numbered, np.array([getattr(r, name) for r in some]), "line")
        for name, words in _ROUNDS.items()
    ]


def _ascent(at: int, source: Source) -> list[Series]:
    """Return what a policies file says was measured along the way, where it has that form."""
    curve = source.result.get("curve")
    points = [p for p in curve if isinstance(p, dict)] if isinstance(curve, list) else []
    series = []
    for name, words in (("returns", "measured"), ("predicted", "predicted")):
        known = [(step, v) for p in points if (step := _step(p)) is not None
                 and (v := numbers(p.get(name))) is not None]  # fmt: skip
        if known:
            series.append(_band(words, at, *zip(*known, strict=True)))
    return series


def _step(point: Mapping[str, Any]) -> float | None:
    found = numbers([point.get("step")])
    return None if found is None else float(found[0])
