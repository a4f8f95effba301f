"""Opening 10,000 episodes of 20 steps: first and later openings against Minari's iteration.

Run: python benchmarks/load.py
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import gymnasium as gym
import minari
import numpy as np

from alternate import alternate, options, write
from pbvf_datasets import DatasetWriter, load_dataset
from pbvf_offline.batches import Episode
from pbvf_offline.policies import BoxActions, PolicySpec

EPISODES, LENGTH, OBS, ACT = 10_000, 20, 8, 2
DATASET = "bench/short-v0"


def make(root: Path) -> None:
    """Write the dataset: a policy an episode."""
    rng = np.random.default_rng(0)
    spec = PolicySpec(OBS, (), BoxActions((-1.0,) * ACT, (1.0,) * ACT))
    spaces = {
        "observation_space": gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float64),
        "action_space": gym.spaces.Box(-1, 1, (ACT,), np.float32),
    }
    truncated = np.zeros(LENGTH, bool)
    truncated[-1] = True
    with DatasetWriter(DATASET, spec, root=root, **spaces) as writer:  # type: ignore[arg-type]
        for i in range(EPISODES):
            writer.add(
                Episode(
                    observations=rng.normal(size=(LENGTH + 1, OBS)),
                    actions=rng.uniform(-1, 1, size=(LENGTH, ACT)).astype(np.float32),
                    rewards=rng.normal(size=LENGTH),
                    terminated=np.zeros(LENGTH, bool),
                    truncated=truncated,
                    theta=rng.normal(size=(1, spec.size)).astype(np.float32),
                    segment=np.zeros(LENGTH + 1, np.int32),
                    obs_mean=np.zeros((1, OBS)),
                    obs_std=np.ones((1, OBS)),
                    seed=i,
                )
            )
        writer.finish()


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
    arguments = options(__doc__)
    with tempfile.TemporaryDirectory() as root:
        os.environ["MINARI_DATASETS_PATH"] = root
        make(Path(root))
        results = [
            alternate(
                f"{name} opening / Minari's iteration, 10,000 x 20 steps",
                side,
                iterate,
                rounds=arguments.rounds,
                target=target,
                unit="s",
                higher_is_better=False,
            )
            for name, side, target in (("first", first, 2.5), ("later", later, 1 / 20))
        ]
    write(arguments.json, "python benchmarks/load.py", results)
