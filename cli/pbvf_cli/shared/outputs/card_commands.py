"""The command on a dataset's card, which makes the same dataset; it names no folder of ours."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pbvf_offline.envs.wrappers import OPTION
from pbvf_offline.policies.settings import NewPolicy
from pbvf_runs.settings import FRESH, PERTURBING

if TYPE_CHECKING:
    from pbvf_offline.envs.reference import EnvConfig
    from pbvf_runs.records import RunResult
    from pbvf_runs.settings import CollectSettings


def collect_command(
    settings: CollectSettings, *, base: Path | None = None, policies: Path | None = None
) -> str:
    """Return the ``pbvf collect`` that makes a dataset; it names policies files without folders."""
    words = ["pbvf", "collect", settings.env.name, "--dataset", settings.dataset]
    undecided = () if policies is None else PERTURBING
    words += settings.words(leave_out=(*undecided, *FRESH, "seed"))
    if policies is not None:
        words += ["--policies", _file_name(policies)]
    elif base is not None:
        words += ["--base", _file_name(base)]
    else:
        words += settings.policy.words()
        words += settings.words(*(FRESH if settings.normalize else FRESH[:1]))
    words += _env_words(settings.env)
    words += _rights_words(settings.license, settings.authors)
    return shlex.join([*words, *settings.words("seed")])


def train_online_command(
    result: RunResult,
    dataset: str,
    license_id: str | None,
    authors: Sequence[str],
    *,
    base: Path | None = None,
) -> str:
    """Return the ``pbvf train-online`` that makes a dataset of a run's training episodes."""
    config = result.config
    spec, settings = config.spec, config.settings
    words = ["pbvf", "train-online", config.env.name, "--critic", settings.kind]
    if base is None:
        policy = NewPolicy(spec.hidden, spec.family, spec.squash, spec.stochastic)
        words += [*policy.words(leave_out=("stochastic",)), "--run", "run"]
        words += policy.words("stochastic")
    else:
        words += ["--base", _file_name(base), "--run", "run"]
    words += [*settings.words("biased"), "--steps", str(result.steps)]
    words += settings.words(leave_out=("biased", "seed")) + config.evaluation.words()
    words += _env_words(config.env)
    words += ["--export-dataset", dataset, *_rights_words(license_id, authors)]
    return shlex.join([*words, *settings.words("seed")])


def _file_name(path: Path) -> str:
    """Return a file's name as text that any program reads, also where its bytes are none."""
    return path.name.encode(errors="surrogateescape").decode(errors="replace")


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
