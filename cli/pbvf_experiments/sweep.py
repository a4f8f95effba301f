"""Sweeps: one command run once for each combination of settings, every run in its own process."""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import itertools
import json
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pbvf_experiments.cells import MAX_CELL_BYTES, MAX_CELL_MEMORY, cell, run_all
from pbvf_offline.errors import DamagedError, PbvfError, UsageError
from pbvf_offline.io.durable import write_file
from pbvf_offline.io.reading import read_file
from pbvf_offline.io.strict_json import parse_json

Settings = Mapping[str, str]
SEED: Final = "seed"
DIED: Final = 9
_MOST_CELLS = 100_000
_MOST_PRINTED, _MOST_MEMORY = MAX_CELL_BYTES // 4, MAX_CELL_MEMORY // 2  # a file is indented
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_RANGE = re.compile(r"(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,9})")
_PLAIN = re.compile(r"[A-Za-z0-9._=,+-]{1,120}")
# A process that outlives its parent would go on writing what the next sweep continues.
_PBVF = """
import ctypes, signal
prctl = getattr(ctypes.CDLL(None), "prctl", None)
if prctl is not None:
    prctl(1, signal.SIGKILL)
from pbvf_cli.__main__ import run
run()
"""


def parse_grid(text: str) -> tuple[str, list[str]]:
    """Parse a name and its values, as users type them.

    >>> parse_grid("seed=0-2,7")
    ('seed', ['0', '1', '2', '7'])
    >>> parse_grid("hidden=64,64;512,512")
    ('hidden', ['64,64', '512,512'])

    Raises:
        UsageError: The text is something else, or has a value twice.
    """
    name, equals, rest = text.partition("=")
    values: list[str] = []
    for part in rest.split(";") if ";" in rest else rest.split(","):
        ends = _RANGE.fullmatch(part)
        numbers = range(0) if ends is None else range(int(ends[1]), int(ends[2]) + 1)
        if len(numbers) > _MOST_CELLS:
            raise UsageError(f"{part} are too many values", where="--grid")
        values += map(str, numbers) if numbers else [part]
    if not equals or not _NAME.fullmatch(name) or "" in values:
        raise UsageError(
            f"{text!r} is not understood",
            where="--grid",
            remedy="give NAME=VALUE,VALUE,… such as lr=0.01,0.02 or seed=0-4, with ; between "
            "values that hold commas",
        )
    if len(set(values)) < len(values):
        raise UsageError(f"{text!r} has a value twice", where="--grid", remedy="give each once")
    return name, values


def read_list(path: Path) -> list[dict[str, str]]:
    """Read settings of cells: a JSON list of objects, each a setting's name to its value.

    Each has them in the order in which the file first names them.

    Raises:
        DamagedError: The file is something else.
    """
    stored = parse_json(read_file(path, 2**24), path)

    def text(value: object) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, list):
            return ",".join(map(text, value))
        return str(value)

    if not isinstance(stored, list) or not all(
        isinstance(one, dict)
        and all(
            _NAME.fullmatch(name) and isinstance(value, str | int | float | list)
            for name, value in one.items()
        )
        for one in stored
    ):
        raise DamagedError(
            "is no list of settings",
            where=path,
            remedy='write [{"lr": 0.01, "seed": 0}, …]',
        )
    # In one order, so that equal settings are equal runs.
    names = dict.fromkeys(name for one in stored for name in one)
    return [{name: text(one[name]) for name in names if name in one} for one in stored]


def combine(
    grids: Sequence[tuple[str, Sequence[str]]], listed: Sequence[Settings] | None
) -> list[dict[str, str]]:
    """Return every combination of the grids' values, for each of the listed settings.

    Raises:
        UsageError: There is none, there are too many, or two say the same name.
    """
    names = [name for name, _ in grids]
    for name in names:
        if names.count(name) > 1 or any(name in one for one in listed or ()):
            raise UsageError(f"{name} is given twice", where="--grid")
    bases: Sequence[Settings] = [{}] if listed is None else listed
    count = len(bases) * math.prod(len(values) for _, values in grids)
    if (not grids and listed is None) or not 0 < count <= _MOST_CELLS:
        raise UsageError(
            f"{count:,} combinations"
            if grids or listed is not None
            else "there are no settings to sweep",
            where="--grid",
            remedy=f"give --grid NAME=VALUES or --list FILE, with 1 to {_MOST_CELLS:,} of them",
        )
    product = itertools.product(*(values for _, values in grids))
    return [
        {**base, **dict(zip(names, chosen, strict=True))}
        for base, chosen in itertools.product(bases, product)
    ]


