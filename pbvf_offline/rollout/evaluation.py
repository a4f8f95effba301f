"""Running policies to measure them: returns of whole episodes, and the warm-up's statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.envs.make import close_env, make_env, time_limit
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import UsageError
from pbvf_offline.policies.normaliser import Normaliser, RunningStatistics
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.episodes import Episode
from pbvf_offline.rollout.loop import EpisodeJob, run_episodes
from pbvf_offline.rollout.native.offer import Backend
from pbvf_offline.rollout.repetition import warn_not_repeatable
from pbvf_offline.rollout.schedules import GivenSchedule, PerturbationSchedule


@dataclass(frozen=True)
class ReturnOf:
    """Reduces an episode to its undiscounted and discounted raw return.

    Attributes:
        gamma: Discount factor of the second number.
        without_survival: Leave the reported survival bonus out of the second number.
    """

    gamma: float = 1.0
    without_survival: bool = False

    def __call__(self, episode: Episode) -> tuple[float, float]:
        """Return ``(sum of r_t, sum of gamma^t r'_t)``, r' with or without the bonus."""
        rewards = episode.rewards
        if self.without_survival and episode.reward_survive is not None:
            rewards = rewards - episode.reward_survive[1:]
        discount = self.gamma ** np.arange(len(episode))
        return float(episode.rewards.sum()), float(discount @ rewards)


def require_end(config: EnvConfig, max_steps: int | None) -> None:
    """Refuse whole episodes of an environment that may never end.

    Raises:
        UsageError: It has no time limit and none was given.
    """
    if max_steps is not None:
        return
    env = make_env(config)
    limit = time_limit(env)
    close_env(env)
    if limit is None:
        raise UsageError(
            "this environment has no time limit, so an episode may never end",
            where=config.name,
            remedy="give --max-episode-steps",
        )


def observations_acted_on(episode: Episode) -> NDArray[Any]:
    """Reduce an episode to the (T, obs_dim) observations that a policy acted on."""
    return episode.observations[:-1]


def evaluate_policies(
    config: EnvConfig,
    policies: Policies,
    *,
    episodes: int,
    seed: int,
    gamma: float = 1.0,
    without_survival: bool = False,
    max_steps: int | None = None,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
    check: bool = True,
    backend: Backend = "auto",
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Run each policy for exactly ``episodes`` whole episodes.

    The e-th episode of every policy starts from the same reset seed, so differences
    between policies are not differences between starts.

    Args:
        config: The environment.
        policies: K policies.
        episodes: Episodes E of each policy.
        seed: Seed of resets and action noise.
        gamma: Discount factor of the discounted returns.
        without_survival: Leave the reported survival bonus out of the discounted returns, as
            critics with that reward do.
        max_steps: Step limit where the environment has none.
        workers: Number of processes.
        progress: Called with episodes done and wanted.
        check: Play the first episode once more, and warn where it comes out otherwise.
        backend: What plays the episodes; does not change the result.

    Raises:
        UsageError: The environment has no time limit and ``max_steps`` is None, or the backend
            does not play it.

    Returns:
        Undiscounted and discounted returns, each (K, E), in units of reward.
    """
    require_end(config, max_steps)
    schedule = GivenSchedule(policies, seed, repeat=episodes)
    reduce = ReturnOf(gamma, without_survival)
    job = EpisodeJob(config, schedule, max_steps, reduce, backend)
    total = len(policies) * episodes
    pairs = []

    def warn() -> None:
        warn_not_repeatable(config.name)

    differs = warn if check else None
    for pair in run_episodes(job, range(total), workers=workers, differs=differs):
        pairs.append(pair)
        if progress is not None:
            progress(len(pairs), total)
    values = np.array(pairs, dtype=np.float64).reshape(len(policies), episodes, 2)
    return values[..., 0], values[..., 1]


def warm_up(
    config: EnvConfig,
    schedule: PerturbationSchedule,
    *,
    episodes: int,
    max_steps: int | None = None,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
    backend: Backend = "auto",
) -> tuple[Normaliser, int]:
    """Run a schedule's warm-up and freeze the statistics of the observations acted on.

    Args:
        config: The environment.
        schedule: One with ``warmup=True`` whose base policy has the identity normaliser.
        episodes: Number of warm-up episodes.
        max_steps: Step limit of each.
        workers: Number of processes.
        progress: Called with episodes done and wanted.
        backend: What plays the episodes; does not change the result.

    Returns:
        The normaliser and the number of steps it cost.
    """
    statistics = RunningStatistics(schedule.spec.obs_dim)
    job = EpisodeJob(config, schedule, max_steps, observations_acted_on, backend)
    for k, observations in enumerate(run_episodes(job, range(episodes), workers=workers)):
        statistics.update(observations)
        if progress is not None:
            progress(k + 1, episodes)
    return statistics.freeze(), statistics.count
