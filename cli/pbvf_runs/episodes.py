"""The training episodes of a run on disk: immutable shards, and what is not yet in one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from pbvf_offline.io.tensor_file import decode, read_tensor_file
from pbvf_offline.records import Record
from pbvf_offline.rollout.episodes import Episode
from pbvf_runs.folder import SHARD_NAME, own_entries
from pbvf_runs.records import (
    CHECKPOINT_FILE,
    EPISODES_FOLDER,
    PENDING_FILE,
    RESULT_FILE,
    TAIL_FILE,
    StoredResult,
)

BRING_BACK: Final = "bring it back, or start over with --overwrite"


@dataclass(frozen=True)
class KeptEpisodes(Record):
    """What a checkpoint says of the episodes on disk.

    Attributes:
        shards: Names of the shards, in order.
        pending: Digest of the file of waiting episodes; None where there are none.
    """

    shards: tuple[str, ...]
    pending: str | None

    @classmethod
    def of(cls, extra: object, where: Path) -> KeptEpisodes:
        """Read it from what a run adds to its checkpoint.

        Raises:
            DamagedError: It is not there, or malformed.
        """
        if not isinstance(extra, dict):
            raise DamagedError("says nothing of the run's episodes", where=where)
        named = ("shards", "pending")
        return cls.from_dict({name: extra[name] for name in named if name in extra}, where)


class RunEpisodes:
    """The finished episodes of a run: those in shards, and those that wait for the next one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.shards: list[str] = []
        self.waiting: list[Episode] = []

    def resume(self, shards: Sequence[str], pending: str | None) -> None:
        """Take up what a checkpoint names: shards, and the digest of the waiting episodes' file.

        Raises:
            DamagedError: A file is missing or is not the one that the checkpoint names.
        """
        waiting = [] if pending is None else _waiting(self._folder, pending)
        for name in shards:
            if not (self._folder / EPISODES_FOLDER / name).exists():
                raise missing_file(self._folder / EPISODES_FOLDER / name)
        self.shards, self.waiting = list(shards), waiting

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
    for path, digest, beside in _named_files(folder):
        data = _read_kept(path)
        if hashlib.sha256(data).hexdigest().startswith(digest):
            yield from unpack_columns(image_to_columns(data, path)[0], path)
        elif path.name == PENDING_FILE:
            yield from _waiting(folder, digest)
        else:
            raise DamagedError(
                f"does not belong to the {beside} beside it", where=path, remedy=BRING_BACK
            )


def _waiting(folder: Path, digest: str) -> list[Episode]:
    """Return the waiting episodes that a checkpoint names by the digest of their file."""
    path = folder / PENDING_FILE
    data = _read_kept(path)
    episodes = unpack_columns(image_to_columns(data, path)[0], path)
    if hashlib.sha256(data).hexdigest() == digest:
        return episodes
    # A call that was killed before its checkpoint may have added episodes to these.
    for count in range(len(episodes) - 1, 0, -1):
        if hashlib.sha256(_image(episodes[:count])).hexdigest() == digest:
            return episodes[:count]
    raise DamagedError(
        "does not belong to the checkpoint beside it",
        where=path,
        remedy="start over with --overwrite",
    )


def _named_files(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield each file of episodes, the start of its digest, and what names it."""
    from pbvf_offline.online.checkpoint import KIND

    result = StoredResult.read(folder)
    path = folder / CHECKPOINT_FILE
    if path.exists():
        content = decode(KIND, read_tensor_file(path), str(path))[0]
        kept = KeptEpisodes.of(content.get("extra"), path)
        for name in kept.shards:
            if re.fullmatch(SHARD_NAME, name) is None:
                raise DamagedError("names a shard that no run writes", where=path)
            digest = name.removesuffix(".safetensors").rpartition("-")[2]
            yield folder / EPISODES_FOLDER / name, digest, "checkpoint"
        if kept.pending is not None:
            yield folder / PENDING_FILE, _digest(kept.pending, path), "checkpoint"
    elif result is not None and result.episodes:
        raise missing_file(path)
    if result is not None and result.tail is not None:
        yield folder / TAIL_FILE, _digest(result.tail, folder / RESULT_FILE), "result"


def _digest(text: object, where: Path) -> str:
    """Return the whole digest of a file, which a beginning of one is not."""
    if not isinstance(text, str) or re.fullmatch("[0-9a-f]{64}", text) is None:
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


def _image(episodes: Sequence[Episode]) -> bytes:
    return columns_to_image(pack_columns(episodes), {"episodes": len(episodes)})
