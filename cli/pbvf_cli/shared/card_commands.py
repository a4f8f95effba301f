"""The command on a dataset's card, which makes the same dataset; it names no folder of ours."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pbvf_offline.envs.wrappers import OPTION
from pbvf_offline.policies.families import DEFAULT_FAMILY
from pbvf_offline.rollout.schedule_kinds import INDEPENDENT

if TYPE_CHECKING:
    from pbvf_offline.envs.reference import EnvConfig
    from pbvf_runs.records import RunResult
    from pbvf_runs.settings import CollectSettings


def collect_command(
    settings: CollectSettings, *, base: Path | None = None, policies: Path | None = None
) -> str:
    """Return the ``pbvf collect`` that makes a dataset.

    Args:
        settings: What is collected.
        base: The policies file of ``--base``; its name alone is kept.
        policies: That of ``--policies``.
    """
    words = ["pbvf", "collect", settings.env.name, "--dataset", settings.dataset]
    words += settings.words("steps", "episodes")
    if policies is None:
        words += settings.words("perturb_every", "sigma")
        if settings.schedule != INDEPENDENT:
            words += settings.words("schedule")
    if policies is not None:
        words += ["--policies", policies.name]
    elif base is not None:
        words += ["--base", base.name]
    else:
        words += settings.policy.words("hidden") + _family_words(settings.policy.family)
        words += settings.policy.words("squash", "stochastic") + settings.words("normalize")
        words += settings.words("warmup_episodes") if settings.normalize else []
    words += _env_words(settings.env)
    words += _rights_words(settings.license, settings.authors)
    return shlex.join([*words, *settings.words("seed")])


def train_online_command(
    result: RunResult, dataset: str, license_id: str | None, authors: Sequence[str]
) -> str:
    """Return the ``pbvf train-online`` that makes a dataset of a run's training episodes."""
    config = result.config
    spec, settings = config.spec, config.settings
    words = ["pbvf", "train-online", config.env.name, "--critic", settings.kind]
    words += ["--policy", spec.sizes, *_family_words(spec.family)]
    words += ["--squash", spec.squash, "--run", "run"]
    words += ["--stochastic"] if spec.stochastic else []
    words += [*settings.words("biased"), "--steps", str(result.steps)]
    words += settings.words(
        "gamma",
        "sigma",
        "hidden",
        "lr_policy",
        "lr_critic",
        "batch_size",
        "actor_states",
        "update_every",
        "critic_updates",
        "actor_updates",
        "buffer_size",
        "normalization",
        "reward",
    )
    words += config.evaluation.words()
    words += _env_words(config.env)
    words += ["--export-dataset", dataset, *_rights_words(license_id, authors)]
    return shlex.join([*words, *settings.words("seed")])


def _family_words(family: str) -> list[str]:
    return [] if family == DEFAULT_FAMILY else ["--family", family]


def _env_words(env: EnvConfig) -> list[str]:
    """Return the environment's arguments; those that are not fit for sharing without values."""
    reference = env.reference()
    kwargs = {k: v for k, v in reference.kwargs.items() if k in env.kwargs}
    kwargs.update(dict.fromkeys(reference.withheld, "..."))
    words = ["--env-kwargs", json.dumps(kwargs, sort_keys=True)] if kwargs else []
    if env.max_episode_steps is not None:
        words += ["--max-episode-steps", str(env.max_episode_steps)]
    for wrapper in env.wrappers:
        words += [OPTION, str(wrapper)]
    return words


def _rights_words(license_id: str | None, authors: Sequence[str]) -> list[str]:
    words = ["--license", license_id] if license_id else []
    for name in authors:
        words += ["--author", name]
    return words
