"""Random datasets of a wanted size, written by DatasetWriter."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np

from pbvf_datasets import DatasetWriter
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Episode

OBS, ACT = 8, 2


def write_dataset(
    root: Path,
    dataset: str,
    *,
    hidden: tuple[int, ...],
    episodes: int,
    fragments: int,
    fragment_steps: int,
    seed: int = 0,
) -> None:
    """Write Swimmer-shaped episodes in fragments, each of a policy of its own.

    Args:
        root: Folder of datasets.
        dataset: The dataset's id.
        hidden: Hidden sizes of the policies.
        episodes: Number of episodes.
        fragments: Fragments of each episode.
        fragment_steps: Steps of each fragment.
        seed: Seed of all numbers.
    """
    rng = np.random.default_rng(seed)
    spec = PolicySpec(OBS, hidden, BoxActions((-1.0,) * ACT, (1.0,) * ACT))
    steps = fragments * fragment_steps
    truncated = np.zeros(steps, bool)
    truncated[-1] = True
    segment = np.minimum(np.arange(steps + 1) // fragment_steps, fragments - 1).astype(np.int32)
    with DatasetWriter(
        dataset,
        spec,
        root=root,
        observation_space=gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float64),
        action_space=gym.spaces.Box(-1, 1, (ACT,), np.float32),
    ) as writer:
        for i in range(episodes):
            writer.add(
                Episode(
                    observations=rng.normal(size=(steps + 1, OBS)),
                    actions=rng.uniform(-1, 1, size=(steps, ACT)).astype(np.float32),
                    rewards=rng.normal(size=steps),
                    terminated=np.zeros(steps, bool),
                    truncated=truncated,
                    theta=0.1 * rng.normal(size=(fragments, spec.size)).astype(np.float32),
                    segment=segment,
                    obs_mean=np.zeros((fragments, OBS)),
                    obs_std=np.ones((fragments, OBS)),
                    seed=i,
                )
            )
        writer.finish()
