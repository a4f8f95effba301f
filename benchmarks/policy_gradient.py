"""The policy gradient of a [64,64] policy on 10,000 states against plain concatenation.

Run: python benchmarks/policy_gradient.py
"""

from __future__ import annotations

import time

import numpy as np
import torch

from pbvf_offline.critics import Critic, CriticConfig, make_critic
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.spec import PolicySpec
from tools.alternate import Benchmark

STATES = 10_000


def setting() -> tuple[Critic, torch.Tensor, torch.Tensor]:
    """Return a PSVF (512, 512), one [64,64] theta (1, D) and the states (10,000, 8)."""
    spec = PolicySpec(8, (64, 64), BoxActions((-1.0, -1.0), (1.0, 1.0)))
    rng = np.random.default_rng(0)
    critic = make_critic("psvf", CriticConfig(spec, (512, 512)), rng)
    theta = torch.from_numpy(rng.normal(size=(1, spec.size)).astype(np.float32) * 0.1)
    states = torch.from_numpy(rng.normal(size=(STATES, 8)).astype(np.float32))
    return critic, theta, states


def plain_gradient(critic: Critic, theta: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Return the gradient (1, D) with theta concatenated to every state."""
    network = critic.network
    leaf = theta.clone().requires_grad_()
    joined = torch.cat([leaf.expand(len(states), -1), states], dim=1)
    first = torch.cat([network.first["theta"], network.first["obs"]], dim=1).detach()
    x = torch.relu(torch.nn.functional.linear(joined, first, network.first_bias.detach()))
    x = torch.relu(
        torch.nn.functional.linear(x, network.weights[0].detach(), network.biases[0].detach())
    )
    x = torch.nn.functional.linear(x, network.weights[1].detach(), network.biases[1].detach())
    return torch.autograd.grad(x.mean(), leaf)[0]


def rate(step: object, repeats: int) -> float:
    """Return calls a second."""
    step()  # type: ignore[operator]
    started = time.perf_counter()
    for _ in range(repeats):
        step()  # type: ignore[operator]
    return repeats / (time.perf_counter() - started)


if __name__ == "__main__":
    benchmark = Benchmark(__doc__)
    critic, theta, states = setting()
    mine = critic.objective_and_gradient(theta, states)[1]
    plain = plain_gradient(critic, theta, states)
    difference = float((mine - plain).norm() / plain.norm())
    print(f"relative difference of the gradients: {difference:.2e} (wanted <= 1e-5)")
    benchmark.compare(
        "policy gradient, [64,64] policy, 10,000 states / plain concatenation",
        lambda: rate(lambda: critic.objective_and_gradient(theta, states), 20),
        lambda: rate(lambda: plain_gradient(critic, theta, states), 3),
        target=5.0,
        unit="gradients/s",
    )
    benchmark.results[0]["relative_difference"] = difference
    benchmark.write()
