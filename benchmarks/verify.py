"""Checking 10 episodes of 100,000 steps against sha256 and an h5py read of every array.

``pbvf dataset verify`` reads and hashes the same bytes, and computes every action again from
its observation and its policy.

Run: python benchmarks/verify.py
"""

from __future__ import annotations

import functools
import hashlib
import tempfile
import time
from pathlib import Path

import h5py

from pbvf_datasets.format.schema import DATA_FILE
from pbvf_datasets.inspect.verify import verify
from tools.alternate import Benchmark
from tools.synthetic import write_dataset

EPISODES, STEPS, FRAGMENT = 10, 100_000, 200


def check(folder: Path, steps: int) -> float:
    """Return the steps a second of a check that finds the dataset intact."""
    started = time.perf_counter()
    found = verify(folder)
    seconds = time.perf_counter() - started
    if found.status != "intact":
        raise SystemExit(f"the dataset is {found.status}: {found.error}")
    return EPISODES * steps / seconds


def read(folder: Path, steps: int) -> float:
    """Return the steps a second of hashing the data file and reading its arrays with h5py."""
    started = time.perf_counter()
    with (folder / DATA_FILE).open("rb") as raw:
        hashlib.file_digest(raw, "sha256").hexdigest()
    arrays = 0

    def visit(_: str, item: h5py.Group | h5py.Dataset) -> None:
        nonlocal arrays
        if isinstance(item, h5py.Dataset):
            item[()]
            arrays += 1

    with h5py.File(folder / DATA_FILE, "r") as file:
        file.visititems(visit)
    seconds = time.perf_counter() - started
    if arrays != EPISODES * 10:
        raise SystemExit(f"h5py read {arrays} arrays")
    return EPISODES * steps / seconds


if __name__ == "__main__":
    benchmark = Benchmark(__doc__, steps=STEPS)
    steps = benchmark.arguments.steps
    for hidden in ((), (64, 64)):
        with tempfile.TemporaryDirectory() as root:
            name = ",".join(map(str, hidden)) or "linear"
            made = write_dataset(
                Path(root),
                "bench/long-v0",
                hidden=hidden,
                episodes=EPISODES,
                fragments=-(-steps // FRAGMENT),
                fragment_steps=FRAGMENT,
                acted=True,
            )
            benchmark.compare(
                f"verify / sha256 and an h5py read, {EPISODES} x {steps:,} steps, {name} policies",
                functools.partial(check, made, steps),
                functools.partial(read, made, steps),
                target=0.4,
                unit="steps/s",
            )
    benchmark.write()
