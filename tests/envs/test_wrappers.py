"""What every wrapper holds, those of installed packages included; own ones by hand."""

from __future__ import annotations

import json
import pickle
import shlex
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Box, Discrete, MultiBinary

from libtools import make_policies
from pbvf_datasets.format.spaces import check_spaces
from pbvf_offline.envs.make import make_env, make_trusted_env, trusted_config
from pbvf_offline.envs.reference import EnvConfig, EnvReference
from pbvf_offline.envs.wrappers import WRAPPERS, Wrapper
from pbvf_offline.errors import IncompatibleError, UnsafeError, UsageError
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.rollout.loop import run_episode
from pbvf_offline.rollout.repetition import episode_digest
from pbvf_offline.rollout.schedules import GivenSchedule


class AnyEnv(gym.Env[Any, Any]):
    """Observations drawn from a space; actions have to be in theirs and decide the reward."""

    def __init__(self, obs: Any = None, action: Any = None) -> None:
        self.observation_space = Box(-1, 1, (2,)) if obs is None else SPACES.get(str(obs), obs)
        self.action_space = Box(-1, 1, (1,)) if action is None else SPACES.get(str(action), action)
        self.done: list[Any] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert action in self.action_space, action
        assert action.dtype == self.action_space.dtype
        self.done.append(action)
        return self.observation_space.sample(), float(np.sum(action)), False, False, {}


PARTS = spaces.Dict({"b": Box(-1, 1, (2,), np.float32), "a": Discrete(3, start=2)})
IMAGE = Box(0, 255, (8, 8, 3), np.uint8)
UNKNOWN = spaces.Sequence(Box(-1, 1, (2,)))
CODES = spaces.MultiDiscrete([3, 2], start=[1, -1])
SPACES = {
    "parts": PARTS,
    "matrix": Box(-1, 1, (2, 3)),
    "free": Box(-np.inf, np.inf, (2,)),
    "codes": CODES,
}
if "Any-v0" not in gym.registry:
    here = f"{__name__}:AnyEnv"
    gym.register("Any-v0", here)
    gym.register("Parts-v0", here, kwargs={"obs": "parts"})
    for name in ("matrix", "free", "codes"):
        gym.register(f"{name.title()}-v0", here, kwargs={"action": name})

BOUNDS = {"min_action": -1.0, "max_action": 1.0}
EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "flatten-observation": ("Parts-v0", {}),
    "select-observation": ("Parts-v0", {"keys": ["a"]}),
    "frame-stack": ("LQR-v0", {"stack_size": 3}),
    "rescale-action": ("LQR-v0", BOUNDS),
    "flatten-action": ("Matrix-v0", {}),
    "bound-action": ("Free-v0", BOUNDS),
    "continuous-action": ("Codes-v0", {}),
    "discrete-action": ("Codes-v0", {"limit": 6}),
}
every_wrapper = pytest.mark.parametrize("name", WRAPPERS)


def config_of(name: str) -> EnvConfig:
    env, kwargs = EXAMPLES.get(name, ("LQR-v0", {}))
    return EnvConfig(env, max_episode_steps=5, wrappers=(Wrapper(name, kwargs),))


def lqr(*wrappers: Wrapper) -> Any:
    return make_env(EnvConfig("LQR-v0", wrappers=wrappers))


def any_env(*wrappers: Wrapper, obs: Any = None, action: Any = None) -> Any:
    kwargs = {"obs": obs, "action": action}
    return make_env(EnvConfig("Any-v0", kwargs, max_episode_steps=5, wrappers=wrappers))


@every_wrapper
def test_episodes_are_those_of_supported_spaces(name: str) -> None:
    env = make_env(config_of(name))
    spec = spec_for_env(env, (3,))
    schedule = GivenSchedule(make_policies(spec, 2), 0)
    episode = run_episode(env, schedule, 1)
    assert episode.observations.shape == (len(episode) + 1, spec.obs_dim)
    other = make_env(pickle.loads(pickle.dumps(config_of(name))))
    run_episode(other, schedule, 0, 2)  # which leaves nothing behind
    again = run_episode(other, schedule, 1)
    assert episode_digest(again) == episode_digest(episode)


