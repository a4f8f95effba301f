"""Fits that are started together against one alone: seconds until the last process ends.

Each is a process of its own with the defaults, as if typed in as many terminals; settings of the
environment that limit threads (OMP_NUM_THREADS, …) are taken away.

Run: python benchmarks/together.py
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.alternate import Benchmark

TOGETHER, DATASET = 3, "lab/together-v0"
CRITIC = f"fit-critic {DATASET} --critic psvf --updates 2000"
MODEL = f"fit-model {DATASET} --updates 800 --noise 0.03 --angles --no-mixed"


def start(command: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start ``pbvf`` with a command."""
    argv = [sys.executable, "-m", "pbvf_cli", *command.split(), "--seed", "0", "-q"]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL)


def seconds(command: str, count: int, folder: Path, environment: dict[str, str]) -> float:
    """Return the seconds that so many of a command take, started at once."""
    out = folder / command.partition(" ")[0]
    started = time.perf_counter()
    running = [start(f"{command} --out {out}-{k} --overwrite", environment) for k in range(count)]
    for process in running:
        if process.wait() != 0:
            raise RuntimeError(f"{command} failed")
    return time.perf_counter() - started


if __name__ == "__main__":
    benchmark = Benchmark(__doc__)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
        environment |= {
            "MINARI_DATASETS_PATH": str(folder / "datasets"),
            "PBVF_CACHE": str(folder / "cache"),
        }
        collect = f"collect Swimmer-v5 --dataset {DATASET} --steps 20000 --perturb-every 200"
        if start(collect, environment).wait() != 0:
            raise RuntimeError("collecting failed")
        for command in (CRITIC, MODEL):
            timed = functools.partial(seconds, folder=folder, environment=environment)
            benchmark.compare(
                f"{TOGETHER} of {command.partition(' ')[0]} at once / one, time",
                functools.partial(timed, command, TOGETHER),
                functools.partial(timed, command, 1),
                target=2.0,
                unit="s",
                higher_is_better=False,
            )
            benchmark.compare(
                f"{command.partition(' ')[0]} with two threads / with one, time",
                functools.partial(timed, f"{command} --threads 2", 1),
                functools.partial(timed, command, 1),
                target=None,
                unit="s",
            )
    benchmark.write()