@dataclass(frozen=True)
class SweepCell:
    """One run of the command.

    Attributes:
        settings: What is swept, by name; values as users type them.
        command: The words after ``pbvf``, with the names of settings in braces still in them.
        out: The sweep's folder.
        options: The options that the command has.
    """

    settings: Settings
    command: tuple[str, ...]
    out: Path
    options: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The name of its files; a digest tells apart what no name of a file can hold."""
        text = ",".join(f"{name}={value}" for name, value in self.settings.items())
        if _PLAIN.fullmatch(text):
            return text
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return re.sub(r"[^A-Za-z0-9._=,+-]+", "_", text)[:80] + "-" + digest

    @property
    def file(self) -> Path:
        """Where its result is kept."""
        return self.out / "raw" / f"{self.name}.json"

    @property
    def argv(self) -> list[str]:
        """The words after ``pbvf``: settings in braces replaced, and behind them as options.

        A setting that is in braces is an option too, if the command has it and no word gives it.

        Raises:
            UsageError: Braces hold something that is not swept.
        """
        known = {**self.settings, "dir": str(self.out / "work" / self.name)}
        used = set()

        def replaced(match: re.Match[str]) -> str:
            if match[1] not in known:
                raise UsageError(
                    f"{match[0]} stands for nothing", remedy=f"known are {', '.join(known)}"
                )
            used.add(match[1])
            return known[match[1]]

        words = [re.sub(r"\{([a-z][a-z0-9-]*)\}", replaced, word) for word in self.command]
        for name, value in self.settings.items():
            option = f"--{name}"
            given = any(word.partition("=")[0] == option for word in self.command)
            if name not in used or (option in self.options and not given):
                flag = {"true": [option], "false": [f"--no-{name}"]}
                words += flag.get(value, [option, value])
        return words

    def described(self) -> dict[str, Any]:
        """Return what its result depends on, in JSON form."""
        return {"command": shlex.join(self.command), "settings": dict(self.settings)}


@dataclass(frozen=True)
class Ended:
    """How one run ended.

    Attributes:
        cell: The run.
        result: What it printed with ``--json``; None where it failed.
        exit_code: 0, or why it failed.
        error: One line about that.
    """

    cell: SweepCell
    result: Mapping[str, Any] | None
    exit_code: int = 0
    error: str | None = None


class _FailedError(Exception):
    """A run failed: its exit code and its line of error."""


def _run(chosen: SweepCell) -> dict[str, Any]:
    """Run a cell in a process of its own and return what it printed.

    Raises:
        _FailedError: It failed.
    """
    words = [*chosen.argv, "--json", "--quiet"]
    if "--" in chosen.argv:
        words = ["--json", "--quiet", *chosen.argv]
    ran = subprocess.run(
        [sys.executable, "-c", _PBVF, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        # Cells side by side with a thread or process for each core would wait for each other.
        env={"OMP_NUM_THREADS": "1", "PBVF_WORKERS": "1", **os.environ},
    )
    if ran.returncode == 0:
        try:
            printed = parse_json(
                ran.stdout, "what it printed", max_bytes=_MOST_PRINTED, max_memory=_MOST_MEMORY
            )
        except PbvfError as error:
            said = f"it finished, but what it printed is not kept: {error}"
            raise _FailedError(error.exit_code, said) from error
        if isinstance(printed, dict):
            return printed
    lines = ran.stderr.split("\n")
    said = next((line for line in reversed(lines) if line.strip()), "")
    if ran.returncode < 0:
        raise _FailedError(DIED, f"its process was killed by signal {-ran.returncode}")
    raise _FailedError(ran.returncode or 1, said.removeprefix("error: "))


def run_cell(chosen: SweepCell) -> Ended:
    """Return how a cell ended; what it printed is in its file then, or was there already.

    Raises:
        ConflictError: The file was made with another command.
        DamagedError: The file is not a result.
    """
    try:
        return Ended(chosen, cell(chosen.file, chosen.described(), functools.partial(_run, chosen)))
    except _FailedError as failed:
        code, line = failed.args
        return Ended(chosen, None, code, line)


def run_sweep(cells: Sequence[SweepCell], workers: int) -> Iterator[Ended]:
    """Yield how each cell ended, finished ones first, the others as they end.

    Raises:
        ConflictError: A result is there of another command; nothing was run.
        DamagedError: A file in the place of a result is none.
    """
    finished: list[SweepCell] = []
    left: list[SweepCell] = []
    for chosen in cells:
        (finished if chosen.file.exists() else left).append(chosen)
    yield from [run_cell(chosen) for chosen in finished]
    yield from run_all(run_cell, left, workers, ordered=False)


def numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a result by their names; of a list of numbers its mean.

    >>> numbers({"loss": 0.5, "seeds": [1, 2], "return": {"mean": 3, "of": "x"}})
    {'loss': 0.5, 'seeds': 1.5, 'return.mean': 3}
    """
    found: dict[str, float] = {}
    for name, value in result.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": number for inner, number in numbers(value).items()}
        elif _is_number(value):
            found[name] = value
        elif isinstance(value, list) and value and all(map(_is_number, value)):
            found[name] = statistics.fmean(value)
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def cell_rows(ended: Sequence[Ended]) -> list[dict[str, Any]]:
    """Return a row for each cell: its settings, how it ended, and its numbers."""
    return [
        {
            "settings": dict(one.cell.settings),
            "exit": one.exit_code,
            "error": one.error,
            "file": str(one.cell.file) if one.result is not None else None,
            "results": numbers(one.result or {}),
        }
        for one in ended
    ]


