"""A finished training run's episodes, and the dataset that they make."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pbvf_datasets.format.columns import image_to_columns, unpack_columns
from pbvf_datasets.format.schema import DATASET_FILES, dataset_path
from pbvf_datasets.write.writer import DatasetWriter, peek
from pbvf_offline.envs.make import close_env, make_env
from pbvf_offline.errors import DamagedError, UsageError
from pbvf_offline.io.strict_json import parse_json
from pbvf_offline.io.tensor_file import MAX_SMALL, read_file, read_tensor_file
from pbvf_offline.io.work_folder import refuse_difference, refuse_foreign
from pbvf_offline.rollout.episodes import Episode
from pbvf_runs.folder import BRING_BACK, missing_file, read_kept
from pbvf_runs.records import (
    CHECKPOINT_FILE,
    EPISODES_FOLDER,
    PENDING_FILE,
    RESULT_FILE,
    TAIL_FILE,
    RunConfig,
    RunResult,
)


def stored_episodes(folder: Path) -> Iterator[Episode]:
    """Yield a finished run's training episodes in order, a shard in memory at a time.

    Raises:
        DamagedError: A file is missing, or its bytes are not those that were written.
    """
    from pbvf_offline.io.tensor_file import decode
    from pbvf_offline.online.checkpoint import KIND

    def strayed(where: Path, beside: str) -> DamagedError:
        return DamagedError(
            f"does not belong to the {beside} beside it", where=where, remedy=BRING_BACK
        )

    path = folder / RESULT_FILE
    result = parse_json(read_file(path, MAX_SMALL), str(path))
    if not isinstance(result, dict):
        raise DamagedError("is not a run's result", where=path, remedy="remove it and run again")
    path = folder / CHECKPOINT_FILE
    if path.exists():
        content, _ = decode(KIND, read_tensor_file(path), str(path))
        for name in content["extra"]["shards"]:
            shard = folder / EPISODES_FOLDER / name
            data = read_kept(shard)
            if hashlib.sha256(data).hexdigest()[:16] not in name:
                raise DamagedError(
                    "its bytes do not match its name", where=shard, remedy=BRING_BACK
                )
            yield from unpack_columns(image_to_columns(data, shard)[0], shard)
        digest = content["extra"]["pending"]
        if digest is not None:
            pending = folder / PENDING_FILE
            data = read_kept(pending)
            if hashlib.sha256(data).hexdigest() != digest:
                raise strayed(pending, "checkpoint")
            yield from unpack_columns(image_to_columns(data, pending)[0], pending)
    elif result.get("episodes"):
        raise missing_file(path)
    digest = result.get("tail")
    if digest is not None:
        tail = folder / TAIL_FILE
        data = read_kept(tail)
        if hashlib.sha256(data).hexdigest() != digest:
            raise strayed(tail, "result")
        yield from unpack_columns(image_to_columns(data, tail)[0], tail)


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
    path, found = dataset_path(dataset), peek(dataset)
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
        "give another --export-dataset; --overwrite would train the run anew too",
    )


def _export_settings(config: RunConfig, steps: int) -> dict[str, Any]:
    return {"made by": "train-online", "steps": steps, **config.to_dict()}


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
                writer.finish()
            return writer.path
    finally:
        close_env(env)
