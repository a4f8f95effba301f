"""Episodes played natively have the bytes of those that Gymnasium plays."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from gymnasium.envs.mujoco.swimmer_v5 import SwimmerEnv
from gymnasium.envs.registration import registry

from cli_tools import digest
from make_episodes import same
from pbvf_offline.envs.make import make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.envs.wrappers import Wrapper
from pbvf_offline.errors import DivergedError, UsageError
from pbvf_offline.policies.policy import Policies, init_theta
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.rollout.episodes import Episode
from pbvf_offline.rollout.loop import EpisodeJob, run_episode, run_episodes
from pbvf_offline.rollout.native import tasks
from pbvf_offline.rollout.native.chunks import Chunks
from pbvf_offline.rollout.native.offer import BackendWarning, backend_for
from pbvf_offline.rollout.native.play import Player
from pbvf_offline.rollout.schedules import PerturbationSchedule
from pbvf_runs.collection import collect
from pbvf_runs.settings import CollectSettings

FALLS = {"terminate_when_unhealthy": False, "healthy_reward": 2}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "Ant-v5": {
        **FALLS,
        "healthy_z_range": (0.4, 0.9),
        "contact_force_range": [-0.3, 0.4],
        "contact_cost_weight": 0.01,
        "include_cfrc_ext_in_observation": False,
        "main_body": 2,
    },
    "HalfCheetah-v5": {"exclude_current_positions_from_observation": False, "frame_skip": 2},
    "Hopper-v5": {**FALLS, "healthy_state_range": (-0.5, 0.5), "reset_noise_scale": 0.1},
    "InvertedDoublePendulum-v5": {"healthy_reward": 0.3},
    "InvertedPendulum-v5": {"reset_noise_scale": 0.15},
    "Reacher-v5": {"reward_dist_weight": 3, "reward_control_weight": 0.1},
    "Swimmer-v5": {"exclude_current_positions_from_observation": False, "ctrl_cost_weight": 2},
    "Walker2d-v5": {**FALLS, "healthy_angle_range": (-0.1, 0.1), "forward_reward_weight": 0.7},
}
"""Arguments that change all that a task reads; every environment of the table has a line."""
ENDLESS = {"HalfCheetah-v5", "Reacher-v5", "Swimmer-v5"}
PENDULUM = EnvConfig("InvertedPendulum-v5")


def schedule(config: EnvConfig, every: int | None = 7, **architecture: Any) -> PerturbationSchedule:
    """Policies around a random one that saturate some actions."""
    spec = spec_for_env(make_env(config), **{"hidden": (), **architecture})
    theta = init_theta(spec, np.random.default_rng(0))[None]
    mean, std = np.full((1, spec.obs_dim), 0.1), np.full((1, spec.obs_dim), 0.7)
    return PerturbationSchedule(Policies(spec, theta, mean, std), 0.5, every, 0)


def both(job: EpisodeJob, count: int, workers: int = 1) -> tuple[list[Any], list[Any]]:
    """What Gymnasium and the native backend make of a job; a fall back is a warning, an error."""
    assert backend_for(job.config) == "native"
    return (
        list(run_episodes(replace(job, backend="gymnasium"), range(count))),
        list(run_episodes(replace(job, backend="native"), range(count), workers=workers)),
    )


def ends(episodes: list[Episode]) -> set[tuple[bool, bool, str]]:
    return {(bool(e.terminated[-1]), bool(e.truncated[-1]), e.cut) for e in episodes}


def test_every_environment_of_the_table_is_tried() -> None:
    entries = {str(registry[name].entry_point) for name in ARGUMENTS}
    assert entries == set(tasks.TASKS)


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("own", [True, False], ids=["defaults", "arguments"])
def test_bytes_are_those_of_gymnasium(name: str, own: bool) -> None:
    """Over ends, resets, changes of policies, action noise and clipped actions."""
    config = EnvConfig(name, {} if own else ARGUMENTS[name], max_episode_steps=30)
    network = {} if own else {"hidden": (8, 5), "stochastic": True, "squash": "none"}
    plan = schedule(config, **network)
    expected, episodes = both(EpisodeJob(config, plan), 20)
    assert all(map(same, expected, episodes))
    if own:
        assert any(e.terminated[-1] for e in episodes) == (name not in ENDLESS)
    else:
        actions = np.concatenate([e.actions for e in episodes])
        clipped = np.isin(actions, (plan.spec.actions.low, plan.spec.actions.high))
        assert clipped.any()
        assert not clipped.all()


def test_ends_of_all_kinds() -> None:
    config = replace(PENDULUM, max_episode_steps=4)
    for steps, kinds in (
        (None, {(True, False, "none"), (False, True, "none"), (True, True, "none")}),
        (3, {(True, False, "none"), (False, True, "budget")}),
    ):
        job = EpisodeJob(config, schedule(config), max_steps=steps)
        expected, episodes = both(job, 40)
        assert all(map(same, expected, episodes))
        assert ends(episodes) == kinds


@pytest.mark.parametrize(("limit", "count"), [(1500, 2), (50, 60)], ids=["long", "many"])
def test_more_steps_than_there_was_room_for(limit: int, count: int) -> None:
    config = EnvConfig("Reacher-v5", max_episode_steps=limit)
    env, plan = make_env(config), schedule(config, every=333)
    played = dict(Player(env, config, plan, None, rows=2).play(range(count)))
    for index in range(0, count, 7):
        episode = played[index]
        assert episode is not None
        assert same(episode, run_episode(env, plan, index))


def test_steps_are_not_timed_for_the_profile_of_mujoco() -> None:
    asked: list[None] = []
    clock = ctypes.CFUNCTYPE(ctypes.c_double)(lambda: float(asked.append(None) or 0))
    mujoco.set_mjcb_time(clock)
    try:
        counts = []
        for steps in (3, 6):
            config = EnvConfig("Swimmer-v5", max_episode_steps=steps)
            player = Player(make_env(config), config, schedule(config), None, rows=1)
            asked.clear()
            assert len(list(player.play(range(2)))) == 2
            counts.append(len(asked))
        assert counts[0] == counts[1] > 0  # those of the resets, between which it is back
    finally:
        mujoco.set_mjcb_time(None)


@pytest.mark.usefixtures("forking")
def test_workers_play_the_same() -> None:
    expected, episodes = both(EpisodeJob(PENDULUM, schedule(PENDULUM)), 40, workers=2)
    assert all(map(same, expected, episodes))


@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("env", ["InvertedPendulum-v5", "Reacher-v5"])
def test_datasets_do_not_tell_who_played(env: str, tmp_path: Path) -> None:
    """Nor does one that was continued by another backend."""
    settings = CollectSettings(EnvConfig(env), "lab/a-v0", steps=700, perturb_every=20)
    for name, backend, workers in (
        ("gymnasium", "gymnasium", 1),
        ("native", "native", 1),
        ("workers", "auto", 2),
    ):
        result = collect(settings, root=tmp_path / name, backend=backend, workers=workers)
        assert result.backend == ("gymnasium" if backend == "gymnasium" else "native")

    class Stop(Exception):
        """The user interrupts."""

    def interrupt(steps: int, wanted: int | None, episodes: int) -> None:
        if steps > 300:
            raise Stop

    root = tmp_path / "continued"
    with pytest.raises(Stop):
        collect(settings, root=root, backend="gymnasium", progress=interrupt)
    assert collect(settings, root=root, backend="native").steps == 700
    folders = ("gymnasium", "native", "workers", "continued")
    assert len({digest(tmp_path / name, "lab/a-v0") for name in folders}) == 1


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_what_is_not_finite_is_said_as_gymnasium_says_it() -> None:
    config = EnvConfig("Swimmer-v5", {"forward_reward_weight": float("inf")}, 20)
    said = []
    for backend in ("gymnasium", "native"):
        job = EpisodeJob(config, schedule(config), backend=backend)
        with pytest.raises(DivergedError) as caught:
            list(run_episodes(job, range(3)))
        said.append(str(caught.value))
    assert said[0] == said[1]


class OtherSwimmer(SwimmerEnv):
    """Might do anything."""


gym.register("OtherSwimmer-v5", entry_point=OtherSwimmer, max_episode_steps=20)
gym.register("LateSwimmer-v5", registry["Swimmer-v5"].entry_point, kwargs={"width": 100})


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (EnvConfig("LQR-v0"), "none of Gymnasium's own"),
        (EnvConfig("Nothing-v5"), "none of Gymnasium's own"),
        (EnvConfig("Swimmer-v4"), "none of Gymnasium's own"),
        (EnvConfig("gymnasium:Swimmer-v5"), "none of Gymnasium's own"),
        (EnvConfig("OtherSwimmer-v5"), "none of Gymnasium's own"),
        (EnvConfig("LateSwimmer-v5"), "arguments width"),
        (EnvConfig("Swimmer-v5", {"xml_file": "mine.xml"}), "arguments xml_file"),
        (EnvConfig("Swimmer-v5", {"render_mode": "rgb_array"}), "arguments render_mode"),
        (EnvConfig("Swimmer-v5", {"ctrl_cost_weight": "1"}), "ctrl_cost_weight is of another kind"),
        (EnvConfig("Hopper-v5", {"healthy_z_range": [1]}), "healthy_z_range is of another kind"),
        (EnvConfig("Ant-v5", {"main_body": "torso"}), "main_body is of another kind"),
        (EnvConfig("Ant-v5", {"main_body": 99}), "main_body is of another kind"),
        (EnvConfig("Ant-v5", {"contact_force_range": True}), "contact_force_range is of another"),
        (EnvConfig("Swimmer-v5", {"frame_skip": -1}), "frame_skip is of another kind"),
        (EnvConfig("Swimmer-v5", {"frame_skip": 2.5}), "frame_skip is of another kind"),
        (EnvConfig("Swimmer-v5", {"reset_noise_scale": -1}), "reset_noise_scale is of another"),
        (EnvConfig("Swimmer-v5", wrappers=(Wrapper("time-feature"),)), "wrapped"),
    ],
)
def test_what_is_not_offered(config: EnvConfig, why: str) -> None:
    assert backend_for(config) == backend_for(config, "gymnasium") == "gymnasium"
    with pytest.raises(UsageError, match=why) as caught:
        backend_for(config, "native")
    assert caught.value.where == "--backend"


def test_arguments_that_gymnasium_stumbles_over_are_named() -> None:
    config = EnvConfig(PENDULUM.name, {"frame_skip": 2.5})
    job = EpisodeJob(config, schedule(config))
    with pytest.raises(UsageError, match=r"TypeError.* in step 1 of episode 0") as caught:
        list(run_episodes(job, range(1)))
    assert str(caught.value.remedy).count("or check --env-kwargs")


@pytest.mark.parametrize("asked", ["auto", "native"])
def test_one_that_differs_is_played_by_gymnasium(
    asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where another version of Gymnasium pays other rewards."""

    class Generous(tasks.InvertedPendulum):
        def judge(self, *args: Any) -> tasks.Outcome:
            outcome = super().judge(*args)
            return replace(outcome, rewards=outcome.rewards + 1)

    entry = str(registry[PENDULUM.name].entry_point)
    monkeypatch.setattr(tasks, "TASKS", {entry: Generous})
    monkeypatch.setattr("pbvf_offline.rollout.native.offer.TASKS", {entry: Generous})
    config = EnvConfig(PENDULUM.name, {"reset_noise_scale": 0.011 + len(asked) / 1e6})
    job = EpisodeJob(config, schedule(config), backend=asked)
    with pytest.warns(BackendWarning, match="Gymnasium plays all"):
        episodes = list(run_episodes(job, range(20)))
    expected = list(run_episodes(replace(job, backend="gymnasium"), range(20)))
    assert all(map(same, expected, episodes))
    assert backend_for(config, asked) == "gymnasium"
    assert len(list(run_episodes(job, range(3)))) == 3  # without another warning


