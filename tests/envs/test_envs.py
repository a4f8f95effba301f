from __future__ import annotations

import importlib
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import registry
from gymnasium.spaces import Box, Discrete, MultiBinary

from pbvf_offline.envs.make import make_env, make_trusted_env, time_limit, trusted_config
from pbvf_offline.envs.reference import EnvConfig, EnvReference
from pbvf_offline.errors import DamagedError, ResourceError, UnsafeError, UsageError
from pbvf_offline.policies.actions import BoxActions, DiscreteActions
from pbvf_offline.policies.spaces import spec_for_env

FAILURES = {
    "key": KeyError,
    "value": ValueError,
    "gym": gym.error.InvalidAction,
    "exit": SystemExit,
    "memory": MemoryError,
}


class SpacesEnv(gym.Env[Any, Any]):
    """An environment with the given spaces, which notes that it was built."""

    built: list[dict[str, Any]] = []  # noqa: RUF012

    def __init__(self, obs: Any = None, action: Any = None, fail: str = "", **kwargs: Any) -> None:
        if fail == "type":
            int("no", base="no")  # type: ignore[call-overload]
        if fail == "import":
            importlib.import_module("no_such_module")
        if fail:
            raise FAILURES[fail]("no")
        SpacesEnv.built.append(kwargs)
        self.observation_space = Box(-1, 1, (2,)) if obs is None else obs
        self.action_space = Box(-1, 1, (1,)) if action is None else action


class StrictEnv(SpacesEnv):
    """Takes no other arguments."""

    def __init__(self, obs: Any = None) -> None:
        super().__init__(obs)


class NeedyEnv(SpacesEnv):
    def __init__(self, needed: int) -> None:
        super().__init__()


class BrokenEnv(SpacesEnv):
    def __init__(self) -> None:
        super().__init__(fail="key")


class NoSpaceEnv(gym.Env[Any, Any]):
    action_space = Discrete(2)


if "Spaces-v0" not in registry:
    gym.register("Spaces-v0", entry_point=SpacesEnv)
    gym.register("Strict-v0", entry_point=StrictEnv)
    gym.register("Needy-v0", entry_point=NeedyEnv)
    gym.register("Broken-v0", entry_point=BrokenEnv)
    gym.register("NoSpace-v0", entry_point=NoSpaceEnv)
    gym.register("NoEnv-v0", entry_point=object)  # type: ignore[arg-type]
    gym.register("NoModule-v0", entry_point="no_such_module:Mine")
    gym.register("NoClass-v0", entry_point=f"{__name__}:NoClass")
    gym.register("Family-v1", entry_point=SpacesEnv)


def spaces_env(obs: Any = None, action: Any = None) -> Any:
    return make_env(EnvConfig("Spaces-v0", {"obs": obs, "action": action}))


def test_spec_of_a_box_environment() -> None:
    low, high = np.array([-0.3, 1.0], np.float32), np.array([0.7, 5.0], np.float32)
    spec = spec_for_env(spaces_env(Box(-np.inf, np.inf, (4,)), Box(low, high)), (8,))
    assert spec.obs_dim == 4
    assert spec.hidden == (8,)
    assert isinstance(spec.actions, BoxActions)
    assert spec.actions.dtype == "float32"
    assert np.array_equal(np.array(spec.actions.low, np.float32), low)
    assert np.array_equal(np.array(spec.actions.high, np.float32), high)


def test_spec_of_a_discrete_environment_comes_from_its_space() -> None:
    spec = spec_for_env(spaces_env(action=Discrete(4, start=2)), (), stochastic=True)
    assert spec.actions == DiscreteActions(4, 2)
    assert spec.stochastic


