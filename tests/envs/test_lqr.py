from __future__ import annotations

import numpy as np
import pytest
import torch

from libtools import fit_settings, lqr_return
from pbvf_offline.envs.make import make_env, time_limit
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.fit.loop import advance, start_fit, training_set
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.rollout.episodes import stack_episodes
from pbvf_offline.rollout.evaluation import evaluate_policies
from pbvf_offline.rollout.loop import EpisodeJob, run_episodes
from pbvf_offline.rollout.schedules import GivenSchedule

LQR = EnvConfig("LQR-v0")


def lqr_policies(weight: np.ndarray, bias: np.ndarray) -> Policies:
    env = make_env(LQR)
    spec = spec_for_env(env, (), squash="none")
    env.close()
    theta = np.stack([weight, bias], axis=1).astype(np.float32)
    return Policies(spec, theta, np.zeros((len(theta), 1)), np.ones((len(theta), 1)))


def simulate(weight: float, bias: float, steps: int, gamma: float) -> tuple[float, float]:
    """Return the unbounded return by running it, and the largest |state|."""
    state, total, largest = 1.0, 0.0, 1.0
    for t in range(steps):
        action = weight * state + bias
        total -= gamma**t * (state**2 + action**2)
        state += action
        largest = max(largest, abs(state))
    return total, largest


# m = 1 + w is 0 at w = -1 (one jump) and -1 at w = -2 (for ever back and forth).
POINTS = [
    (-1.0, 0.0),
    (-1.0, 0.3),
    (-2.0, 0.0),
    (-2.0, 0.4),
    (-1.0 + 1e-7, 0.2),
    (-2.0 + 1e-9, 0.1),
]


@pytest.mark.parametrize("gamma", [1.0, 0.99, 0.5, 0.0])
def test_closed_form_is_the_sum(gamma: float, rng: np.random.Generator) -> None:
    drawn = list(zip(rng.uniform(-2, -0.05, 30), rng.uniform(-0.5, 0.5, 30), strict=True))
    for weight, bias in POINTS + drawn:
        want, _ = simulate(weight, bias, 50, gamma)
        got = lqr_return(np.array(weight), np.array(bias), 50, gamma)
        assert got == pytest.approx(want, rel=1e-7, abs=1e-7)


def test_closed_form_by_hand() -> None:
    # w = -1, b = 0: one step from 1 to 0 costs 1 + 1, then nothing: -2.
    assert lqr_return(np.array(-1.0), np.array(0.0), 50) == pytest.approx(-2.0)
    # w = -2, b = 0: s = 1, -1, 1, ... and |a| = 2 for ever: -(1 + 4) * 50.
    assert lqr_return(np.array(-2.0), np.array(0.0), 50) == pytest.approx(-250.0)
    # w = -1, b = 0.5: s = 1, .5, .5, ..; a = -.5, 0, 0, ..: -(1 + .25) - 49 * .25.
    assert lqr_return(np.array(-1.0), np.array(0.5), 50) == pytest.approx(-13.5)


def test_environment_earns_the_closed_form_inside_the_bounds(rng: np.random.Generator) -> None:
    weight = np.concatenate([[p[0] for p in POINTS], rng.uniform(-2.0, -0.05, 40)])
    bias = np.concatenate([[p[1] for p in POINTS], rng.uniform(-0.8, 0.8, 40)])
    theta = np.stack([weight, bias], axis=1).astype(np.float32).astype(float)
    inside = np.array([simulate(w, b, 50, 1.0)[1] < 2.0 - 1e-6 for w, b in theta])
    assert inside.sum() >= 25
    policies = lqr_policies(theta[inside, 0], theta[inside, 1])
    returns, discounted = evaluate_policies(LQR, policies, episodes=1, seed=3, gamma=0.9)
    exact = policies.theta.astype(float)
    want = lqr_return(exact[:, 0], exact[:, 1], 50)
    assert np.allclose(returns[:, 0], want, rtol=1e-6)
    want = lqr_return(exact[:, 0], exact[:, 1], 50, 0.9)
    assert np.allclose(discounted[:, 0], want, rtol=1e-6)


def test_environment_by_hand() -> None:
    env = make_env(LQR)
    assert time_limit(env) == 50
    obs, _ = env.reset(seed=1)
    assert obs.tolist() == [1.0]
    # From 1 by +5: the cost counts the 5 asked for, the move stops at the bound 2.
    obs, reward, terminated, truncated, _ = env.step(np.array([5.0]))
    assert (obs.tolist(), reward, terminated, truncated) == ([2.0], -26.0, False, False)
    obs, reward, *_ = env.step(np.array([-0.5]))
    assert (obs.tolist(), reward) == ([1.5], -4.25)
    for t in range(48):
        *_, terminated, truncated, _ = env.step(np.array([0.0]))
        assert (terminated, truncated) == (False, t == 47)
    obs, _ = env.reset(seed=2)
    assert obs.tolist() == [1.0]
    env.close()


def test_pssvf_learns_the_closed_form() -> None:
    rng = np.random.default_rng(0)
    weight, bias = rng.uniform(-1.3, -0.7, 200), rng.uniform(-0.15, 0.15, 200)
    policies = lqr_policies(weight, bias)
    job = EpisodeJob(LQR, GivenSchedule(policies, 0))
    data = stack_episodes(policies.spec, run_episodes(job, range(200)))
    settings = fit_settings("pssvf", hidden=(32, 32), gamma=1.0, lr=3e-3, batch_size=64)
    device = torch.device("cpu")
    fit = start_fit(data, settings, device)
    advance(fit, training_set(fit, data, device), 800)
    grid = np.stack(np.meshgrid(np.linspace(-1.2, -0.8, 5), np.linspace(-0.1, 0.1, 5)), -1)
    theta = grid.reshape(-1, 2).astype(np.float32)
    want = lqr_return(theta[:, 0].astype(float), theta[:, 1].astype(float), 50)
    got = fit.critic.objective(torch.from_numpy(theta), torch.zeros(1, 1)).numpy()
    assert np.ptp(want) > 0.5
    assert np.abs(got - want).max() < 0.15
    assert np.corrcoef(got, want)[0, 1] > 0.97
