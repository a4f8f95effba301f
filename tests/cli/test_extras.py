"""What an extra brings is asked for in one line where it is missing, before anything is done."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from fsspec.registry import _registry as file_systems

from cli_tools import ROOT, content, make, pbvf
from pbvf_runs.loggers import LOGGERS

DATA = "lab/l-v0"
WANTED = {
    "video": ("imageio_ffmpeg", f"evaluate {DATA} --env LQR-v0 --video film.mp4"),
    "baselines": (
        "stable_baselines3",
        "reproduce table --cells ddpg-linear-MountainCarContinuous-v0 --seeds 0 --out out",
    ),
    "d3rlpy": ("d3rlpy", "reproduce fig-offline --cells iql --seeds 0 --out out"),
    "s3": ("s3fs", f"push {DATA} s3://bucket/x"),
    "gcs": ("gcsfs", f"push {DATA} gs://bucket/x"),
    "hub": ("huggingface_hub", f"push {DATA} hf://datasets/lab/x"),
    "sign": ("cryptography", "dataset keygen key"),
    "onnx": ("onnx", f"policies export {DATA} --index 0 --out policy.onnx"),
    "trackio": (
        "trackio",
        f"fit-critic {DATA} --critic psvf --updates 1 --out critic --log-dir log --logger trackio",
    ),
    "wandb": (
        "wandb",
        f"fit-critic {DATA} --critic psvf --updates 1 --out critic --log-dir log --logger wandb",
    ),
    "robotics": (
        "gymnasium_robotics",
        "collect gymnasium_robotics:FetchReach-v4 --dataset lab/x-v0 --episodes 1",
    ),
    "dm-control": (
        "shimmy",
        "collect shimmy:dm_control/cartpole-balance-v0 --dataset lab/x-v0 --episodes 1",
    ),
    "minigrid": (
        "minigrid",
        "train-online minigrid:MiniGrid-Empty-5x5-v0 --critic pssvf --steps 10 --run run",
    ),
    "ray": ("ray", "collect LQR-v0 --dataset lab/x-v0 --episodes 1 --ray local"),
    "report": ("plotly", f"report {DATA} --out page.html"),
}
FOR_DEVELOPERS = {"docs", "test"}


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(
        tmp_path_factory.mktemp("extras"),
        f"collect LQR-v0 --dataset {DATA} --episodes 2 --seed 0 --license MIT",
    )


def hide(package: str, patch: pytest.MonkeyPatch) -> None:
    """Let a package be as if it were not installed, whatever was imported before."""
    find = importlib.util.find_spec

    def missing(name: str, *more: str) -> ModuleSpec | None:
        return None if name.partition(".")[0] == package else find(name, *more)

    patch.setattr(importlib.util, "find_spec", missing)
    for name in [package, *(n for n in sys.modules if n.startswith(f"{package}."))]:
        patch.setitem(sys.modules, name, None)
    patch.delitem(sys.modules, f"pbvf_runs.loggers.{package}", raising=False)
    patch.delitem(LOGGERS._loaded, package, raising=False)
    for protocol in ("s3", "gs", "hf"):
        patch.delitem(file_systems, protocol, raising=False)
    patch.delitem(sys.modules, "huggingface_hub.hf_file_system", raising=False)


@pytest.mark.parametrize("extra", WANTED)
def test_a_missing_extra_is_named(extra: str, at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, command = WANTED[extra]
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(at / "datasets"))
    monkeypatch.chdir(at)
    hide(package, monkeypatch)
    before = content(at)
    pbvf(*command.split(), "-q").refused(2, f"pip install 'pbvf-offline[{extra}]'")
    assert content(at) == before


def test_every_extra_for_users_is_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(WANTED) == set(project["optional-dependencies"]) - FOR_DEVELOPERS
