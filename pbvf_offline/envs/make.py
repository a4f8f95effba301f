"""Environments: building them from a user's words, or from a file's without trusting it."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator, registry

from pbvf_offline.envs.portable import PACKAGES, is_portable
from pbvf_offline.envs.process import process_kept
from pbvf_offline.envs.randomness import SharedRandomness
from pbvf_offline.envs.reference import EnvConfig, EnvReference, is_time_limit
from pbvf_offline.envs.wrappers import OPTION, WRAPPERS, wrap
from pbvf_offline.errors import (
    DamagedError,
    IncompatibleError,
    PbvfError,
    UnsafeError,
    UsageError,
    exception_text,
    printable,
)
from pbvf_offline.foreign import failure, place_of, stops

LQR_ID = "LQR-v0"
_BUILD_SEED = 0
_ENV_ID = re.compile(r"(?:[\w.-]+/)?[\w.-]+-v\d+\Z")
_PLAIN = re.compile(r"[\w.:/+-]{1,100}")
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\Z")
_OF_THE_PAPER = frozenset(("Swimmer-v3", "Hopper-v3", "Reacher-v2", "InvertedPendulum-v2"))
_PACKAGES = {
    "dm_control/": "shimmy",
    "MiniGrid-": "minigrid",
    "BabyAI-": "minigrid",
    **dict.fromkeys(("Fetch", "Hand", "AdroitHand", "FrankaKitchen"), "gymnasium_robotics"),
    **dict.fromkeys(("PointMaze_", "AntMaze_"), "gymnasium_robotics"),
}
Env = gym.Env[Any, Any]


def register_environments() -> None:
    """Register this project's own environments (the LQR) once."""
    if LQR_ID not in registry:
        gym.register(LQR_ID, entry_point="pbvf_offline.envs.lqr:LQREnv", max_episode_steps=50)


def make_env(config: EnvConfig, *, render_mode: str | None = None) -> Env:
    """Build an environment that a user asked for; signal handlers and current folder stay.

    So do the global random generators. What the environment draws from them while it is built is
    the same each time, so that all processes have the same one.

    Args:
        config: What the user named. A ``module:`` prefix is imported, also from the
            current folder.
        render_mode: Passed on when given.

    Raises:
        UsageError: Unknown id, missing module, bad arguments; the paper's v2/v3 MuJoCo
            names point to their v5 successors. Or the environment's own code failed: file and
            line are named.
        ResourceError: Memory, disk or open files ran out while it was built.
    """
    with process_kept(), SharedRandomness(_BUILD_SEED).lent(again=False):
        return _make(config, render_mode)


def _make(config: EnvConfig, render_mode: str | None) -> Env:
    register_environments()
    module, _, env_id = config.name.rpartition(":")
    if not _ENV_ID.match(env_id) or (module and not _MODULE.match(module)):
        raise UsageError(
            f"environment name {config.name!r} is malformed",
            remedy="give a Gymnasium id such as Swimmer-v5, or module:Name-v0",
        )
    if module:
        _import_for_user(module, config.name)
    kwargs = dict(sorted(config.kwargs.items()))  # a dataset stores them: in whatever order given
    if config.max_episode_steps is not None:
        kwargs["max_episode_steps"] = config.max_episode_steps
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    try:
        with warnings.catch_warnings():
            # Gymnasium warns of every older version; whether one may be used is the user's choice.
            warnings.simplefilter("ignore", DeprecationWarning)
            entry = registry[env_id].entry_point if env_id in registry else None
            if isinstance(entry, str):
                load_env_creator(entry)  # this may import MuJoCo, which warns of models it loads
            _silence_mujoco()
            env = gym.make(env_id, disable_env_checker=True, **kwargs)
    except PbvfError:
        raise
    except BaseException as error:
        if stops(error):
            raise
        raise _not_built(error, config, env_id) from error
    _silence_mujoco()
    env = wrap(env, config.wrappers)
    _check_has_spaces(env, config.name)
    return env


def _silence_mujoco() -> None:
    """Keep MuJoCo from writing MUJOCO_LOG.TXT into the user's folder; values are checked here."""
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None:
        mujoco.set_mju_user_warning(_ignore)


def _ignore(message: str) -> None:
    del message


