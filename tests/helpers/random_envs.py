"""Environments that draw from other sources than their own generator, or remember episodes."""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import registry
from gymnasium.spaces import Box
from gymnasium.wrappers import NormalizeObservation, RescaleAction

SHARED = ("numpy", "normal", "python", "action", "observation", "wrapped", "torch", "built")
"""Sources that are seeded for an episode, or before the environment is built."""
CARRIED = ("counter", "normalised", "own")
"""What lasts from episode to episode, or is nobody's to seed."""
OTHERS = ("none", "once", "process")
OF_THIS_PROCESS = 0.0


class Luck(gym.Env[Any, Any]):
    """Observation: a seeded start, and what ``source`` has drawn, at the reset and at each step."""

    def __init__(self, source: str = "none") -> None:
        self.observation_space = Box(-10, 10, (2,), np.float64)
        self.action_space = Box(-1, 1, (1,), np.float32)
        self._source, self._episodes = source, 0
        self._own = np.random.default_rng()
        self._built = float(np.random.normal())  # noqa: NPY002
        if source == "torch":
            import torch  # noqa: F401

    def _draw(self) -> float:
        match self._source:
            case "numpy":
                return float(np.random.uniform())  # noqa: NPY002
            case "normal":
                return float(np.random.normal())  # noqa: NPY002
            case "python":
                return random.random()
            case "action" | "wrapped":
                return float(self.action_space.sample()[0])
            case "observation":
                return float(self.observation_space.sample()[0])
            case "torch":
                import torch

                return float(torch.rand(1))
            case "built":
                return self._built
            case "own":
                return float(self._own.uniform())
            case "counter":
                return float(min(self._episodes, 10))
            case "process":
                return OF_THIS_PROCESS
        return 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._t = 0
        self._start = float(self.np_random.uniform(-1, 1))
        self._episodes += 1
        if self._source == "once" and self._episodes > 1:
            raise RuntimeError("only one episode")
        return np.array([self._start, self._draw()]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        drawn = self._draw()
        return np.array([self._start, drawn]), drawn + float(action[0]), self._t == 5, False, {}


def normalised(**kwargs: Any) -> gym.Env[Any, Any]:
    return NormalizeObservation(Luck(**kwargs))


def wrapped(**kwargs: Any) -> gym.Env[Any, Any]:
    """The space that is sampled is not the outermost one."""
    return RescaleAction(Luck(**kwargs), np.float32(0), np.float32(1))


for _source in (*OTHERS, *SHARED, *CARRIED):
    _name = f"Luck{_source.capitalize()}-v0"
    if _name not in registry:
        gym.register(
            _name,
            entry_point={"normalised": normalised, "wrapped": wrapped}.get(_source, Luck),
            max_episode_steps=100,
            kwargs={"source": _source},
        )


def env_id(source: str) -> str:
    """Return an environment as a user names it."""
    return f"random_envs:Luck{source.capitalize()}-v0"
