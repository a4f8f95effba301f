"""fit-critic with five seeds at once against one, on 100,000 steps of Swimmer-v5.

Each is a process of its own with the defaults: the loop is timed by the command itself (gradient
steps, data and files left out), the command by the clock and by the processor time that it took.
Settings of the environment that limit threads (OMP_NUM_THREADS, …) are taken away.

Run: python benchmarks/several.py
"""

from __future__ import annotations

import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.alternate import Benchmark

STEPS = 100_000
# A PSSVF needs whole episodes of one policy.
DATA = {"psvf": "--perturb-every 200", "pssvf": "--perturb-every episode"}
FIVE, ONE = "--seeds 0-4", "--seed 0"


def run(argv: list[str], environment: dict[str, str]) -> str:
    """Run ``pbvf`` and return what it prints."""
    command = [sys.executable, "-m", "pbvf_cli", *argv, "-q", "--json"]
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, check=True, text=True
    ).stdout


def seconds(kind: str, more: str, what: str, folder: Path, environment: dict[str, str]) -> float:
    """Return the seconds of a fit: of its ``loop``, of the ``command``, or of its ``processor``."""
    out = f"--critic {kind} --out {folder / kind}.safetensors --overwrite"
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    said = run(["fit-critic", f"lab/{kind}-v0", *out.split(), *more.split()], environment)
    passed = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"loop": float(json.loads(said)["seconds"]), "command": passed, "processor": used}[what]


if __name__ == "__main__":
    benchmark = Benchmark(__doc__, steps=STEPS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
        environment |= {
            "MINARI_DATASETS_PATH": str(folder / "datasets"),
            "PBVF_CACHE": str(folder / "cache"),
        }
        for kind, perturb in DATA.items():
            collect = f"collect Swimmer-v5 --dataset lab/{kind}-v0 --seed 0 {perturb} --steps"
            run([*collect.split(), str(benchmark.arguments.steps)], environment)
        for kind, threads, what, target in (
            ("pssvf", "", "command", 2.2),
            ("pssvf", "", "loop", None),
            ("psvf", "", "processor", None),
            ("psvf", "", "loop", None),
            ("psvf", "--threads 2", "command", 2.2),  # two idle cores
            ("psvf", "--threads 2", "loop", None),
        ):
            timed = functools.partial(
                seconds, kind, what=what, folder=folder, environment=environment
            )
            benchmark.compare(
                f"five {kind} at once{threads and f' ({threads})'} / one, {what}",
                functools.partial(timed, f"{FIVE} {threads}"),
                functools.partial(timed, ONE),
                target=target,
                unit="s",
                higher_is_better=False,
            )
    benchmark.write()
