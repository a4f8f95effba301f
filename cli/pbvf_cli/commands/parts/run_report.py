"""Results of online training: tables for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbvf_cli.shared.terminal.output import Sink, number
from pbvf_offline.errors import counted
from pbvf_runs.records import AVERAGES

if TYPE_CHECKING:
    from pbvf_runs.compare.statistics import Interval
    from pbvf_runs.records import Evaluation, RunConfig, RunResult

_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # of a run, for the table that people read
_RETURNS = {"perturbed_return": "return of the perturbed policies", **AVERAGES}


def _payload(result: RunResult, source: str) -> dict[str, Any]:
    """Return the result of one run, as ``--json`` prints it."""
    from pbvf_runs.records import average_returns, snapshot_files

    config = result.config
    averages = average_returns(result.evaluations, result.steps)
    if all(e.returns_without_survival is None for e in result.evaluations):
        averages |= dict.fromkeys((name for name in averages if name.endswith("_survival")), None)
    trained = [total for _, total in result.training_returns]
    steps = [int(path.stem.rpartition("-")[2]) for path in result.snapshots]
    files = [(step, *snapshot_files(result.folder, step)) for step in steps]
    return {
        "run": result.folder,
        **_setup(config, source),
        "seed": config.settings.seed,
        "steps": result.steps,
        "episodes": result.episodes,
        "cut_episodes": result.cut,
        "evaluations": [e.to_dict() for e in result.evaluations],
        **averages,
        "perturbed_return": sum(trained) / len(trained) if trained else None,
        "seconds": result.seconds,
        "critic": result.critic,
        "policy": result.policy,
        "snapshots": [{"step": s, "critic": c, "policy": p} for s, c, p in files],
        "dataset": result.exported,
        "already_complete": result.already_complete,
    }


def _setup(config: RunConfig, source: str) -> dict[str, Any]:
    from pbvf_cli.shared.inputs.environments import environment_payload

    settings = config.settings.to_dict()
    del settings["seed"]
    return {
        "environment": config.env.name,
        **environment_payload(config.env),
        "kind": config.settings.kind,
        "architecture": config.spec.arch,
        "stochastic": config.spec.stochastic,
        "preset": source,
        "settings": settings,
    }


def print_run(sink: Sink, result: RunResult, source: str) -> None:
    """Print one run; ``source`` names the origin of its tuned hyperparameters."""
    from pbvf_datasets.format.statistics import Ends

    payload = _payload(result, source)
    shown = _milestones(result)
    rows = [
        ("run", str(result.folder)),
        ("steps", f"{result.steps:,}"),
        ("episodes", str(Ends(result.episodes + result.cut, None, result.cut))),
        ("evaluations", _evaluations_text(result, len(shown))),
        *_return_rows(payload, number),
        ("hyperparameters", source),
        ("seed", str(payload["seed"])),
        ("time", "nothing to do" if result.already_complete else f"{result.seconds:.1f} s"),
        ("critic", str(result.critic)),
        ("policy", str(result.policy)),
    ]
    rows += [("snapshot", str(path)) for path in result.snapshots]
    if result.exported is not None:
        rows.append(("dataset", str(result.exported)))
    lines = [
        [f"{e.step:,}", number(sum(e.returns) / len(e.returns)), *map(number, _span(e.returns))]
        for e in shown
    ]
    table = (("step", "mean return", "min", "max"), lines) if lines else None
    sink.result(payload, rows, table=table, place=result.folder)


def _evaluations_text(result: RunResult, shown: int) -> str:
    """Return how many evaluations there are, and how many of them a table of so many shows."""
    count = len(result.evaluations)
    text = f"{count:,}, of {counted(result.config.evaluation_episodes, 'episode')} each"
    return f"{text}; averages are over all, the table has {shown}" if shown < count else text


def _return_rows(values: Mapping[str, Any], shown: Callable[[Any], str]) -> list[tuple[str, str]]:
    """Return rows of returns; those without a survival bonus only where there is one."""
    bonus = values["average_return_without_survival"] is not None
    return [
        (label, shown(values[name]))
        for name, label in _RETURNS.items()
        if bonus or not name.endswith("without_survival")
    ]


def _span(returns: Sequence[float]) -> tuple[float, float]:
    return min(returns), max(returns)


def _milestones(result: RunResult) -> list[Evaluation]:
    """Return the last evaluations within each fifth of a run."""
    found: dict[int, Evaluation] = {}
    for share in _SHARES:
        until = [e for e in result.evaluations if e.step <= share * result.steps]
        if until:
            found[until[-1].step] = until[-1]
    return list(found.values())


def print_seeds(
    sink: Sink, run: Path, results: Sequence[RunResult], source: str, seconds: float
) -> None:
    """Print runs that differ in their seed, and their statistics."""
    parts = [_payload(result, source) for result in results]
    over = {name: _over([part[name] for part in parts]) for name in _RETURNS}
    curve = [
        (step, [sum(r.evaluations[k].returns) / len(r.evaluations[k].returns) for r in results])
        for k, step in enumerate(e.step for e in results[0].evaluations)
    ]
    payload: dict[str, Any] = {
        "run": run,
        **_setup(results[0].config, source),
        "seeds": [part["seed"] for part in parts],
        "steps": results[0].steps,
        "episodes": [part["episodes"] for part in parts],
        "evaluations": [{"step": step, "returns": means} for step, means in curve],
    }
    for name in _RETURNS:
        found = over[name]
        payload[name] = None if found is None else found.mean
        payload[f"{name}_interval"] = None if found is None else found.to_dict()
    payload |= {
        "seconds": seconds,
        "critic": [part["critic"] for part in parts],
        "policy": [part["policy"] for part in parts],
        "already_complete": all(part["already_complete"] for part in parts),
        "runs": parts,
    }
    complete = payload["already_complete"]
    shown = {e.step for e in _milestones(results[0])}
    rows = [
        ("run", str(run)),
        ("seeds", ",".join(str(part["seed"]) for part in parts)),
        ("steps", f"{results[0].steps:,} each"),
        ("evaluations", _evaluations_text(results[0], len(shown))),
        *_return_rows(over, _shown),
        ("hyperparameters", source),
        ("time", "nothing to do" if complete else f"{seconds:.1f} s"),
    ]
    lines = [
        [f"{step:,}", _shown(_over(means)), *map(number, _span(means))]
        for step, means in curve
        if step in shown
    ]
    header = ("step", "mean over seeds", "lowest seed", "highest seed")
    sink.result(payload, rows, table=(header, lines) if lines else None, place=run)


def _over(values: Sequence[float | None]) -> Interval | None:
    """Return the statistics over seeds; None where one of them has no value."""
    from pbvf_runs.compare.statistics import interval

    numbers = [value for value in values if value is not None]
    return interval(numbers) if len(numbers) == len(values) else None


def _shown(found: Interval | None) -> str:
    """Return a mean over seeds with its interval, or of few seeds with the values themselves."""
    if found is None or found.std is None:
        return number(None if found is None else found.mean)
    if found.low is None:
        return f"{number(found.mean)} (of {'; '.join(number(v) for v in found.values)})"
    span = f"{number(found.low)} to {number(found.high)}"
    return f"{number(found.mean)} ± {number(found.std, 4)} (95 % of the mean: {span})"
