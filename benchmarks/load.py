"""Opening 10,000 episodes of 20 steps: first and later openings against Minari's iteration.

Run: python benchmarks/load.py
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import minari

from pbvf_datasets import load_dataset
from tools.alternate import Benchmark
from tools.synthetic import write_dataset

EPISODES, LENGTH = 10_000, 20
DATASET = "bench/short-v0"


def iterate() -> float:
    """Return the seconds that stock Minari takes to iterate over the dataset."""
    started = time.perf_counter()
    steps = sum(len(episode) for episode in minari.load_dataset(DATASET))
    if steps != EPISODES * LENGTH:
        raise SystemExit(f"Minari read {steps} steps")
    return time.perf_counter() - started


def first() -> float:
    """Return the seconds of an opening with checks and digests, without a cache."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PBVF_CACHE"] = folder
        started = time.perf_counter()
        load_dataset(DATASET)
        return time.perf_counter() - started


def later() -> float:
    """Return the seconds of an opening after the first: digests, then the cache."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PBVF_CACHE"] = folder
        load_dataset(DATASET)
        started = time.perf_counter()
        load_dataset(DATASET)
        return time.perf_counter() - started


if __name__ == "__main__":
    benchmark = Benchmark(__doc__)
    with tempfile.TemporaryDirectory() as root:
        os.environ["MINARI_DATASETS_PATH"] = root
        write_dataset(Path(root), DATASET, episodes=EPISODES, fragments=1, fragment_steps=LENGTH)
        for name, side, target in (("first", first, 2.5), ("later", later, 1 / 20)):
            benchmark.compare(
                f"{name} opening / Minari's iteration, 10,000 x 20 steps",
                side,
                iterate,
                target=target,
                unit="s",
                higher_is_better=False,
            )
    benchmark.write()
