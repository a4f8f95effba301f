"""Tables, settings and help at every width: no word is broken, and nothing is lost."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios
from collections import Counter
from pathlib import Path

import pytest

from cli_tools import pbvf, start
from pbvf_cli.app import COMMANDS
from pbvf_cli.shared.settings import Setting
from pbvf_cli.shared.terminal.layout import table
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
        assert len(line) <= columns or DIGEST in line.split()[-1], line


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
    assert max(map(len, ran.out.split("Examples:")[0].splitlines())) <= 80


def options_of(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "100")
    return pbvf(*name.split(), "--help").ok().out


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("name", ["", "dataset", "policies", *COMMANDS])
def test_help_has_every_name_and_fits(
    name: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    wide = pbvf(*name.split(), "--help").ok().out
    monkeypatch.setenv("COLUMNS", str(columns))
    text = pbvf(*name.split(), "--help").ok().out
    assert words(text) == words(wide)
    before_examples = text.split("Example")[0].split("A round trip")[0]
    for line in before_examples.splitlines():
        assert len(line) <= columns, line


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
