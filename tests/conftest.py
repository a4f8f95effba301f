"""Fixtures shared by all tests; what several modules of tests use is in ``helpers``."""

from __future__ import annotations

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
