"""Collecting with two workers: Swimmer-v5 natively, through Gymnasium and as bare loops.

Rates are also given in seconds of CPU time, of this process and its workers, because wall time on a
machine that others use says little.

Run: python benchmarks/collect.py
     (after ``pip install envpool`` its rate is measured too)
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import json
import multiprocessing as mp
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
from numpy.typing import NDArray

from pbvf_offline.envs.make import make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.policies.policy import Policies, init_theta
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.rollout.evaluation import evaluate_policies
from pbvf_offline.rollout.loop import run_episode
from pbvf_offline.rollout.native.offer import Backend
from pbvf_offline.rollout.native.simulations import unprofiled
from pbvf_offline.rollout.schedules import PerturbationSchedule
from pbvf_offline.rollout.workers import workers_worth
from pbvf_runs.collection import collect
from pbvf_runs.settings import CollectSettings
from tools.alternate import Benchmark

FRAGMENT = 200
ENV = EnvConfig("Swimmer-v5")


def ours(steps: int, backend: Backend = "auto", *, cpu: bool = False) -> float:
    """Return steps a second of a collection in fragments, tags and files included."""
    with tempfile.TemporaryDirectory() as folder:
        settings = CollectSettings(ENV, "bench/swimmer-v0", steps=steps, perturb_every=FRAGMENT)
        started = _cpu()
        result = collect(settings, root=Path(folder), workers=2, backend=backend)
        if cpu:
            return (result.steps + result.warmup_steps) / (_cpu() - started)
        return result.steps_per_second or 0.0


_inner: list[float] = []
"""Rates that commands gave of their own, of which :func:`whole` counts everything else too."""


def whole(steps: int) -> float:
    """Return steps a second of the command from its start to its end, warm-up steps among them."""
    with tempfile.TemporaryDirectory() as folder:
        options = f"--dataset bench/swimmer-v0 --steps {steps} --perturb-every {FRAGMENT}"
        command = [sys.executable, "-m", "pbvf_cli", "collect", ENV.name, *options.split()]
        environment = {**os.environ, "MINARI_DATASETS_PATH": folder}
        # Where modules are compiled at each start, that is what would be measured.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        started = time.perf_counter()
        ran = subprocess.run(
            [*command, "--workers", "2", "--seed", "0", "--json", "-q"],
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
        )
        seconds = time.perf_counter() - started
    said = json.loads(ran.stdout)
    _inner.append(said["steps_per_second"])
    return float((said["steps"] + said["warmup_steps"]) / seconds)


def bare(steps: int, *, checker: bool = True) -> float:
    """Return steps a second of a plain loop with the same policy and normalisation."""
    env: gym.Env[Any, Any] = gym.make("Swimmer-v5", disable_env_checker=not checker)
    rng = np.random.default_rng(0)
    mean, std = np.zeros(8), np.ones(8)
    low, high = env.action_space.low, env.action_space.high  # type: ignore[attr-defined]
    started, done_steps, episode = time.perf_counter(), 0, 0
    while done_steps < steps:
        obs, _ = env.reset(seed=episode)
        episode += 1
        done = False
        while not done and done_steps < steps:
            if done_steps % FRAGMENT == 0:
                weight, bias = rng.normal(size=(2, 8)), rng.normal(size=2)
            unit = np.tanh(weight @ ((obs - mean) / std) + bias)
            action = np.clip((low + (unit + 1) / 2 * (high - low)).astype(np.float32), low, high)
            obs, _, terminated, truncated, _ = env.step(action)
            done_steps += 1
            done = terminated or truncated
    return done_steps / (time.perf_counter() - started)


def _policies(count: int) -> Policies:
    spec = spec_for_env(make_env(ENV), ())
    theta = np.stack([init_theta(spec, np.random.default_rng(k)) for k in range(count)])
    return Policies(spec, theta, np.zeros((count, spec.obs_dim)), np.ones((count, spec.obs_dim)))


def pooled(steps: int, envs: int = 64) -> float:
    """Return steps a second of EnvPool on two threads with such policies, storing nothing."""
    # The package is no dependency, so its types are not known.
    pool: Any = importlib.import_module("envpool").make_gymnasium(
        ENV.name, num_envs=envs, num_threads=2, seed=0
    )
    rng = np.random.default_rng(0)
    mean, std = np.zeros(8), np.ones(8)
    low, high = pool.action_space.low, pool.action_space.high
    observations, _ = pool.reset()
    started = time.perf_counter()
    for step in range(steps // envs):
        if step % FRAGMENT == 0:
            weights, biases = rng.normal(size=(envs, 8, 2)), rng.normal(size=(envs, 1, 2))
        rows = ((observations - mean) / std)[:, None]
        unit = np.tanh(rows @ weights + biases)[:, 0]
        observations = pool.step(np.clip(low + (unit + 1) / 2 * (high - low), low, high))[0]
    seconds = time.perf_counter() - started
    pool.close()
    return steps // envs * envs / seconds


@functools.cache
def actions() -> NDArray[np.float32]:
    """Return the actions of two collected episodes; how long a step takes depends on them."""
    env, plan = make_env(ENV), PerturbationSchedule(_policies(1), 0.5, FRAGMENT, 0)
    return np.concatenate([run_episode(env, plan, index).actions for index in range(2)])


def _physics(repeats: int, *, cpu: bool, profiled: bool) -> float:
    """Return seconds of bare ``mj_step`` with the actions of collected episodes."""
    env: Any = make_env(ENV).unwrapped
    clock = time.process_time if cpu else time.perf_counter
    model, data, skip = env.model, env.data, env.frame_skip
    ctrl, step, all_actions = data.ctrl, mujoco.mj_step, actions()
    started = clock()
    with contextlib.nullcontext() if profiled else unprofiled():
        for _ in range(repeats):
            for t, action in enumerate(all_actions):
                if t % 1000 == 0:
                    env.reset(seed=t)
                ctrl[:] = action
                step(model, data, skip)
    return clock() - started


def raw(steps: int, *, cpu: bool = False, profiled: bool = True) -> float:
    """Return steps a second of bare ``mj_step`` on two cores, or a second of CPU time.

    ``profiled``: with the clock that MuJoCo's Python package installs, or without, as episodes
    are played natively.
    """
    repeats = max(1, steps // 2 // len(actions()))
    with mp.get_context("fork").Pool(2) as pool:
        physics = functools.partial(_physics, cpu=cpu, profiled=profiled)
        seconds = pool.starmap(physics, [(repeats,)] * 2)
    total = 2 * repeats * len(actions())
    return total / (sum(seconds) if cpu else max(seconds))


def evaluation(backend: Backend, config: EnvConfig = ENV, count: int = 200) -> float:
    """Return episodes a second of CPU time of an evaluation in one process."""
    policies = _policies(count)
    started = time.process_time()
    evaluate_policies(config, policies, episodes=1, seed=0, backend=backend)
    return count / (time.process_time() - started)


def whole_evaluation(backend: Backend, workers: int | None = None, count: int = 200) -> float:
    """Return episodes a second, in as many processes as the command takes by default for None."""
    policies = _policies(count)
    started = time.perf_counter()
    workers = workers or workers_worth(count * 1_000)
    evaluate_policies(ENV, policies, episodes=1, seed=0, workers=workers, backend=backend)
    return count / (time.perf_counter() - started)


def _cpu() -> float:
    """Return seconds of CPU time of this process and of its workers that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(part.ru_utime + part.ru_stime for part in used)


