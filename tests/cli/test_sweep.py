"""``pbvf sweep``: what is run, what is kept, what is refused, and what the table says."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from cli_tools import SOURCES, content, pbvf, start, wait_for_group
from pbvf_experiments.sweep import (
    SweepCell,
    combine,
    mean_rows,
    parse_grid,
    read_list,
    run_cell,
)
from pbvf_offline.errors import UsageError

COLLECT = ("--", "collect", "LQR-v0", "--dataset", "lab/s{seed}-{sigma}-v0", "--episodes", 1)
SEEDED = ("--grid", "seed=0", *COLLECT)


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are processes of their own, which find the sources as this one does."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, SOURCES)))


def test_settings_become_words_and_names(tmp_path: Path) -> None:
    command = ("synthesize", "{dir}/c", "--out={lr}/{size}", '--env-kwargs={"a": 1}')
    chosen = {
        "lr": "0.1",
        "size": "3",
        "hidden": "8,8",
        "trust-region": "false",
        "evaluate": "true",
    }
    cell = SweepCell(chosen, command, tmp_path, frozenset({"--lr"}))
    assert cell.name == "lr=0.1,size=3,hidden=8,8,trust-region=false,evaluate=true"
    critic = str(tmp_path / "work" / cell.name / "c")
    assert cell.argv == [
        *("synthesize", critic, "--out=0.1/3", '--env-kwargs={"a": 1}'),
        *("--lr", "0.1", "--hidden", "8,8", "--no-trust-region", "--evaluate"),
    ]
    slash, score = (SweepCell({"out": f"a{c}b"}, command, tmp_path).name for c in "/_")
    assert slash.startswith("out=a_b-")
    assert score == "out=a_b"


def test_grids_multiply_each_listed_setting() -> None:
    found = combine([("seed", ["0", "1"]), ("lr", ["2"])], [{"x": "3"}, {"x": "4"}])
    assert [list(one.values()) for one in found] == [
        ["3", "0", "2"],
        ["3", "1", "2"],
        ["4", "0", "2"],
        ["4", "1", "2"],
    ]
    with pytest.raises(UsageError, match="x is given twice"):
        combine([("x", ["1"])], [{"x": "3"}])


@pytest.mark.parametrize("text", ["lr", "lr=", "=1", "lr=1,,2", "LR=1", "seed=0-999999"])
def test_other_grids_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--grid"):
        parse_grid(text)


def test_a_value_that_is_given_twice_is_named() -> None:
    with pytest.raises(UsageError, match="'seed=0-2,1' has a value twice; give each once"):
        parse_grid("seed=0-2,1")


def test_means_are_over_the_seeds_that_finished() -> None:
    def row(lr: str, seed: str, loss: float | None) -> dict[str, object]:
        results = {} if loss is None else {"loss": loss}
        return {"settings": {"lr": lr, "seed": seed}, "exit": int(loss is None), "results": results}

    rows = [row("1", "0", 2.0), row("2", "0", 5.0), row("1", "1", 6.0), row("2", "1", None)]
    assert mean_rows(rows) == [
        {
            "settings": {"lr": "1"},
            "seeds": 2,
            "failed": 0,
            "mean": {"loss": 4.0},
            "sd": {"loss": pytest.approx(8**0.5)},
        },
        {
            "settings": {"lr": "2"},
            "seeds": 1,
            "failed": 1,
            "mean": {"loss": 5.0},
            "sd": {"loss": None},
        },
    ]
    assert mean_rows([{"settings": {"lr": "1"}, "exit": 0, "results": {}}]) is None


def test_listed_settings_are_the_same_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text('[{"lr": 1, "seed": 0}, {"seed": 1, "lr": 1}, {"x": [8, 8], "seed": 2}]')
    found = read_list(path)
    assert [list(one) for one in found] == [["lr", "seed"], ["lr", "seed"], ["seed", "x"]]
    rows = [{"settings": one, "exit": 0, "results": {"loss": 3.0}} for one in found[:2]]
    assert [mean["seeds"] for mean in mean_rows(rows) or ()] == [2]


def test_a_result_that_is_too_large_fails_its_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"0": json.dumps({"values": [0.5] * 300_000}), "1": json.dumps({"x": "a" * 2**25})}

    def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(words, 0, texts[words[-1]], "")

    monkeypatch.setattr(subprocess, "run", run)
    cells = [SweepCell({"seed": k}, ("--", "{seed}"), tmp_path) for k in texts]
    kept, failed = [run_cell(one) for one in cells]
    assert run_cell(cells[0]).result == kept.result == json.loads(texts["0"])
    assert (failed.result, failed.exit_code) == (None, 3)
    assert failed.error is not None
    assert failed.error.startswith("it finished, but what it printed is not kept: ")


@pytest.mark.usefixtures("forking")
def test_a_sweep_goes_on_past_a_failure_and_continues(here: Path) -> None:
    sweep = ("sweep", "--out", "out", "--workers", 2, "-q", "--grid", "seed=0-1", "--grid")
    assert pbvf(*sweep, "sigma=1,2", *COLLECT).code == 0
    kept = content(here / "out" / "raw")
    assert sorted(kept) == [f"seed={k},sigma={s}.json" for k in (0, 1) for s in (1, 2)]
    stored = json.loads(kept["seed=1,sigma=2.json"])
    assert stored["settings"]["settings"] == {"seed": "1", "sigma": "2"}
    assert (stored["result"]["dataset"], stored["result"]["seed"]) == ("lab/s1-2-v0", 1)
    with (here / "out" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["seed"], row["sigma"], row["exit"]) for row in rows] == [
        ("0", "1", "0"),
        ("0", "2", "0"),
        ("1", "1", "0"),
        ("1", "2", "0"),
    ]
    assert float(rows[3]["result.return.mean"]) == stored["result"]["return"]["mean"]

    shown = pbvf(*sweep, "sigma=1,2", *COLLECT).out
    assert "return.mean" in shown
    assert "second" not in shown  # how long a run took is no result
    assert "±" in pbvf(*sweep, "sigma=1,2", "--show", "seconds", *COLLECT).out

    # What is finished is not run again; what fails is told, with its exit code.
    datasets = content(here / "datasets")
    again = pbvf("--json", *sweep, "sigma=1,1e39", *COLLECT)
    assert again.code == 8
    assert datasets.items() <= content(here / "datasets").items()
    assert content(here / "out" / "raw") == kept
    assert (again.json["finished"], again.json["failed"]) == (2, 2)
    failed = [cell for cell in again.json["cells"] if cell["exit"]]
    assert [(cell["settings"]["sigma"], cell["exit"]) for cell in failed] == [("1e39", 8)] * 2
    assert "NaN or infinite" in failed[0]["error"]
    assert "2 of 4 runs failed" in again.err

    pbvf(*sweep, "sigma=1", *COLLECT[:-1], 2).refused(7, "was made with another command")
    assert datasets.items() <= content(here / "datasets").items()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--grid", "seed=0-1", "--", "fit-critic", "d", "--critic", "psvf", "--out", "c"), "/c: "),
        (("--grid", "seed=0-1", "--", "collect", "LQR-v0", "--dataset", "aa/b-v0"), "dataset aa/b"),
        (("--list", "twice.json", "--", "evaluate", "p"), "run seed=0: is of two runs"),
        (("--grid", "license=MIT,CC0-1.0", "--", "pack", "c", "o.tar"), "/o.tar: is of two runs"),
        (("--grid", "allow=a,b", "--", "push", "c", "/mnt/there"), "/mnt/there: is of two runs"),
        (("--grid", "public-key=a,b", "--", "pull", "/mnt/c", "lab/x-v0"), "lab/x-v0: is of two"),
        (("--grid", "seed=\udcff", "--", "evaluate", "p"), "holds half a surrogate pair"),
        (("--grid", "seed=0", "--", "evaluate", "p\udcff"), "holds half a surrogate pair"),
        (("--grid", "sigma=1,abc", *SEEDED), "--sigma: 'abc' is not"),
        (("--grid", "sigma=1,nan", *SEEDED), "--sigma: nan is not"),
        (("--grid", "sigma=0.1", *SEEDED), "is not a dataset id: '.' is none of letters"),
        (("--grid", "seed=0", "--", "evaluate", "{sed}"), "{sed} stands for nothing"),
        (("--grid", "lr=0", "--", "evaluate", "p"), "--lr"),
        (("--grid", "help=true", "--", "evaluate", "p"), "would print help and run nothing"),
        (("--grid", "seed=0", "--", "evalute", "p"), "evalute"),
        (("--grid", "seed=0", "--", "sweep", "--out", "o", "collect"), "sweep"),
        (("--", "evaluate", "p"), "no settings"),
        (("--list", "none.json", "--", "evaluate", "p"), "0 combinations"),
        (("--list", "other.json", "--", "evaluate", "p"), "no list of settings"),
    ],
)
def test_what_cannot_be_swept_is_refused(here: Path, argv: tuple[str, ...], said: str) -> None:
    (here / "twice.json").write_text('[{"seed": 0}, {"seed": 0}]')
    (here / "none.json").write_text("[]")
    (here / "other.json").write_text('{"seed": 0}')
    before = content(here)
    code = 3 if "other.json" in argv else 2
    pbvf("sweep", "--out", "out", *argv).refused(code, said)
    assert content(here) == before


@pytest.mark.slow
def test_a_sweep_that_is_stopped_keeps_what_is_finished(here: Path) -> None:
    argv = (
        "sweep",
        "--out",
        "out",
        "--workers",
        2,
        "--grid",
        "steps=200,100000000",
        "--",
        "collect",
    )
    collect = ("LQR-v0", "--dataset", "lab/n{steps}-v0")
    process = start(*argv, *collect, start_new_session=True, env={"OMP_NUM_THREADS": "1"})
    while not (here / "out" / "raw" / "steps=200.json").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)  # to the command alone, as a batch system may
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, "")
    assert err.endswith("the same command continues\n")
    wait_for_group(process)
    assert list(content(here / "out")) == ["raw/steps=200.json"]
