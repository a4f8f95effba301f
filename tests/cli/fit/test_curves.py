"""``--log-dir`` of ``fit-critic``, ``fit-model`` and ``synthesize`` from a user's side."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

from cli_tools import content, pbvf
from pbvf_runs.loggers import EVENTS_FOLDER, METRICS_FILE

CRITIC = ("fit-critic", "lab/drift-v0", "--critic", "psvf", "--hidden", "8", "--seed", 0)
MODEL = (
    "fit-model", "lab/drift-v0", "--hidden", "8,8", "--batch-size", "8", "--members", 2,
    "--trial-updates", 5, "--angles", "--no-mixed", "--seed", 0,
)  # fmt: skip
LOGGED = ("--log-dir", "log", "-q")


@pytest.fixture(autouse=True)
def _datasets(drift: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(drift / "datasets"))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]


def axis(folder: Path, kind: str) -> list[int]:
    return [line["step"] for line in lines(folder) if line["kind"] == kind]


def events(folder: Path) -> list[Event]:
    """Return what all event files of a log hold, none left out."""
    found = []
    for path in sorted((folder / EVENTS_FOLDER).iterdir()):
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            found.append(Event.FromString(data[12 : 12 + size]))
            data = data[16 + size :]
    return found


def points(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [
        (e.step, v.simple_value) for e in events(folder) for v in e.summary.value if v.tag == tag
    ]


@pytest.mark.parametrize("argv", [CRITIC, MODEL])
def test_an_extended_fit_continues_its_curve_and_its_bytes_are_those_without(here, argv):
    pbvf(*argv, "--updates", 250, "--out", "c", *LOGGED).ok()
    pbvf(*argv, "--updates", 320, "--out", "c", *LOGGED).ok()
    assert axis(here / "log", "fit") == [100, 200, 300, 320]
    losses = [line["loss"] for line in lines(here / "log") if line["kind"] == "fit"]
    scalars = points(here / "log", "fit/loss")
    assert [step for step, _ in scalars] == [100, 200, 300, 320]
    assert [loss for _, loss in scalars] == pytest.approx(losses)
    pbvf(*argv, "--updates", 320, "--out", "whole", "--log-dir", "other", "-q").ok()
    assert lines(here / "other")[1:] == lines(here / "log")[1:]
    pbvf(*argv, "--updates", 320, "--out", "silent", "-q").ok()
    assert (here / "silent").read_bytes() == (here / "c").read_bytes()
    # A fit that is complete still knows its curve.
    pbvf(*argv, "--updates", 320, "--out", "silent", "--log-dir", "late", "-q").ok()
    assert lines(here / "late")[1:] == lines(here / "log")[1:]


def test_settings_are_logged_with_numbers_as_numbers(here):
    pbvf(*CRITIC, "--updates", 3, "--lr", 0.01, "--out", "c", *LOGGED).ok()
    first = lines(here / "log")[0]
    assert (first["kind"], first["step"], first["command"]) == ("settings", 0, "fit-critic")
    assert (first["lr"], first["updates"], first["bound-values"]) == (0.01, 3, True)
    (logged,) = (
        HParamsPluginData.FromString(value.metadata.plugin_data.content).session_start_info
        for event in events(here / "log")
        for value in event.summary.value
        if value.tag == "_hparams_/session_start_info"
    )
    assert logged.hparams["lr"].number_value == 0.01
    assert logged.hparams["critic"].string_value == "psvf"


def test_paths_that_are_no_utf_8_are_logged_with_escapes(here):
    log, out = (os.fsdecode(name) for name in (b"log\xff", b"c\xff"))
    for updates in (2, 3):
        pbvf(*CRITIC, "--updates", updates, "--out", out, "--log-dir", log, "-q").ok()
    settings = lines(here / log)[0]
    assert (settings["log-dir"], settings["out"]) == (r"log\udcff", r"c\udcff")
    assert events(here / log)


def test_what_a_model_was_chosen_and_checked_by(here):
    pbvf(*MODEL, "--updates", 20, "--out", "m", *LOGGED).ok()
    assert axis(here / "log", "trial") == [1, 2, 3]
    assert axis(here / "log", "check") == [20]
    assert [value for _, value in points(here / "log", "trial/noise")] == pytest.approx(
        [0.03, 0.0, 0.15]
    )


def test_rounds_of_imagination(here, drift):
    argv = (
        "fit-critic", "lab/drift-v0", "--critic", "pssvf", "--model", drift / "good",
        "--hidden", "8", "--rounds", 2, "--tries", 2, "--compare", 120, "--seed", 0,
    )  # fmt: skip
    ran = pbvf(*argv, "--out", "c", *LOGGED, "--json").ok()
    log = lines(here / "log")
    rounds = [line for line in log if line["kind"] == "round"]
    assert [line["step"] for line in rounds] == [1, 2, 3, 4]
    assert [line["cautious"] for line in rounds] == [r["cautious"] for r in ran.json["rounds"]]
    assert axis(here / "log", "recipe") == [100, 120]
    assert log[-1] | ran.json["comparison"] == log[-1] | {"kind": ran.json["comparison"]["kind"]}
    pbvf(*argv, "--out", "silent", "-q").ok()
    assert (here / "silent").read_bytes() == (here / "c").read_bytes()
    before = content(here / "log")
    pbvf(*argv, "--out", "c", *LOGGED).ok()
    assert content(here / "log") == before  # what it does not know any more stays


def test_an_ascent_and_what_was_measured_of_it(here, drift):
    argv = (
        "synthesize", drift / "theta", "--from-scratch", 2, "--steps", 6, "--restarts", 2,
        "--seed", 0, "--evaluate", "--env", "toyenv:ToyDrift-v0", "--episodes", 1,
        "--evaluate-every", 3,
    )  # fmt: skip
    ran = pbvf(*argv, "--out", "p", *LOGGED, "--json").ok()
    assert axis(here / "log", "ascent") == list(range(7))
    curve = [line for line in lines(here / "log") if line["kind"] == "evaluation"]
    assert [line["step"] for line in curve] == [0, 3, 6]
    assert [line["returns"] for line in curve] == [p["returns"] for p in ran.json["curve"]]
    pbvf(*argv, "--out", "silent", "-q").ok()
    assert (here / "silent").read_bytes() == (here / "p").read_bytes()
    late = pbvf(*argv, "--out", "p", "--log-dir", "late").ok()
    assert "late: there is no curve, because nothing was left to do" in late.err
    assert not (here / "late").exists()


def test_a_folder_holds_the_curve_of_one_output(here):
    pbvf(*CRITIC, "--updates", 2, "--out", "c", *LOGGED).ok()
    before = content(here / "log")
    pbvf(*CRITIC, "--updates", 2, "--out", "d", *LOGGED).refused(
        7, "log: holds the curve of something else, ../c; choose another --log-dir"
    )
    assert content(here / "log") == before
    assert not (here / "d").exists()
    # The same settings with other ones are refused by the output, before the log is touched.
    pbvf(*CRITIC, "--updates", 2, "--lr", 0.5, "--out", "c", *LOGGED).refused(7, "lr is")
    assert content(here / "log") == before
    (here / "run").mkdir()
    (here / "run" / METRICS_FILE).write_text("")  # as a training run has them
    pbvf(*CRITIC, "--updates", 2, "--out", "d", "--log-dir", "run", "-q").refused(7, "run: holds")


def test_a_damaged_note_of_whose_curve_it_is(here):
    pbvf(*CRITIC, "--updates", 2, "--out", "c", *LOGGED).ok()
    (here / "log/curve.json").write_text("[]")
    pbvf(*CRITIC, "--updates", 2, "--out", "c", *LOGGED).refused(3, "curve.json: does not name")


def test_loggers_are_chosen_and_need_a_folder(here):
    argv = (*CRITIC, "--updates", 2, "--out", "c", "-q", "--logger", "metrics")
    pbvf(*argv).refused(2, "--logger: needs a folder to write to; give --log-dir too")
    pbvf(*argv, "--log-dir", "log").ok()
    assert sorted(p.name for p in (here / "log").iterdir()) == ["curve.json", METRICS_FILE]
    pbvf(*argv, "--log-dir", "c").refused(2, "c: is a file")


@pytest.mark.parametrize(
    ("out", "log"),
    [
        ("v1/metrics.jsonl", "v1"),
        ("v1/tensorboard/c", "v1"),
        ("v1/tensorboard", "v1"),
        ("v1/logs/wandb", "v1"),
        ("v1/curve.json", "v1"),
        ("v1", "v1"),
        ("v1", "v1/log"),
    ],
)
@pytest.mark.parametrize("argv", [CRITIC, MODEL, ("synthesize", "nothing")])
def test_an_output_where_its_curve_would_be_written(here, argv, out, log):
    for logger in ((), ("--logger", "tensorboard")):
        ran = pbvf(*argv, "--out", out, "--log-dir", log, *logger)
        ran.refused(2, "in v1 is written" if out != "v1" else "is, or lies in, the file of --out")
    assert not (here / "v1").exists()


@pytest.mark.parametrize(
    ("logger", "place", "file"),
    [
        ("metrics", "tensorboard", "tensorboard/events.out.tfevents.123.mine"),
        ("tensorboard", METRICS_FILE, METRICS_FILE),
    ],
)
def test_a_users_own_files_beside_a_curve_stay(here, logger, place, file):
    argv = (*CRITIC, "--updates", 2, "--out", "c", *LOGGED)
    pbvf(*argv, "--logger", logger).ok()
    (here / "log" / file).parent.mkdir(exist_ok=True)
    (here / "log" / file).write_text("mine")
    before = content(here / "log")
    pbvf(*argv).refused(7, f"log/{place}: was not written by the curve of ../c; move it")
    assert content(here / "log") == before
    pbvf(*argv, "--logger", logger).ok()
    assert (here / "log" / file).read_text() == "mine"


def test_loggers_that_wrote_a_curve_are_remembered_by_later_ones(here):
    argv = (*CRITIC, "--updates", 2, "--out", "c", *LOGGED)
    pbvf(*argv, "--logger", "metrics").ok()
    pbvf(*argv, "--logger", "tensorboard").ok()
    pbvf(*argv).ok()
    # Earlier versions did not record them.
    (here / "log/curve.json").write_text('{"output": "../c"}')
    pbvf(*argv, "--logger", "metrics").ok()
    pbvf(*argv).ok()
    (here / "log/curve.json").write_text('{"output": "../c", "loggers": 3}')
    pbvf(*argv).refused(3, "curve.json: does not name loggers; remove it")


def test_a_folder_that_cannot_be_written_is_refused_before_the_fit(here):
    (here / "file").touch()
    (here / "lost").symlink_to("nothing")
    argv = (*CRITIC, "--updates", 2, "--out", "c", "-q")
    pbvf(*argv, "--log-dir", "lost").refused(2, "lost: is a link to nothing; name a folder")
    pbvf(*argv, "--log-dir", "lost/log").refused(6, "lost: not a directory")
    pbvf(*argv, "--log-dir", "file/log").refused(6, "file: not a directory")
    pbvf(*argv, "--log-dir", "x" * 300).refused(6, "file name too long; choose a shorter name")
    pbvf(*argv, "--log-dir", "/").refused(2, "/: has no folder above it")
    pbvf(*argv, "--log-dir", "").refused(2, "--log-dir: is empty; name a folder")
    assert sorted(p.name for p in here.iterdir() if p.name in {METRICS_FILE, "c"}) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_folder_without_permission(here):
    (here / "locked").mkdir(mode=0o500)
    argv = (*CRITIC, "--updates", 2, "--out", "c", "-q")
    pbvf(*argv, "--log-dir", "locked/log").refused(6, "locked: permission denied")
    assert not (here / "c").exists()


def test_a_place_of_the_wrong_kind_is_refused_before_the_fit(here):
    argv = (*CRITIC, "--out", "c", *LOGGED)
    pbvf(*argv, "--updates", 2).ok()
    before = (here / "c").read_bytes()
    (here / "log" / METRICS_FILE).unlink()
    (here / "log" / METRICS_FILE).mkdir()
    pbvf(*argv, "--updates", 3).refused(6, f"log/{METRICS_FILE}: is a directory")
    (here / "log" / EVENTS_FOLDER).rename(here / "events")
    (here / "log" / EVENTS_FOLDER).symlink_to("nothing")
    pbvf(*argv, "--updates", 3, "--logger", "tensorboard").refused(
        6, "tensorboard: not a directory"
    )
    assert (here / "c").read_bytes() == before
