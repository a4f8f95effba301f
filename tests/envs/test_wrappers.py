"""What every wrapper holds, those of installed packages included; own ones by hand."""

from __future__ import annotations

import json
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from libtools import make_policies
from pbvf_offline.envs.make import make_env, make_trusted_env, trusted_config
from pbvf_offline.envs.reference import EnvConfig, EnvReference
from pbvf_offline.envs.wrappers import WRAPPERS, Wrapper
from pbvf_offline.errors import UnsafeError, UsageError
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.rollout.loop import run_episode
from pbvf_offline.rollout.schedules import GivenSchedule


class PartsEnv(gym.Env[Any, Any]):
    """Observations in two parts."""

    observation_space = gym.spaces.Dict(
        {name: gym.spaces.Box(-1, 1, (2,), np.float64) for name in ("a", "b")}
    )
    action_space = gym.spaces.Box(-1, 1, (1,), np.float64)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._observe(), {}

    def _observe(self) -> Any:
        return {name: self.np_random.uniform(-1, 1, 2) for name in ("a", "b")}

    def step(self, action: Any) -> Any:
        return self._observe(), float(action[0]), False, False, {}


if "Parts-v0" not in gym.registry:
    gym.register("Parts-v0", entry_point=PartsEnv)

EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "flatten-observation": ("Parts-v0", {}),
    "frame-stack": ("LQR-v0", {"stack_size": 3}),
    "rescale-action": ("LQR-v0", {"min_action": -1.0, "max_action": 1.0}),
}
every_wrapper = pytest.mark.parametrize("name", WRAPPERS)


def config_of(name: str) -> EnvConfig:
    env, kwargs = EXAMPLES.get(name, ("LQR-v0", {}))
    return EnvConfig(env, max_episode_steps=5, wrappers=(Wrapper(name, kwargs),))


def lqr(*wrappers: Wrapper) -> Any:
    return make_env(EnvConfig("LQR-v0", wrappers=wrappers))


@every_wrapper
def test_episodes_are_those_of_supported_spaces(name: str) -> None:
    env = make_env(config_of(name))
    spec = spec_for_env(env, (3,))
    schedule = GivenSchedule(make_policies(spec, 2), 0)
    episode = run_episode(env, schedule, 1)
    assert episode.observations.shape == (len(episode) + 1, spec.obs_dim)
    again = run_episode(make_env(pickle.loads(pickle.dumps(config_of(name)))), schedule, 1)
    assert np.array_equal(episode.observations, again.observations)
    assert np.array_equal(episode.rewards, again.rewards)


@every_wrapper
def test_a_file_names_a_wrapper_that_is_installed(name: str) -> None:
    config = config_of(name)
    reference = config.reference()
    assert reference.format_version == 2
    stored = json.loads(json.dumps(reference.to_dict()))
    assert EnvReference.from_dict(stored, "file") == reference
    trusted = trusted_config(reference, "file")
    assert trusted == config
    assert make_env(trusted).observation_space == make_env(config).observation_space


def test_without_wrappers_a_reference_is_what_it_was() -> None:
    plain = EnvConfig("LQR-v0").reference()
    assert plain.format_version == 1
    assert set(plain.to_dict()) == {"id", "module", "kwargs", "withheld"}


def test_frames_are_stacked_the_present_one_last() -> None:
    env = lqr(Wrapper("frame-stack", {"stack_size": 3}))
    assert env.reset(seed=0)[0].tolist() == [1, 1, 1]
    env.step(np.array([0.5]))
    assert env.step(np.array([-1.0]))[0].tolist() == [1, 1.5, 0.5]


def test_time_stands_beside_the_observation() -> None:
    env = lqr(Wrapper("time-feature"))
    assert env.reset(seed=0)[0].tolist() == [1, 0]
    assert env.step(np.array([0.5]))[0].tolist() == [1.5, 1]


def test_the_first_wrapper_is_the_innermost() -> None:
    both = (Wrapper("time-feature"), Wrapper("frame-stack", {"stack_size": 2}))
    assert lqr(*both).reset(seed=0)[0].tolist() == [1, 0, 1, 0]
    assert lqr(*reversed(both)).reset(seed=0)[0].tolist() == [1, 1, 0]


def test_actions_have_another_range() -> None:
    env = lqr(Wrapper("rescale-action", {"min_action": -1.0, "max_action": 1.0}))
    env.reset(seed=0)
    assert env.step(np.array([0.01]))[0].tolist() == pytest.approx([2.0])  # 100 times as far


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        (Wrapper("absent"), "choose one of flatten-observation"),
        (Wrapper("frame-stack"), "frame-stack refused.*stack_size"),
        (Wrapper("frame-stack", {"stack_size": 0}), "frame-stack refused"),
        (Wrapper("time-feature", {"more": 1}), "time-feature refused"),
    ],
)
def test_refusals(wrapper: Wrapper, words: str) -> None:
    with pytest.raises(UsageError, match=f"--wrapper: .*{words}"):
        lqr(wrapper)


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        (Wrapper("absent"), "is not installed"),
        (Wrapper("os:system"), "is not installed"),
        (Wrapper("frame-stack", {"path": "/etc/hostname"}), "arguments that a file may not set"),
        (Wrapper("frame-stack", {"stack_size": [1]}), "arguments that a file may not set"),
    ],
)
def test_what_a_file_may_not_ask_for(wrapper: Wrapper, words: str) -> None:
    with pytest.raises(UnsafeError, match=f"{words}.*--env") as caught:
        make_trusted_env(EnvReference("LQR-v0", wrappers=(wrapper,)), "file")
    assert caught.value.exit_code == 4
