"""Random sources beside the environment's own generator: an episode's own, and the caller's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from libtools import box_spec, make_policies
from pbvf_offline.envs.make import make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.rollout.episodes import Episode
from pbvf_offline.rollout.evaluation import evaluate_policies
from pbvf_offline.rollout.loop import EpisodeJob, EpisodeRun, run_episodes
from pbvf_offline.rollout.schedules import GivenSchedule
from random_envs import SHARED, env_id

SCHEDULE = GivenSchedule(make_policies(box_spec(2), 3), 5)


def config(source: str) -> EnvConfig:
    return EnvConfig(env_id(source))


def job(source: str) -> EpisodeJob:
    return EpisodeJob(config(source), SCHEDULE)


def drawn(episode: Episode) -> list[float]:
    """What the environment drew, at the reset and at each step."""
    numbers: list[float] = episode.observations[:, 1].tolist()
    return numbers


def disturb() -> None:
    """Leave the global generators somewhere else; one normal is half of a pair."""
    random.seed()
    np.random.seed()  # noqa: NPY002
    np.random.normal()  # noqa: NPY002
    torch.seed()


@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("source", SHARED)
def test_what_an_episode_draws_follows_from_its_seed(source: str) -> None:
    disturb()
    inline = [drawn(e) for e in run_episodes(job(source), range(4))]
    disturb()
    parallel = [drawn(e) for e in run_episodes(job(source), range(4), workers=2)]
    backward = [drawn(e) for e in run_episodes(job(source), [3, 2])]
    assert inline == parallel
    assert backward == [inline[3], inline[2]]
    if source != "built":  # drawn once
        assert len({tuple(numbers) for numbers in inline}) == 4
        assert len(set(inline[0])) == 6


@pytest.mark.parametrize("source", SHARED)
def test_pieces_of_an_episode_draw_what_the_whole_one_does(source: str) -> None:
    whole = next(run_episodes(job(source), [1]))
    run = EpisodeRun(make_env(config(source)), SCHEDULE, 1)
    for _ in range(5):
        disturb()
        next(run_episodes(job(source), [0]))  # as an evaluation in the middle of training
        run.advance(1)
    assert drawn(run.episode()) == drawn(whole)


def test_spaces_do_not_repeat_the_environments_own_generator() -> None:
    action, observation = (next(run_episodes(job(s), [0])) for s in ("action", "observation"))
    start = action.observations[0, 0]
    units = [start, drawn(action)[0], drawn(observation)[0] / 10]
    assert len({round(unit, 6) for unit in units}) == 3


def numbers() -> list[Any]:
    return [random.random(), np.random.normal(), np.random.uniform(), float(torch.rand(1))]  # noqa: NPY002


@pytest.mark.parametrize("source", ["normal", "python", "torch", "none"])
def test_the_callers_generators_are_left_alone(source: str) -> None:
    def seed() -> None:
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)
        np.random.normal()  # half of a pair  # noqa: NPY002

    seed()
    wanted = numbers()
    seed()
    next(run_episodes(job(source), [0]))
    run = EpisodeRun(make_env(config(source)), SCHEDULE, 0)
    run.advance(2)
    assert numbers() == wanted


def test_what_other_environments_do_with_a_seed_is_what_it_was() -> None:
    """Whole numbers, so that rounding does not matter; measured before sources were seeded."""
    cart = EnvConfig("CartPole-v1")
    policies = make_policies(spec_for_env(make_env(cart), hidden=()), 3)
    returns, _ = evaluate_policies(cart, policies, episodes=3, seed=5)
    assert returns.tolist() == [[14, 16, 14], [13, 11, 13], [10, 9, 10]]
