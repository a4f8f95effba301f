"""Datasets of stock Minari, which name no policies, for the tests."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hostile
from libtools import make_episode
from pbvf_datasets.format.names import dataset_path
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.episodes import Episode


def played(policies: Policies, rows: Sequence[int], steps: int = 8) -> list[Episode]:
    """Return an episode of each of these policies."""
    rng = np.random.default_rng(0)
    return [make_episode(policies, [row], [steps], end="truncated", rng=rng) for row in rows]


def make_untagged(name: str, episodes: Sequence[Episode], policies: Policies) -> Path:
    """Write episodes by stock Minari, without their policies, and return the folder."""
    minari: Any = importlib.import_module("minari")
    buffers = [
        minari.data_collector.EpisodeBuffer(
            id=i,
            seed=episode.seed,
            observations=episode.observations,
            actions=episode.actions,
            rewards=list(episode.rewards),
            terminations=list(episode.terminated),
            truncations=list(episode.truncated),
            infos={},
        )
        for i, episode in enumerate(episodes)
    ]
    observation_space, action_space = hostile.spaces_of(policies.spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an author, a code, …
        minari.create_dataset_from_buffers(
            name,
            buffers,
            observation_space=observation_space,
            action_space=action_space,
            author="Ada",
        )
    return dataset_path(name)