@pytest.mark.parametrize(
    ("obs", "action"),
    [
        (Discrete(3), None),
        (Box(0, 255, (8, 8, 3), np.uint8), None),
        (Box(-1, 1, ()), None),
        (gym.spaces.Dict({"a": Box(-1, 1, (2,))}), None),
        (gym.spaces.Text(5), None),
        (Box(0, 1, (2,), np.bool_), None),
        (None, Box(-np.inf, np.inf, (1,))),
        (None, Box(-1, 1, (2, 2))),
        (None, Box(0, 5, (1,), np.int64)),
        (None, MultiBinary(2)),
        (None, Box(1, 1, (1,))),
    ],
)
def test_unsupported_spaces_are_named(obs: Any, action: Any) -> None:
    assert "1-D Box observations" in refusal(obs, action)


def refusal(obs: Any = None, action: Any = None) -> str:
    with pytest.raises(UsageError, match="is not supported") as caught:
        spec_for_env(spaces_env(obs, action), ())
    assert caught.value.where == "Spaces-v0"
    return str(caught.value)


@pytest.mark.parametrize("name", ["Swimmer-v3", "Hopper-v3", "Reacher-v2", "InvertedPendulum-v2"])
def test_the_papers_names_point_to_v5(name: str) -> None:
    family, old = name.split("-")
    with pytest.raises(UsageError) as caught:
        make_env(EnvConfig(name))
    assert caught.value.exit_code == 2
    assert f"the paper's {family} {old} is v5 now: use {family}-v5" in str(caught.value)


@pytest.mark.parametrize("name", ["Ant-v3", "Swimmer-v9"])
def test_other_versions_are_not_said_to_be_the_papers(name: str) -> None:
    family, _ = name.split("-")
    with pytest.raises(UsageError, match=f"the newest version of {family} is v5: use {family}-v5"):
        make_env(EnvConfig(name))


@pytest.mark.parametrize("name", ["NoSuchThing-v0", "Family-v9"])
def test_unknown_ids(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_env(EnvConfig(name))
    assert caught.value.where == name
    if name.startswith("Family"):
        assert "Family-v1" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["", "Swimmer", "a b-v0", "os;x:Toy-v0", ":Toy-v0:", "1mod:Toy-v0", "m-:T-v0"]
)
def test_malformed_names(name: str) -> None:
    with pytest.raises(UsageError, match="malformed"):
        make_env(EnvConfig(name))


def test_a_module_is_imported_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder_env_probe.py").write_text(
        "import gymnasium as gym\n"
        "from test_envs_spaces import SpacesEnv\n"
        "gym.register('FolderProbe-v0', entry_point=SpacesEnv)\n"
    )
    (tmp_path / "test_envs_spaces.py").write_text(
        "import gymnasium as gym\n"
        "class SpacesEnv(gym.Env):\n"
        "    observation_space = gym.spaces.Box(-1, 1, (2,))\n"
        "    action_space = gym.spaces.Discrete(2)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    env = make_env(EnvConfig("folder_env_probe:FolderProbe-v0"))
    assert env.action_space == Discrete(2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("FetchAbsent-v9", "or give gymnasium_robotics:FetchAbsent-v9"),
        ("dm_control/absent-v9", "or give shimmy:dm_control/absent-v9"),
        ("minigrid:MiniGrid-v0", "pip install 'pbvf-offline.minigrid.'"),
    ],
)
def test_environments_of_packages_that_are_known(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)  # as if it was not installed
    with pytest.raises(UsageError, match=words):
        make_env(EnvConfig(name))


def test_a_package_that_breaks_is_installed_with_what_it_goes_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "shimmy", types.ModuleType("shimmy"))
    with pytest.raises(UsageError, match=r"KeyError.*pip install 'pbvf-offline\[dm-control\]'"):
        make_env(EnvConfig("shimmy:Broken-v0"))


def test_missing_modules_are_named() -> None:
    with pytest.raises(UsageError, match="'no_such_module' was not found"):
        make_env(EnvConfig("no_such_module:Toy-v0"))


