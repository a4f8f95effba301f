"""Learning curves of training runs and fits: read from their folders, grouped by settings.

Runs with equal settings but for the seed are one group, and one line of a figure. Each environment
has a panel of its own, since returns of different environments have no common scale.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import DamagedError, IncompatibleError, UsageError, shorten
from pbvf_offline.io.reading import MAX_SMALL, read_file
from pbvf_offline.io.strict_json import canonical_json, parse_json
from pbvf_runs.compare.statistics import STATISTICS, Estimate, estimate
from pbvf_runs.data import is_run, run_config, run_progress, runs_in
from pbvf_runs.loggers import METRICS_FILE, SETTINGS
from pbvf_runs.records import Evaluation, StoredConfig

_EPISODES: Final = 10  # of the perturbed policies, over which a point is the mean
_POINTS: Final = 100  # of a line through them
_NO_SETTINGS: Final = {"kind", "step", "seed", "out", "log-dir", "logger", "device", "threads"}
"""What the first event of a fit's curve holds beside the settings that decide the curve."""


@dataclass(frozen=True)
class Metric:
    """What a curve shows.

    Attributes:
        label: What it is, for the vertical axis.
        axis: What its steps are, for the horizontal one.
        event: Kind and value of the events of a fit; None: it is of training runs.
    """

    label: str
    axis: str
    event: tuple[str, str] | None = None


_STEPS: Final = "environment steps"
METRICS: Final = {
    "return": Metric("undiscounted return", _STEPS),
    "return-without-survival": Metric("undiscounted return without survival bonus", _STEPS),
    "perturbed-return": Metric(f"return of perturbed policies (last {_EPISODES})", _STEPS),
    "loss": Metric("loss", "updates", ("fit", "loss")),
    "cautious": Metric("cautious imagined return", "round", ("round", "cautious")),
    "objective": Metric("mean objective", "gradient steps", ("ascent", "objective")),
    "grown-return": Metric(
        "mean undiscounted return", "gradient steps", ("evaluation", "mean_return")
    ),
}
"""By the names of ``--metric``."""


@dataclass(frozen=True)
class Curve:
    """One run or fit.

    Attributes:
        folder: Its folder.
        place: The environment with what is set of it; of a fit its command.
        settings: What decides it apart from place and seed, by the names of options.
        seed: Its seed.
        steps: (E,) increasing.
        values: (E,).
        reached: How many steps it has.
        finished: Whether it is; of a fit this is not known, and True.
    """

    folder: Path
    place: str
    settings: Mapping[str, Any]
    seed: int
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    reached: int
    finished: bool = True


@dataclass(frozen=True)
class Group:
    """Curves that differ in nothing but the seed, over the steps that all of them have.

    Attributes:
        label: What tells it from the other groups of its panel; "" where there is no other.
        differs: All settings in which these differ, with its values.
        settings: All settings.
        curves: By their seeds; n of them.
        steps: (P,) steps.
        values: (n, P) values of each curve there.
        estimate: The statistic over the curves at each step.
    """

    label: str
    differs: Mapping[str, Any]
    settings: Mapping[str, Any]
    curves: tuple[Curve, ...]
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    estimate: Estimate


@dataclass(frozen=True)
class Panel:
    """The groups of one environment, or of one command that fits."""

    title: str
    groups: tuple[Group, ...]


