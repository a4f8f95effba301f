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

import gymnasium as gym
import numpy as np

from alternate import options, write
from pbvf_datasets import DatasetWriter
from pbvf_offline.batches import Episode
from pbvf_offline.policies import BoxActions, PolicySpec

POLICIES, LENGTH, PER_EPISODE, OBS, ACT = 10_000, 200, 5, 8, 2
DATASET = "bench/large-v0"


def make(root: Path) -> None:
    """Write 2,000 episodes of 1,000 steps in fragments of 200, each of its own policy."""
    rng = np.random.default_rng(0)
    spec = PolicySpec(OBS, (64, 64), BoxActions((-1.0,) * ACT, (1.0,) * ACT))
    spaces = {
        "observation_space": gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float64),
        "action_space": gym.spaces.Box(-1, 1, (ACT,), np.float32),
    }
    steps = LENGTH * PER_EPISODE
    truncated = np.zeros(steps, bool)
    truncated[-1] = True
    segment = np.minimum(np.arange(steps + 1) // LENGTH, PER_EPISODE - 1).astype(np.int32)
    with DatasetWriter(DATASET, spec, root=root, **spaces) as writer:  # type: ignore[arg-type]
        for i in range(POLICIES // PER_EPISODE):
            writer.add(
                Episode(
                    observations=rng.normal(size=(steps + 1, OBS)),
                    actions=rng.uniform(-1, 1, size=(steps, ACT)).astype(np.float32),
                    rewards=rng.normal(size=steps),
                    terminated=np.zeros(steps, bool),
                    truncated=truncated,
                    theta=rng.normal(size=(PER_EPISODE, spec.size)).astype(np.float32) * 0.1,
                    segment=segment,
                    obs_mean=np.zeros((PER_EPISODE, OBS)),
                    obs_std=np.ones((PER_EPISODE, OBS)),
                    seed=i,
                )
            )
        writer.finish()


if __name__ == "__main__":
    arguments = options(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        environment = {
            **os.environ,
            "MINARI_DATASETS_PATH": folder,
            "PBVF_CACHE": str(root / "cache"),
        }
        make(root)
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
    write(
        arguments.json,
        "python benchmarks/memory.py",
        [{"name": "peak memory of fit-critic", "unit": "GB", "first": peaks[0], "later": peaks[1]}],
    )
