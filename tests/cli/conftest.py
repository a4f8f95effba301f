"""Where the commands run, and what several modules of tests look at; made once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_tools import make

DRIFT = "lab/drift-v0"
MODEL = "--hidden 16,16 --members 2 --noise 0 --no-angles --no-mixed --seed 0"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder; datasets and cache are below it."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.setenv("PBVF_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def root(here: Path) -> Path:
    """The folder of datasets."""
    return here / "datasets"


@pytest.fixture(scope="session")
def drift(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, critics, policies, a model that passes its check and one that does not."""
    fit = f"fit-critic {DRIFT} --critic psvf --hidden 8 --updates 20 --seed 0"
    grow = "--from-scratch 3 --steps 5 --restarts 2 --seed 0"
    return make(
        tmp_path_factory.mktemp("drift"),
        f"collect toyenv:ToyDrift-v0 --dataset {DRIFT} --steps 1200 --perturb-every 10 --seed 0",
        f"{fit} --out theta",
        f"{fit} --fingerprint 6 --out actions",
        f"synthesize theta {grow} --out grown",
        f"synthesize actions {grow} --policy 4 --out deep",
        f"fit-model {DRIFT} --updates 1500 {MODEL} --out good",
        f"fit-model {DRIFT} --updates 1 {MODEL} --out bad",
    )
