"""Episodes with known contents for the tests of datasets."""

from __future__ import annotations

from typing import Any

import numpy as np

from pbvf_offline.policies.actions import BoxActions, DiscreteActions
from pbvf_offline.policies.actor import Actor
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Episode

BOX_SPEC = PolicySpec(3, (), BoxActions((-2.0,), (2.0,)))
DISCRETE_SPEC = PolicySpec(4, (5,), DiscreteActions(2))
STOCHASTIC_SPEC = PolicySpec(3, (4,), BoxActions((-2.0,), (2.0,)), stochastic=True)


def make_episode(
    spec: PolicySpec,
    index: int,
    steps: int = 7,
    every: int = 3,
    *,
    obs_dtype: str = "float32",
    survive: bool = False,
    seed: bool = True,
    cut: bool = False,
    terminated: bool = False,
) -> Episode:
    """Return an episode that depends on its index alone; a policy change every few steps."""
    rng = np.random.default_rng([index, steps])
    segment = np.minimum(np.arange(steps + 1), steps - 1) // every
    rows = int(segment[-1]) + 1
    theta = rng.standard_normal((rows, spec.size)).astype(np.float32)
    mean = np.tile(rng.standard_normal(spec.obs_dim), (rows, 1))
    std = np.tile(rng.uniform(0.5, 2.0, spec.obs_dim), (rows, 1))
    observations = rng.standard_normal((steps + 1, spec.obs_dim)).astype(obs_dtype)
    actors = [Actor(spec, theta[j], mean[j], std[j]) for j in range(rows)]
    acted = [
        actors[segment[t]].act(observations[t], rng if spec.stochastic else None)
        for t in range(steps)
    ]
    pre = [p for _, p in acted if p is not None]
    last = np.arange(steps) == steps - 1
    return Episode(
        observations=observations,
        actions=np.array([a for a, _ in acted]),
        rewards=rng.standard_normal(steps),
        terminated=last & terminated,
        truncated=last & (not terminated),
        theta=theta,
        segment=segment.astype(np.int32),
        obs_mean=mean,
        obs_std=std,
        seed=index + 100 if seed else None,
        cut="budget" if cut else "none",
        reward_survive=np.append(0.0, np.ones(steps)) if survive else None,
        pre_action=np.array([*pre, np.zeros(spec.actions.dim)]) if pre else None,
    )


def same(one: Episode, other: Episode) -> bool:
    """Whether two episodes agree bit for bit, dtypes and missing arrays included."""

    def key(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return (value.dtype.str, value.shape, value.tobytes())
        return value

    names = Episode.__dataclass_fields__
    return all(key(getattr(one, n)) == key(getattr(other, n)) for n in names)
