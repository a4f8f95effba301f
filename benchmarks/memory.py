"""Peak memory of opening and fitting 2,000,000 transitions of 10,000 [64,64] policies.

Makes the dataset in a temporary folder (about 1 GB), then opens it and fits a PSVF in a
fresh process, and prints that process's peak resident memory.

Run: python benchmarks/memory.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from alternate import Benchmark
from synthetic import write_dataset

POLICIES, LENGTH, PER_EPISODE = 10_000, 200, 5
DATASET = "bench/large-v0"


if __name__ == "__main__":
    benchmark = Benchmark(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        environment = {
            **os.environ,
            "MINARI_DATASETS_PATH": folder,
            "PBVF_CACHE": str(root / "cache"),
        }
        write_dataset(
            root,
            DATASET,
            hidden=(64, 64),
            episodes=POLICIES // PER_EPISODE,
            fragments=PER_EPISODE,
            fragment_steps=LENGTH,
        )
        peaks = []
        for opening in ("first", "later"):
            command = [
                *(sys.executable, "-m", "pbvf_cli", "fit-critic", DATASET, "--critic", "psvf"),
                *("--updates", "50", "--seed", "0", "--gamma", "0.99", "--overwrite"),
                *("--out", str(root / "critic.safetensors")),
            ]
            process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            if status != 0:
                raise SystemExit(f"fit-critic ended with status {status}")
            gigabytes = usage.ru_maxrss * 1024 / 1e9
            peaks.append(gigabytes)
            reached = "reached" if gigabytes < 2.5 else "MISSED"
            print(
                f"fit-critic, {opening} opening: peak {gigabytes:.2f} GB, wanted < 2.5: {reached}"
            )
    figures = dict(zip(("first", "later"), peaks, strict=True))
    benchmark.results.append({"name": "peak memory of fit-critic", "unit": "GB", **figures})
    benchmark.write()
