"""Runs that keep what they did often."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import pbvf_runs.train as runs


@pytest.fixture(scope="module", autouse=True)
def short_shards() -> Iterator[None]:
    """Shards of a few episodes, which no option makes; and nothing waits for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        patch.setattr(runs, "SHARD_STEPS", 25)
        yield
