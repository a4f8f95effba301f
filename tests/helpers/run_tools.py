"""Small training runs, and ways to end them early."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import toyenv  # noqa: F401
from libtools import make_policies, online_settings
from pbvf_offline.envs.make import make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.io import tensor_file
from pbvf_offline.online.checkpoint import KIND
from pbvf_offline.policies.files import PoliciesFile
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_runs.records import RunConfig

VARIED = "toyenv:ToyVaried-v0"  # episodes of 1 to 20 steps, as their seeds have it


def run_config(
    kind: str = "psvf",
    env: str = VARIED,
    *,
    stochastic: bool = False,
    evaluations: int = 4,
    limit: int | None = None,
    base: PoliciesFile | None = None,
    **changes: Any,
) -> RunConfig:
    where = EnvConfig(env, max_episode_steps=limit)
    toy = make_env(where)
    spec = spec_for_env(toy, (), stochastic=stochastic)
    toy.close()
    settings = online_settings(kind, **{"hidden": (3,), "critic_updates": 2, **changes})
    return RunConfig(where, spec, settings, evaluations, 2, base)


def given_policy(env: str = VARIED, rows: int = 1, seed: int = 0) -> PoliciesFile:
    """Policies for an environment, in a normaliser of their own."""
    toy = make_env(EnvConfig(env))
    spec = spec_for_env(toy, ())
    toy.close()
    mean, std = np.linspace(-1, 1, spec.obs_dim), np.linspace(0.5, 2, spec.obs_dim)
    return PoliciesFile(make_policies(spec, rows, seed, mean, std))


def rewrite_checkpoint(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the header of a run's checkpoint in place; its digest stays right."""
    path = folder / "checkpoint.safetensors"
    header, tensors = tensor_file.decode(KIND, path.read_bytes(), str(path))
    change(header)
    path.write_bytes(tensor_file.encode(KIND, header, tensors))


class Stop(BaseException):
    """What a test ends a run with: no handler for errors notices it."""


def stop_at(step: int) -> Callable[[int, float | None], None]:
    def tick(done: int, mean_return: float | None) -> None:
        if done >= step:
            raise Stop

    return tick


class StopSoon:
    """Raises at the end of the n-th episode that it sees."""

    def __init__(self, episodes: int) -> None:
        self.left = episodes

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Stop