@every_wrapper
def test_gymnasium_builds_it_again_from_its_spec(name: str) -> None:
    env = make_env(config_of(name))
    assert env.spec is not None
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.action_space == env.action_space
    assert again.observation_space == env.observation_space


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


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting to float64")
def test_the_order_and_dtype_of_parts() -> None:
    env = any_env(Wrapper("flatten-observation"), obs=PARTS)
    obs, _ = env.reset(seed=0)
    assert (obs.dtype, obs.shape) == (np.float64, (5,))  # of int64 and float32
    assert sorted(obs[:3]) == [0, 0, 1]  # "a", of three
    chosen = any_env(Wrapper("select-observation", {"keys": ["b"]}), obs=PARTS).observation_space
    assert (chosen.dtype, chosen.shape) == (np.float32, (2,))
    ordered = spaces.Dict([("b", Box(0, 1, (2,))), ("c", Discrete(2)), ("a", Box(2, 3, (1,)))])
    for keys in (["b", "a"], ["a", "b"]):
        chosen = any_env(Wrapper("select-observation", {"keys": keys}), obs=ordered)
        assert chosen.observation_space.low.tolist() == [0, 0, 2]  # as they stand in the space
        assert chosen.reset(seed=0)[0] in chosen.observation_space
    pair = spaces.Tuple((MultiBinary(2), IMAGE))
    assert any_env(Wrapper("select-observation", {"keys": [0]}), obs=pair).reset()[0].shape == (2,)
    env = any_env(Wrapper("flatten-observation"), obs=Box(0, 1, (2,), np.longdouble))
    assert env.observation_space.dtype == np.float64
    image = any_env(Wrapper("flatten-observation"), obs=IMAGE).observation_space
    assert image == Box(0, 255, (192,), np.uint8)


def own_actions(env: Any, *actions: Any) -> list[Any]:
    env.reset(seed=0)
    for action in actions:
        env.step(action)
    return [a.tolist() for a in env.unwrapped.done]


def test_actions_in_the_environments_own_form() -> None:
    flat = any_env(Wrapper("flatten-action"), action=Box(-1, 1, (2, 2)))
    assert own_actions(flat, np.arange(4, dtype=np.float32) / 4) == [[[0, 0.25], [0.5, 0.75]]]

    free = Box(np.array([-np.inf, -0.5]), np.array([np.inf, np.inf]), dtype=np.float64)
    bound = any_env(Wrapper("bound-action", BOUNDS), action=free)
    assert bound.action_space == Box(np.array([-1, -0.5]), np.array([1, 1]), dtype=np.float64)
    assert own_actions(bound, np.array([0.3, -0.2])) == [[0.3, -0.2]]

    # start + min(floor((a + 1) / 2 * n), n - 1), with n of 3 and 2 from 1 and -1
    codes = any_env(Wrapper("continuous-action"), action=CODES)
    assert codes.action_space == Box(-1, 1, (2,), np.float32)
    asked = [(-1, -1), (-0.34, -0.01), (-0.33, 0), (0.34, 0.99), (1, 1)]
    done = [[1, -1], [1, -1], [2, 0], [3, 0], [3, 0]]
    assert own_actions(codes, *np.array(asked, np.float32)) == done

    # Mixed radix, the last component counts fastest.
    codes = any_env(Wrapper("discrete-action"), action=CODES)
    assert codes.action_space == Discrete(6)
    done = [[1, -1], [1, 0], [2, -1], [2, 0], [3, -1], [3, 0]]
    assert own_actions(codes, *np.arange(6)) == done


@pytest.mark.parametrize("space", [CODES, MultiBinary(3), Box(-128, 127, (1,), np.int8)], ids=str)
def test_all_values_have_the_same_share_of_the_range(space: Any) -> None:
    env = any_env(Wrapper("continuous-action"), action=space)
    size = env.action_space.shape[0]
    grid = np.linspace(-1, 1, 1536, endpoint=False, dtype=np.float32) + np.float32(1 / 1536)
    own = np.array([env.action(np.full(size, a)) for a in grid])
    for column in own.T:
        counts = np.unique(column, return_counts=True)[1]
        assert counts.min() == counts.max()
        assert len(counts) > 1


def alternatives(obs: Any, action: Any) -> list[tuple[Wrapper, ...]]:
    """Return what a refusal says to add, each as wrappers."""
    with pytest.raises(UsageError, match="is not supported; supported are") as caught:
        spec_for_env(any_env(obs=obs, action=action), ())
    found = []
    for advice in str(caught.value).partition("; add ")[2].partition(";")[0].split(", or "):
        words = shlex.split(advice)
        options = [words[k + 1] for k, word in enumerate(words) if word == "--wrapper"]
        named = [option.partition(":") for option in options]
        found.append(tuple(Wrapper(name, json.loads(rest or "{}")) for name, _, rest in named))
    return found


