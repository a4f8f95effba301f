"""``pbvf sweep``: one command, run once for each combination of settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pbvf_cli.shared import devices, options, values
from pbvf_cli.shared.command import command
from pbvf_cli.shared.options import argument, option
from pbvf_cli.shared.settings import SettingsTable
from pbvf_cli.shared.terminal.output import Sink, number
from pbvf_cli.shared.terminal.progress import Bar
from pbvf_offline import errors
from pbvf_offline.errors import PbvfError, UsageError

if TYPE_CHECKING:
    from pbvf_experiments.sweep import Ended, SweepCell

_OUTPUTS = {"--out", "--run", "--log-dir", "--export-dataset", "--video", "--dataset"}
_OUTPUT_ARGUMENTS = {
    "pack": "file",
    "dataset pack": "file",
    "dataset keygen": "file",
    "push": "remote",
    "dataset push": "remote",
    "pull": "name",
    "dataset pull": "dataset",
    "dataset unpack": "dataset",
}
_READ = ("synthesize", "push", "pack", "unpack")  # where --dataset names what is read
_COLUMNS = 6
_TIMINGS = ("seconds", "_per_second")  # how keys of --json end that are no results


@command(
    "pbvf sweep --grid lr=0.1,0.01 --out lr -- fit-critic lab/x-v0 --critic pssvf --out '{dir}/c'",
    "pbvf sweep --grid seed=0-9 --out data -- collect Swimmer-v5 --dataset 'lab/s-{seed}-v0'",
    "pbvf sweep --list settings.json --out many --workers 4 -- evaluate policies.safetensors",
    continues=True,
)
def sweep(
    context: typer.Context,
    *,
    words: Annotated[
        list[str],
        argument(
            "COMMAND…",
            "The command, after --. Settings are given to it as options; {lr} in it stands for the "
            "value of a setting lr, {dir} for a folder of the run's own.",
        ),
    ],
    out: Annotated[
        Path,
        option("--out", "Folder of results and tables; {dir} is in its 'work' folder.", "DIR"),
    ],
    grid: Annotated[
        list[str] | None,
        option(
            "--grid",
            "A setting and its values; several --grid are combined. 0-4 stands for five numbers, "
            "; separates values that hold commas, true and false are for options with --no-.",
            "NAME=VALUES",
        ),
    ] = None,
    listed: Annotated[
        Path | None,
        option("--list", 'Settings one by one: a JSON file [{"lr": 0.01}, …].', "FILE"),
    ] = None,
    show: Annotated[
        str | None,
        option(
            "--show",
            "Numbers of --json to show, such as loss,return.mean; the files have all.",
            "KEY,…",
            default=f"the first {_COLUMNS} that differ, no timings",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        options.counting(
            "--workers",
            "Runs at once, each on one thread unless its options say otherwise.",
            most=options.MOST_WORKERS,
            show_default="1",
        ),
    ] = None,
    ray: options.Ray = None,
    sink: Sink,
) -> None:
    """Run a command once for each combination of settings, and put the results into one table.

    Each run is a process of its own, and its --json is kept. A run that fails is reported, and the
    others go on. The same command, also with more values, runs what is not finished.
    """
    out = values.output_folder(out)

    from pbvf_experiments import sweep as sweeps
    from pbvf_offline.io.lock import locked
    from pbvf_offline.io.strict_json import canonical_json

    canonical_json([*words, *(grid or ())])  # results hold them: bytes of no text are refused now
    grids = [sweeps.parse_grid(text) for text in grid or ()]
    combined = sweeps.combine(grids, None if listed is None else sweeps.read_list(listed))
    name, found = _resolve(context, words)
    known = frozenset(opt for param in found.params for opt in param.opts)
    cells = [sweeps.SweepCell(chosen, tuple(words), out, known) for chosen in combined]
    _check_outputs(context, name, found, cells)
    table = SettingsTable()
    table.show("command", "pbvf " + cells[0].described()["command"])
    table.show("out", out)
    for name, chosen in grids:
        table.show(name, chosen)
    if listed is not None:
        table.show("list", listed)
    table.show("runs", len(cells), "their combinations")
    engine = devices.units(workers, ray, table, shared=out)
    sink.settings("pbvf sweep", table.settings)
    ended: list[Ended] = []
    with locked(out), engine as at_once, Bar("sweeping", "runs", sink=sink) as bar:
        bar.update(0, len(cells))
        for one in sweeps.run_sweep(cells, at_once):
            ended.append(one)
            if one.error is not None:
                sink.note(f"{one.cell.name}: failed (exit {one.exit_code}): {one.error}")
            bar.update(len(ended), len(cells))
        ended.sort(key=lambda one: cells.index(one.cell))
        rows = sweeps.cell_rows(ended)
        means = sweeps.mean_rows(rows)
        files = sweeps.write_tables(out, words, rows, means)
    failed = [one for one in ended if one.error is not None]
    sink.result(
        {"results": out, "finished": len(ended) - len(failed), "failed": len(failed)}
        | {"cells": rows, "means": means},
        [
            ("results", str(out)),
            *(("table", str(file)) for file in files),
            ("finished", f"{len(ended) - len(failed):,} of {len(ended):,}"),
        ],
        table=_table(rows, means, None if show is None else show.split(",")),
    )
    if failed:
        first = failed[0]
        raise _error_class(first.exit_code)(
            f"{len(failed):,} of {len(ended):,} runs failed, the first with: {first.error}",
            where=first.cell.name,
            remedy="the same command runs what failed again",
        )


def _error_class(code: int) -> type[PbvfError]:
    """Return the error with an exit code."""
    known = {
        kind.exit_code: kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, PbvfError)
    }
    return known.get(code, errors.WorkerError)


def _resolve(context: typer.Context, words: Sequence[str]) -> tuple[str, Any]:
    """Return the name of the command that words begin with, and what parses its options.

    Raises:
        UsageError: It is a sweep.
    """
    root: Any = context.find_root()
    name, found, rest = root.command.resolve_command(root, list(words))
    while hasattr(found, "resolve_command"):
        inner, found, rest = found.resolve_command(root, rest)
        name = f"{name} {inner}"
    if name == "sweep":
        raise UsageError("is what runs the others; give it more --grid", where="sweep")
    return name, found


def _check_outputs(
    context: typer.Context, name: str, found: Any, cells: Sequence[SweepCell]
) -> None:
    """Check that every run can be read, and that none writes what another one writes.

    Raises:
        UsageError: One cannot, or one does.
    """
    written: dict[str, SweepCell] = {}
    for cell in cells:
        rest = cell.argv[len(name.split()) :]
        if "--help" in rest:
            raise UsageError(
                "would print help and run nothing",
                where=f"run {cell.name}",
                remedy=f"see 'pbvf {name} --help'",
            )
        parsed = found.make_context(name, rest, context.find_root())
        for place in (f"run {cell.name}", *_outputs(name, parsed)):
            other = written.setdefault(place, cell)
            if other is not cell:
                raise UsageError(
                    f"is of two runs, {other.name} and {cell.name}",
                    where=place,
                    remedy="put {dir} or a setting such as {seed} into what is written, and list "
                    "no run twice",
                )


def _outputs(name: str, parsed: Any) -> Iterator[str]:
    """Yield what a command will write, as far as its words name it."""
    written = parsed.params.get(_OUTPUT_ARGUMENTS.get(name))
    if written is not None:
        yield os.path.abspath(written) if isinstance(written, Path) else written  # noqa: PTH100
    for param in parsed.command.params:
        option, value = param.opts[0], parsed.params[param.name]
        if not isinstance(value, str | Path) or option not in _OUTPUTS:
            continue
        if not option.endswith("dataset"):
            yield os.path.abspath(value)  # noqa: PTH100
        elif name not in _READ:
            yield f"dataset {value}"


def _table(
    rows: Sequence[Mapping[str, Any]],
    means: Sequence[Mapping[str, Any]] | None,
    shown: Sequence[str] | None,
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows for people: means over seeds where there are any.

    Raises:
        UsageError: No run printed a number that is to be shown.
    """
    known = list(dict.fromkeys(name for row in rows for name in row["results"]))
    for name in shown or ():
        if known and name not in known:
            raise UsageError(
                f"no run printed a number {name!r}",
                where="--show",
                remedy=f"there are {', '.join(known)}",
            )
    columns = _differing(rows, known) if shown is None else list(shown)
    names = dict.fromkeys(name for row in means or rows for name in row["settings"])
    cells = []
    for row in means or rows:
        line = [row["settings"].get(name, "-") for name in names]
        if means is None:
            line += [number(row["results"].get(name)) for name in columns]
            line.append(f"failed ({row['exit']})" if row["exit"] else "finished")
        else:
            line += [_mean(row["mean"].get(name), row["sd"].get(name)) for name in columns]
            line.append(str(row["seeds"]) + (f", {row['failed']} failed" * bool(row["failed"])))
        cells.append(line)
    return [*names, *columns, "ended" if means is None else "seeds"], cells


def _mean(mean: float | None, deviation: float | None) -> str:
    return number(mean, 4) + ("" if deviation is None else f" ± {number(deviation, 2)}")


def _differing(rows: Sequence[Mapping[str, Any]], known: Sequence[str]) -> list[str]:
    """Return the first results that no setting repeats and that are not the same in all runs."""
    finished = [row for row in rows if not row["exit"]]
    found = [
        name
        for name in known
        if name not in (*rows[0]["settings"], "seed")
        and not name.endswith(_TIMINGS)
        and (len(finished) == 1 or len({row["results"].get(name) for row in finished}) > 1)
    ]
    return found[:_COLUMNS]
