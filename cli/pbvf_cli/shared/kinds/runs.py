"""Training runs: what a folder of one or of several holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbvf_cli.shared.terminal.output import Shown, number, pairs
from pbvf_cli.shared.terminal.policy_text import environment_rows, kind_text
from pbvf_runs.records import AVERAGES

if TYPE_CHECKING:
    from pbvf_runs.data import RunData
    from pbvf_runs.records import StoredConfig

_AVERAGES = {name: AVERAGES[name] for name in ("average_return", "last20_return")}


def show(folder: Path) -> Shown:
    """Return what the folder of a run holds, finished or not.

    Raises:
        DamagedError: A file is missing or malformed.
        IncompatibleError: A newer version made it.
    """
    from pbvf_datasets.format.statistics import Ends
    from pbvf_offline.envs.reference import EnvReference

    data = _data(folder)
    payload = {**_payload(folder), "data": None if data is None else data.digest}
    known = payload["episodes"]
    ends = Ends(known, None, 0) if data is None else Ends.of_data(data.trajectories)
    payload["ends"] = ends.to_dict()
    rows = [
        ("run", str(folder)),
        ("state", "finished" if payload["finished"] else "not finished"),
        ("steps", f"{payload['steps']:,}"),
        ("episodes", str(ends)),
        *environment_rows(EnvReference.from_dict(payload["environment"], folder)),
        ("critic", payload["critic"]),
        ("policy", payload["kind_of_policy"]),
        ("measured with", payload["evaluation"]),
        *((label, number(payload[name])) for name, label in _AVERAGES.items()),
        ("seed", str(payload["seed"])),
        ("settings", pairs(payload["settings"])),
        ("digest", payload["digest"]),
        ("digest of its episodes", payload["data"] or "none: it has none that could be named"),
    ]
    rows += [(name, digest) for name, digest in payload["files"].items()]
    return Shown(payload, rows)


def show_several(folder: Path) -> Shown:
    """Return what a folder of several runs holds.

    Raises:
        DamagedError: A file is missing or malformed.
        IncompatibleError: A newer version made one.
    """
    from pbvf_runs.data import runs_in

    parts = [_payload(run) for run in runs_in(folder)]
    header = ("run", "seed", "state", "steps", "whole episodes", "average", "last fifth")
    lines = [
        (
            part["run"].name,
            str(part["seed"]),
            "finished" if part["finished"] else "not finished",
            *(number(part[name]) for name in ("steps", "episodes", *_AVERAGES)),
        )
        for part in parts
    ]
    rows = [("runs in", str(folder)), ("runs", number(len(parts)))]
    return Shown({"path": folder, "runs": parts}, rows, (header, lines))


def show_checkpoint(path: Path) -> Shown:
    """Return what the checkpoint of a run holds.

    Raises:
        PbvfError: It cannot be read.
    """
    from pbvf_offline.io.reading import file_digest
    from pbvf_offline.io.tensor_file import read_tensor_file
    from pbvf_offline.online.checkpoint import checkpoint_content

    content, _ = checkpoint_content(read_tensor_file(path), str(path))
    payload: dict[str, Any] = {
        "path": path,
        **{name: getattr(content, name) for name in ("steps", "episodes", "updates")},
        "settings": content.settings.to_dict(),
        "policy": content.spec.to_dict(),
        "sha256": file_digest(path),
    }
    rows = [
        ("path", str(path)),
        *((name, number(payload[name])) for name in ("steps", "episodes", "updates")),
        ("settings", pairs(payload["settings"])),
        ("sha256", payload["sha256"]),
    ]
    return Shown(payload, rows)


def _data(folder: Path) -> RunData | None:
    """Return a run's episodes, whose digest critics and models fitted to it name."""
    from pbvf_offline.errors import IncompatibleError, UsageError
    from pbvf_runs.data import load_run

    try:
        return load_run(folder)
    except (IncompatibleError, UsageError):  # it has none that could be named
        return None


def _payload(folder: Path) -> dict[str, Any]:
    from pbvf_runs.data import run_config, run_progress
    from pbvf_runs.records import average_returns

    config, progress = run_config(folder), run_progress(folder)
    return {
        "run": folder,
        "finished": progress.finished,
        "steps": progress.steps,
        "episodes": progress.episodes,
        **_of_config(config),
        **average_returns(progress.evaluations, progress.steps),
        "evaluations": [evaluation.to_dict() for evaluation in progress.evaluations],
        "digest": config.source(progress.steps),
        "files": progress.files,
    }


def _of_config(config: StoredConfig) -> dict[str, Any]:
    settings = config.settings.to_dict()
    return {
        "env": config.environment.name,
        "env_kwargs": config.environment.kwargs,
        "environment": config.environment.to_dict(),
        "critic": config.settings.kind,
        "base": config.base,
        "policy": {**config.spec.to_dict(), "arch": config.spec.arch},
        "kind_of_policy": kind_text(config.spec),
        "evaluation": config.evaluation_words,
        "seed": settings.pop("seed"),
        "settings": settings,
    }
