"""Simulations of one environment side by side, reset by Gymnasium and stepped by MuJoCo."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray

from pbvf_offline.envs.make import Env
from pbvf_offline.rollout.native.tasks import F64, Outcome, State, Task

_STATE = mujoco.mjtState.mjSTATE_INTEGRATION.value


@contextlib.contextmanager
def unprofiled() -> Iterator[None]:
    """Keep MuJoCo from timing its stages in the block.

    Its Python package installs a clock, which every stage of a step reads twice, for
    ``MjData.timer``: a quarter of the time of a step of Swimmer-v5. The package has no call that
    takes it away; MuJoCo's own interface is a variable, ``mjcb_time``, that is null without.
    """
    clock = _clock()
    installed = None if clock is None else clock.value
    if clock is None or installed is None:
        yield
        return
    clock.value = None
    try:
        yield
    finally:
        clock.value = installed


@functools.cache
def _clock() -> ctypes.c_void_p | None:
    """Return MuJoCo's variable; None where the platform does not find it."""
    try:
        return ctypes.c_void_p.in_dll(ctypes.CDLL(mujoco._callbacks.__file__), "mjcb_time")
    except (AttributeError, OSError, ValueError):
        return None


class Simulations:
    """Simulations in rows.

    Args:
        env: The environment, with which simulations are reset.
        task: Its arithmetic.
        rows: Number of simulations.
    """

    def __init__(self, env: Env, task: Task, rows: int) -> None:
        inner: Any = env.unwrapped
        self._env, self._task, self._skip = env, task, inner.frame_skip
        self._model, self._data = inner.model, inner.data
        # Contact forces are computed after a step, from all that it left in the data.
        self._batch = Batch(self._model, rows, nthread=1, persistent=task.contact_forces)
        self._ctrl = self._batch.bind("ctrl")
        names = ("qpos", "qvel", *task.fields)
        seen = SimpleNamespace(**{name: self._batch.bind(name) for name in names})
        start = SimpleNamespace(**{name: getattr(self._data, name)[None] for name in names})
        if task.contact_forces:
            self._scratch = mujoco.MjData(self._model)
            seen.cfrc_ext = np.zeros((rows, *self._data.cfrc_ext.shape))
        self._seen, self._start = cast(State, seen), cast(State, start)
        self._before = np.zeros(rows)

    def reset(self, row: int, seed: int) -> NDArray[Any]:
        """Begin an episode in a row; return its first observation (obs_dim,)."""
        obs: NDArray[Any] = self._env.reset(seed=seed)[0]
        mujoco.mj_getState(self._model, self._data, self._batch.state[row], _STATE)
        self._before[row] = self._task.position(self._start)[0]
        return obs

    def step(self, rows: NDArray[np.int32] | None, actions: NDArray[Any], out: F64) -> Outcome:
        """Take one step in some rows (None: all); the others get numbers that mean nothing.

        Args:
            rows: Their numbers, ascending.
            actions: (B, act_dim), for all rows.
            out: (B, obs_dim), where observations are written.
        """
        self._ctrl[:] = actions
        self._batch.step(rows, self._skip)
        if self._task.contact_forces:
            for row in range(len(actions)) if rows is None else rows:
                self._batch.get_data(int(row), self._scratch)
                mujoco.mj_rnePostConstraint(self._model, self._scratch)
                self._seen.cfrc_ext[row] = self._scratch.cfrc_ext
        self._task.observe(self._seen, out)
        before, self._before = self._before, self._task.position(self._seen)
        return self._task.judge(self._seen, self._before - before, actions)