def mean_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """Return the means over seeds; None where no seed is swept.

    Each has the other settings, how many seeds finished and failed, and of each number its mean
    and standard deviation (n - 1; None for one seed).
    """
    groups: dict[tuple[tuple[str, str], ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if SEED not in row["settings"]:
            return None
        others = {name: value for name, value in row["settings"].items() if name != SEED}
        groups.setdefault(tuple(others.items()), []).append(row)
    means = []
    for key, group in groups.items():
        done = [row["results"] for row in group if not row["exit"]]
        names = [name for name in (done[0] if done else {}) if all(name in one for one in done)]
        values = {name: [one[name] for one in done] for name in names}
        means.append(
            {
                "settings": dict(key),
                "seeds": len(done),
                "failed": len(group) - len(done),
                "mean": {n: statistics.fmean(v) for n, v in values.items()},
                "sd": {n: statistics.stdev(v) if len(v) > 1 else None for n, v in values.items()},
            }
        )
    return means


def write_tables(
    out: Path,
    command: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    means: Sequence[Mapping[str, Any]] | None,
) -> list[Path]:
    """Write all numbers as ``table.json`` and, a row for each cell, ``table.csv``."""
    whole = {"command": shlex.join(command), "cells": rows, "means": means}
    files = [out / "table.json", out / "table.csv"]
    write_file(files[0], json.dumps(whole, indent=1, allow_nan=False).encode() + b"\n")
    names = list(dict.fromkeys(name for row in rows for name in row["settings"]))
    columns = list(dict.fromkeys(name for row in rows for name in row["results"]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, "exit", "error", *(f"result.{name}" for name in columns)])
    for row in rows:
        writer.writerow(
            [
                *(row["settings"].get(name, "") for name in names),
                row["exit"],
                row["error"] or "",
                *(row["results"].get(name, "") for name in columns),
            ]
        )
    write_file(files[1], text.getvalue().encode())
    return files
