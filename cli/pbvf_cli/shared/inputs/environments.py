"""Which environment policies are run in: the one a user names, else one a file may name."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from pbvf_cli.shared.options import BackendName
from pbvf_cli.shared.settings import SettingsTable
from pbvf_cli.shared.values import EnvOptions
from pbvf_offline.envs.make import (
    close_env,
    harmless_part,
    make_env,
    registered_limit,
    trusted_config,
)
from pbvf_offline.envs.reference import EnvConfig, EnvReference
from pbvf_offline.errors import IncompatibleError, UsageError
from pbvf_offline.policies.spaces import check_spaces_fit, spec_for_env
from pbvf_offline.policies.spec import PolicySpec


class OtherEnvironmentWarning(UserWarning):
    """Policies or a critic are used in another environment than the one they come from."""


def silence_gymnasium() -> None:
    """Keep Gymnasium's own remarks (old versions, missing render modes) out of the output."""
    from gymnasium import logger

    logger.min_level = logger.ERROR


def choose_backend(
    config: EnvConfig, given: BackendName | None, table: SettingsTable
) -> BackendName:
    """Return the backend asked for, after what plays the episodes was added to a table.

    Raises:
        UsageError: It does not play this environment.
    """
    asked = given or BackendName.AUTO
    source = "default" if given is None else "given"
    table.show("backend", backend_used(config, asked), source)
    return asked


def backend_used(config: EnvConfig, asked: BackendName) -> str:
    """Return what plays an environment's episodes; afterwards, what has.

    Raises:
        UsageError: The backend asked for does not play this environment.
    """
    from pbvf_offline.rollout.native.offer import backend_for

    return backend_for(config, asked.value)


def choose_environment(
    options: EnvOptions, references: Sequence[tuple[EnvReference | None, Path]], *specs: PolicySpec
) -> EnvConfig:
    """Return where policies are measured: what a user named, else the first that a file names.

    What the user leaves open of an environment that a file knows is as that file has it. Warns of
    each file that comes from another environment, or from this one with other arguments.

    Raises:
        UsageError: Neither names one, arguments are given without a name, its spaces are not
            supported, or an episode may never end.
        UnsafeError: The file's environment cannot be built without trusting the file.
        IncompatibleError: Its spaces are not those of the policies.
    """
    from pbvf_offline.rollout.evaluation import require_end

    config = _chosen(options, references)
    env = make_env(config)
    try:
        for spec in specs:
            check_spaces_fit(spec, spec_for_env(env, spec.hidden), config.name)
    finally:
        close_env(env)
    require_end(config, None)
    warn_if_other(config.reference(), references)
    return config


def named_environment(
    options: EnvOptions, references: Iterable[tuple[EnvReference | None, Path]]
) -> EnvConfig:
    """Return the environment that a user named; what is not given is as the first file has it.

    Nothing is taken over from a file of another environment, and no argument or wrapper that a
    file may not set.

    Raises:
        UsageError: The options are malformed.
    """
    config = options.config()
    env_id = config.reference().id
    stored = next((r for r, _ in references if r is not None and r.id == env_id), None)
    if stored is None:
        return config
    known = harmless_part(stored)
    return dataclasses.replace(
        config,
        kwargs=known.kwargs if options.kwargs is None else config.kwargs,
        max_episode_steps=known.limit if config.limit is None else config.max_episode_steps,
        wrappers=known.wrappers if options.wrappers is None else config.wrappers,
    )


def environment_payload(config: EnvConfig) -> dict[str, object]:
    """Return what ``--json`` says of an environment; a limit of null is the environment's own."""
    return {
        "env": config.name,
        "env_kwargs": dict(config.kwargs),
        "max_episode_steps": config.limit,
        "wrappers": list(map(str, config.wrappers)),
    }


def _chosen(
    options: EnvOptions, references: Sequence[tuple[EnvReference | None, Path]]
) -> EnvConfig:
    if options.name is not None:
        return named_environment(options, references)
    for option in options.given:
        if option != "--max-episode-steps":
            raise UsageError("belongs to an environment named with --env", where=option)
    for reference, path in references:
        if reference is not None:
            trusted = trusted_config(reference, str(path))
            limit = options.max_episode_steps or trusted.max_episode_steps
            return dataclasses.replace(trusted, max_episode_steps=limit)
    files = " and ".join(str(path) for _, path in references)
    raise UsageError(
        "it is not known for which environment this is", where=files, remedy="name it with --env"
    )


def refuse_other_family(given: str | None, wanted: str | None, dataset: str) -> None:
    """Refuse a dataset's states for a critic of another environment, where both are known.

    Raises:
        IncompatibleError: The environments differ in more than their version.
    """
    if given is not None and wanted is not None and _family(given) != _family(wanted):
        raise IncompatibleError(
            f"its states are of {given}, the critic is of {wanted}",
            where=dataset,
            remedy="give a dataset of the critic's environment, or leave --dataset out",
        )


def refuse_other_model(
    wanted: EnvReference | None,
    user: str,
    model: EnvReference | None,
    path: Path,
    *,
    force: bool | None = None,
) -> None:
    """Refuse a model of another environment than ``user``, where both are known.

    Args:
        wanted: The environment of what the model is used with.
        user: What that is, such as "the data".
        model: The model's environment.
        path: The model's file.
        force: Whether it is only a warning; None where a user has no such choice.

    Raises:
        IncompatibleError: It is one.
    """
    if wanted is None or model is None or _complete(wanted) == _complete(model):
        return
    if force:
        warn_if_other(wanted, [(model, path)])
        return
    choice = "leave --model out" if force is None else "use it all the same with --force"
    raise IncompatibleError(
        f"this model is of {_described(model, wanted)}, and {user} of {_described(wanted, model)}",
        where=path,
        remedy=f"give one that fit-model learned from data of that environment, or {choice}",
    )


def warn_if_other(
    here: EnvReference, references: Iterable[tuple[EnvReference | None, Path]]
) -> None:
    """Warn once for each other environment that what is used here comes from.

    The same environment with other arguments, another time limit or other wrappers is another one.
    """
    seen = [_complete(here)]
    for reference, path in references:
        if reference is None or _complete(reference) in seen:
            continue
        seen.append(_complete(reference))
        if reference.id == here.id:
            text = "compare returns with those of the same arguments only"
        elif _family(reference.id) == _family(here.id):
            text = (
                "rewards differ between the versions, so compare returns with those of "
                f"{here.id} only"
            )
        else:
            text = "this is another environment"
        warnings.warn(
            f"{path} comes from {_described(reference, here)} and is used in "
            f"{_described(here, reference)}: {text}",
            OtherEnvironmentWarning,
            stacklevel=2,
        )


def _complete(reference: EnvReference) -> EnvReference:
    """Return a reference in a form in which equal environments are equal."""
    kwargs = {"max_episode_steps": registered_limit(reference), **reference.kwargs}
    return dataclasses.replace(reference, module=None, kwargs=kwargs)


def _described(reference: EnvReference, other: EnvReference) -> str:
    """Name an environment, with its arguments where one of the two has some."""
    if not reference.arguments and not other.arguments:
        return reference.id
    return f"{reference.id} with {reference.arguments or 'no arguments'}"


def _family(env_id: str) -> str:
    return re.sub(r"-v\d+$", "", env_id)
