"""References to environments that may go into files: no paths, nothing of this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pbvf_offline.envs.portable import PACKAGES, is_portable
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import DamagedError, UsageError
from pbvf_offline.io.strict_json import parse_json

if TYPE_CHECKING:
    import gymnasium as gym
    from gymnasium.envs.registration import EnvSpec


def safe_kwargs(kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Split arguments of an environment into those that files may hold and the others.

    What is kept is decided by :func:`pbvf_offline.envs.portable.is_portable`, as for reading.
    ``render_mode`` is dropped: it changes no data.

    Returns:
        The arguments kept and the sorted names of those withheld.
    """
    kept: dict[str, Any] = {}
    withheld: list[str] = []
    for key, value in kwargs.items():
        if key == "render_mode":
            continue
        if is_portable(key, value):
            kept[key] = value
        else:
            withheld.append(key)
    return kept, sorted(withheld)


def safe_environment(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reference to an environment as manifests hold it.

    Args:
        environment: ``id``, and optionally ``module``, ``kwargs``, ``withheld`` and ``wrappers``.

    Returns:
        The JSON form of an :class:`~pbvf_offline.envs.reference.EnvReference`, the arguments
        split by :func:`safe_kwargs`.

    Raises:
        UsageError: It has no id, or a module that is not a name.
    """
    name, module = environment.get("id"), environment.get("module")
    if not isinstance(name, str) or not name:
        raise UsageError(f"the environment has the id {name!r}; a name is expected")
    if not (module is None or isinstance(module, str)):
        raise UsageError(f"the environment has the module {module!r}; a name is expected")
    kept, withheld = safe_kwargs(environment.get("kwargs") or {})
    reference = EnvReference.from_dict(
        {
            **{key: environment[key] for key in ("wrappers",) if key in environment},
            "id": name,
            "module": module,
            "kwargs": kept,
            "withheld": sorted({*withheld, *(environment.get("withheld") or ())}),
        },
        "environment",
    )
    return reference.to_dict()


def env_reference(spec: EnvSpec) -> dict[str, Any]:
    """Return what names the environment of this spec: id, module, arguments and own time limit.

    The module is that of the entry point: importing it imports the packages above it too, one of
    which registers the environment as a rule. None of Gymnasium's own environments and of this
    project's needs one, and what a script registers itself (``__main__``) has none.
    """
    from gymnasium.envs.registration import registry

    kwargs = dict(spec.kwargs)
    registered = registry.get(spec.id)
    if registered is not None and registered.max_episode_steps != spec.max_episode_steps:
        kwargs["max_episode_steps"] = spec.max_episode_steps
    return {"id": spec.id, "module": _module_of(spec), "kwargs": kwargs}


def _module_of(spec: EnvSpec) -> str | None:
    point: Any = spec.entry_point
    own: Any = getattr(getattr(point, "func", point), "__module__", None)
    module = point.partition(":")[0] if isinstance(point, str) else own
    if not isinstance(module, str) or module in ("", "__main__"):
        return None
    package = module.partition(".")[0]
    if package in PACKAGES:
        return package
    return None if package in ("gymnasium", "pbvf_offline") else module


def safe_env_spec(text: str) -> str:
    """Return the text of ``EnvSpec.to_json()`` without arguments that look like paths.

    Wrappers that hold a path (a video recorder, say) are left out as a whole.

    Raises:
        UsageError: The text is something else.
    """
    try:
        spec = parse_json(text, "env_spec_json", allow_infinity=True)
        spec["kwargs"] = _without_paths(spec["kwargs"])
        wrappers = spec["additional_wrappers"]
        spec["additional_wrappers"] = [
            w for w in wrappers if _without_paths(w["kwargs"] or {}) == (w["kwargs"] or {})
        ]
        return json.dumps(spec)
    except (DamagedError, KeyError, TypeError, AttributeError) as error:
        raise UsageError("env_spec_json is not what EnvSpec.to_json() returns") from error


def env_spec_text(env: gym.Env[Any, Any]) -> str | None:
    """Return an environment's spec as JSON, or None when no file can hold it."""
    try:
        return None if env.spec is None else env.spec.to_json()
    except (TypeError, ValueError):
        return None


def _without_paths(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in kwargs.items() if k != "render_mode" and _is_clean(k, v)}


def _is_clean(key: str, value: object) -> bool:
    if isinstance(value, dict):
        return all(_is_clean(str(k), v) for k, v in value.items())
    if isinstance(value, list):
        return all(_is_clean(key, v) for v in value)
    return is_portable(key, value)
