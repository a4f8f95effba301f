"""Tables, settings and help at every width: no word is broken, and nothing is lost."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import termios
import warnings
from collections import Counter
from pathlib import Path

import pytest

from cli_tools import make, pbvf, start
from pbvf_cli.__main__ import main
from pbvf_cli.app import COMMANDS
from pbvf_cli.shared.settings import Setting
from pbvf_cli.shared.terminal.layout import CommandText, definitions, table, wrap
from pbvf_cli.shared.terminal.output import Sink

DIGEST = "0721e2ab55263d672b036f1850791edf19b0d0435c798681c8858e17e611004f"
HEADER = ("dataset", "state", "episodes", "policies", "env", "licence", "size")
ROWS = [
    ("lab/swimmer-fragments-v0", "ours", "500", "10,000", "Swimmer-v5", "CC-BY-4.0", "196.1 kB"),
    (f"lab/{DIGEST}-v0", "unfinished", "-", "-", "-", "-", "-"),
]
SENTENCE = "yes: both spaces are stored, so no environment is built, and its HDF5 file is plain"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, columns: object, stream: io.StringIO) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stdout", stream)
    rows = [("digest", DIGEST), ("safe for Minari", SENTENCE)]
    Sink(json_only=False, quiet=True).result({}, rows, table=(HEADER, ROWS))
    return stream.getvalue()


def words(*texts: str) -> Counter[str]:
    return Counter(word for text in texts for word in text.split())


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_no_word_is_broken_and_lines_fit_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(monkeypatch, columns, Terminal())
    cells = ["digest", DIGEST, "safe for Minari", SENTENCE, *(c for row in ROWS for c in row)]
    left = words(text) - words(*cells)
    assert {word.strip("─") for word in left} <= {"", *HEADER}
    assert not words(*cells) - words(text)
    for line in text.splitlines():
        assert len(line) <= columns or DIGEST in line, line
        assert len(line) <= columns or len(line.split()) == 1, line


def test_a_table_that_fits_is_one_line_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(table(HEADER, ROWS[:1], 85)[1]) == 1
    assert len(table(HEADER, ROWS[:1], 60)[1]) == len(HEADER)  # a block of names and values


def test_numbers_stay_with_their_unit_and_late_cells_go_below_a_long_word() -> None:
    _, lines = table(("path", "size"), [("/folder" * 20, "196.1 kB")], 40)
    assert [line.strip() for line in lines] == ["/folder" * 20, "196.1 kB"]


def test_nothing_is_folded_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, 40, io.StringIO())
    assert f"lab/{DIGEST}-v0   unfinished" in text
    assert any(line.endswith(SENTENCE) for line in text.splitlines())
    assert len(text.splitlines()) == 2 + 1 + 2 + 2


def test_settings_are_folded_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stderr", stream)
    long = "default (the paper has no such combination)"
    sink = Sink(json_only=True, quiet=False)
    sink.settings("pbvf x", [Setting("evaluation-episodes", long, long)])
    sink.begin()
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines[3:])) <= 60
    assert words(*lines)["combination)"] == 2


@pytest.mark.parametrize("columns", ["0", "", "-1", "x", "3"])
def test_a_width_that_cannot_be_meant_is_not_believed(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(monkeypatch, columns, Terminal()) == shown(monkeypatch, 80, Terminal())
    monkeypatch.undo()
    monkeypatch.setenv("COLUMNS", columns)
    ran = pbvf("collect", "--help").ok()
    assert "--dataset ID" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def fits(text: str, columns: int) -> None:
    """Check that no line is wider, unless it is one word that is."""
    for line in text.splitlines():
        assert len(line) <= columns or len(line.split()) == 1, line


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
@pytest.mark.parametrize("name", ["", "dataset", "policies", *COMMANDS])
def test_help_has_every_name_and_fits(
    name: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    wide = pbvf(*name.split(), "--help").ok().out
    monkeypatch.setenv("COLUMNS", str(columns))
    text = pbvf(*name.split(), "--help").ok().out
    fits(text, columns)
    assert words(text) - words("\\ " * text.count("\\\n")) == words(wide.replace("\\\n", ""))


def test_texts_stand_in_one_column_where_a_name_leaves_little_room() -> None:
    rows = [("--validation-policies F", "Share of policies."), ("--lr LR", "Learning rate of it.")]
    shown = definitions(rows, 40, term=30)
    assert shown[0] == "  --validation-policies F"
    assert {line.index(word) for line, word in zip(shown[1:], ("Share", "Lear"), strict=True)} == {
        11
    }


DRIFT = "toyenv:ToyDrift-v0"
MADE = [
    f"collect {DRIFT} --dataset lab/made-v0 --steps 390 --perturb-every 10 --seed 0 "
    "--license CC-BY-4.0 --author 'A B'",
    "fit-critic lab/drift-v0 --critic psvf --hidden 8 --updates 20 --seed 0 "
    "--validation-policies 0.2 --out critic.safetensors",
    "fit-critic lab/drift-v0 --critic pssvf --model good --hidden 8 --rounds 1 --tries 1 "
    "--compare 5 --seed 0 --out imagined.safetensors",
    "fit-model lab/drift-v0 --updates 1 --hidden 16,16 --members 2 --noise 0 --no-angles "
    "--no-mixed --seed 0 --out model.safetensors",
    "synthesize theta --from-scratch 6 --steps 5 --restarts 4 --model good --evaluate "
    f"--env {DRIFT} --episodes 1 --seed 0 --out policies.safetensors",
    f"train-online {DRIFT} --critic pssvf --steps 90 --evaluations 2 --evaluation-episodes 1 "
    "--run runs/one --seed 0 --export-dataset lab/exported-v0",
    f"train-online {DRIFT} --critic pssvf --steps 90 --evaluations 2 --evaluation-episodes 1 "
    "--run runs/several --seeds 0-1",
    "dataset split lab/drift-v0 --dataset lab/drift-v0 --fractions 0.7,0.3 --seed 0",
    "dataset merge lab/drift-v0 lab/made-v0 --dataset lab/all-v0 --license CC-BY-4.0",
    "dataset filter lab/drift-v0 --dataset lab/best-v0 --top 0.1",
    "policies export policies.safetensors --out exported.safetensors",
    "pack lab/drift-v0 drift.tar",
    "plot runs/several --out curves.png",
    "report lab/drift-v0 theta grown --out page.html",
    f"compare grown policies.safetensors --env {DRIFT} --episodes 1 --seed 0 --out figure.png",
    "predict theta lab/drift-v0 --top 2 --out top.safetensors",
]
SHOWN = [
    "dataset list",
    "info lab/drift-v0",
    "info lab/all-v0",
    "info lab/exported-v0",
    "info critic.safetensors",
    "info imagined.safetensors",
    "info good",
    "info policies.safetensors",
    "info exported.safetensors",
    "info drift.tar",
    "info runs/one",
    "info runs/several",
    "info runs/one/checkpoint.safetensors",
    "info lab/drift-v0 theta grown runs/several",
    "verify lab/drift-v0",
    "verify runs/one",
    "verify lab/drift-v0 theta grown",
    "verify lab/made-v0 theta",
    f"evaluate grown --env {DRIFT} --critic theta --episodes 2 --seed 0",
    f"evaluate lab/drift-v0 --env {DRIFT} --episodes 1 --seed 0",
    "predict theta grown --model good",
    "dataset merge lab/made-v0 lab/drift-v0 --dataset lab/other-v0",
    "evaluate grown --episodes 1 --seed 0",
    "collect NoSuch-v0 --dataset lab/x-v0",
    "synthesize theta --policy 4 --out x.safetensors",
    "info nothing",
]


@pytest.fixture(scope="module")
def made(drift: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of everything that commands make, small."""
    folder = tmp_path_factory.mktemp("made") / "x"
    shutil.copytree(drift, folder)
    return make(folder, *MADE)


