"""Verify: a healthy run is intact, and what does not belong to it is named."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pbvf_datasets.format.columns import columns_to_image, pack_columns
from pbvf_offline.online.replay import Replay
from pbvf_runs.episodes import stored_episodes
from pbvf_runs.train import train_run
from pbvf_runs.verify import verify_run, verify_runs
from run_tools import Stop, StopSoon, rewrite_checkpoint, run_config

STEPS = 90
SNAPSHOT = 60


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    for seed in (0, 1):
        config = run_config(evaluations=2, critic_updates=1, seed=seed)
        train_run(config, folder / f"seed-{seed}", STEPS, snapshots=(SNAPSHOT,))
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "seed-0", tmp_path / "run"))


@pytest.fixture
def other(made: Path) -> Path:
    return made / "seed-1"


def test_a_finished_run_is_intact(run: Path) -> None:
    told: list[tuple[int, int]] = []
    found = verify_run(run, progress=lambda done, total: told.append((done, total)))
    assert (found.kind, found.status, found.problems, found.warnings) == ("run", "intact", (), ())
    result = json.loads((run / "result.json").read_text())
    assert found.counts == {"episodes": result["episodes"], "steps": STEPS}
    assert told[-1] == (STEPS, STEPS)


@pytest.mark.parametrize(
    "changes",
    [
        {"normalization": "per-step"},
        {"normalization": "none", "stochastic": True},
        {"kind": "pssvf"},
    ],
)
def test_runs_of_every_sort_are_intact(changes: dict[str, Any], tmp_path: Path) -> None:
    train_run(run_config(evaluations=2, critic_updates=1, **changes), tmp_path / "run", STEPS)
    assert verify_run(tmp_path / "run").status == "intact"


def test_an_unfinished_run_is_intact_as_far_as_it_got(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        train_run(run_config(), tmp_path / "run", STEPS, stop_soon=StopSoon(3))
    found = verify_run(tmp_path / "run")
    assert (found.status, found.counts["episodes"]) == ("intact", 3)
    assert "not finished" in found.warnings[0]


def test_a_run_takes_no_more_memory_than_it_has_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Stop):
        train_run(run_config(), tmp_path / "run", STEPS, stop_soon=StopSoon(3))
    path, rooms = tmp_path / "run" / "config.json", []
    config = json.loads(path.read_text())
    config["settings"]["buffer_size"] = 10**8
    path.write_text(json.dumps(config))
    rewrite_checkpoint(path.parent, lambda header: header.update(settings=config["settings"]))
    make = Replay.__init__

    def noting(self: Replay, *args: Any, capacity: int, **kwargs: Any) -> None:
        rooms.append(capacity)
        make(self, *args, capacity=min(capacity, 1_000), **kwargs)

    monkeypatch.setattr(Replay, "__init__", noting)
    assert verify_run(path.parent).status == "intact"
    assert max(rooms) <= STEPS


def change_result(**changes: Any) -> Callable[[Path, Path], None]:
    def change(run: Path, other: Path) -> None:
        path = run / "result.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def from_other(name: str, *, named: bool = False) -> Callable[[Path, Path], None]:
    """Take a file of another run; ``named``: the result names it by its new digest too."""

    def change(run: Path, other: Path) -> None:
        shutil.copy(other / name, run / name)
        if named:
            files = json.loads((other / "result.json").read_text())["files"]
            change_result(files=files)(run, other)
            shutil.copy(other / "policy.safetensors", run / "policy.safetensors")

    return change


def less_sigma(run: Path, other: Path) -> None:
    path = run / "config.json"
    config = json.loads(path.read_text())
    config["settings"]["sigma"] /= 2
    path.write_text(json.dumps(config))
    (run / "checkpoint.safetensors").unlink()


def other_actions(run: Path, other: Path) -> None:
    episodes = list(stored_episodes(run))
    tail = replace(episodes[-1], actions=-episodes[-1].actions)
    image = columns_to_image(pack_columns([tail]), {"episodes": 1})
    (run / "tail.safetensors").write_bytes(image)
    change_result(tail=hashlib.sha256(image).hexdigest())(run, other)


def lengths(dtype: str) -> Callable[[Path, Path], None]:
    """Lengths of another type; the digest is right."""

    def change(run: Path, other: Path) -> None:
        columns = pack_columns(list(stored_episodes(run))[-1:])
        image = columns_to_image(columns | {"length": columns["length"].astype(dtype)}, {})
        (run / "tail.safetensors").write_bytes(image)
        change_result(tail=hashlib.sha256(image).hexdigest())(run, other)

    return change


def in_checkpoint(**extra: Any) -> Callable[[Path, Path], None]:
    return lambda run, other: rewrite_checkpoint(run, lambda header: header["extra"].update(extra))


def without(name: str) -> Callable[[Path, Path], None]:
    return lambda run, other: (run / name).unlink()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (without("config.json"), "config.json: is missing"),
        (without("critic.safetensors"), "critic.safetensors: is missing"),
        (without("checkpoint.safetensors"), "checkpoint.safetensors: is missing"),
        (without("tail.safetensors"), "tail.safetensors: is missing"),
        (less_sigma, "is not of this run"),
        (from_other("config.json"), "another run"),
        (from_other("checkpoint.safetensors"), "another run"),
        (from_other("policy.safetensors"), "policy.safetensors: does not belong"),
        (from_other("critic.safetensors", named=True), "is not of this run"),
        (from_other(f"critic-{SNAPSHOT:07d}.safetensors"), "is not of this run"),
        (change_result(evaluations=[]), "evaluations are not those in the checkpoint"),
        (change_result(training_returns=[[1, 1.0]]), "training returns are not those"),
        (change_result(episodes=99), "99 whole episodes"),
        (change_result(steps="many"), "result.json"),
        (other_actions, "are not those of the policies"),
        (lengths("float64"), "column length is float64"),
        (in_checkpoint(evaluations=5), "checkpoint.safetensors: evaluations"),
        (in_checkpoint(training_returns=None), "checkpoint.safetensors: training_returns"),
        (in_checkpoint(more=1), "field 'more' does not belong there"),
        (change_result(files={}), "result.json: files: these are not"),
    ],
)
def test_what_does_not_belong_to_a_run_is_damage(
    spoil: Callable[[Path, Path], None], words: str, run: Path, other: Path
) -> None:
    spoil(run, other)
    found = verify_run(run)
    assert (found.status, found.digest) == ("damaged", None)
    assert words in " | ".join(map(str, found.problems))


def test_an_environment_that_names_code_is_unsafe(run: Path) -> None:
    path = run / "config.json"
    config = json.loads(path.read_text())
    config["environment"]["kwargs"] = {"xml_file": "/etc/passwd"}
    path.write_text(json.dumps(config))
    assert verify_run(run).status == "unsafe"


def test_several_runs_are_as_good_as_the_worst(made: Path, tmp_path: Path) -> None:
    assert verify_runs(made).status == "intact"
    assert verify_runs(made).counts["runs"] == 2
    folder = Path(shutil.copytree(made, tmp_path / "made"))
    (folder / "seed-1" / "critic.safetensors").write_bytes(b"")
    found = verify_runs(folder)
    assert found.status == "damaged"
    assert "seed-1" in str(found.error)
