"""Merging 10 datasets of 100,000 steps against reading and writing the same arrays with h5py.

The reference opens each data file with h5py, reads every array of every episode, and writes it
to one new file with the same settings (HDF5 1.10 layout, one Fletcher-32 chunk an array) and a
sync at the end. It checks nothing, and a kill would cost it everything.

Run: python benchmarks/merge.py
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

import h5py

from pbvf_datasets.format.schema import DATA_FILE
from pbvf_datasets.write.edit import merge
from tools.alternate import Benchmark
from tools.synthetic import write_dataset

INPUTS, FRAGMENTS, FRAGMENT_STEPS = 10, 5, 200


def ours(root: Path) -> float:
    """Return the seconds of a merge, digests, checks and manifest included."""
    started = time.perf_counter()
    result = merge([f"bench/part{k}-v0" for k in range(INPUTS)], "bench/all-v0", root=root)
    seconds = time.perf_counter() - started
    if result.left_out:
        raise SystemExit(f"{result.left_out} episodes were left out")
    shutil.rmtree(result.path)
    return seconds


def reference(root: Path) -> float:
    """Return the seconds of reading every array and writing it to one file."""
    target = root / "copy.hdf5"
    started = time.perf_counter()
    count = 0
    with h5py.File(target, "w", libver=("v110", "v110")) as out:
        for k in range(INPUTS):
            with h5py.File(root / f"bench/part{k}-v0" / DATA_FILE, "r") as data:
                for i in range(len(data)):
                    group = out.create_group(f"episode_{count}")
                    group.attrs.update(data[f"episode_{i}"].attrs)
                    copy_arrays(data[f"episode_{i}"], group)
                    count += 1
    descriptor = os.open(target, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    seconds = time.perf_counter() - started
    target.unlink()
    return seconds


def copy_arrays(source: h5py.Group, target: h5py.Group) -> None:
    """Read the arrays of a group and write them to another."""
    for name, item in source.items():
        if isinstance(item, h5py.Group):
            copy_arrays(item, target.create_group(name))
        else:
            array = item[()]
            target.create_dataset(name, data=array, chunks=array.shape, fletcher32=True)


if __name__ == "__main__":
    benchmark = Benchmark(__doc__, steps=100_000)
    steps = benchmark.arguments.steps
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        for part in range(INPUTS):
            write_dataset(
                base,
                f"bench/part{part}-v0",
                episodes=steps // (FRAGMENTS * FRAGMENT_STEPS),
                fragments=FRAGMENTS,
                fragment_steps=FRAGMENT_STEPS,
                seed=part,
            )
        benchmark.compare(
            f"merge of {INPUTS} x {steps:,} steps / reading and writing the same arrays",
            lambda: ours(base),
            lambda: reference(base),
            target=2.0,
            unit="s",
            higher_is_better=False,
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak resident memory of this process: {peak:,.0f} MB")
    benchmark.results[0]["peak_resident_mb"] = round(peak)
    benchmark.write()
