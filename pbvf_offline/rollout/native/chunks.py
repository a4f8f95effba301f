"""How many episodes a process is asked for at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Final

from pbvf_offline.policies.spec import PolicySpec

_MOST_ROWS: Final = 16  # of more, the data leave the cache and the last ones are waited for longer
_LEAST_ROWS: Final = 4
_WEIGHTS: Final = 2**20  # bytes of policies that are at hand in every step
_LONG: Final = 1000  # steps of an episode where no limit is known, before one was played
_MOST: Final = 1024


def rows_for(spec: PolicySpec) -> int:
    """Return how many episodes are played at a time."""
    return max(_LEAST_ROWS, min(_MOST_ROWS, _WEIGHTS // (8 * spec.size)))


class Chunks:
    """Cuts episodes into chunks, which become small towards the end, so that all end together.

    Args:
        indices: The episodes.
        rows: Episodes that are played at a time.
        workers: Number of processes.
        limit: Most steps of an episode, where known.
        episodes: How many are wanted, where known.
        budget: Steps wanted in all, where they decide how many episodes are.

    Attributes:
        indices: As given.
        drawn: The episodes drawn from ``indices`` so far.
    """

    def __init__(
        self,
        indices: Iterator[int],
        *,
        rows: int,
        workers: int,
        limit: int | None,
        episodes: int | None,
        budget: int | None,
    ) -> None:
        self.indices, self._rows, self._workers = indices, rows, workers
        self._length = float(limit or _LONG)
        self._episodes, self._budget = episodes, budget
        # One that holds more steps would take long to give back, and much memory.
        self._chunk_steps = rows * min(self._length, _LONG)
        self._done = self._steps = 0
        self.drawn: list[int] = []

    def learn(self, episodes: int, steps: int) -> None:
        """Note that so many more episodes have been played, of so many steps together."""
        self._done, self._steps = self._done + episodes, self._steps + steps
        self._length = self._steps / self._done

    def _wanted(self) -> float:
        """Return how many more episodes are wanted, as far as is known."""
        if self._episodes is not None:
            return self._episodes - len(self.drawn)
        if self._budget is None:
            return math.inf
        left = (self._budget - self._steps) / self._length
        return max(left, 1) - (len(self.drawn) - self._done)

    def __iter__(self) -> Iterator[tuple[int, ...] | None]:
        """Yield chunks; None where it must first be known how long those under way will be."""
        while True:
            wanted = self._wanted()
            if wanted <= 0 and self._episodes is None:
                yield None
                continue
            usual = min(_MOST, self._chunk_steps / self._length)
            size = math.ceil(max(1, min(usual, wanted / self._workers)))
            chunk = tuple(itertools.islice(self.indices, size))
            self.drawn += chunk
            if not chunk:
                return
            yield chunk