@pytest.mark.parametrize("text", ["raise ValueError('no')", "def", "from os import nothing"])
def test_a_module_that_breaks_is_the_users_error(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "breaking_env_probe.py").write_text(text + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(UsageError, match="breaking_env_probe") as caught:
        make_env(EnvConfig("breaking_env_probe:Toy-v0"))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("kwargs", [{"id": 1}, {"obs": 1, "oops": 2}])
def test_refused_arguments(kwargs: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"refused its arguments .*; check --env-kwargs") as caught:
        make_env(EnvConfig("Strict-v0", kwargs))
    assert caught.value.where == "Strict-v0"


def test_an_argument_that_is_missing_is_asked_for() -> None:
    with pytest.raises(UsageError, match=r"missing 1 required.*'needed'; check --env-kwargs"):
        make_env(EnvConfig("Needy-v0"))


@pytest.mark.parametrize("fail", ["value", "key", "type", "import", "gym", "exit"])
def test_an_environment_that_fails_while_it_is_built_is_not_its_arguments_fault(fail: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_env(EnvConfig("Spaces-v0", {"fail": fail}))
    text = str(caught.value)
    assert caught.value.where == "Spaces-v0"
    assert re.search(r"the environment raised \w+: .*no.*, at \S*test_envs\.py:\d+ \(in ", text)
    assert "was raised from the environment creator" not in text
    assert text.endswith("or check --env-kwargs; --debug shows the traceback")
    assert ("install no_such_module" in text) == (fail == "import")
    with pytest.raises(UsageError) as caught:
        make_env(EnvConfig("Broken-v0"))
    assert "arguments" not in str(caught.value)
    assert "--env-kwargs" not in str(caught.value)


def test_memory_that_runs_out_while_an_environment_is_built_is_exit_6() -> None:
    with pytest.raises(ResourceError, match=r"MemoryError: no while it was built.*test_envs\.py"):
        make_env(EnvConfig("Spaces-v0", {"fail": "memory"}))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NoSpace-v0", "no attribute 'observation_space' when asked for its observation_space"),
        ("NoEnv-v0", "cannot be built: TypeError: The environment must inherit from the gymnas"),
        ("NoModule-v0", "No module named 'no_such_module'; install no_such_module"),
        ("NoClass-v0", "cannot be built: AttributeError: .* no attribute 'NoClass'; mend"),
    ],
)
def test_what_is_no_environment_is_named(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        make_env(EnvConfig(name))
    assert caught.value.where == name
    assert "refused" not in str(caught.value)


def test_time_limits() -> None:
    assert time_limit(make_env(EnvConfig("Spaces-v0"))) is None
    assert time_limit(make_env(EnvConfig("LQR-v0"))) == 50
    assert time_limit(make_env(EnvConfig("LQR-v0", max_episode_steps=7))) == 7


def test_reference_keeps_nothing_that_names_a_path() -> None:
    kwargs = {
        "scale": 2.5,
        "n": 3,
        "flag": True,
        "none": None,
        "word": "slow mode",
        "xml_file": "/etc/hostname",
        "dots": "../x",
        "url": "http://a/b",
        "list": [1],
        "nan": float("nan"),
    }
    reference = EnvConfig("toyenv:Toy-v0", kwargs, 9).reference()
    assert (reference.id, reference.module) == ("Toy-v0", "toyenv")
    assert reference.kwargs == {
        "scale": 2.5,
        "n": 3,
        "flag": True,
        "none": None,
        "word": "slow mode",
        "max_episode_steps": 9,
    }
    assert reference.withheld == ("dots", "list", "nan", "url", "xml_file")
    assert reference.name == "toyenv:Toy-v0"
    text = json.dumps(reference.to_dict(), allow_nan=False)
    assert "hostname" not in text
    assert EnvReference.from_dict(json.loads(text), "file") == reference
    assert EnvConfig("LQR-v0").reference().name == "LQR-v0"


@pytest.mark.parametrize(
    "change",
    [
        {"id": 3},
        {"module": 3},
        {"kwargs": []},
        {"withheld": "abc"},
        {"withheld": [1]},
        {"more": 1},
    ],
)
def test_malformed_references(change: dict[str, Any]) -> None:
    good = EnvConfig("LQR-v0").reference().to_dict()
    with pytest.raises(DamagedError, match=f"^file: .*{next(iter(change))}"):
        EnvReference.from_dict({**good, **change}, "file")
    with pytest.raises(DamagedError):
        EnvReference.from_dict("LQR-v0", "file")


def test_a_registered_environment_with_scalar_arguments_is_trusted() -> None:
    SpacesEnv.built.clear()
    reference = EnvReference("Spaces-v0", None, {"a": 1, "max_episode_steps": 5})
    env = make_trusted_env(reference, "file")
    assert time_limit(env) == 5
    assert SpacesEnv.built == [{"a": 1}]
    assert trusted_config(reference, "file") == EnvConfig("Spaces-v0", {"a": 1}, 5)


@pytest.mark.parametrize(
    "reference",
    [
        EnvReference("NotRegisteredHere-v0"),
        EnvReference("NotRegisteredHere-v0", "antigravity"),
        EnvReference("module:Spaces-v0"),
        EnvReference("antigravity:Spaces-v0"),
        EnvReference("../Spaces-v0"),
        EnvReference(""),
        EnvReference("Spaces-v0", None, {"xml_file": "/etc/hostname"}),
        EnvReference("Spaces-v0", None, {"xml_file": "a/b"}),
        EnvReference("Spaces-v0", None, {"xml_file": "a.xml"}),
        EnvReference("Spaces-v0", None, {"x": [1]}),
        EnvReference("Spaces-v0", None, {"x": {"a": 1}}),
        EnvReference("Spaces-v0", None, {"x": float("inf")}),
        EnvReference("Spaces-v0", None, {}, ("xml_file",)),
    ],
)
def test_anything_else_in_a_file_is_unsafe(
    reference: EnvReference, monkeypatch: pytest.MonkeyPatch
) -> None:
    SpacesEnv.built.clear()
    before = set(sys.modules)
    monkeypatch.setattr(
        "pbvf_offline.envs.make._import_for_user", lambda *_: pytest.fail("imported from a file")
    )
    for build in (make_trusted_env, trusted_config):
        with pytest.raises(UnsafeError, match="--env") as caught:
            build(reference, "critic.safetensors")
        assert caught.value.exit_code == 4
        assert caught.value.where == "critic.safetensors"
    assert SpacesEnv.built == []
    assert "antigravity" not in set(sys.modules) - before


@pytest.mark.parametrize(
    ("module", "env_id", "words"),
    [
        (
            "their.module",
            "Absent-v0",
            "if you trust that module, add --env their.module:Absent-v0$",
        ),
        (None, "MiniGrid-Absent-v9", "add --env minigrid:MiniGrid-Absent-v9$"),
        ("m; rm", "Absent-v0", "name the environment with --env"),
        ("m\u0456", "Absent-v0", "name the environment with --env"),
        (None, "Absent-v0", "name the environment with --env"),
        ("m", "MiniGrid-; rm", "name the environment with --env"),
    ],
)
def test_what_to_give_for_an_environment_that_is_not_registered(
    module: Any, env_id: str, words: str
) -> None:
    with pytest.raises(UnsafeError, match=words) as caught:
        make_trusted_env(EnvReference(env_id, module), "file")
    assert str(caught.value).isascii()


@pytest.mark.parametrize("limit", [0, -1, True, 2.5, "7"])
def test_a_bad_time_limit_in_a_file(limit: Any) -> None:
    with pytest.raises(DamagedError, match="max_episode_steps"):
        make_trusted_env(EnvReference("Spaces-v0", None, {"max_episode_steps": limit}), "file")


def test_a_module_named_in_a_file_is_never_imported(tmp_path: Path) -> None:
    # The module is for people to read; the id must be registered already.
    reference = EnvReference("LQR-v0", "no_such_module_at_all", {})
    assert make_trusted_env(reference, "file").action_space.shape == (1,)
