"""Learning curves of training runs and fits, read from their folders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.format.names import resolve_dataset
from pbvf_datasets.read.untrusted import is_dataset
from pbvf_offline.errors import DamagedError, IncompatibleError, UsageError, shorten
from pbvf_offline.io.reading import MAX_SMALL, read_file
from pbvf_offline.io.strict_json import parse_json
from pbvf_offline.io.tensor_file import what_it_is
from pbvf_runs.data import run_config, run_progress, runs_in
from pbvf_runs.folder import is_run
from pbvf_runs.loggers import METRICS_FILE, SETTINGS
from pbvf_runs.records import Evaluation, StoredConfig

_EPISODES: Final = 10  # of the perturbed policies, over which a point is the mean
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


def curve_folders(paths: Iterable[Path]) -> list[Path]:
    """Return the folders of runs and fits that paths name, each once and in order.

    A path is such a folder, a folder of several, or a ``metrics.jsonl``.

    Raises:
        UsageError: There is none at a path.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        folder = path.parent if path.name == METRICS_FILE and path.is_file() else path
        inside = [folder]
        if not _has_curve(folder):
            inside = runs_in(folder) if folder.is_dir() else []
            inside = inside or sorted(filter(_has_curve, folder.glob("*")))
        if not inside:
            raise UsageError(
                _without_curve(path), where=path, remedy="name the folder of a run or of --log-dir"
            )
        for each in inside:
            found.setdefault(each.resolve(), each)
    return list(found.values())


def _without_curve(path: Path) -> str:
    """Return what is at a path, or what its dataset's id names."""
    if path.exists() and not path.is_dir():
        return f"is {what_it_is(path)[0]}"
    try:
        folder = resolve_dataset(str(path))
    except UsageError:
        return "does not exist"
    if is_dataset(folder):
        return "is a dataset, which 'pbvf report' shows"
    return "holds neither a training run nor the curve of a fit"


def _has_curve(folder: Path) -> bool:
    return is_run(folder) or (folder / METRICS_FILE).is_file()


def natural_metric(folders: Sequence[Path]) -> str:
    """Return the first metric that all of the folders of runs and fits have.

    Raises:
        DamagedError: Their events are malformed.
        IncompatibleError: One has none, or they have none in common.
    """
    known = {folder: _metrics(folder) for folder in folders}
    for folder, names in known.items():
        if not names:
            raise IncompatibleError("holds no events that could be drawn", where=folder)
    first = folders[0]
    common = [name for name in known[first] if all(name in names for names in known.values())]
    if common:
        return common[0]
    other = next(folder for folder, names in known.items() if known[first][0] not in names)
    raise IncompatibleError(
        f"has {', '.join(known[other])}, and {first} has {', '.join(known[first])}",
        where=other,
        remedy="draw them apart: a figure shows one of these",
    )


def _metrics(folder: Path) -> list[str]:
    """Return the metrics that the folder of a run or fit has."""
    if is_run(folder):
        return [name for name, metric in METRICS.items() if metric.event is None]
    events = _events(folder)
    return [
        name
        for name, metric in METRICS.items()
        if metric.event is not None
        and any(e["kind"] == metric.event[0] and metric.event[1] in e for e in events)
    ]


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
        return _of_fit(folder, metric, event)
    raise _lacks(folder, metric)


def _lacks(folder: Path, metric: str) -> IncompatibleError:
    what = "a training run" if is_run(folder) else "the curve of a fit"
    known = _metrics(folder)
    remedy = f"it has {', '.join(known)}" if known else "let it go on, and try again"
    return IncompatibleError(f"is {what}, which has no {metric}", where=folder, remedy=remedy)


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


def _of_fit(folder: Path, metric: str, event: tuple[str, str]) -> Curve:
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
        raise _lacks(folder, metric)
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
