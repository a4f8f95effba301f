"""Small policies, episodes and datasets for the tests of the library."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pbvf_offline.critics import Critic
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.fit.critic_context import make_context
from pbvf_offline.fit.critic_file import CriticFile, finished_file
from pbvf_offline.fit.loop import advance, start_fit, training_set
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.io.tensor_file import decode, encode
from pbvf_offline.online.settings import OnlineSettings
from pbvf_offline.policies.actions import BoxActions, DiscreteActions
from pbvf_offline.policies.actor import Actor
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Episode, Trajectories, stack_episodes


def box_spec(
    obs_dim: int = 2,
    hidden: tuple[int, ...] = (),
    act_dim: int = 1,
    low: float = -1.0,
    high: float = 1.0,
    dtype: str = "float32",
    **kwargs: Any,
) -> PolicySpec:
    actions = BoxActions((low,) * act_dim, (high,) * act_dim, dtype)
    return PolicySpec(obs_dim, hidden, actions, **kwargs)


def discrete_spec(
    obs_dim: int = 2, hidden: tuple[int, ...] = (), n: int = 3, start: int = 0, **kwargs: Any
) -> PolicySpec:
    return PolicySpec(obs_dim, hidden, DiscreteActions(n, start), **kwargs)


def make_policies(
    spec: PolicySpec, rows: int, seed: int = 0, mean: Any = None, std: Any = None
) -> Policies:
    rng = np.random.default_rng(seed)
    mean = np.zeros(spec.obs_dim) if mean is None else np.asarray(mean, float)
    std = np.ones(spec.obs_dim) if std is None else np.asarray(std, float)
    theta = rng.normal(0, 0.5, (rows, spec.size)).astype(np.float32)
    return Policies(spec, theta, np.tile(mean, (rows, 1)), np.tile(std, (rows, 1)))


def make_episode(
    policies: Policies,
    rows: Sequence[int],
    lengths: Sequence[int],
    *,
    rewards: Sequence[float] | None = None,
    end: str = "terminated",
    rng: np.random.Generator | None = None,
    survive: float | None = None,
) -> Episode:
    """Segments of the given policies and lengths; ``end`` is terminated, truncated or cut."""
    rng = np.random.default_rng(0) if rng is None else rng
    spec, steps = policies.spec, sum(lengths)
    observations = rng.normal(0, 1, (steps + 1, spec.obs_dim))
    segment = np.repeat(np.arange(len(rows)), lengths)
    actors: list[Actor] = [policies.actor(row) for row in rows]
    actions = [actors[s].act(o, rng)[0] for s, o in zip(segment, observations[:-1], strict=True)]
    ends = np.zeros((2, steps), bool)
    ends[0 if end == "terminated" else 1, -1] = True
    index = np.asarray(rows)
    return Episode(
        observations=observations,
        actions=np.stack(actions),
        rewards=rng.normal(0, 1, steps) if rewards is None else np.array(rewards, float),
        terminated=ends[0],
        truncated=ends[1],
        theta=policies.theta[index],
        segment=np.append(segment, segment[-1]).astype(np.int32),
        obs_mean=policies.obs_mean[index],
        obs_std=policies.obs_std[index],
        seed=int(rng.integers(1000)),
        cut="budget" if end == "cut" else "none",
        reward_survive=None
        if survive is None
        else np.concatenate([[0.0], np.full(steps, survive)]),
    )


def make_data(
    spec: PolicySpec | None = None,
    *,
    policies: int = 12,
    length: int = 6,
    segments: int = 1,
    seed: int = 0,
    mean: Any = None,
    std: Any = None,
) -> Trajectories:
    """One episode for every ``segments`` policies; ends alternate."""
    spec = box_spec() if spec is None else spec
    every = make_policies(spec, policies, seed, mean, std)
    rng = np.random.default_rng(seed + 1)
    episodes = []
    for i, at in enumerate(range(0, policies, segments)):
        rows = list(range(at, min(at + segments, policies)))
        end = ("terminated", "truncated")[i % 2]
        episodes.append(make_episode(every, rows, [length] * len(rows), end=end, rng=rng))
    return stack_episodes(spec, episodes)


def fit_settings(kind: str = "psvf", **kwargs: Any) -> FitSettings:
    values: dict[str, Any] = {
        "kind": kind,
        "hidden": (8,),
        "gamma": 0.9,
        "lr": 1e-2,
        "batch_size": 4,
        "n_step": 2,
        "reward": "raw",
        "validation": 0.0,
        "seed": 0,
    }
    return FitSettings(**{**values, **kwargs})


def online_settings(kind: str = "psvf", **kwargs: Any) -> OnlineSettings:
    values: dict[str, Any] = {
        "kind": kind,
        "gamma": 0.9,
        "sigma": 0.3,
        "hidden": (4,),
        "lr_policy": 1e-2,
        "lr_critic": 1e-2,
        "batch_size": 4,
        "actor_states": 4,
        "update_every": None if kind == "pssvf" else 5,
        "critic_updates": 1,
        "actor_updates": 1,
        "seed": 0,
        "buffer_size": 40,
    }
    return OnlineSettings(**{**values, **kwargs})


def make_file(kind: str = "psvf", updates: int = 5, data: Any = None, **kwargs: Any) -> CriticFile:
    if data is None:
        data = make_data(policies=6, length=3, mean=[0.5, -0.5], std=[2.0, 1.0])
    settings = fit_settings(kind, **{"hidden": (4,), **kwargs})
    device = torch.device("cpu")
    fit = start_fit(data, settings, device)
    context = make_context(data, fit, environment=EnvReference("LQR-v0"), dataset="d" * 64)
    advance(fit, training_set(fit, data, device), updates)
    return finished_file(fit, data, context)


def of_newer_version(kind: str, image: bytes) -> bytes:
    """Return a tensor file as a newer version of the program could write it."""
    content, tensors = decode(kind, image, kind)
    future = SimpleNamespace(format_version=99, to_dict=lambda: {**content, "more": 1})
    return encode(kind, future, tensors)


def fill(critic: Critic, **weights: Any) -> None:
    """Set the weights of a critic with one hidden unit by name."""
    with torch.no_grad():
        for name, parameter in critic.named_parameters():
            value = torch.tensor(weights.pop(name.replace(".", "_")), dtype=parameter.dtype)
            parameter.copy_(value.reshape(parameter.shape))
    assert not weights


def lqr_return(
    weight: NDArray[np.float64], bias: NDArray[np.float64], steps: int, gamma: float = 1.0
) -> NDArray[np.float64]:
    """The discounted return of ``a = w s + b`` in the LQR from ``s = 1``, without the bounds.

    With ``m = 1 + w``, the fixed point ``f = -b / w`` and ``d = 1 - f``:
    ``s_t = f + d m^t`` and ``a_t = w d m^t``, so the return is minus
    ``f^2 G(gamma) + 2 f d G(gamma m) + d^2 (1 + w^2) G(gamma m^2)`` with the geometric
    sum ``G(x) = 1 + x + … + x^(steps-1)``. Exact only while no state leaves [-2, 2].
    """
    m = 1.0 + weight
    fixed = -bias / weight
    d = 1.0 - fixed

    def geometric(x: NDArray[np.float64]) -> NDArray[np.float64]:
        x = np.asarray(x, np.float64)
        near_one = np.isclose(x, 1.0, rtol=0, atol=1e-12)
        safe = np.where(near_one, 0.5, x)
        return np.where(near_one, float(steps), (1 - safe**steps) / (1 - safe))

    return -(
        fixed**2 * geometric(np.full_like(m, gamma))
        + 2 * fixed * d * geometric(gamma * m)
        + d**2 * (1 + weight**2) * geometric(gamma * m**2)
    )
