"""Collecting Swimmer-v5 with two workers against a bare Gymnasium loop that stores nothing.

Run: python benchmarks/collect.py
"""

from __future__ import annotations

import functools
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from alternate import Benchmark
from pbvf_offline.envs.reference import EnvConfig
from pbvf_runs.collection import collect
from pbvf_runs.settings import CollectSettings

STEPS = 100_000
FRAGMENT = 200


def ours() -> float:
    """Return ``steps_per_second`` of a collection in fragments, tags and files included."""
    with tempfile.TemporaryDirectory() as folder:
        settings = CollectSettings(
            EnvConfig("Swimmer-v5"), "bench/swimmer-v0", steps=STEPS, perturb_every=FRAGMENT
        )
        return collect(settings, root=Path(folder), workers=2).steps_per_second or 0.0


def bare(*, checker: bool = True) -> float:
    """Return steps a second of a plain loop with the same policy and normalisation."""
    env: gym.Env[Any, Any] = gym.make("Swimmer-v5", disable_env_checker=not checker)
    rng = np.random.default_rng(0)
    mean, std = np.zeros(8), np.ones(8)
    low, high = env.action_space.low, env.action_space.high  # type: ignore[attr-defined]
    started, steps, episode = time.perf_counter(), 0, 0
    while steps < STEPS:
        obs, _ = env.reset(seed=episode)
        episode += 1
        done = False
        while not done and steps < STEPS:
            if steps % FRAGMENT == 0:
                weight, bias = rng.normal(size=(2, 8)), rng.normal(size=2)
            unit = np.tanh(weight @ ((obs - mean) / std) + bias)
            action = np.clip((low + (unit + 1) / 2 * (high - low)).astype(np.float32), low, high)
            obs, _, terminated, truncated, _ = env.step(action)
            steps += 1
            done = terminated or truncated
    return steps / (time.perf_counter() - started)


if __name__ == "__main__":
    benchmark = Benchmark(__doc__)
    benchmark.compare("collect, 2 workers / bare loop", ours, bare, target=1.4, unit="steps/s")
    benchmark.compare(
        "the same / bare loop without Gymnasium's environment checker",
        ours,
        functools.partial(bare, checker=False),
        target=None,
        unit="steps/s",
    )
    benchmark.write()