def _not_built(error: BaseException, config: EnvConfig, env_id: str) -> PbvfError:
    """Return the error that says why an environment could not be built, and whose fault it is."""
    name, arguments = config.name, dict(config.kwargs)
    module = name.rpartition(":")[0]
    cause = error.__cause__
    refused = isinstance(error, TypeError) and type(cause) is TypeError
    if refused and cause is not None:
        error = cause  # Gymnasium raised it again, in its own words
    text = exception_text(error)
    if isinstance(error, gym.error.DependencyNotInstalled):
        return UsageError(
            f"a dependency is missing: {error}", where=name, remedy="install it with pip"
        )
    if place_of(error) is not None:
        given = f" with the arguments {arguments}" if arguments else ""
        return failure(
            error,
            f"the environment raised {text} while it was built{given}",
            where=name,
            remedy=_mend(error, module) + (", or check --env-kwargs" if arguments else ""),
        )
    if isinstance(error, gym.error.Error):
        return UsageError(str(error).rstrip("."), where=name, remedy=_successor(env_id))
    if isinstance(error, ImportError):
        # Gymnasium answers the old MuJoCo ids (v2, v3) with an ImportError.
        line = str(error).split("\n", maxsplit=1)[0]
        missing = isinstance(error, ModuleNotFoundError)
        return UsageError(
            f"this environment cannot be imported: {line}",
            where=name,
            remedy=_mend(error) if missing else _successor(env_id),
        )
    if arguments or refused:
        return failure(
            error,
            f"the environment refused its arguments {arguments}: {text}",
            where=name,
            remedy="check --env-kwargs",
        )
    return failure(
        error, f"the environment cannot be built: {text}", where=name, remedy=_mend(error)
    )


def _mend(error: BaseException, module: str = "") -> str:
    """Say what to do about a failure in the code of an environment, or of its module's package."""
    if module in PACKAGES:
        return f"install what goes together with pip install 'pbvf-offline[{PACKAGES[module]}]'"
    if isinstance(error, ModuleNotFoundError):
        return f"install {error.name}, or mend the environment"
    if "MUJOCO_GL" in str(error):
        return "change or unset MUJOCO_GL"
    return "mend the environment"


def _check_has_spaces(env: Env, name: str) -> None:
    for which in ("observation_space", "action_space"):
        try:
            getattr(env, which)
        except BaseException as error:
            if stops(error):
                raise
            raise failure(
                error,
                f"the environment raised {exception_text(error)} when asked for its {which}",
                where=name,
                remedy=_mend(error),
            ) from error


def make_trusted_env(reference: EnvReference, where: str) -> Env:
    """Build an environment that a *file* names, only if that can do no harm.

    The id must be registered here already, and every argument must be a scalar that
    names no path. Nothing is imported because a file says so.

    Raises:
        UnsafeError: Anything else; the user is asked to name the environment.
        IncompatibleError: A wrapper refuses the file's arguments, or the environment.
        UsageError: As :func:`make_env`.
    """
    remedy = "name the environment with --env, and its arguments with --env-kwargs and --wrapper"
    register_environments()
    unsafe = [key for key, value in reference.kwargs.items() if not is_portable(key, value)]
    missing = sorted(map(str, [*unsafe, *reference.withheld]))
    if not _ENV_ID.match(reference.id) or reference.id not in registry:
        name = reference.name if reference.module else _of_package(reference.id) or ""
        named = _ENV_ID.match(reference.id) and _MODULE.match(name.partition(":")[0])
        raise UnsafeError(
            f"names the environment {printable(reference.name)!r}, which is not registered here",
            where=where,
            remedy=f"if you trust that module, add {_options(name, reference, missing)}"
            if named and _plain(name, *missing)
            else remedy,
        )
    if missing:
        raise UnsafeError(
            f"the environment {reference.id} needs arguments that a file may not set "
            f"({', '.join(missing)})",
            where=where,
            remedy=f"add {_options(reference.id, reference, missing)}"
            if _plain(*missing)
            else remedy,
        )
    for wrapper in reference.wrappers:
        if wrapper.name not in WRAPPERS or wrapper.unsafe:
            name = printable(wrapper.name)
            what = (
                "needs arguments that a file may not set" if wrapper.unsafe else "is not installed"
            )
            raise UnsafeError(f"the wrapper {name!r} {what}", where=where, remedy=remedy)
    limit = reference.kwargs.get("max_episode_steps")
    if not is_time_limit(limit):
        raise DamagedError(f"max_episode_steps is {limit!r}", where=where)
    try:
        return make_env(_config(reference))
    except UsageError as error:
        if not (error.where or "").startswith(OPTION):
            raise
        raise IncompatibleError(
            f"a wrapper of the environment {reference.id} is refused: {error.what}",
            where=where,
            remedy=remedy,
        ) from error


