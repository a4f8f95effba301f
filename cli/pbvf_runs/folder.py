"""The folder of a training run: claiming, clearing and recognising it."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Final

from pbvf_offline.errors import ConflictError, PbvfError
from pbvf_offline.io.durable import make_folders, temporary_for, write_durably
from pbvf_offline.io.reading import MAX_SMALL, file_digest, read_file
from pbvf_offline.io.strict_json import parse_json
from pbvf_offline.io.work_folder import entries, refuse_difference
from pbvf_offline.records import fields
from pbvf_runs.loggers import EVENTS_FOLDER, LOGGERS, LOGS_FOLDER, METRICS_FILE, place_of
from pbvf_runs.records import (
    CHECKPOINT_FILE,
    CONFIG_FILE,
    CRITIC_FILE,
    EPISODES_FOLDER,
    PENDING_FILE,
    POLICY_FILE,
    RESULT_FILE,
    TAIL_FILE,
    RunConfig,
    RunResult,
    StoredConfig,
    StoredResult,
    snapshot_files,
)

OTHER_RUN: Final = "choose another --run, or start over with --overwrite"
SHARD_NAME: Final = r"shard-\d{6,}-[0-9a-f]{16}\.safetensors"
_FILES: Final = (
    *(CONFIG_FILE, PENDING_FILE, TAIL_FILE, CRITIC_FILE, POLICY_FILE, METRICS_FILE, RESULT_FILE),
    CHECKPOINT_FILE,
)
PORTABLE: Final = re.compile(
    "|".join(map(re.escape, _FILES))
    + rf"|(critic|policy)-\d{{7,}}\.safetensors|{EPISODES_FOLDER}/{SHARD_NAME}"
)
"""Matches what goes along when a run goes elsewhere: all that continuing it needs, and its metrics.

TensorBoard's events name the host and the time, and other loggers may.
"""


def is_run(folder: Path, *, surely: bool = False) -> bool:
    """Return whether a folder is that of a training run, be it damaged or of a newer version.

    Other programs have a ``config.json`` too; theirs lacks most of what a run's holds.

    Args:
        folder: The folder.
        surely: Everything that a run's holds has to be there, so that the folder's files may be
            replaced unread. Otherwise one that cannot be read counts: who reads it says what is
            wrong.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        return False
    try:
        config = parse_json(read_file(path, MAX_SMALL), path)
    except PbvfError:
        return not surely
    names = [field.name for field in fields(StoredConfig) if field.since == 1]
    there = sum(name in config for name in names) if isinstance(config, dict) else 0
    return there == len(names) or (not surely and 2 * there > len(names))


def stored_run_seed(folder: Path) -> int | None:
    """Return the seed of the run in a folder, if there is one."""
    try:
        config = parse_json(read_file(folder / CONFIG_FILE, MAX_SMALL), str(folder))
        seed = config["settings"]["seed"]
    except Exception:
        return None
    return seed if type(seed) is int else None


def claim(config: RunConfig, folder: Path, *, shared: bool = False) -> bool:
    """Make the folder this run's, or refuse one that is not; return whether it was free.

    Raises:
        ConflictError: It is another run's, or no run's.
    """
    if not shared and is_of(config, folder):
        return False
    if not shared:
        refuse_foreign(folder)
    make_folders(folder / EPISODES_FOLDER)
    text = json.dumps(config.to_dict(), indent=1, allow_nan=False)
    write_durably(folder / CONFIG_FILE, text.encode() + b"\n")
    return True


def is_of(config: RunConfig, folder: Path) -> bool:
    """Return whether a folder holds this run; False when it holds no run.

    Raises:
        ConflictError: It holds another one.
        DamagedError: Its configuration is malformed.
        IncompatibleError: A newer version made it.
    """
    if not is_run(folder):
        return False
    path = folder / CONFIG_FILE
    there = StoredConfig.parse(read_file(path, MAX_SMALL), path)
    now = config.stored.to_dict()
    refuse_difference(there.to_dict(), now, folder, OTHER_RUN, type(there.settings))
    return True


def refuse_foreign(folder: Path) -> None:
    """Refuse a folder that is no run's and holds something.

    Raises:
        ConflictError: It is one.
    """
    if folder.exists() and not _is_free(folder):
        raise ConflictError(
            "is a folder with other things in it", where=folder, remedy="choose another --run"
        )


def _is_free(folder: Path) -> bool:
    """Return whether a folder is empty, or as a first call that was killed leaves it."""
    return folder.is_dir() and all(path == folder / EPISODES_FOLDER for path in folder.rglob("*"))


def sweep(folder: Path) -> None:
    """Remove what writes that were cut off left beside their targets."""
    for path in own_entries(folder):
        if temporary_for(path.name) is not None and not path.is_dir():
            path.unlink()


def clear(folder: Path, *, keep_config: bool = False) -> None:
    """Remove what a run left in its folder, and nothing else.

    What names other files goes before them, and the configuration last.
    """
    ranks = {CHECKPOINT_FILE: 0, RESULT_FILE: 0, CONFIG_FILE: 2}
    for path in sorted(own_entries(folder), key=lambda p: ranks.get(p.name, 1)):
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):
                path.rmdir()  # unless its user keeps something in there
        elif path.name != CONFIG_FILE or not keep_config:
            path.unlink()


def own_entries(folder: Path) -> list[Path]:
    """Return what a run wrote in its folder; what a folder holds comes before it."""
    if not folder.is_dir():
        return []
    return [path for path, is_own in entries(folder, _own()) if is_own]


def _own() -> re.Pattern[str]:
    """Match what a run writes in its folder; what else is there is its user's and stays."""
    places = [place_of(Path(), name).as_posix() for name in LOGGERS]
    logs = "|".join(re.escape(place) for place in places if place.startswith(f"{LOGS_FOLDER}/"))
    return re.compile(
        rf"{PORTABLE.pattern}|{EPISODES_FOLDER}/|{EVENTS_FOLDER}/(events[^/]*)?"
        rf"|{LOGS_FOLDER}/|({logs})(/.*)?"
    )


def portable_files(folder: Path) -> list[str]:
    """Return the files of a run that go along when it goes elsewhere, relative to its folder."""
    names = [path.relative_to(folder).as_posix() for path in own_entries(folder)]
    return sorted(name for name in names if PORTABLE.fullmatch(name))


def finished_run(
    config: RunConfig, folder: Path, steps: int, snapshots: tuple[int, ...]
) -> RunResult | None:
    """Return the result of a run that is complete.

    Raises:
        ConflictError: It has more steps than are asked for.
        DamagedError: Its result file is malformed.
    """
    stored = StoredResult.read(folder)
    if stored is None:
        return None
    if stored.steps > steps:
        raise longer(folder, stored.steps, steps)
    files = [path for step in snapshots for path in snapshot_files(folder, step)]
    files += [folder / CRITIC_FILE, folder / POLICY_FILE]
    if stored.steps < steps or not all(path.exists() for path in files):
        return None
    # What was damaged since is made again from the checkpoint.
    if any(file_digest(folder / name) != digest for name, digest in stored.files.items()):
        return None
    return RunResult(
        folder,
        config,
        stored.steps,
        stored.episodes,
        stored.evaluations,
        stored.training_returns,
        tuple(snapshot_files(folder, step)[0] for step in snapshots),
        already_complete=True,
    )


def longer(folder: Path, done: int, steps: int) -> ConflictError:
    """Return the refusal to shorten a run."""
    return ConflictError(
        f"the run has {done:,} steps, {steps:,} were asked for",
        where=folder,
        remedy=OTHER_RUN,
    )