def curve_folders(paths: Iterable[Path]) -> list[Path]:
    """Return the folders of runs and fits that paths name, each once and in order.

    A path is such a folder, a folder of several, or a ``metrics.jsonl``.

    Raises:
        UsageError: There is none at a path.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        folder = path.parent if path.name == METRICS_FILE and path.is_file() else path
        if not folder.is_dir():
            what = "is a file" if folder.exists() else "does not exist"
            raise UsageError(what, where=path, remedy="name the folder of a run or of --log-dir")
        inside = [folder]
        if not _has_curve(folder):
            inside = runs_in(folder) or sorted(filter(_has_curve, folder.iterdir()))
        if not inside:
            raise UsageError(
                "holds neither a training run nor the curve of a fit",
                where=path,
                remedy="name the folder of a run or of --log-dir",
            )
        for each in inside:
            found.setdefault(each.resolve(), each)
    return list(found.values())


def _has_curve(folder: Path) -> bool:
    return is_run(folder) or (folder / METRICS_FILE).is_file()


def natural_metric(folder: Path) -> str:
    """Return the metric that the folder of a run or fit has first of all.

    Raises:
        DamagedError: Its events are malformed.
        IncompatibleError: It has none.
    """
    if is_run(folder):
        return "return"
    kinds = {event["kind"] for event in _events(folder)}
    for name, metric in METRICS.items():
        if metric.event is not None and metric.event[0] in kinds:
            return name
    raise IncompatibleError("holds no events that could be drawn", where=folder)


def read_curve(folder: Path, metric: str) -> Curve:
    """Read one curve; it has no points where nothing was measured yet.

    Raises:
        DamagedError: A file is missing or malformed.
        IncompatibleError: The run or fit has no such metric, or a newer version made it.
    """
    event = METRICS[metric].event
    if is_run(folder) and event is None:
        return _of_run(folder, metric)
    if not is_run(folder) and event is not None:
        return _of_fit(folder, event)
    what, other = ("a training run", "return") if event else ("the curve of a fit", "loss")
    raise IncompatibleError(
        f"is {what}, which has no {metric}", where=folder, remedy=f"try --metric {other}"
    )


def _of_run(folder: Path, metric: str) -> Curve:
    config, progress = run_config(folder), run_progress(folder)
    if metric == "perturbed-return":
        points = _trailing_means(progress.training_returns)
    else:
        without = metric == "return-without-survival"
        points = [(e.step, _mean_return(e, folder, without=without)) for e in progress.evaluations]
    reference = config.environment
    place = f"{reference.name}, {reference.arguments}" if reference.arguments else reference.name
    steps, values = _arrays(points)
    return Curve(
        folder,
        place,
        _run_settings(config),
        config.settings.seed,
        steps,
        values,
        progress.steps,
        progress.finished,
    )


def _run_settings(config: StoredConfig) -> dict[str, Any]:
    """Return what decides a run apart from environment and seed, what matters most first."""
    settings = config.settings.to_dict()
    del settings["seed"]
    return {
        "critic": settings.pop("kind"),
        "policy": config.spec.arch,
        "stochastic": config.spec.stochastic,
        "squash": config.spec.squash,
        "base": config.base,
        **{name.replace("_", "-"): value for name, value in settings.items()},
        "evaluations": config.evaluations,
        "evaluation-episodes": config.evaluation_episodes,
    }


def _mean_return(evaluation: Evaluation, folder: Path, *, without: bool) -> float:
    returns = evaluation.returns_without_survival if without else evaluation.returns
    if returns is None:
        raise IncompatibleError(
            "its environment pays no survival bonus", where=folder, remedy="use --metric return"
        )
    return float(np.mean(returns))


def _trailing_means(returns: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return at the end of each episode the mean return of the last ones."""
    totals = [total for _, total in returns]
    return [
        (step, float(np.mean(totals[max(0, k + 1 - _EPISODES) : k + 1])))
        for k, (step, _) in enumerate(returns)
    ]


def _of_fit(folder: Path, event: tuple[str, str]) -> Curve:
    kind, name = event
    events = _events(folder)
    where = folder / METRICS_FILE
    first = events[0] if events else {}
    if first.get("kind") != SETTINGS or type(first.get("seed")) is not int:
        raise DamagedError("does not begin with the settings of a fit", where=where)
    points = []
    for line in events:
        value = line.get(name)
        if line["kind"] == kind and value is not None:
            if type(value) not in (int, float):
                raise DamagedError(f"{name} is {shorten(value, 40)}, no number", where=where)
            points.append((line["step"], float(value)))
    if not points and any(line["kind"] != SETTINGS for line in events):
        raise IncompatibleError(f"has no events with a {name}", where=folder)
    steps, values = _arrays(points)
    settings = {key: value for key, value in first.items() if key not in _NO_SETTINGS}
    place = str(settings.pop("command", "fit"))
    reached = int(steps[-1]) if len(steps) else 0
    return Curve(folder, place, settings, first["seed"], steps, values, reached)


def _events(folder: Path) -> list[dict[str, Any]]:
    """Return the events of ``metrics.jsonl``; a last line that is still being written is none."""
    path = folder / METRICS_FILE
    lines = read_file(path, MAX_SMALL).split(b"\n")[:-1]
    events = []
    for number, line in enumerate(lines, start=1):
        where = f"{path} line {number}"
        event = parse_json(line, where)
        known = isinstance(event, dict) and isinstance(event.get("kind"), str)
        if not known or type(event.get("step")) is not int:
            raise DamagedError("is no event with a kind and a step", where=where)
        events.append(event)
    return events


