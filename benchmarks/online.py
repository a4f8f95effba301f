"""The online loops against what they cannot do without.

PSSVF: environment steps a second against a bare Gymnasium loop with the same numpy policy
that learns nothing. PSVF: time against the sum of that bare loop and of bare torch updates
(same losses, fused Adam, tensors in memory, theta concatenated to every state).

Run: python benchmarks/online.py
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from pbvf_offline.envs.make import close_env, make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.online.loop import Hooks, train
from pbvf_offline.online.settings import OnlineSettings, online_defaults
from pbvf_offline.online.training import start_training
from pbvf_offline.policies.actor import Actor
from pbvf_offline.policies.policy import init_theta, perturb
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.setting_types import Precision
from tools.alternate import Benchmark

ENV, CPU = "Swimmer-v5", torch.device("cpu")
AUTHORS = 476.0
"""Steps a second of the authors' PSVF script, on an idle 2-core machine (Xeon with AMX)."""


def settings_for(kind: str) -> tuple[PolicySpec, OnlineSettings]:
    """Return the policy's spec and the default settings."""
    env = make_env(EnvConfig(ENV))
    spec = spec_for_env(env, ())
    close_env(env)
    return spec, online_defaults(kind, ENV, spec, seed=0).settings


def our_seconds(
    kind: str,
    steps: int,
    clock: Callable[[], float] = time.perf_counter,
    device: torch.device = CPU,
    **changes: Any,
) -> float:
    """Return the seconds that training takes, evaluations and files left out."""
    spec, settings = settings_for(kind)
    settings = dataclasses.replace(settings, **changes)
    env = make_env(EnvConfig(ENV))
    training = start_training(spec, settings, obs_dtype=env.observation_space.dtype, device=device)
    started = clock()
    train(training, env, steps, Hooks())
    seconds = clock() - started
    close_env(env)
    return seconds


def many_states(precision: Precision, steps: int = 2_000) -> float:
    """Return steps a second of CPU time of a PSVF with 10,000 states an actor update."""
    changes: dict[str, Any] = {"actor_states": 10_000, "precision": precision}
    return steps / our_seconds("psvf", steps, time.process_time, **changes)


def bare_loop_seconds(steps: int) -> float:
    """Return the seconds of a plain Gymnasium loop with a numpy policy, fresh each episode."""
    spec, settings = settings_for("pssvf")
    env = gym.make(ENV)
    rng = np.random.default_rng(0)
    theta = init_theta(spec, rng)
    mean, std = np.zeros(spec.obs_dim), np.ones(spec.obs_dim)
    started = time.perf_counter()
    done = 0
    while done < steps:
        act = Actor(spec, perturb(theta, settings.sigma, rng), mean, std).act
        obs, _ = env.reset(seed=done)
        total, ended = 0.0, False
        while not ended and done < steps:
            action, _ = act(obs)
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            ended = terminated or truncated
            done += 1
    seconds = time.perf_counter() - started
    env.close()
    return seconds


def bare_updates_seconds(steps: int) -> float:
    """Return the seconds of the torch updates of a PSVF run of so many steps."""
    spec, settings = settings_for("psvf")
    rng = np.random.default_rng(0)
    rows = max(1, steps // 1_000)
    theta = torch.from_numpy(rng.normal(size=(rows, spec.size)).astype(np.float32))
    obs, ahead = (
        torch.from_numpy(rng.normal(size=(steps, spec.obs_dim)).astype(np.float32))
        for _ in range(2)
    )
    policy = torch.from_numpy(np.minimum(np.arange(steps) // 1_000, rows - 1))
    reward = torch.from_numpy(rng.normal(size=steps).astype(np.float32))
    first, second = settings.hidden
    critic = nn.Sequential(
        nn.Linear(spec.size + spec.obs_dim, first),
        nn.ReLU(),
        nn.Linear(first, second),
        nn.ReLU(),
        nn.Linear(second, 1),
    )
    optimiser = torch.optim.Adam(critic.parameters(), lr=settings.lr_critic, fused=True)
    actor = theta[:1].clone().requires_grad_()
    ascent = torch.optim.Adam([actor], lr=settings.lr_policy, maximize=True, fused=True)

    def critic_update() -> None:
        index = torch.randint(steps, (settings.batch_size,))
        acted = theta[policy[index]]
        value = critic(torch.cat([acted, obs[index]], 1)).squeeze(1)
        with torch.no_grad():
            after = critic(torch.cat([acted, ahead[index]], 1)).squeeze(1)
            target = reward[index] + settings.gamma * after
        loss = (value - target).square().mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    def actor_update() -> None:
        index = torch.randint(steps, (settings.actor_states,))
        states = obs[index]
        values = critic(torch.cat([actor.expand(len(states), -1), states], 1))
        (actor.grad,) = torch.autograd.grad(values.mean(), actor)
        ascent.step()

    started = time.perf_counter()
    for _ in range(steps // (settings.update_every or steps)):
        for _ in range(settings.critic_updates):
            critic_update()
        for _ in range(settings.actor_updates):
            actor_update()
    return time.perf_counter() - started


def actor_steps_per_second(states: int, precision: Precision) -> float:
    """Return actor gradients a second of CPU time, with a [64,64] policy and a frozen PSVF."""
    spec, settings = settings_for("psvf")
    spec = dataclasses.replace(spec, hidden=(64, 64))
    env = make_env(EnvConfig(ENV))
    training = start_training(spec, settings, obs_dtype=env.observation_space.dtype, device=CPU)
    close_env(env)
    critic = training.fit.online
    shown = torch.from_numpy(
        np.random.default_rng(0).normal(size=(states, spec.obs_dim)).astype(np.float32)
    )
    repeats = max(5, 40_000 // states)
    with critic.network.in_precision(precision):
        critic.objective_and_gradient(training.theta, shown)
        started = time.process_time()
        for _ in range(repeats):
            critic.objective_and_gradient(training.theta, shown)
        return repeats / (time.process_time() - started)


if __name__ == "__main__":
    torch.set_num_threads(1)  # as in train-online
    benchmark = Benchmark(__doc__)
    benchmark.compare(
        "PSSVF online loop / bare Gymnasium loop with a numpy policy",
        lambda: 30_000 / our_seconds("pssvf", 30_000),
        lambda: 30_000 / bare_loop_seconds(30_000),
        target=0.75,
        unit="steps/s",
    )
    benchmark.compare(
        "PSVF online loop, time / bare loop plus bare torch updates",
        functools.partial(our_seconds, "psvf", 10_000),
        lambda: bare_loop_seconds(10_000) + bare_updates_seconds(10_000),
        target=1.15,
        unit="s",
        higher_is_better=False,
    )
    for states in (128, 1_000, 10_000):
        benchmark.compare(
            f"actor gradient, {states:,} states: bfloat16 / float32, CPU time",
            functools.partial(actor_steps_per_second, states, "bfloat16"),
            functools.partial(actor_steps_per_second, states, "float32"),
            target=None,
            unit="gradients/CPU s",
        )
    benchmark.compare(
        "PSVF online loop, 10,000 states an update, CPU time: bfloat16 / float32",
        functools.partial(many_states, "bfloat16"),
        functools.partial(many_states, "float32"),
        target=1.3,
        unit="steps/CPU s",
    )
    benchmark.compare(
        "the same in bfloat16 / the authors' script, whose rate was measured once",
        functools.partial(many_states, "bfloat16"),
        lambda: AUTHORS,
        target=3.0,
        unit="steps/s",
    )
    benchmark.write()