def at_terminal(line: str, columns: int) -> str:
    """Return what a command writes to a terminal of a width, both streams."""
    out, err = Terminal(), Terminal()
    with (
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        warnings.simplefilter("always", UserWarning)
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("TERM", "dumb")
        main(shlex.split(line))
    text = out.getvalue() + "\n" + err.getvalue()
    assert "Traceback" not in text
    return "\n".join(part for part in text.splitlines() if "━" not in part)  # no progress


@pytest.mark.parametrize("line", [*MADE, *SHOWN])
def test_what_commands_print_fits_and_loses_nothing(
    line: str, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", "datasets")
    monkeypatch.chdir(made)
    wide = words(at_terminal(line, 10_000))
    assert wide.total() > 5
    for columns in (40, 80, 0):
        text = at_terminal(line, columns)
        fits(text, columns or 80)
        lost = wide - words(text)
        assert {word.strip("─") for word in lost} <= {""}, lost


def test_bars_stand_beside_their_counts_in_60_columns(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", "datasets")
    monkeypatch.chdir(made)
    bars = [line for line in at_terminal("info lab/drift-v0", 60).splitlines() if "##" in line]
    assert len(bars) > 2
    assert all(re.fullmatch(r" *[\d.]+ +[\d.]+ +\d+ +#+", line) for line in bars)


def test_a_command_that_is_folded_can_be_pasted() -> None:
    told = """pbvf collect my:Mine-v0 --env-kwargs '{"a": 1, "b": "x  y"}' --author 'it'"'"'s'"""
    folded = wrap(CommandText(told), 30)
    assert len(folded) > 2
    assert wrap(CommandText(told), len(told)) == [told]
    script = "pbvf() { printf '%s\\n' \"$@\"; }\n" + "\n".join(folded)
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == shlex.split(told)[1:]


def test_a_terminal_says_itself_how_wide_it_is(here: Path) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
    env = {"COLUMNS": "0", "TERM": "dumb", "MINARI_DATASETS_PATH": str(here / "one two" / "x")}
    process = start("dataset", "list", env=env, stdout=slave)
    os.close(slave)
    text = b""
    while True:
        try:
            data = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        text += data
    os.close(master)
    assert process.wait(60) == 0, process.communicate()
    process.communicate()
    assert "datasets in" in text.decode()
    assert "\n             two/x" in text.decode().replace("\r", "")
