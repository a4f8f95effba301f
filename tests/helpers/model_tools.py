"""Data of small systems whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from libtools import box_spec, make_policies
from pbvf_offline.models.check import held_out_episodes
from pbvf_offline.models.settings import ModelSettings
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.episodes import Episode, Trajectories, stack_episodes

SETTINGS = ModelSettings(seed=0, members=2, hidden=(32, 32), batch_size=64)
TARGET_HORIZON = 30
Step = Callable[[NDArray[np.float64], NDArray[Any], np.random.Generator], tuple[Any, float, bool]]


def played(
    policies: Policies, step: Step, starts: NDArray[np.float64], steps: int, seed: int = 0
) -> Trajectories:
    """One episode for each policy, from its own start, by ``step(obs, action, rng)``."""
    rng = np.random.default_rng(seed)
    episodes = []
    for k in range(len(policies)):
        actor, obs = policies.actor(k), starts[k]
        observations, actions, rewards, ends, before = [obs], [], [], [], []
        for _ in range(steps):
            action, pre_action = actor.act(obs, rng)
            obs, reward, ended = step(obs, action, rng)
            observations.append(obs)
            actions.append(action)
            rewards.append(reward)
            ends.append(ended)
            before.append(pre_action)
            if ended:
                break
        length = len(rewards)
        truncated = np.zeros(length, bool)
        truncated[-1] = not ends[-1]
        episodes.append(
            Episode(
                observations=np.array(observations),
                actions=np.array(actions),
                rewards=np.array(rewards),
                terminated=np.array(ends),
                truncated=truncated,
                theta=policies.theta[k : k + 1],
                segment=np.zeros(length + 1, np.int32),
                obs_mean=policies.obs_mean[k : k + 1],
                obs_std=policies.obs_std[k : k + 1],
                seed=None,
                pre_action=None
                if before[0] is None
                else np.array([*before, np.zeros_like(before[0])]),
            )
        )
    return stack_episodes(policies.spec, episodes)


def held_out(data: Trajectories) -> NDArray[np.bool_]:
    """A fifth of the episodes."""
    return held_out_episodes(data.episodes, 0.2, 0)


def to_target(
    obs: NDArray[np.float64], action: NDArray[Any], rng: np.random.Generator
) -> tuple[NDArray[np.float64], float, bool]:
    """Push a point that drifts; it should stand at 1."""
    ahead = 0.95 * obs + 0.2 * np.asarray(action, float)
    return ahead, -float((ahead[0] - 1.0) ** 2), False


@cache
def target_data() -> Trajectories:
    """An episode each of 60 linear policies that push a point to a target."""
    starts = np.random.default_rng(0).uniform(-1, 1, (60, 1))
    return played(make_policies(box_spec(1), 60), to_target, starts, TARGET_HORIZON)