def test_chunks_end_together_and_play_nothing_in_vain() -> None:
    """Two workers take chunks in turn; a worker's next one is handed out before it needs it."""
    chunks = Chunks(itertools.count(), rows=16, workers=2, limit=100, episodes=None, budget=10_000)
    sizes = []
    for chunk in chunks:
        if chunk is None:
            break
        sizes.append(len(chunk))
    assert sum(sizes) == 100
    assert max(sizes) == 16
    assert sizes[-1] == 1
    chunks.learn(100, 9_950)  # one ended early
    assert len(next(iter(chunks)) or ()) == 1


def test_episodes_of_many_steps_are_not_begun_in_vain_nor_all_at_once() -> None:
    chunks = Chunks(
        itertools.count(), rows=16, workers=1, limit=20_000, episodes=None, budget=20_000
    )
    drawing = iter(chunks)
    assert [len(next(drawing) or ()) for _ in range(2)] == [1, 0]
    many = Chunks(iter(range(50)), rows=16, workers=1, limit=20_000, episodes=50, budget=None)
    assert len(next(iter(many)) or ()) == 1


def test_short_episodes_come_in_long_chunks() -> None:
    known = Chunks(iter(range(500)), rows=16, workers=1, limit=100, episodes=500, budget=None)
    drawing = iter(known)
    assert len(next(drawing) or ()) == 16
    known.learn(16, 160)
    assert len(next(drawing) or ()) == 160
    assert sum(len(chunk or ()) for chunk in drawing) == 500 - 176
    assert known.drawn == list(range(500))
