"""Random datasets of a wanted size, written by DatasetWriter."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np

from pbvf_datasets import DatasetWriter
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Episode

OBS, ACT = 8, 2


def write_dataset(
    root: Path,
    dataset: str,
    *,
    hidden: tuple[int, ...] = (),
    episodes: int,
    fragments: int,
    fragment_steps: int,
    seed: int = 0,
    acted: bool = False,
) -> Path:
    """Write Swimmer-shaped episodes in fragments, each of a policy of its own.

    Args:
        root: Folder of datasets.
        dataset: The dataset's id.
        hidden: Hidden sizes of the policies.
        episodes: Number of episodes.
        fragments: Fragments of each episode.
        fragment_steps: Steps of each fragment.
        seed: Seed of all numbers.
        acted: Whether the actions are those of the policies, each episode with a normaliser of
            its own, which takes long; else they are random.

    Returns:
        The dataset's folder.
    """
    rng = np.random.default_rng(seed)
    spec = PolicySpec(OBS, hidden, BoxActions((-1.0,) * ACT, (1.0,) * ACT))
    steps = fragments * fragment_steps
    segment = np.minimum(np.arange(steps + 1) // fragment_steps, fragments - 1).astype(np.int32)
    with DatasetWriter(
        dataset,
        spec,
        root=root,
        observation_space=gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float64),
        action_space=gym.spaces.Box(-1, 1, (ACT,), np.float32),
    ) as writer:
        for i in range(episodes):
            theta = 0.1 * rng.normal(size=(fragments, spec.size)).astype(np.float32)
            mean, std = np.zeros((fragments, OBS)), np.ones((fragments, OBS))
            observations = rng.normal(size=(steps + 1, OBS))
            actions = rng.uniform(-1, 1, size=(steps, ACT)).astype(np.float32)
            if acted:
                mean += rng.normal(size=OBS)
                std *= rng.uniform(0.5, 2, OBS)
                policies = Policies(spec, theta, mean, std)
                actors = [policies.actor(row) for row in range(fragments)]
                for t, (row, obs) in enumerate(zip(segment[:-1], observations, strict=False)):
                    actions[t] = actors[row].act(obs)[0]
            writer.add(
                Episode(
                    observations=observations,
                    actions=actions,
                    rewards=rng.normal(size=steps),
                    terminated=np.zeros(steps, bool),
                    truncated=np.arange(steps) == steps - 1,
                    theta=theta,
                    segment=segment,
                    obs_mean=mean,
                    obs_std=std,
                    seed=i,
                )
            )
        writer.finish()
    return writer.path