def _arrays(
    points: Sequence[tuple[int, float]],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return steps and values, of points with one step the last alone."""
    last = dict(sorted(points, key=lambda point: point[0]))
    return np.array(list(last), np.int64), np.array(list(last.values()), np.float64)


def panels(curves: Sequence[Curve], metric: str, statistic: str) -> list[Panel]:
    """Put curves that have points into groups, and these into panels, as they first appear.

    Args:
        curves: Curves of one metric.
        metric: A name of :data:`METRICS`.
        statistic: A name of :data:`pbvf_runs.compare.statistics.STATISTICS`.

    Raises:
        UsageError: The same seed is in a group twice, which would make it look surer than it is.
        IncompatibleError: Curves of one group have no step in common.
    """
    places: dict[str, dict[bytes, list[Curve]]] = {}
    for curve in curves:
        groups = places.setdefault(curve.place, {})
        groups.setdefault(_key(curve.settings, sorted(curve.settings)), []).append(curve)
    return [
        Panel(place, _groups(list(groups.values()), metric, statistic))
        for place, groups in places.items()
    ]


def _groups(groups: Sequence[list[Curve]], metric: str, statistic: str) -> tuple[Group, ...]:
    settings = [curves[0].settings for curves in groups]
    differing = [
        name
        for name in dict.fromkeys(name for each in settings for name in each)
        if len({_key(each, [name]) for each in settings}) > 1
    ]
    chosen = _telling(settings, differing)
    function = STATISTICS[statistic][1]
    found = []
    for each, curves in zip(settings, groups, strict=True):
        ordered = tuple(sorted(curves, key=lambda curve: curve.seed))
        _refuse_twins(ordered)
        steps, values = _common(ordered, metric)
        found.append(
            Group(
                ", ".join(_words(name, each.get(name)) for name in chosen),
                {name: each.get(name) for name in differing},
                each,
                ordered,
                steps,
                values,
                estimate(function, values),
            )
        )
    return tuple(found)


def _telling(settings: Sequence[Mapping[str, Any]], differing: Sequence[str]) -> list[str]:
    """Return the first few settings that tell all groups apart."""
    chosen: list[str] = []
    told = 1
    for name in differing:
        with_it = len({_key(each, [*chosen, name]) for each in settings})
        if with_it > told:
            chosen, told = [*chosen, name], with_it
    return chosen


def _key(settings: Mapping[str, Any], names: Sequence[str]) -> bytes:
    """Return what is equal where settings are; a missing one is one that is None."""
    return canonical_json({n: settings[n] for n in names if settings.get(n) is not None})


def _words(name: str, value: Any) -> str:
    """Return a setting for a label; a critic's name says itself what it is."""
    if isinstance(value, bool):
        return name if value else f"not {name}"
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    text = "-" if value is None else shorten(value, 30)
    return text if name == "critic" else f"{name} {text}"


def _refuse_twins(curves: Sequence[Curve]) -> None:
    for one, other in itertools.pairwise(curves):
        if one.seed == other.seed:
            raise UsageError(
                f"is the run of {one.folder} again: settings and seed {one.seed} are the same",
                where=other.folder,
                remedy="leave one of them out",
            )


def _common(curves: Sequence[Curve], metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the steps (P,) that all curves of a group have, and their values (n, P) there."""
    if metric == "perturbed-return":  # episodes end at other steps in each
        until = min(curve.reached for curve in curves)
        begin = max(int(curve.steps[0]) for curve in curves)
        steps = np.unique(until * np.arange(1, _POINTS + 1) // _POINTS)
        steps = steps[steps >= begin]
    else:
        all_steps: Callable[[Any, Any], Any] = np.intersect1d
        steps = functools.reduce(all_steps, (curve.steps for curve in curves))
    if not len(steps):
        raise IncompatibleError(
            f"has no step in common with {curves[0].folder}, where both were measured",
            where=curves[-1].folder,
            remedy="draw them apart",
        )
    rows = [c.values[np.searchsorted(c.steps, steps, side="right") - 1] for c in curves]
    return steps, np.stack(rows)