@pytest.mark.parametrize(
    ("obs", "action", "count"),
    [
        (PARTS, None, 1),
        (spaces.Tuple((MultiBinary(2), Box(-1, 1, (1,)))), None, 1),
        (spaces.MultiDiscrete([2, 3]), None, 1),
        (Discrete(4), None, 1),
        (spaces.Text(5), None, 1),
        (IMAGE, None, 1),
        (Box(0, 1, (2,), np.bool_), None, 1),
        (Box(-1, 1, ()), None, 1),
        (Box(0, 255, (60, 60, 3), np.uint8), None, 1),
        (spaces.Dict({"parts": PARTS, "image": IMAGE}), None, 1),
        (spaces.Dict({"image": IMAGE, "words": UNKNOWN, "parts": PARTS}), None, 1),
        (spaces.Tuple((UNKNOWN, Discrete(3))), None, 1),
        (None, Box(0, 5, (1,), np.int64), 2),
        (None, Box(np.array([0, -3]), np.array([255, 3]), dtype=np.int16), 1),
        (None, Box(-128, 127, (2, 2), np.int8), 1),
        (None, Box(0, 1, (2,), np.bool_), 2),
        (None, Box(-1, 1, (2, 3)), 1),
        (None, Box(-1, 1, (), np.float64), 1),
        (None, Box(-np.inf, np.inf, (2,)), 1),
        (None, Box(np.array([[-np.inf, 0]]), np.array([[0.5, np.inf]]), dtype=np.float64), 1),
        (None, MultiBinary(2), 2),
        (None, MultiBinary((2, 2)), 2),
        (None, MultiBinary(20_000), 1),
        (None, CODES, 2),
        (None, spaces.MultiDiscrete([[3, 2], [1, 4]]), 2),
    ],
    ids=str,
)
def test_a_refusal_names_the_wrappers_that_help(obs: Any, action: Any, count: int) -> None:
    found = alternatives(obs, action)
    assert len(found) == count
    for wrappers in found:
        assert not any(wrapper.unsafe for wrapper in wrappers)
        env = any_env(*wrappers, obs=obs, action=action)
        check_spaces(env.observation_space, env.action_space)  # a dataset can hold them
        spec = spec_for_env(env, ())
        episode = run_episode(env, GivenSchedule(make_policies(spec, 1), 0), 0)
        assert episode.observations.dtype == env.observation_space.dtype


@pytest.mark.parametrize(
    ("obs", "action", "words"),
    [
        (UNKNOWN, None, "TransformObservation"),
        (spaces.Dict({"a": UNKNOWN}), None, "TransformObservation"),
        (spaces.Graph(Discrete(2), None), None, "TransformObservation"),
        (None, spaces.Tuple((Discrete(2), Box(-1, 1, (1,)))), "TransformAction"),
        (None, Box(1, 1, (1,)), "TransformAction"),
        (None, Box(0, 2**60, (1,), np.int64), "TransformAction"),
    ],
    ids=str,
)
def test_where_no_wrapper_helps(obs: Any, action: Any, words: str) -> None:
    with pytest.raises(UsageError, match=rf"in a module of yours.*gymnasium\.wrappers\.{words}"):
        spec_for_env(any_env(obs=obs, action=action), ())
    assert alternatives(obs, action) == [()]


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        (Wrapper("absent"), "choose one of flatten-observation"),
        (Wrapper("frame-stack"), "frame-stack refused.*stack_size"),
        (Wrapper("frame-stack", {"stack_size": 0}), "whole number from 1"),
        (Wrapper("frame-stack", {"stack_size": 20_000}), "of 20,000 numbers, more than"),
        (Wrapper("time-feature", {"more": 1}), "time-feature refused"),
        (Wrapper("time-feature", {"normalize_time": "x"}), "true or false"),
        (Wrapper("select-observation", {"keys": ["a"]}), "it is for Dict and Tuple"),
        (Wrapper("bound-action", {"min_action": 9, "max_action": 9}), "give wider bounds"),
        (Wrapper("continuous-action"), "continuous-action: it is for MultiDiscrete"),
        (Wrapper("discrete-action"), "discrete-action: it is for MultiDiscrete"),
    ],
)
def test_refusals(wrapper: Wrapper, words: str) -> None:
    with pytest.raises(UsageError, match=f"^--wrapper.*{words}"):
        lqr(wrapper)


