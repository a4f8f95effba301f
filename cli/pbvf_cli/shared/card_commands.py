"""The command on a dataset's card, which makes the same dataset; it names no folder of ours."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pbvf_offline.policies.families import DEFAULT_FAMILY
from pbvf_offline.rollout.schedule_kinds import INDEPENDENT

if TYPE_CHECKING:
    from pbvf_offline.envs.reference import EnvConfig
    from pbvf_runs.collection import CollectSettings
    from pbvf_runs.records import RunResult


def collect_command(settings: CollectSettings, file: Path | None) -> str:
    """Return the ``pbvf collect`` that makes a dataset.

    Args:
        settings: What is collected.
        file: The policies file of ``--base`` or ``--policies``; its name alone is kept.
    """
    words: list[object] = ["pbvf", "collect", settings.env.name, "--dataset", settings.dataset]
    if settings.episodes is None:
        words += ["--steps", settings.steps]
    else:
        words += ["--episodes", settings.episodes]
    if settings.policies is None:
        words += ["--perturb-every", settings.perturb_every or "episode"]
        words += ["--sigma", float(settings.sigma)]
        if settings.schedule != INDEPENDENT:
            words += ["--schedule", settings.schedule]
    if file is not None:
        words += ["--policies" if settings.policies else "--base", file.name]
    else:
        words += ["--policy", ",".join(map(str, settings.hidden)) or "linear"]
        words += _family_words(settings.family)
        words += ["--squash", settings.squash]
        words += ["--stochastic"] if settings.stochastic else []
        words += ["--normalize" if settings.normalize else "--no-normalize"]
        if settings.normalize:
            words += ["--warmup-episodes", settings.warmup_episodes]
    words += _env_words(settings.env)
    words += _rights_words(settings.license, settings.authors)
    return _joined([*words, "--seed", settings.seed])


def train_online_command(
    result: RunResult, dataset: str, license_id: str | None, authors: Sequence[str]
) -> str:
    """Return the ``pbvf train-online`` that makes a dataset of a run's training episodes."""
    config = result.config
    spec, settings = config.spec, config.settings
    every = "episode" if settings.update_every is None else settings.update_every
    words: list[object] = ["pbvf", "train-online", config.env.name, "--critic", settings.kind]
    words += ["--policy", spec.sizes, *_family_words(spec.family)]
    words += ["--squash", spec.squash, "--run", "run"]
    words += ["--stochastic"] if spec.stochastic else []
    words += ["--biased"] if settings.biased else []
    words += ["--steps", result.steps, "--gamma", settings.gamma, "--sigma", settings.sigma]
    words += ["--hidden", ",".join(map(str, settings.hidden))]
    words += ["--lr-policy", settings.lr_policy, "--lr-critic", settings.lr_critic]
    words += ["--batch-size", settings.batch_size, "--actor-states", settings.actor_states]
    words += ["--update-every", every, "--critic-updates", settings.critic_updates]
    words += ["--actor-updates", settings.actor_updates, "--buffer-size", settings.buffer_size]
    words += ["--normalization", settings.normalization, "--reward", settings.reward]
    words += ["--evaluations", config.evaluations]
    words += ["--evaluation-episodes", config.evaluation_episodes]
    words += _env_words(config.env)
    words += ["--export-dataset", dataset]
    words += _rights_words(license_id, authors)
    return _joined([*words, "--seed", settings.seed])


def _family_words(family: str) -> list[object]:
    return [] if family == DEFAULT_FAMILY else ["--family", family]


def _env_words(env: EnvConfig) -> list[object]:
    """Return the environment's arguments; those that are not fit for sharing without values."""
    reference = env.reference()
    kwargs = {k: v for k, v in reference.kwargs.items() if k in env.kwargs}
    kwargs.update(dict.fromkeys(reference.withheld, "..."))
    words: list[object] = ["--env-kwargs", json.dumps(kwargs, sort_keys=True)] if kwargs else []
    if env.max_episode_steps is not None:
        words += ["--max-episode-steps", env.max_episode_steps]
    return words


def _rights_words(license_id: str | None, authors: Sequence[str]) -> list[object]:
    words: list[object] = ["--license", license_id] if license_id else []
    for name in authors:
        words += ["--author", name]
    return words


def _joined(words: Sequence[object]) -> str:
    return shlex.join(str(word) for word in words)
