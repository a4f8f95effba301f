"""What every logger holds, those of installed packages included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli_tools import content
from faults import read_only
from pbvf_offline.errors import ResourceError, UsageError
from pbvf_offline.registry import Registry
from pbvf_runs.loggers import ANEW, DEFAULT, LOGGERS, SETTINGS, RunLog
from pbvf_runs.train import train_run
from run_tools import run_config

EXTRAS = ("trackio", "wandb")  # they are tested where their packages are


@pytest.fixture(params=LOGGERS)
def name(request: pytest.FixtureRequest) -> str:
    """Every logger."""
    logger: str = request.param
    if logger in EXTRAS:
        pytest.importorskip(logger)
    return logger


EPISODE = {"episode": 0, "return": -1.5, "critic_loss": None}
EVALUATION = {"returns": [1.0, 2.0], "mean_return": 1.5, "returns_without_survival": None}


CONFIG = run_config("pssvf", "toyenv:Toy-v0", evaluations=2, gamma=1.0)


def test_a_logger_writes_in_its_own_place_alone(name: str, tmp_path: Path) -> None:
    log = RunLog(tmp_path, ANEW, [name])
    log.add(SETTINGS, 0, {"lr": 0.1, "hidden": [8, 8], "policy": None, "seed": 0, "fast": True})
    log.add("episode", 5, EPISODE)
    log.flush()
    log.add("evaluation", 9, EVALUATION)
    log.close()
    (place,) = tmp_path.iterdir()
    if name not in DEFAULT:
        (place,) = place.iterdir()
        assert place == tmp_path / "logs" / name
    assert sum(path.stat().st_size for path in (place, *place.rglob("*")) if path.is_file()) > 0


def test_a_logger_goes_on_from_an_earlier_step(name: str, tmp_path: Path) -> None:
    for step in (ANEW, 7):  # the second call does step 9 again
        log = RunLog(tmp_path, step, [name])
        log.add("episode", 9, EPISODE)
        log.close()
    for path in tmp_path.rglob("*"):  # what a crash tears
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-3])
    log = RunLog(tmp_path, 9, [name])
    log.add("episode", 12, EPISODE)
    log.close()


def test_trackio_shows_a_run_with_its_settings_and_each_event_once(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    run = tmp_path / "run"
    run.mkdir()
    for step in (ANEW, 7):  # the second call does step 9 again
        log = RunLog(run, step, ["trackio"])
        if step == ANEW:
            log.add(SETTINGS, 0, {"lr": 0.1, "hidden": [8, 8], "policy": None})
        log.add("episode", 9, EPISODE)
        log.close()
    script = (
        "import json, trackio.fragments; from trackio.sqlite_storage import SQLiteStorage as held;"
        "trackio.fragments.import_inbox_dir();"
        "print(json.dumps([held.get_run_config('pbvf', 'run'), held.get_logs('pbvf', 'run')]))"
    )
    place = str(run / "logs" / "trackio")
    shown = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TRACKIO_DIR": place},
        capture_output=True,
        check=True,
        text=True,
    )
    settings, logs = json.loads(shown.stdout)
    assert (settings["lr"], settings["hidden"]) == (0.1, [8, 8])
    events = [line for line in logs if "episode/return" in line]
    assert [(line["step"], line["episode/return"]) for line in events] == [(9, -1.5)]


def test_a_run_does_not_depend_on_who_is_told(name: str, tmp_path: Path) -> None:
    train_run(CONFIG, tmp_path / "told", 30, loggers=(name,))
    train_run(CONFIG, tmp_path / "silent", 30, loggers=())
    told, silent = content(tmp_path / "told"), content(tmp_path / "silent")
    assert len(told) > len(silent)
    assert {key: told[key] for key in silent} == silent
    # A run that starts over takes the logs along.
    train_run(CONFIG, tmp_path / "told", 30, loggers=(), overwrite=True)
    assert content(tmp_path / "told") == silent


def test_a_place_that_cannot_be_written(name: str, tmp_path: Path) -> None:
    with read_only(tmp_path), pytest.raises(ResourceError, match=str(tmp_path)):
        RunLog(tmp_path, ANEW, [name])


def test_an_unknown_logger(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--logger: there is no logger 'x'; choose one of metrics"):
        RunLog(tmp_path, 0, ["x"])


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_logger_whose_package_is_missing(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, extra, None)
    monkeypatch.delitem(sys.modules, f"pbvf_runs.loggers.{extra}", raising=False)
    fresh = Registry[object]("logger", "none", {extra: f"pbvf_runs.loggers.{extra}:Log"})
    with pytest.raises(UsageError) as caught:
        fresh.choose(extra, where="--logger")
    expected = f"--logger {extra}: {extra} is not installed; pip install 'pbvf-offline[{extra}]'"
    assert str(caught.value) == expected
