"""The output sink and progress: what goes where, in which form."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest

from cli_tools import start
from make_episodes import BOX_SPEC
from pbvf_cli.shared.settings import Setting
from pbvf_cli.shared.terminal.output import Sink, number, plain, return_range, time_taken
from pbvf_cli.shared.terminal.policy_text import kind_text
from pbvf_cli.shared.terminal.progress import Bar, duration


def test_plain_turns_numpy_and_paths_into_json_and_nan_into_null():
    value = {
        "array": np.array([[1.0, np.nan], [np.inf, 2.5]]),
        "scalar": np.float32(0.5),
        "integer": np.int64(3),
        "flag": np.bool_(True),
        "path": Path("a/b"),
        "tuple": (1, None, "x", -float("inf")),
    }
    assert plain(value) == {
        "array": [[1.0, None], [None, 2.5]],
        "scalar": 0.5,
        "integer": 3,
        "flag": True,
        "path": "a/b",
        "tuple": [1, None, "x", None],
    }


def test_plain_refuses_what_json_has_no_word_for():
    with pytest.raises(TypeError, match="object"):
        plain(object())


def test_json_result_is_one_object_and_settings_go_to_stderr(capsys):
    sink = Sink(json_only=True, quiet=False)
    sink.settings("pbvf x", [Setting("sigma", 0.5, "given")])
    sink.result({"a": float("nan")}, [("a", "-")])
    out, err = capsys.readouterr()
    assert json.loads(out) == {"a": None}
    assert err.split()[:2] == ["pbvf", "x"]
    assert "sigma" in err
    assert "given" in err


def test_settings_wait_until_work_begins(capsys):
    sink = Sink(json_only=False, quiet=False)
    sink.settings("pbvf x", [Setting("sigma", 0.5, "given")])
    assert capsys.readouterr().err == ""
    sink.begin()
    sink.begin()
    assert capsys.readouterr().err.count("sigma") == 1


def test_quiet_hides_settings_notes_and_progress(capsys):
    sink = Sink(json_only=False, quiet=True)
    sink.settings("pbvf x", [Setting("sigma", 0.5, "given")])
    sink.note("something")
    clock = iter([0.0, 10.0, 20.0])
    with Bar("doing", "steps", sink=sink, clock=lambda: next(clock)) as bar:
        bar.update(1, 2)
        bar.update(2, 2)
    sink.result({}, [("a", "b")])
    out, err = capsys.readouterr()
    assert err == ""
    assert out.split() == ["a", "b"]


def test_tables_take_names_for_text_not_for_markup(capsys):
    sink = Sink(json_only=False, quiet=False)
    long = "/folder" * 20
    sink.result({}, [("path", f"[red]{long}[/red]\x1b[2J")], table=(["[b]"], [["x\ny"]]))
    out = capsys.readouterr().out
    assert f"[red]{long}[/red]\\x1b[2J" in out
    assert "x y" in out


def test_settings_are_shown_for_people():
    shown = [
        Setting("a", v, "given").shown
        for v in (None, True, False, (500, 1000), (), {"k": 1}, 0.5, Path("x"))
    ]
    assert shown == ["-", "yes", "no", "500,1000", "-", '{"k": 1}', "0.5", "x"]


def test_numbers_for_people():
    assert number(None) == number(float("nan")) == "-"
    assert number(1234567) == "1,234,567"
    assert number(0.123456789) == "0.123457"
    assert time_taken(2.0, 1234.5678, "steps") == "2.0 s (1,235 steps/s)"
    assert time_taken(2.0, 11_171.0, "steps") == "2.0 s (11,171 steps/s)"
    assert time_taken(9.0, 0.5, "rounds", 4.0) == "9.0 s (0.5 rounds/s in 4.0 s of it)"
    assert time_taken(0.0, None, "steps") == "nothing to do"


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (7300, "2 h 1 min")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_plain_progress_is_a_line_every_few_seconds_with_rate_and_time_left(capsys):
    clock = Clock()
    with Bar("collecting", "steps", sink=Sink(json_only=True, quiet=False), clock=clock) as bar:
        for _ in range(120):  # a minute, twice a second
            clock.now += 0.5
            bar.update(int(1000 + (clock.now - 100.5) * 50), 10_000, "3 episodes")
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert len(lines) == 12
    # 1,000 steps were done by an earlier run and count for no rate.
    assert lines[-1] == ("collecting: 3,975/10,000 steps, 50/s, 2 min 0 s left, 3 episodes")


def test_progress_without_a_total_has_no_time_left(capsys):
    clock = Clock()
    with Bar("x", "steps", sink=Sink(json_only=True, quiet=False), clock=clock) as bar:
        bar.update(0, None)
        clock.now += 10
        bar.update(10, None)
    assert capsys.readouterr().err == "x: 10 steps, 1/s\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bar_on_a_terminal_needs_no_thread_and_lets_warnings_pass(monkeypatch):
    import threading

    from pbvf_cli.shared.terminal.output import note_line

    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    clock = Clock()
    before = threading.active_count()
    with Bar("fitting", "updates", sink=Sink(json_only=True, quiet=False), clock=clock) as bar:
        for done in (1, 2, 3):
            clock.now += 1
            bar.update(done, 3)
        assert threading.active_count() == before
        note_line("warning: [b]bold[/b]")
    text = stream.getvalue()
    assert "3/3 updates" in text
    assert "1/s" in text
    assert "warning: [b]bold[/b]" in text
    note_line("after")
    assert stream.getvalue().endswith("after\n")


def test_stderr_that_is_gone_stops_nothing(monkeypatch):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr("sys.stderr", stream)
    Sink(json_only=False, quiet=False).note("lost")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has this device")
def test_a_stdout_that_is_full_is_named():
    with Path("/dev/full").open("w") as full:
        process = start(code=RESULT, stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 6
    assert err == (
        "error: stdout: cannot be written: no space left on device; what was made is in its "
        "place; send stdout elsewhere\n"
    )


RESULT = """
import sys
from pbvf_cli.shared.errors import finish_stdout, guarded
from pbvf_cli.shared.terminal.output import Sink
code = guarded(lambda: Sink(json_only=True, quiet=True).result({"a": 1}, []), [])
finish_stdout()
sys.exit(code)
"""


def test_returns_for_people():
    assert return_range(None) == "no whole episode"
    assert return_range({"mean": 1.5, "min": -1.0, "max": 4.0}) == "mean 1.5, -1 to 4"
    assert return_range({"mean": 1e3, "min": 1000, "max": 1e3}) == "mean 1000, 1000 to 1000"


@pytest.mark.parametrize(
    ("hidden", "text"),
    [((), "linear"), ((8, 4), "8,4, linear layers with tanh between them")],
)
def test_policies_in_words(hidden, text):
    spec = dataclasses.replace(BOX_SPEC, hidden=hidden)
    assert kind_text(spec).partition(", ")[2] == text