@pytest.mark.parametrize(
    ("wrapper", "spaces", "words"),
    [
        (
            Wrapper("flatten-observation"),
            {"obs": UNKNOWN},
            "cannot become one vector; register it in a",
        ),
        (
            Wrapper("flatten-observation"),
            {"obs": spaces.Tuple((UNKNOWN, Discrete(3)))},
            """cannot become one vector; add --wrapper 'select-observation:{"keys": \\[1]}'""",
        ),
        (
            Wrapper("flatten-observation"),
            {"obs": Box(0, 255, (210, 160, 3), np.uint8)},
            'of 100,800 numbers, more than 10,000.* "limit": 100800',
        ),
        (Wrapper("flatten-observation", {"limit": 4}), {"obs": PARTS}, "of 5 numbers"),
        (Wrapper("flatten-action"), {"action": CODES}, "it is for floating-point Box"),
        (Wrapper("bound-action", BOUNDS), {"action": Discrete(2)}, "it is for floating-point Box"),
        (Wrapper("continuous-action"), {"action": Discrete(2)}, "it is for MultiDiscrete"),
        (Wrapper("discrete-action", {"limit": 5}), {"action": CODES}, "more than 5 comb.*contin"),
        (Wrapper("discrete-action"), {"action": MultiBinary(20_000)}, "more than 1,000 comb"),
    ],
)
def test_spaces_that_a_wrapper_is_not_for(
    wrapper: Wrapper, spaces: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=f"^--wrapper.*{words}"):
        any_env(wrapper, **spaces)


PAIR = spaces.Tuple((Box(-1, 1, (2,)), Box(-1, 1, (1,))))


@pytest.mark.parametrize("keys", ["ab", ["a", "a"], [], ["c"], [0], [["a"]], None, {"a": 1}])
def test_parts_of_a_dict_that_cannot_be_selected(keys: Any) -> None:
    space = spaces.Dict({"a": Box(-1, 1, (1,)), "b": Box(-1, 1, (1,))})
    with pytest.raises(UsageError, match=r"^--wrapper select-observation: keys (is|has) .*; give "):
        any_env(Wrapper("select-observation", {"keys": keys}), obs=space)


@pytest.mark.parametrize("keys", [[-1], [True], [1, 1], [2], [0.0], ["0"], 0])
def test_parts_of_a_tuple_that_cannot_be_selected(keys: Any) -> None:
    with pytest.raises(UsageError, match=r"^--wrapper select-observation: keys (is|has) .*; give "):
        any_env(Wrapper("select-observation", {"keys": keys}), obs=PAIR)


@pytest.mark.parametrize("limit", [0, True, 6.0, "6", None, float("inf")])
@pytest.mark.parametrize("name", ["flatten-observation", "discrete-action"])
def test_limits_are_whole_numbers(name: str, limit: Any) -> None:
    with pytest.raises(UsageError, match=r"^--wrapper.*: limit is .*; give a whole number from 1"):
        any_env(Wrapper(name, {"limit": limit}), obs=PARTS, action=CODES)


@pytest.mark.parametrize("bound", [1e300, 10**400, True, "1", None, [1.0], float("nan")])
@pytest.mark.parametrize("name", ["bound-action", "rescale-action"])
def test_bounds_are_numbers_of_the_actions_dtype(name: str, bound: Any) -> None:
    kwargs = {"min_action": -1.0, "max_action": bound}
    with pytest.raises(UsageError, match=f"^--wrapper {name}: max_action is .* of float32, 3.4e"):
        any_env(Wrapper(name, kwargs))


def test_where_there_is_nothing_to_rescale_or_to_count() -> None:
    with pytest.raises(UsageError, match=r"rescale-action: it is for bounded.*use .* bound-action"):
        any_env(Wrapper("rescale-action", BOUNDS), action=Box(-np.inf, np.inf, (1,)))
    with pytest.raises(UsageError, match=r"has no time limit; give --max-episode-steps"):
        make_env(EnvConfig("Any-v0", wrappers=(Wrapper("time-feature"),)))


def test_more_frames_are_had_on_request() -> None:
    env = lqr(Wrapper("frame-stack", {"stack_size": 10_001, "limit": 10_001}))
    assert env.observation_space.shape == (10_001,)


def test_a_file_whose_wrapper_is_refused_is_named() -> None:
    wrapper = Wrapper("frame-stack", {"stack_size": "2"})
    with pytest.raises(IncompatibleError, match=r"^file: .*stack_size is '2'; name .* --env"):
        make_trusted_env(EnvReference("LQR-v0", wrappers=(wrapper,)), "file")


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        (Wrapper("absent"), "is not installed"),
        (Wrapper("os:system"), "is not installed"),
        (Wrapper("frame-stack", {"path": "/etc/hostname"}), "arguments that a file may not set"),
        (Wrapper("frame-stack", {"stack_size": [[1]]}), "arguments that a file may not set"),
        (Wrapper("frame-stack", {"keys": ["a", "/etc"]}), "arguments that a file may not set"),
        (Wrapper("frame-stack", {"path": ["a"]}), "arguments that a file may not set"),
    ],
)
def test_what_a_file_may_not_ask_for(wrapper: Wrapper, words: str) -> None:
    with pytest.raises(UnsafeError, match=f"{words}.*--env") as caught:
        make_trusted_env(EnvReference("LQR-v0", wrappers=(wrapper,)), "file")
    assert caught.value.exit_code == 4
