"""fit-critic's PSVF loop against a bare torch loop: same loss, fused Adam, tensors in memory.

And through fingerprints of [64,64] policies against itself where each batch takes them again.

Run: python benchmarks/fit.py
"""

from __future__ import annotations

import dataclasses
import functools
import time

import numpy as np
import torch
from torch import nn

from pbvf_offline.fit.loop import advance, start_fit, training_set
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories
from tools.alternate import Benchmark

STEPS, FRAGMENT, BATCH, GAMMA, LR = 100_000, 200, 128, 0.999, 1e-3
CPU = torch.device("cpu")


def data_for(hidden: tuple[int, ...], steps: int = STEPS) -> Trajectories:
    """Return Swimmer-shaped random data: a policy for each 200 steps, episodes of 1,000."""
    rng = np.random.default_rng(0)
    spec = PolicySpec(8, hidden, BoxActions((-1.0, -1.0), (1.0, 1.0)))
    count, episodes = steps // FRAGMENT, steps // 1_000
    policies = Policies(
        spec,
        rng.normal(size=(count, spec.size)).astype(np.float32),
        np.zeros((count, 8)),
        np.ones((count, 8)),
    )
    return Trajectories(
        policies=policies,
        observations=rng.normal(size=(steps + episodes, 8)),
        actions=rng.uniform(-1, 1, size=(steps, 2)).astype(np.float32),
        rewards=rng.normal(size=steps),
        terminated=np.zeros(steps, bool),
        truncated=np.zeros(steps, bool),
        policy=np.repeat(np.arange(count, dtype=np.int32), FRAGMENT),
        start=np.arange(0, steps + 1, 1_000),
        cut=np.zeros(episodes, bool),
        seeds=np.arange(episodes),
    )


def ours(data: Trajectories, updates: int, fingerprint: int = 0, *, kept: bool = True) -> float:
    """Return gradient steps a second of this project's loop.

    Args:
        data: The dataset.
        updates: Gradient steps.
        fingerprint: Number of probing states; 0: the critic reads theta.
        kept: Whether what the critic sees of each policy is computed once.
    """
    settings = FitSettings(
        "psvf", (512, 512), GAMMA, LR, BATCH, 1, "raw", 0.0, 0, fingerprint=fingerprint
    )
    fit = start_fit(data, settings, CPU)
    prepared = training_set(fit, data, CPU)
    if not kept:
        prepared = dataclasses.replace(prepared, seen=None)
    advance(fit, prepared, 20)
    started = time.perf_counter()
    advance(fit, prepared, 20 + updates)
    return updates / (time.perf_counter() - started)


def bare(data: Trajectories, updates: int) -> float:
    """Return gradient steps a second of the loop one would write first."""
    steps = data.transitions
    theta = torch.from_numpy(data.policies.theta)
    policy = torch.from_numpy(steps.policy.astype(np.int64))
    obs, ahead = (torch.from_numpy(x.astype(np.float32)) for x in (steps.obs, steps.next_obs))
    reward = torch.from_numpy(steps.reward.astype(np.float32))
    alive = torch.from_numpy((~steps.terminated).astype(np.float32))
    width = theta.shape[1] + obs.shape[1]
    critic = nn.Sequential(
        nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)
    )
    optimiser = torch.optim.Adam(critic.parameters(), lr=LR, fused=True)

    def update() -> None:
        index = torch.randint(len(reward), (BATCH,))
        rows = theta[policy[index]]
        value = critic(torch.cat([rows, obs[index]], 1)).squeeze(1)
        with torch.no_grad():
            after = critic(torch.cat([rows, ahead[index]], 1)).squeeze(1)
            target = reward[index] + GAMMA * alive[index] * after
        loss = (value - target).square().mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    for _ in range(20):
        update()
    started = time.perf_counter()
    for _ in range(updates):
        update()
    return updates / (time.perf_counter() - started)


if __name__ == "__main__":
    benchmark = Benchmark(__doc__)
    for hidden, updates in (((), 1_500), ((64, 64), 300)):
        data = data_for(hidden)
        benchmark.compare(
            f"fit-critic psvf, {data.policies.spec.arch} policy / bare torch loop",
            functools.partial(ours, data, updates),
            functools.partial(bare, data, updates),
            target=0.9,
            unit="updates/s",
        )
    benchmark.compare(
        "fit-critic psvf through fingerprints of [64,64] policies / taken for each batch",
        functools.partial(ours, data, 300, 64),
        functools.partial(ours, data, 300, 64, kept=False),
        target=1.0,
        unit="updates/s",
    )
    benchmark.write()