if __name__ == "__main__":
    benchmark = Benchmark(__doc__, steps=100_000)
    steps = benchmark.arguments.steps
    # What the first collection of a process imports is no part of its rate.
    ours(1000), ours(1000, "gymnasium")
    sides: list[tuple[str, Callable[[], float], Callable[[], float], float | None, str]] = [
        (
            "collect, 2 workers / bare loop",
            functools.partial(ours, steps),
            functools.partial(bare, steps),
            2.4,
            "steps/s",
        ),
        (
            "the same / bare loop without Gymnasium's environment checker",
            functools.partial(ours, steps),
            functools.partial(bare, steps, checker=False),
            None,
            "steps/s",
        ),
        (
            "the same / bare mj_step on both cores",
            functools.partial(ours, steps),
            functools.partial(raw, steps),
            0.8,
            "steps/s",
        ),
        (
            "the same in CPU time, warm-up counted",
            functools.partial(ours, steps, cpu=True),
            functools.partial(raw, steps, cpu=True),
            0.8,
            "steps/CPU s",
        ),
        (
            "the same / bare mj_step without MuJoCo's clock, CPU time",
            functools.partial(ours, steps, cpu=True),
            functools.partial(raw, steps, cpu=True, profiled=False),
            0.8,
            "steps/CPU s",
        ),
        (
            "the whole command, warm-up counted / the rate that it prints",
            functools.partial(whole, steps),
            _inner.pop,
            0.9,
            "steps/s",
        ),
        (
            "collect natively / through Gymnasium, CPU time",
            functools.partial(ours, steps, "native", cpu=True),
            functools.partial(ours, steps, "gymnasium", cpu=True),
            1.15,
            "steps/CPU s",
        ),
        (
            "evaluate 200 policies natively / through Gymnasium, CPU time",
            functools.partial(evaluation, "native"),
            functools.partial(evaluation, "gymnasium"),
            1.15,
            "episodes/CPU s",
        ),
        (
            "evaluate 200 policies by default / in one process through Gymnasium",
            functools.partial(whole_evaluation, "auto"),
            functools.partial(whole_evaluation, "gymnasium", 1),
            3.0,
            "episodes/s",
        ),
    ]
    if importlib.util.find_spec("envpool"):
        sides.append(
            (
                "collect, 2 workers / EnvPool, 64 environments on two threads, storing nothing",
                functools.partial(ours, steps),
                functools.partial(pooled, steps),
                None,
                "steps/s",
            )
        )
    for name, one, other, target, unit in sides:
        benchmark.compare(name, one, other, target=target, unit=unit)
    benchmark.write()
