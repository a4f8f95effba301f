"""Finished episodes of an unfinished dataset: immutable files, each named by its digest."""

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
from pbvf_datasets.format.manifest import read_plain
from pbvf_offline.errors import DamagedError
from pbvf_offline.io.durable import write_durably
from pbvf_offline.io.reading import MAX_FILE
from pbvf_offline.rollout.episodes import Episode

_SHARD: Final = re.compile(r"shard-([0-9]{6,})-([0-9a-f]{16})\.safetensors")


class Shards:
    """Episodes on disk in the order in which they were added.

    Args:
        folder: Where the files are.

    Attributes:
        episodes: How many there are: what a kill right now would leave.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Replaced as a whole: an interrupt cannot fall inside a change.
        self._files: tuple[tuple[str, int], ...] = ()

    @property
    def episodes(self) -> int:
        """Number of episodes on disk."""
        return sum(count for _, count in self._files)

    def append(self, episodes: Sequence[Episode]) -> None:
        """Write episodes as one more file.

        Raises:
            OSError: The disk refuses; there is no such file then.
        """
        index = len(self._files)
        meta = {"shard": index, "first": self.episodes, "episodes": len(episodes)}
        image = columns_to_image(pack_columns(episodes), meta)
        name = f"shard-{index:06d}-{hashlib.sha256(image).hexdigest()[:16]}.safetensors"
        for other in self._folder.glob(f"shard-{index:06d}-*.safetensors"):
            # An interrupt fell between an earlier rename and this object's memory of it.
            if other.name != name:
                other.unlink()
        write_durably(self._folder / name, image)
        self._files = (*self._files, (name, len(episodes)))

    def recover(self, take: Callable[[Episode, str], None]) -> None:
        """Find the files of an earlier process; the first damaged one and all after it go.

        Args:
            take: Called with each episode, in order, and the name of its file.

        Raises:
            OSError: A file cannot be read or removed.
        """
        found = sorted(p.name for p in self._folder.iterdir() if _SHARD.fullmatch(p.name))
        for name in found:
            episodes = self._read(name, len(self._files), self.episodes)
            if episodes is None:
                break
            for episode in episodes:
                take(episode, name)
            self._files = (*self._files, (name, len(episodes)))
        for name in found[len(self._files) :]:
            (self._folder / name).unlink()

    def __iter__(self) -> Iterator[Episode]:
        """Yield all episodes, one file in memory at a time.

        Raises:
            DamagedError: A file changed since it was written.
        """
        first = 0
        for index, (name, count) in enumerate(self._files):
            episodes = self._read(name, index, first)
            if episodes is None:
                raise DamagedError(
                    "this shard changed after it was written",
                    where=self._folder / name,
                    remedy="run the same command again: it makes those episodes anew",
                )
            first += count
            yield from episodes

    def _read(self, name: str, index: int, first: int) -> list[Episode] | None:
        """Return the episodes of a file, or None when it is not what its name says."""
        match = _SHARD.fullmatch(name)
        path = self._folder / name
        data = read_plain(path, MAX_FILE)
        if match is None or int(match[1]) != index:
            return None
        if hashlib.sha256(data).hexdigest()[:16] != match[2]:
            return None
        try:
            columns, meta = image_to_columns(data, path)
            episodes = unpack_columns(columns, path)
        except DamagedError:
            return None
        expected = {"shard": index, "first": first, "episodes": len(episodes)}
        return episodes if meta == expected else None
