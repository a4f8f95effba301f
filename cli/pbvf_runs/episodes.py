"""The training episodes of a run on disk: immutable shards, and what is not yet in one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from pbvf_datasets.format.columns import (
    columns_to_image,
    image_to_columns,
    pack_columns,
    unpack_columns,
)
from pbvf_offline.errors import DamagedError
from pbvf_offline.io.durable import remove_tree, write_durably
from pbvf_offline.io.reading import read_file
from pbvf_offline.rollout.episodes import Episode
from pbvf_runs.folder import SHARD_NAME, own_entries
from pbvf_runs.records import (
    CHECKPOINT_FILE,
    EPISODES_FOLDER,
    PENDING_FILE,
    RESULT_FILE,
    TAIL_FILE,
    KeptRun,
    StoredResult,
)

BRING_BACK: Final = "bring it back, or start over with --overwrite"


class RunEpisodes:
    """The finished episodes of a run: those in shards, and those that wait for the next one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.shards: list[str] = []
        self.waiting: list[Episode] = []

    def resume(self, kept: KeptRun) -> None:
        """Take up what a checkpoint names: shards, and the digest of the waiting episodes' file.

        Raises:
            DamagedError: A file is missing or is not the one that the checkpoint names.
        """
        shards = _shards(self._folder, kept)

        def count() -> int:
            return kept.episodes - sum(len(_episodes(_read_kept(path), path)) for path in shards)

        waiting = [] if kept.pending is None else _waiting(self._folder, kept.pending, count)
        for path in shards:
            if not path.exists():
                raise missing_file(path)
        self.shards, self.waiting = list(kept.shards), waiting

    @property
    def pending_digest(self) -> str | None:
        """Digest of the file of waiting episodes, or None when none waits."""
        return hashlib.sha256(_image(self.waiting)).hexdigest() if self.waiting else None

    def write_shard(self) -> None:
        """Put the waiting episodes on disk as one immutable shard."""
        if self.waiting:
            image = _image(self.waiting)
            digest = hashlib.sha256(image).hexdigest()[:16]
            name = f"shard-{len(self.shards):06d}-{digest}.safetensors"
            write_durably(self._folder / EPISODES_FOLDER / name, image)
            self.shards, self.waiting = [*self.shards, name], []

    def write_checkpoint(self, image: bytes) -> None:
        """Write a checkpoint, after the waiting episodes: one that is there can be continued."""
        path = self._folder / PENDING_FILE
        if self.waiting:
            write_durably(path, _image(self.waiting))
        write_durably(self._folder / CHECKPOINT_FILE, image)
        if not self.waiting:
            remove_tree(path)

    def write_tail(self, tail: Episode | None) -> str | None:
        """Write the episode that the step budget cut, and return the file's digest."""
        if tail is None:
            return None
        image = _image([tail])
        write_durably(self._folder / TAIL_FILE, image)
        return hashlib.sha256(image).hexdigest()

    def remove_others(self) -> None:
        """Remove shards that are made again."""
        for path in own_entries(self._folder):
            if path.parent == self._folder / EPISODES_FOLDER and path.name not in self.shards:
                path.unlink()


def stored_episodes(folder: Path) -> Iterator[Episode]:
    """Yield a run's training episodes in order, a shard in memory at a time.

    Those up to the last checkpoint, and of a finished run the one that the step budget cut.

    Raises:
        DamagedError: A file is missing, or its bytes are not those that were written.
    """
    result, kept = StoredResult.read(folder), KeptRun.read(folder)
    if kept is not None:
        left = kept.episodes
        for path in _shards(folder, kept):
            digest = path.stem.rpartition("-")[2]
            episodes = _named(path, digest, "checkpoint")
            left -= len(episodes)
            yield from episodes
        if kept.pending is not None:
            yield from _waiting(folder, kept.pending, lambda: left)
    elif result is not None and result.episodes:
        raise missing_file(folder / CHECKPOINT_FILE)
    if result is not None and result.tail is not None:
        digest = _digest(result.tail, folder / RESULT_FILE)
        yield from _named(folder / TAIL_FILE, digest, "result")


def _shards(folder: Path, kept: KeptRun) -> list[Path]:
    """Return where the shards are that a checkpoint names."""
    if not all(re.fullmatch(SHARD_NAME, name) for name in kept.shards):
        what = "names a shard that no run writes"
        raise DamagedError(what, where=folder / CHECKPOINT_FILE)
    return [folder / EPISODES_FOLDER / name for name in kept.shards]


def _named(path: Path, digest: str, beside: str) -> list[Episode]:
    """Return the episodes of a file that another one names by the start of its digest."""
    data = _read_kept(path)
    if not hashlib.sha256(data).hexdigest().startswith(digest):
        what = f"does not belong to the {beside} beside it"
        raise DamagedError(what, where=path, remedy=BRING_BACK)
    return _episodes(data, path)


def _waiting(folder: Path, digest: str, count: Callable[[], int]) -> list[Episode]:
    """Return the waiting episodes that a checkpoint names by the digest of their file.

    Args:
        folder: The run's folder.
        digest: The digest.
        count: Called where others are in the file too; how many there are without those.
    """
    digest = _digest(digest, folder / CHECKPOINT_FILE)
    path = folder / PENDING_FILE
    data = _read_kept(path)
    episodes = _episodes(data, path)
    if hashlib.sha256(data).hexdigest() == digest:
        return episodes
    # A call that was killed before its checkpoint may have added episodes to these.
    named = episodes[: max(0, count())]
    if named and hashlib.sha256(_image(named)).hexdigest() == digest:
        return named
    raise DamagedError(
        "does not belong to the checkpoint beside it",
        where=path,
        remedy="start over with --overwrite",
    )


def _digest(text: str, where: Path) -> str:
    """Return the whole digest of a file, which a beginning of one is not."""
    if re.fullmatch("[0-9a-f]{64}", text) is None:
        raise DamagedError("names a file of episodes without its digest", where=where)
    return text


def missing_file(path: Path) -> DamagedError:
    """Return the complaint about a file that the run lost."""
    return DamagedError(
        "is missing, and another file of the run needs it", where=path, remedy=BRING_BACK
    )


def _read_kept(path: Path) -> bytes:
    if not path.exists():
        raise missing_file(path)
    return read_file(path)


def _episodes(data: bytes, path: Path) -> list[Episode]:
    return unpack_columns(image_to_columns(data, path)[0], path)


def _image(episodes: Sequence[Episode]) -> bytes:
    return columns_to_image(pack_columns(episodes), {"episodes": len(episodes)})
