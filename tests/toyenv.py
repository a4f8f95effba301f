"""A small configurable environment for tests, registered under several ids on import.

Each id shows one trait that real environments have been seen with; the dynamics are a
damped point that actions push, so that returns depend on the policy.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import registry
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text


class ToyEnv(gym.Env[Any, Any]):
    """A point on a line.

    Args:
        length: Steps after which the task terminates; None: never.
        varied: The length of an episode depends on its seed: 1 … ``length``.
        obs_dim: Number of observation dimensions; the last one is constant.
        act_dim: Number of action dimensions.
        low: Lower action bound.
        high: Upper action bound.
        discrete: ``(n, start)`` for discrete actions instead.
        spaces: ``dict``, ``text`` or ``image`` for observations that are not supported.
        reset_info: What ``reset`` reports.
        step_info: What ``step`` reports.
        same_array: Return the very same array at every step.
        nan_at: Step (counted from 1) whose observation is NaN.
        delay: Seconds that each step takes.
        log: A file to which every step appends a line.
        fail_at: Step in which the environment raises an exception.
        reward: Paid at each step in place of the usual one.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self,
        *,
        length: int | None = 5,
        varied: bool = False,
        obs_dim: int = 3,
        act_dim: int = 1,
        low: float = -1.0,
        high: float = 1.0,
        discrete: tuple[int, int] | None = None,
        spaces: str = "box",
        reset_info: dict[str, Any] | None = None,
        step_info: dict[str, Any] | None = None,
        same_array: bool = False,
        nan_at: int | None = None,
        delay: float = 0.0,
        log: str | None = None,
        fail_at: int | None = None,
        reward: float | None = None,
        render_mode: str | None = None,
    ) -> None:
        box = Box(-np.inf, np.inf, (obs_dim,), np.float64)
        self.observation_space = {
            "box": box,
            "dict": Dict({"position": box}),
            "text": Text(8),
            "image": Box(0, 255, (8, 8, 3), np.uint8),
        }[spaces]
        self.action_space = (
            Box(np.float32(low), np.float32(high), (act_dim,), np.float32)
            if discrete is None
            else Discrete(discrete[0], start=discrete[1])
        )
        self.render_mode = render_mode
        self._length, self._varied = length, varied
        self._discrete = discrete
        self._reset_info, self._step_info = reset_info or {}, step_info or {}
        self._same_array, self._nan_at, self._fail_at = same_array, nan_at, fail_at
        self._delay, self._log, self._reward = delay, log, reward
        self._state = np.zeros(obs_dim)
        self._t = 0
        self._end: float = np.inf

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._t = 0
        self._state[:-1] = self.np_random.uniform(-1, 1, self._state.size - 1)
        self._state[-1] = 2.0
        if self._length is not None:
            self._end = self._length
            if self._varied:
                self._end = int(self.np_random.integers(1, self._length + 1))
        return self._observe(), dict(self._reset_info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        if self._log is not None:
            with Path(self._log).open("a") as file:
                file.write(f"{self._t}\n")
        if self._delay:
            time.sleep(self._delay)
        if self._t == self._fail_at:
            raise RuntimeError("the toy broke")
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is outside {self.action_space}")
        push = float(action - self._discrete[1]) if self._discrete else float(np.sum(action))
        self._state[:-1] = 0.9 * self._state[:-1] + 0.1 * push
        reward = 1.0 - float(self._state[0] ** 2) if self._reward is None else self._reward
        return self._observe(), reward, self._t >= self._end, False, dict(self._step_info)

    def render(self) -> Any:
        frame = np.zeros((32, 48, 3), np.uint8)
        frame[:, : 1 + self._t % 48] = 255
        return frame

    def _observe(self) -> Any:
        if self._t > 0 and self._t == self._nan_at:
            return np.full_like(self._state, np.nan)
        return self._state if self._same_array else self._state.copy()


class ToyPartsEnv(ToyEnv):
    """The point seen in several parts and pushed by two whole numbers."""

    def __init__(self) -> None:
        super().__init__(length=None)
        place = Box(-np.inf, np.inf, (3,), np.float64)
        image = Box(0, 255, (2, 2, 1), np.uint8)
        self.observation_space = Dict({"words": Text(8), "place": place, "image": image})
        self.action_space = MultiDiscrete([3, 2], start=[-1, 0])

    def _observe(self) -> Any:
        place = super()._observe()
        image = np.full((2, 2, 1), np.clip(100 * place[0], 0, 255), np.uint8)
        return {"words": "push", "place": place, "image": image}


def _register(name: str, limit: int | None = None, **kwargs: Any) -> None:
    if name not in registry:
        gym.register(name, entry_point="toyenv:ToyEnv", max_episode_steps=limit, kwargs=kwargs)


_register("Toy-v0", 100)
_register("ToyFree-v0")  # ends by itself, but nothing says so
_register("ToyLimit-v0", 7, length=None)
_register("ToyDrift-v0", 40, length=None)
_register("Endless-v0", length=None)
_register("ToyVaried-v0", 100, length=20, varied=True)
_register("ToyDict-v0", 100, spaces="dict")
_register("ToyText-v0", 100, spaces="text")
_register("ToyImage-v0", 100, spaces="image")
_register("ToyDiscrete-v0", 100, discrete=(4, 2))
_register("ToyInfo-v0", 100, reset_info={"a": 0})
_register("ToySame-v0", 100, same_array=True)
_register("ToyNaN-v0", 100, nan_at=3)
_register("ToyAsym-v0", 100, low=-0.3, high=0.7)
_register("ToySurvive-v0", 100, step_info={"reward_survive": 1.0})
_register("ToyHuge-v0", 100, reward=-1e200)
_register("ToyNaNSurvive-v0", 100, step_info={"reward_survive": float("nan")})
_register("ToyWide-v0", 100, obs_dim=300)
_register("ToySlow-v0", 100, delay=0.02)
_register("ToyBroken-v0", 100, fail_at=2)
if "ToyParts-v0" not in registry:
    gym.register("ToyParts-v0", entry_point="toyenv:ToyPartsEnv", max_episode_steps=9)
# Two versions of one family that differ in what they pay, like Hopper.
_register("ToyPair-v0", 100)
_register("ToyPair-v1", 100, length=6)
