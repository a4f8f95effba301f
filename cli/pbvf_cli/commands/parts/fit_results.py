"""Results of ``pbvf fit-critic``: tables for people, JSON for programs; and ``--seeds``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbvf_cli.shared.terminal.output import Sink, number, time_taken
from pbvf_offline.errors import UsageError

if TYPE_CHECKING:
    from pbvf_cli.shared.command import Given
    from pbvf_cli.shared.inputs.data import Data
    from pbvf_offline.fit.settings import FitSettings
    from pbvf_offline.fit.to_file import FitResult

_COMMON = ("kind", "updates", "gamma", "reward", "dataset")  # the same of every seed


def parse_fit_seeds(
    text: str | None, given: Given[FitSettings], model: Path | None
) -> list[int] | None:
    """Read ``--seeds``; None: there is one critic.

    Raises:
        UsageError: The seeds are malformed or out of range, or something does not go with them.
    """
    if text is None:
        return None

    from pbvf_offline.seeding import check_seed
    from pbvf_runs.seeds import parse_seeds

    if "seed" in given.values:
        raise UsageError("give either --seed or --seeds, not both")
    if model is not None:
        raise UsageError(
            "does not go with --model: the rounds of each critic imagine episodes of their own",
            where="--seeds",
            remedy="run the command once with each --seed",
        )
    return [check_seed(seed) for seed in parse_seeds(text)]


def print_fit(sink: Sink, out: Path, result: FitResult, data: Data) -> None:
    """Print what one fit came to."""
    fit, validation = result.file.fit, result.file.validation
    rows = [
        ("critic", str(out)),
        ("updates", f"{fit.updates:,}"),
        ("loss", number(fit.loss)),
        ("gamma", number(fit.settings.gamma)),
        ("seed", str(fit.settings.seed)),
        ("time", _time(result, "updates")),
        *(("snapshot", str(path)) for path in result.snapshots),
    ]
    if validation is not None:
        rows += [
            ("policies held out", f"{len(validation['policies'])}"),
            ("rank correlation", number(validation["rank_correlation"], 3)),
            ("return of the critic's top tenth", number(validation["top_tenth_return"])),
            ("return of all held out", number(validation["mean_return"])),
        ]
    sink.result(_payload(out, result, data), rows, place=out)


def print_fits(sink: Sink, files: Sequence[Path], results: Sequence[FitResult], data: Data) -> None:
    """Print what several fits came to."""
    parts = [_payload(file, result, data) for file, result in zip(files, results, strict=True)]
    first, slowest = parts[0], max(results, key=lambda result: result.seconds)
    payload: dict[str, Any] = {name: first[name] for name in _COMMON}
    payload |= {name: [part[name] for part in parts] for name in ("critic", "loss", "validation")}
    payload |= {
        "seeds": [part["seed"] for part in parts],
        **data.counts,
        "seconds": slowest.seconds,
        "updates_per_second": _rate(slowest),
        "snapshots": [path for result in results for path in result.snapshots],
        "already_complete": all(part["already_complete"] for part in parts),
        "fits": parts,
    }
    rows = [
        ("critics", f"{len(parts):,}"),
        ("updates", f"{first['updates']:,} each"),
        ("gamma", number(first["gamma"])),
        ("time", _time(slowest, "updates of each")),
        *(("snapshot", str(path)) for path in payload["snapshots"]),
    ]
    header, columns = ["seed", "loss"], [payload["seeds"], [number(v) for v in payload["loss"]]]
    if any(payload["validation"]):
        header.append("rank correlation")
        ranks = [held and held["rank_correlation"] for held in payload["validation"]]
        columns.append([number(rank, 3) for rank in ranks])
    header.append("critic")
    columns.append(files)
    lines = [[str(cell) for cell in line] for line in zip(*columns, strict=True)]
    if payload["already_complete"]:
        sink.note(f"already complete: {', '.join(map(str, files))}")
    sink.result(payload, rows, table=(header, lines))


def _rate(result: FitResult) -> float | None:
    """Return the gradient steps a second of one fit; None where there were none."""
    done, seconds = result.updates_done_now, result.seconds
    return done / seconds if done and seconds > 0 else None


def _time(result: FitResult, unit: str) -> str:
    done = (result.updates_done_now, result.file.fit.updates)
    return time_taken(result.seconds, _rate(result), unit, done=done)


def _payload(out: Path, result: FitResult, data: Data) -> dict[str, Any]:
    """Return what ``--json`` says of one fit."""
    fit = result.file.fit
    return {
        "critic": out,
        "kind": fit.settings.kind,
        "updates": fit.updates,
        "loss": fit.loss,
        "seconds": result.seconds,
        "updates_per_second": _rate(result),
        "gamma": fit.settings.gamma,
        "reward": fit.settings.reward,
        "seed": fit.settings.seed,
        "dataset": result.file.context.dataset,
        **data.counts,
        "snapshots": result.snapshots,
        "validation": result.file.validation,
        "already_complete": result.already_complete,
    }
