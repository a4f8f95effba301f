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
from pbvf_offline.models.network import BatchedMLP
from pbvf_offline.models.scales import Scales
from pbvf_offline.models.settings import ModelRequest, ModelSettings
from pbvf_offline.models.training import advance, start_training
from pbvf_offline.policies.batch import has_bfloat16
from pbvf_offline.rollout.episodes import Trajectories
from tools.alternate import Benchmark

SETTINGS = ModelSettings(
    seed=0,
    noise=0.03,
    angles=True,
    lr=ModelRequest.lr,
    recovery=ModelRequest.recovery,
    huber=ModelRequest.huber,
    mixed=True,
    bfloat16=has_bfloat16(),
)
IN_A_ROW = 10  # steps that half of the networks learn
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
    """Return gradient steps a second of a first loop around the same networks.

    Half of them learn single steps by Huber's loss, the others ten in a row by squares.
    """
    t = data.transitions
    mean, std = t.obs.mean(0), t.obs.std(0)
    change = (t.next_obs - t.obs) / std
    spread = torch.from_numpy(change.std(0).astype(np.float32))
    columns = ((t.obs - mean) / std, change, t.action, t.reward[:, None])
    obs, change, action, reward = (torch.from_numpy(x.astype(np.float32)) for x in columns)
    mean, std = (torch.from_numpy(x.astype(np.float32)) for x in (mean, std))
    members, rng, size = SETTINGS.members, np.random.default_rng(0), obs.shape[1]
    network = BatchedMLP(
        members,
        3 * size + action.shape[1],
        SETTINGS.hidden,
        size + 1,
        rng,
        bfloat16=SETTINGS.bfloat16,
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=SETTINGS.lr, fused=True)
    half = members // 2
    parts = ((slice(0, half), 1, SETTINGS.recovery), (slice(half, members), IN_A_ROW, 1.0))

    def loss_of(part: slice, unroll: int, recovery: float) -> torch.Tensor:
        shape = (half, SETTINGS.batch_size // unroll)
        index = torch.randint(len(obs) - unroll, shape)
        noise = SETTINGS.noise * torch.rand(*shape, 1) * torch.randn(*shape, size)
        away = noise * spread
        predict = network.members(part)
        loss = torch.zeros(())
        for ahead in range(unroll):
            row = index + ahead
            seen = obs[row] + away
            raw = seen * std + mean
            inputs = torch.cat([seen, action[row], torch.sin(raw), torch.cos(raw)], dim=-1)
            out = predict(inputs)
            wanted = torch.cat([(change[row] - recovery * away) / spread, reward[row]], dim=-1)
            if unroll == 1:
                error = 2 * torch.nn.functional.huber_loss(out, wanted, delta=SETTINGS.huber)
            else:
                error = (out - wanted).square().mean()
            loss = loss + half * error / unroll
            away = away + out[..., :size] * spread - change[row]
        return loss

    def update() -> None:
        loss = loss_of(*parts[0]) + loss_of(*parts[1])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
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
