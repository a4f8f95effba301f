"""What every schedule holds, those of installed packages included; mirrored ones by hand."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys

import numpy as np
import pytest

from libtools import box_spec, make_policies
from pbvf_offline.rollout.schedule_kinds import INDEPENDENT, SCHEDULES
from pbvf_offline.rollout.schedules import PerturbationSchedule

BASE = make_policies(box_spec(3, (4,)), 1, mean=[0.5, 0.0, -1.0], std=[2.0, 1.0, 0.1])
every_schedule = pytest.mark.parametrize("name", SCHEDULES)


def schedule_of(name: str, *, sigma: float = 0.5, seed: int = 0) -> PerturbationSchedule:
    return SCHEDULES[name](BASE, sigma, 3, seed)


def test_schedules_are_known_without_numpy() -> None:
    code = (
        "import sys; from pbvf_offline.rollout.schedule_kinds import SCHEDULES; "
        "assert all(map(SCHEDULES.summary, SCHEDULES)); assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@every_schedule
def test_a_segment_is_a_function_of_the_seed_and_its_indices(name: str) -> None:
    schedule = schedule_of(name)
    at = [(episode, index) for episode in range(4) for index in range(3)]
    forward = {key: schedule.segment(*key).theta.tobytes() for key in at}
    again = pickle.loads(pickle.dumps(schedule_of(name)))  # as a worker gets it
    assert {key: again.segment(*key).theta.tobytes() for key in reversed(at)} == forward
    assert len(set(forward.values())) == len(at)
    other = schedule_of(name, seed=1)
    assert all(other.segment(*key).theta.tobytes() != forward[key] for key in at)


@every_schedule
def test_a_segment_is_a_policy_in_the_base_policys_normaliser(name: str) -> None:
    schedule = schedule_of(name)
    segment = schedule.segment(5, 2)
    assert schedule.spec == BASE.spec
    assert schedule.perturb_every == 3
    assert segment.theta.shape == (BASE.spec.size,)
    assert segment.theta.dtype == np.float32
    assert np.array_equal(segment.obs_mean, BASE.obs_mean[0])
    assert np.array_equal(segment.obs_std, BASE.obs_std[0])


@every_schedule
def test_the_noise_is_centred_and_has_the_spread_asked_for(name: str) -> None:
    schedule = schedule_of(name, sigma=0.25)
    noise = np.stack([schedule.segment(i, 0).theta - BASE.theta[0] for i in range(400)])
    assert np.abs(noise.mean(axis=0)).max() < 0.06
    assert noise.std() == pytest.approx(0.25, rel=0.05)


@every_schedule
def test_without_noise_the_base_policy_acts(name: str) -> None:
    still = schedule_of(name, sigma=0.0)
    assert np.array_equal(still.segment(3, 5).theta, BASE.theta[0])


@every_schedule
def test_every_episode_and_the_warm_up_have_their_own_numbers(name: str) -> None:
    schedule = schedule_of(name)
    warm = dataclasses.replace(schedule, warmup=True)
    seeds = [s.reset_seed(i) for s in (schedule, warm) for i in range(8)]
    draws = [s.action_rng(i).random() for s in (schedule, warm) for i in range(8)]
    assert len(set(seeds)) == len(set(draws)) == 16
    assert not np.array_equal(schedule.segment(0, 0).theta, warm.segment(0, 0).theta)


def test_mirrored_noise_by_hand() -> None:
    mirrored, usual = schedule_of("mirrored"), schedule_of(INDEPENDENT)
    base = BASE.theta[0]
    for pair in range(3):
        for index in range(2):
            there = mirrored.segment(2 * pair, index).theta
            back = mirrored.segment(2 * pair + 1, index).theta
            assert np.array_equal(there, usual.segment(2 * pair, index).theta)
            assert back - base == pytest.approx(base - there, abs=1e-6)
