"""Checking 10 episodes of 100,000 steps against sha256 and an h5py read of every array.

``pbvf dataset verify`` reads and hashes the same bytes, and computes every action again from
its observation and its policy.

Run: python benchmarks/verify.py
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from pathlib import Path

import gymnasium as gym
import h5py
import numpy as np

from alternate import alternate
from pbvf_datasets import DatasetWriter
from pbvf_datasets.format.schema import DATA_FILE
from pbvf_datasets.inspect.verify import verify
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Episode

OBS, ACT = 8, 2
EPISODES, STEPS, FRAGMENT = 10, 100_000, 200


def write_dataset(root: Path, dataset: str, hidden: tuple[int, ...], steps: int) -> Path:
    """Write Swimmer-shaped episodes in which every policy does what it says; return the folder."""
    rng = np.random.default_rng(0)
    spec = PolicySpec(OBS, hidden, BoxActions((-1.0,) * ACT, (1.0,) * ACT))
    segment = np.minimum(np.arange(steps + 1), steps - 1) // FRAGMENT
    fragments = int(segment[-1]) + 1
    truncated = np.arange(steps) == steps - 1
    with DatasetWriter(
        dataset,
        spec,
        root=root,
        observation_space=gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float64),
        action_space=gym.spaces.Box(-1, 1, (ACT,), np.float32),
    ) as writer:
        for i in range(EPISODES):
            policies = Policies(
                spec,
                (0.1 * rng.normal(size=(fragments, spec.size))).astype(np.float32),
                np.tile(rng.normal(size=OBS), (fragments, 1)),
                np.tile(rng.uniform(0.5, 2, OBS), (fragments, 1)),
            )
            observations = rng.normal(size=(steps + 1, OBS))
            actors = [policies.actor(row) for row in range(fragments)]
            actions = [
                actors[k].act(o)[0] for k, o in zip(segment, observations[:-1], strict=False)
            ]
            writer.add(
                Episode(
                    observations=observations,
                    actions=np.stack(actions),
                    rewards=rng.normal(size=steps),
                    terminated=np.zeros(steps, bool),
                    truncated=truncated,
                    theta=policies.theta,
                    segment=segment.astype(np.int32),
                    obs_mean=policies.obs_mean,
                    obs_std=policies.obs_std,
                    seed=i,
                )
            )
        writer.finish()
    return writer.path


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs (5)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of an episode (100,000)")
    arguments = parser.parse_args()
    results = []
    for hidden in ((), (64, 64)):
        with tempfile.TemporaryDirectory() as root:
            name = ",".join(map(str, hidden)) or "linear"
            made = write_dataset(Path(root), "bench/long-v0", hidden, arguments.steps)
            results.append(
                alternate(
                    f"verify / sha256 and an h5py read, {EPISODES} x {arguments.steps:,} steps, "
                    f"{name} policies",
                    lambda made=made: check(made, arguments.steps),  # type: ignore[misc]
                    lambda made=made: read(made, arguments.steps),  # type: ignore[misc]
                    rounds=arguments.rounds,
                    target=0.4,
                    unit="steps/s",
                )
            )
    if arguments.json is not None:
        text = json.dumps({"command": "python benchmarks/verify.py", "results": results}, indent=1)
        Path(arguments.json).write_text(text + "\n")
