"""For which environments episodes may be played natively."""

from __future__ import annotations

import importlib.util
import inspect
import warnings
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeGuard

from gymnasium.envs.registration import load_env_creator, registry

from pbvf_offline.envs.make import Env, register_environments
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import UsageError, exception_text
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.native.tasks import TASKS, Task
from pbvf_offline.setting_types import MOST

Backend = Literal["auto", "gymnasium", "native"]
Playing = Literal["gymnasium", "native"]

# What a task does not read: Gymnasium builds and resets the environment, and keeps the time.
_ELSEWHERE: Final = frozenset({"frame_skip", "reset_noise_scale", "max_episode_steps"})
# What numpy and MuJoCo take: a number of steps, and one of the bodies of Gymnasium's ant.
_COUNTS: Final = {
    "frame_skip": range(1, 2**31),
    "main_body": range(14),
    "max_episode_steps": range(1, MOST + 1),
}
_differing: set[str] = set()
_agreed: set[tuple[str, PolicySpec]] = set()


class BackendWarning(UserWarning):
    """Episodes played natively came out otherwise than Gymnasium's."""


def backend_for(config: EnvConfig, asked: Backend = "auto") -> Playing:
    """Return what plays an environment's episodes: Gymnasium, unless its bytes are known.

    Raises:
        UsageError: It cannot be played natively, and that was asked for.
    """
    if asked == "gymnasium":
        return "gymnasium"
    reason = _hindrance(config)
    if reason is None:
        return "gymnasium" if _key(config) in _differing else "native"
    if asked == "native":
        raise UsageError(
            f"the native backend does not play {config.name} here: {reason}",
            where="--backend",
            remedy="leave it out, or give gymnasium",
        )
    return "gymnasium"


def has_agreed(config: EnvConfig, spec: PolicySpec) -> bool:
    """Whether such policies were seen in this process to get the same episodes from both."""
    return (_key(config), spec) in _agreed


def agrees(config: EnvConfig, spec: PolicySpec) -> None:
    """Note that such policies got the same episode from both."""
    _agreed.add((_key(config), spec))


def withdraw(config: EnvConfig) -> None:
    """Offer an environment no more in this process, because it was seen to differ, and warn."""
    _differing.add(_key(config))
    warnings.warn(
        f"{config.name}: the native backend and Gymnasium play the first episode differently, so "
        "Gymnasium plays all; a version of gymnasium or mujoco is not known to the native backend",
        BackendWarning,
        stacklevel=2,
    )


def make_task(env: Env, config: EnvConfig) -> Task:
    """Return the task of an environment for which the backend is ``native``."""
    entry = registry[config.name].entry_point
    return TASKS[str(entry)](env.unwrapped, _values(config))


def _hindrance(config: EnvConfig) -> str | None:
    """Return why an environment cannot be played natively, or None."""
    register_environments()
    spec = registry.get(config.name)
    task = None if spec is None else TASKS.get(str(spec.entry_point))
    if spec is None or task is None:
        return "it is none of Gymnasium's own that are known"
    if config.wrappers or spec.additional_wrappers:
        return "it is wrapped"
    other = sorted({*spec.kwargs, *config.kwargs} - set(task.parameters) - _ELSEWHERE)
    if other:
        return f"it has the arguments {', '.join(other)}"
    return _hindrance_of_package(config.name) or _odd_arguments(config)


def _hindrance_of_package(name: str) -> str | None:
    try:
        load_env_creator(str(registry[name].entry_point))
        batch = importlib.util.find_spec("mujoco.batch")
    except Exception as error:  # whatever it is: building the environment will say it
        return f"MuJoCo cannot be imported: {exception_text(error)}"
    if batch is None:
        return "this release of MuJoCo does not step several simulations; 4.0 does"
    return None


def _odd_arguments(config: EnvConfig) -> str | None:
    values, defaults = _values(config), _values(EnvConfig(config.name))
    given = {*registry[config.name].kwargs, *config.kwargs}
    odd = sorted(n for n in given if not _is_usual(n, values[n], defaults.get(n)))
    return f"its {', '.join(odd)} is of another kind than usual" if odd else None


def _is_usual(name: str, value: object, default: object) -> bool:
    """Whether an argument is one that a task computes with as Gymnasium does.

    Gymnasium says what is wrong with others, and what comes of those that it accepts.
    """
    if name in _COUNTS:
        return type(value) is int and value in _COUNTS[name]
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, tuple):
        return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value))
    return _is_number(value) and (name != "reset_noise_scale" or value >= 0)


def _is_number(value: object) -> TypeGuard[int | float]:
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def _values(config: EnvConfig) -> Mapping[str, Any]:
    """Return the arguments of an environment, with the defaults of those not given."""
    spec = registry[config.name]
    creator = load_env_creator(str(spec.entry_point))
    parameters = inspect.signature(creator).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return {**defaults, **spec.kwargs, **config.kwargs}


def _key(config: EnvConfig) -> str:
    return repr((config.name, config.max_episode_steps, sorted(config.kwargs.items())))
