"""Fixtures shared by all tests; what several modules of tests use is in ``helpers``."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import pbvf_offline.rollout.workers as workers_module

# One core for each test process: results do not depend on it, running times do.
torch.set_num_threads(1)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers start by fork although torch is loaded: no second for each to import numpy."""
    monkeypatch.setattr(workers_module, "start_method", lambda: "fork")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of datasets, and of the cache, of a test's own; it does not exist yet."""
    monkeypatch.setenv("PBVF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good little dataset, read only."""
    import hostile

    return hostile.make(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def folder(toy: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(toy, tmp_path / "toy-v0"))
