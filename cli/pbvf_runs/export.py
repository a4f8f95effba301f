"""A finished training run's episodes, and the dataset that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pbvf_datasets.format.identity import stored_settings
from pbvf_datasets.format.names import dataset_path
from pbvf_datasets.format.schema import DATASET_FILES
from pbvf_datasets.write.writer import DatasetWriter
from pbvf_offline.envs.make import Env, close_env, make_env
from pbvf_offline.errors import UsageError
from pbvf_offline.io.work_folder import refuse_difference, refuse_foreign
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.episodes import Episode
from pbvf_offline.rollout.loop import digest_again
from pbvf_offline.rollout.repetition import Again, warn_not_repeatable
from pbvf_offline.rollout.schedules import PerturbationSchedule
from pbvf_runs.episodes import stored_episodes
from pbvf_runs.records import (
    RunConfig,
    RunResult,
)

MADE_BY: Final = "train-online"


def check_export(
    config: RunConfig,
    steps: int,
    dataset: str,
    *,
    license: str | None = None,
    authors: Sequence[str] = (),
    overwrite: bool = False,
) -> None:
    """Refuse, before a run, what its export would come up against.

    Raises:
        UsageError: The run normalises step by step, so that no episode has one policy.
        ConflictError: The dataset exists and was made otherwise, or its folder holds files that
            are not a dataset's.
    """
    if config.settings.normalization == "per-step":
        raise UsageError(
            "a run with --normalization per-step has no policies that a dataset could name",
            where="--export-dataset",
            remedy="train with --normalization episode",
        )
    path, found = dataset_path(dataset), stored_settings(dataset)
    if overwrite or found is None:
        refuse_foreign(path, DATASET_FILES)
        return
    wanted = {
        "settings": _export_settings(config, steps),
        "environment": config.env.reference().to_dict(),
        "spec": config.spec.to_dict(),
        "seed": config.settings.seed,
        "license": license,
        "authors": list(authors),
    }
    refuse_difference(
        {key: found[key] for key in wanted},
        wanted,
        path,
        "give another --export-dataset; --overwrite would train the run again too",
    )


def _export_settings(config: RunConfig, steps: int) -> dict[str, Any]:
    return {"made by": MADE_BY, "steps": steps, **config.to_dict()}


def is_exported(provenance: Mapping[str, Any]) -> bool:
    """Return whether the provenance of a dataset says that it was exported from a run."""
    return bool(provenance["settings"].get("made by") == MADE_BY) and not provenance.get("sources")


def _is_repeatable(env: Env, config: RunConfig, first: Episode) -> bool:
    """Whether the run's first episode comes out alike when it is played twice."""
    policy = Policies(config.spec, first.theta, first.obs_mean, first.obs_std)
    schedule = PerturbationSchedule(policy, 0.0, None, config.settings.seed)
    digests = {
        digest_again(env, schedule, Again(0, others), len(first)) for others in ((), (1, 2, 3))
    }
    return len(digests) == 1 and None not in digests


def export_dataset(
    result: RunResult,
    dataset: str,
    *,
    license: str | None = None,
    authors: Sequence[str] = (),
    command: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Make a dataset of all training episodes of a finished run; returns its folder.

    Raises:
        UsageError: The run normalised step by step, so that no episode has one policy.
        ConflictError: The dataset exists and was made otherwise.
    """
    config = result.config
    check_export(
        config, result.steps, dataset, license=license, authors=authors, overwrite=overwrite
    )
    env = make_env(config.env)
    try:
        with DatasetWriter(
            dataset,
            config.spec,
            env=env,
            environment=config.env.reference().to_dict(),
            settings=_export_settings(config, result.steps),
            seed=config.settings.seed,
            license=license,
            authors=authors,
            command=command,
            overwrite=overwrite,
        ) as writer:
            if not writer.complete:
                done = writer.episodes_done
                for index, episode in enumerate(stored_episodes(result.folder)):
                    if index >= done:
                        writer.add(episode)
                    if index == 0 and not _is_repeatable(env, config, episode):
                        writer.mark_not_repeatable()
                        warn_not_repeatable(config.env.name, recorded=True)
                writer.finish()
            return writer.path
    finally:
        close_env(env)