def _plain(*names: str) -> bool:
    """Whether names from a file hold no letter that looks like another one, nor anything odd."""
    return all(name.isascii() and _PLAIN.fullmatch(name) for name in names)


def _options(name: str, reference: EnvReference, missing: Sequence[str]) -> str:
    """Return what to type for an environment, where arguments are not in the file.

    What else the file says of it is taken over from there.
    """
    if not missing:
        return f"--env {name}"
    known = {**harmless_part(reference).kwargs, **dict.fromkeys(missing, "...")}
    text = json.dumps(known, sort_keys=True)
    return f"--env {name} --env-kwargs {shlex.quote(text)}, with values in place of ..."


def trusted_config(reference: EnvReference, where: str) -> EnvConfig:
    """Return a file's environment as a config after :func:`make_trusted_env` accepted it."""
    close_env(make_trusted_env(reference, where))
    return _config(reference)


def harmless_part(reference: EnvReference) -> EnvConfig:
    """Return what an environment that a user names may take over of one in a file.

    Arguments and wrappers that a file may not set are left out, and so is a damaged time limit.
    """
    kwargs = {name: value for name, value in reference.kwargs.items() if is_portable(name, value)}
    if not is_time_limit(kwargs.get("max_episode_steps")):
        del kwargs["max_episode_steps"]
    known = all(w.name in WRAPPERS and not w.unsafe for w in reference.wrappers)
    wrappers = reference.wrappers if known else ()
    return _config(dataclasses.replace(reference, kwargs=kwargs, wrappers=wrappers))


def _config(reference: EnvReference) -> EnvConfig:
    kwargs = dict(reference.kwargs)
    limit = kwargs.pop("max_episode_steps", None)
    return EnvConfig(reference.id, kwargs, limit, reference.wrappers)


def registered_limit(reference: EnvReference) -> int | None:
    """Return the time limit of a file's environment, which is not built, if it is known here."""
    register_environments()
    given = reference.kwargs.get("max_episode_steps")
    if type(given) is int and given > 0:
        return given
    spec = registry.get(reference.id)
    return None if spec is None else spec.max_episode_steps


def named_limit(reference: EnvReference) -> int | None:
    """Return the time limit of a file's environment that does not depend on what was imported.

    That which the file names, or that of Gymnasium's environments and this package's. None of an
    environment of another module, which is registered only once somebody imports that.
    """
    if reference.module is not None and "max_episode_steps" not in reference.kwargs:
        return None
    return registered_limit(reference)


def close_env(env: Env) -> None:
    """Close an environment; one that cannot even do that has done its work all the same."""
    try:
        with process_kept():
            env.close()
    except BaseException as error:
        if stops(error):
            raise


def env_name(env: Env) -> str:
    """Return an environment's id for messages."""
    return "environment" if env.spec is None else env.spec.id


def time_limit(env: Env) -> int | None:
    """Return the number of steps after which the environment truncates, if it does."""
    return None if env.spec is None else env.spec.max_episode_steps


def _import_for_user(module: str, name: str) -> None:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # a console script does not look in the current folder
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        place = place_of(error)
        raise UsageError(
            f"module {error.name!r} was not found" + (f", at {place}" if place else ""),
            where=name,
            remedy=_mend(error, module)
            if module in PACKAGES
            else "run from the folder that holds it, or install it",
        ) from error
    except BaseException as error:
        if stops(error):
            raise
        raise failure(
            error,
            f"module {module!r} cannot be imported: {exception_text(error)}",
            where=name,
            remedy="mend the module",
        ) from error


def _successor(env_id: str) -> str:
    """Name the newest version of an environment, or ask to check the name."""
    family = re.sub(r"-v\d+$", "", env_id)
    versions = sorted(
        spec.version for spec in registry.values() if spec.name == family and spec.version
    )
    current = f"{family}-v{versions[-1]}" if versions else None
    if current is not None and current != env_id:
        if env_id in _OF_THE_PAPER:
            return f"the paper's {family} {env_id[-2:]} is v{versions[-1]} now: use {current}"
        return f"the newest version of {family} is v{versions[-1]}: use {current}"
    named = _of_package(env_id) or "module:Name-v0"
    return f"check the id (`gymnasium.pprint_registry()` lists all), or give {named}"


def _of_package(env_id: str) -> str | None:
    """Return the name of an environment of a package that is known, with its module."""
    known = [module for start, module in _PACKAGES.items() if env_id.startswith(start)]
    return f"{known[0]}:{env_id}" if known else None
