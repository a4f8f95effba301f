"""The same seed gives the same bytes, or a user is told that the environment does not allow it."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import random_envs
from cli_tools import Ran, content, pbvf, rows
from pbvf_datasets import load_dataset
from pbvf_offline.envs.reference import EnvConfig
from pbvf_runs.collection import collect
from pbvf_runs.settings import CollectSettings
from random_envs import CARRIED, SHARED, env_id

pytestmark = pytest.mark.usefixtures("forking")
ID = "lab/luck-v0"


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", os.fstat)


class Stop(BaseException):
    """What a test ends a collection with."""


def run(source: str, *more: object, warns: bool = False) -> Ran:
    random.seed()
    np.random.seed()  # noqa: NPY002
    argv = (env_id(source), "--dataset", ID, "--seed", 3, "-q", "--json")
    return pbvf("collect", *argv, *(more or ("--episodes", 6)), warns=warns).ok()


def settings(source: str, **changes: Any) -> CollectSettings:
    chosen = {"episodes": 6, "seed": 3, "normalize": False, **changes}
    return CollectSettings(EnvConfig(env_id(source)), ID, **chosen)


def stop_after(source: str, wanted: int) -> None:
    """Begin a collection and stop it after some episodes."""

    def progress(_steps: int, _all: int | None, episodes: int) -> None:
        if episodes == wanted:
            raise Stop

    with pytest.raises(Stop):
        collect(settings(source), progress=progress)


def provenance(root: Path, dataset: str = ID) -> tuple[int, dict[str, Any]]:
    manifest = json.loads((root / dataset / "manifest.json").read_text())
    return manifest["version"], manifest["provenance"]


@pytest.mark.parametrize("source", ["none", *SHARED])
def test_other_sources_are_seeded_whatever_the_workers(
    source: str, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run(source).json["repeatable"] is None
    version, told = provenance(root)
    assert (version, "repeatable" in told) == (1, False)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "other"))
    run(source, "--episodes", 6, "--workers", 2)
    assert content(tmp_path / "other" / ID) == content(root / ID)


@pytest.mark.parametrize("source", ["normal", "python", "action"])
def test_an_interrupted_collection_continues_the_same_streams(
    source: str, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    collect(settings(source))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "other"))
    stop_after(source, 4)
    random.seed()
    np.random.seed()  # noqa: NPY002
    collect(settings(source))
    assert content(tmp_path / "other" / ID) == content(root / ID)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("source", CARRIED)
def test_what_is_carried_over_is_told_and_recorded(source: str, workers: int, root: Path) -> None:
    ran = run(source, "--episodes", 6, "--workers", workers, warns=True)
    assert ran.json["repeatable"] is False
    (line,) = ran.err.splitlines()
    assert line.startswith(f"warning: {env_id(source)}: an episode played again from its seed")
    version, told = provenance(root)
    assert (version, told["repeatable"]) == (2, False)
    assert "**Not repeatable.**" in (root / ID / "README.md").read_text()
    info = pbvf("info", root / ID).ok()
    assert rows(info.out)["repeatable"].startswith("no: ")
    assert pbvf("dataset", "info", ID, "--json").ok().json["repeatable"] is False
    assert pbvf("dataset", "verify", ID, "--json").ok().json["status"] == "intact"
    assert load_dataset(ID, cache=False).trajectories.episodes == 6


def test_one_episode_is_enough_to_tell(root: Path) -> None:
    for source, told in (("counter", False), ("none", None)):
        ran = run(source, "--steps", 3, "--overwrite", warns=True)
        assert (ran.json["episodes"], ran.json["repeatable"]) == (1, told)


@pytest.mark.parametrize("env", ["CartPole-v1", "Swimmer-v5", "LQR-v0"])
def test_plain_environments_are_repeatable(env: str, root: Path) -> None:
    argv = ("--dataset", ID, "--episodes", 2, "--seed", 0, "--max-episode-steps", 20)
    ran = pbvf("collect", env, *argv, "-q", "--json", warns=True).ok()
    assert (ran.err, ran.json["repeatable"]) == ("", None)
    assert pbvf("dataset", "info", ID, "--json").ok().json["repeatable"] is None


def test_an_environment_that_fails_when_it_plays_again_is_only_warned_of(root: Path) -> None:
    ran = run("once", "--steps", 3, "--no-normalize", warns=True)
    assert ran.json["repeatable"] is False
    assert "warning: " in ran.err


def test_two_processes_that_differ_are_found_when_work_continues(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after("process", 3)
    monkeypatch.setattr(random_envs, "OF_THIS_PROCESS", 0.5)
    with pytest.warns(UserWarning, match="or the work began on another machine"):
        assert collect(settings("process")).repeatable is False


def test_what_was_found_is_kept_when_nothing_is_left_to_play(root: Path) -> None:
    with pytest.warns(UserWarning, match="played again"):
        stop_after("counter", 6)
    assert collect(settings("counter")).repeatable is False
    assert provenance(root)[1]["repeatable"] is False


def test_datasets_made_of_it_say_so_too(root: Path) -> None:
    run("counter", warns=True)
    pbvf("dataset", "filter", ID, "--dataset", "lab/best-v0", "--top", 0.5, "-q").ok()
    version, told = provenance(root, "lab/best-v0")
    assert (version, "repeatable" in told) == (2, False)
    assert told["sources"][0]["provenance"]["repeatable"] is False
    assert "**Not repeatable.**" in (root / "lab/best-v0/README.md").read_text()
    assert pbvf("dataset", "info", "lab/best-v0", "--json").ok().json["repeatable"] is False


def test_evaluation_warns_once(root: Path, tmp_path: Path) -> None:
    def policies(source: str) -> Path:
        file = tmp_path / f"{source}.safetensors"
        argv = (env_id(source), "--run", tmp_path / source, "--steps", 25, "--evaluations", 3)
        small = ("--hidden", 4, "--evaluation-episodes", 2, "--critic", "pssvf", "--seed", 0)
        export = ("--export-dataset", f"lab/{source}-v0")
        ran = pbvf("train-online", *argv, *small, *export, "-q", warns=True).ok()
        kinds = [line.endswith("card say so") for line in ran.err.splitlines()]
        assert kinds == ([] if source == "numpy" else [False, True])
        (tmp_path / source / "policy.safetensors").replace(file)
        return file

    for source, warned in (("numpy", 0), ("counter", 1)):
        argv = (policies(source), "--env", env_id(source), "--episodes", 3, "-q")
        ran = pbvf("evaluate", *argv, warns=True).ok()
        assert ran.err.count("warning: ") == warned
        assert ("repeatable" in provenance(root, f"lab/{source}-v0")[1]) == bool(warned)
