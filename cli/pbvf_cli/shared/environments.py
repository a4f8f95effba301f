"""Which environment policies are run in: the one a user names, else one a file may name."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from pbvf_cli.shared.values import env_config
from pbvf_offline.envs.make import close_env, make_env, trusted_config
from pbvf_offline.envs.reference import EnvConfig, EnvReference
from pbvf_offline.envs.wrappers import OPTION
from pbvf_offline.errors import IncompatibleError, UsageError
from pbvf_offline.policies.spaces import check_spaces_fit, spec_for_env
from pbvf_offline.policies.spec import PolicySpec


class OtherEnvironmentWarning(UserWarning):
    """Policies or a critic are used in another environment than the one they come from."""


def silence_gymnasium() -> None:
    """Keep Gymnasium's own remarks (old versions, missing render modes) out of the output."""
    from gymnasium import logger

    logger.min_level = logger.ERROR


def choose_environment(
    name: str | None,
    kwargs: str | None,
    max_episode_steps: int | None,
    wrappers: list[str] | None,
    references: Sequence[tuple[EnvReference | None, Path]],
    spec: PolicySpec,
) -> EnvConfig:
    """Return where policies are measured: what a user named, else the first that a file names.

    Warns of each other environment that the files come from.

    Raises:
        UsageError: Neither names one, arguments are given without a name, its spaces are not
            supported, or an episode may never end.
        UnsafeError: The file's environment cannot be built without trusting the file.
        IncompatibleError: Its spaces are not those of the policies.
    """
    from pbvf_offline.rollout.evaluation import require_end

    config = _chosen(name, kwargs, max_episode_steps, wrappers, references)
    env = make_env(config)
    try:
        check_spaces_fit(spec, spec_for_env(env, spec.hidden), config.name)
    finally:
        close_env(env)
    require_end(config, None)
    _warn_if_other(config, references)
    return config


def _chosen(
    name: str | None,
    kwargs: str | None,
    max_episode_steps: int | None,
    wrappers: list[str] | None,
    references: Sequence[tuple[EnvReference | None, Path]],
) -> EnvConfig:
    if name is not None:
        return env_config(name, kwargs, max_episode_steps, wrappers)
    for option, value in (("--env-kwargs", kwargs), (OPTION, wrappers)):
        if value is not None:
            raise UsageError("belongs to an environment named with --env", where=option)
    for reference, path in references:
        if reference is not None:
            trusted = trusted_config(reference, str(path))
            limit = max_episode_steps or trusted.max_episode_steps
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


def _warn_if_other(
    config: EnvConfig, references: Iterable[tuple[EnvReference | None, Path]]
) -> None:
    """Warn once for each other environment that what is used here comes from."""
    here = config.name.rpartition(":")[2]
    seen = {here}
    for reference, path in references:
        if reference is None or reference.id in seen:
            continue
        seen.add(reference.id)
        if _family(reference.id) == _family(here):
            text = (
                f"rewards differ between the versions, so compare returns with those of {here} only"
            )
        else:
            text = "this is another environment"
        warnings.warn(
            f"{path} comes from {reference.id} and is used in {here}: {text}",
            OtherEnvironmentWarning,
            stacklevel=2,
        )


def _family(env_id: str) -> str:
    return re.sub(r"-v\d+$", "", env_id)
