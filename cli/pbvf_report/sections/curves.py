"""Curves: of training runs, fits, rounds of imagination and ascents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pbvf_offline.errors import PbvfError
from pbvf_report.content import TOGETHER, Chart, Section, Series
from pbvf_report.sources import Source, numbers, place_of

_RETURN = "return (sum of rewards)"
_STEPS = "environment steps"
_LOSS = "mean loss since the point before"
_ROUNDS = {"mean": "imagined, mean", "cautious": "imagined, cautious"}


def section(sources: Sequence[Source]) -> Section:
    """Return the curves that the sources hold."""
    runs: dict[str, list[Series]] = {}
    losses: dict[str, list[Series]] = {"critic": [], "model": []}
    rounds: list[Series] = []
    ascents: list[Series] = []
    for at, source in enumerate(sources):
        place = place_of(source, sources)
        runs.setdefault(place, []).extend(_run(at, source, place))
        for kind, file in (("critic", source.critic), ("model", source.model)):
            if file is not None and file.fit.record:
                updates, loss = np.array(file.fit.record).T
                losses[kind].append(Series("loss", at, updates, loss, "line"))
        rounds += _rounds(at, source)
        ascents += _ascent(at, sources)
    over_seeds, notes = _over_seeds(sources)
    charts = [
        *over_seeds,
        *(
            Chart(f"Training runs{place}", _STEPS, _RETURN, some, unit="episode")
            for place, some in runs.items()
        ),
        *(
            Chart(f"Fit of the {kind}", "updates", _LOSS, some, log=_over_decades(some))
            for kind, some in losses.items()
        ),
        Chart("Rounds of imagination", "round", "mean return of policies that climbed", rounds),
        Chart("Ascents", "gradient steps", "mean return", ascents),
    ]
    return Section(
        "Curves",
        "Bands go from the lowest to the highest: of the episodes of an evaluation, or of the "
        "policies of an ascent. Only that of a line over several seeds is its 95 % bootstrap "
        "interval, from five seeds on.",
        [chart for chart in charts if chart.series],
        notes=notes,
    )


def _over_decades(series: Sequence[Series]) -> bool:
    """Return whether all values are positive, and range over more than a decade."""
    values = np.concatenate([one.y for one in series]) if series else np.zeros(0)
    return bool(values.size and values.min() > 0 and values.max() > 10 * values.min())


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


def _over_seeds(sources: Sequence[Source]) -> tuple[list[Chart], list[str]]:
    """Return a chart for each environment with runs that differ in nothing but the seed."""
    from pbvf_runs.compare.panels import panels

    curves = [s.curve for s in sources if s.curve is not None and len(s.curve.steps)]
    try:
        found = panels(curves, "return", "iqm")
    except PbvfError:  # whose message names folders
        return [], [
            "No line over several seeds is shown: runs with equal settings were not evaluated "
            "after the same steps, or one is given twice."
        ]
    charts = []
    for panel in found:
        several = [group for group in panel.groups if len(group.curves) > 1]
        series = []
        for group in several:
            name = f"{group.label} ({len(group.curves)} seeds)".strip()
            value, low, high = group.estimate.value, group.estimate.low, group.estimate.high
            if low is None or high is None:
                series.append(Series(name, TOGETHER, group.steps, value, "line"))
            else:
                more = {"low": low, "high": high}
                series.append(Series(name, TOGETHER, group.steps, value, "band", more=more))
        if series:
            title = f"Learned policies in {panel.title}: interquartile mean over seeds"
            charts.append(
                Chart(title, _STEPS, "mean return of an evaluation (sum of rewards)", series)
            )
    return charts, []


def _run(at: int, source: Source, place: str) -> list[Series]:
    if source.progress is None:
        return []
    series = []
    if source.progress.training_returns:
        steps, returns = np.array(source.progress.training_returns).T
        rows = np.arange(len(steps))
        series.append(Series("training, perturbed", at, steps, returns, value=returns,
                             quantity=f"return of an episode{place} (sum of rewards)",
                             index=rows))  # fmt: skip
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
    # Not the unit of the file, which may hold the default recipe's critic.
    gamma = imagined.settings.gamma
    values = "undiscounted" if gamma == 1.0 else f"discounted by {gamma:g}"
    names = {"believed": f"predicted (cautious imagined return, {values})", **_ROUNDS}
    return [
        Series(words, at, numbered, np.array([getattr(r, name) for r in some]), "line")
        for name, words in names.items()
    ]


def _ascent(at: int, sources: Sequence[Source]) -> list[Series]:
    """Return what a policies file says was measured along the way, where it has that form."""
    source = sources[at]
    curve = source.result.get("curve")
    origin = {} if source.policies is None else source.policies.origin
    units = [s.critic.unit for s in sources
             if s.critic is not None and s.digests[0] == origin.get("critic")]  # fmt: skip
    predicted = f"predicted ({units[0] if units else 'in the unit of its critic'})"
    points = [p for p in curve if isinstance(p, dict)] if isinstance(curve, list) else []
    series = []
    for name, words in (("returns", "measured"), ("predicted", predicted)):
        known = [(step, v) for p in points if (step := _step(p)) is not None
                 and (v := numbers(p.get(name))) is not None]  # fmt: skip
        if known:
            series.append(_band(words, at, *zip(*known, strict=True)))
    return series


def _step(point: Mapping[str, Any]) -> float | None:
    found = numbers([point.get("step")])
    return None if found is None else float(found[0])
