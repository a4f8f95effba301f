"""fit-model's loop against a bare torch loop, and imagined steps against the real environment's.

Both sides on one thread, by the processor's time, so that other work beside it matters less.

Run: python benchmarks/model.py
"""

from __future__ import annotations

import functools
import time

import gymnasium as gym
import numpy as np
import torch

from fit import data_for
from pbvf_offline.models.ensemble import Ensemble, Steps
from pbvf_offline.models.imagine import imagine
from pbvf_offline.models.network import BatchedMLP, has_bfloat16
from pbvf_offline.models.scales import Scales
from pbvf_offline.models.settings import ModelSettings
from pbvf_offline.models.training import advance, start_training
from pbvf_offline.rollout.episodes import Trajectories
from tools.alternate import Benchmark

SETTINGS = ModelSettings(seed=0, noise=0.15, angles=True, bfloat16=has_bfloat16())
POLICIES, STARTS, HORIZON = 32, 4, 300


def ensemble_for(data: Trajectories) -> Ensemble:
    """Return an untrained ensemble of the default size."""
    return Ensemble(data.policies.spec, Scales.of(data, np.arange(len(data))), SETTINGS)


def ours(data: Trajectories, updates: int) -> float:
    """Return gradient steps a second of this project's loop."""
    fit = start_training(ensemble_for(data), 20_000)
    steps = Steps.of(data, fit.ensemble.scales, np.arange(len(data)))
    advance(fit, steps, 20)
    started = time.process_time()
    advance(fit, steps, 20 + updates)
    return updates / (time.process_time() - started)


def bare(data: Trajectories, updates: int) -> float:
    """Return gradient steps a second of a first loop around the same networks."""
    t = data.transitions
    obs = (t.obs - t.obs.mean(0)) / t.obs.std(0)
    change = (t.next_obs - t.obs) / t.obs.std(0)
    inputs = np.concatenate([obs, t.action, np.sin(t.obs), np.cos(t.obs)], axis=1)
    targets = np.concatenate([change / change.std(0), t.reward[:, None]], axis=1)
    x = torch.from_numpy(inputs.astype(np.float32))
    y = torch.from_numpy(targets.astype(np.float32))
    members, rng = SETTINGS.members, np.random.default_rng(0)
    network = BatchedMLP(
        members, x.shape[1], SETTINGS.hidden, y.shape[1], rng, bfloat16=SETTINGS.bfloat16
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=SETTINGS.lr, fused=True)

    def update() -> None:
        index = torch.randint(len(x), (members, SETTINGS.batch_size))
        size = SETTINGS.noise * torch.rand(members, SETTINGS.batch_size, 1)
        noise = size * torch.randn(members, SETTINGS.batch_size, obs.shape[1])
        seen, wanted = x[index], y[index]
        seen[..., : obs.shape[1]] += noise
        wanted[..., : obs.shape[1]] -= noise
        loss = (network(seen) - wanted).square().mean(dim=(1, 2)).sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    for _ in range(20):
        update()
    started = time.process_time()
    for _ in range(updates):
        update()
    return updates / (time.process_time() - started)


def imagined(data: Trajectories) -> float:
    """Return imagined steps a second, all members counted."""
    ensemble = ensemble_for(data)
    theta = data.policies.theta[:POLICIES]
    starts = data.initial_observations[:STARTS].astype(np.float64)
    imagine(ensemble, data.policies.spec, theta, starts, 5)
    started = time.process_time()
    result = imagine(ensemble, data.policies.spec, theta, starts, HORIZON)
    return float(result.lengths.sum()) / (time.process_time() - started)


def real(data: Trajectories) -> float:
    """Return steps a second of a bare Gymnasium loop with a numpy policy."""
    env = gym.make("Swimmer-v5")
    actor = data.policies.actor(0)
    obs, _ = env.reset(seed=0)
    started = time.process_time()
    for _ in range(4_000):
        obs, _, terminated, truncated, _ = env.step(actor.act(obs)[0])
        if terminated or truncated:
            obs, _ = env.reset()
    rate = 4_000 / (time.process_time() - started)
    env.close()
    return rate


if __name__ == "__main__":
    benchmark = Benchmark(__doc__)
    torch.set_num_threads(1)
    data = data_for(())
    benchmark.compare(
        "fit-model / bare torch loop around the same networks",
        functools.partial(ours, data, 200),
        functools.partial(bare, data, 200),
        target=0.9,
        unit="updates/s",
    )
    benchmark.compare(
        "imagined steps of all members / steps of Swimmer-v5",
        functools.partial(imagined, data),
        functools.partial(real, data),
        target=20.0,
        unit="steps/s",
    )
    benchmark.write()
