"""Whether an environment plays an episode again as it was, which all repeatable results rest on.

What it draws from its own generator, the global ones and its spaces is seeded for each episode. An
environment that carries state from episode to episode, or draws from elsewhere, shows itself when
an episode is played once more after others.
"""

from __future__ import annotations

import hashlib
import itertools
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from pbvf_offline.rollout.episodes import Episode

OTHERS: Final = 3
"""Episodes begun before one is played again."""
OTHER_STEPS: Final = 10
"""Steps of each of them at most."""


class NotRepeatableWarning(UserWarning):
    """An environment gives other episodes for the same seeds."""


@dataclass(frozen=True)
class Digested:
    """An item of work: play this episode; the answer is its result and its digest."""

    index: int


@dataclass(frozen=True)
class Again:
    """An item of work: begin others, then play this episode; the answer is its digest."""

    index: int
    others: tuple[int, ...]


@dataclass(frozen=True)
class Several:
    """An item of work: play these episodes side by side; the answer is a :class:`Played`."""

    indices: tuple[int, ...]


@dataclass(frozen=True)
class Played:
    """The answer to :class:`Several`.

    Attributes:
        results: Of the episodes in order; up to the first that failed, of which it is the error.
        steps: Number of steps of all of them.
        digest: Of the first episode, or None where it failed.
    """

    results: list[Any]
    steps: int
    digest: str | None


Item = int | Digested | Again | Several
"""What a process is asked for; an integer stands for the result of that episode."""


def episode_digest(episode: Episode) -> str:
    """Return a digest of the observations, rewards and ends of an episode."""
    digest = hashlib.blake2b(digest_size=16)
    for array in (episode.observations, episode.rewards, episode.terminated, episode.truncated):
        digest.update(array.tobytes())
    return digest.hexdigest()


def with_repetition(indices: Iterator[int], *, stored: bool) -> Iterator[Item]:
    """Yield the items of work for episodes of which one is played again, early.

    Args:
        indices: The episodes.
        stored: Whether to repeat episode 0 of an earlier process and not the first of these.
    """
    head = list(itertools.islice(indices, 1 + OTHERS))
    if head:
        yield Digested(head[0])
        yield Again(0 if stored else head[0], tuple(head[1:]))
        yield from head[1:]
        yield from indices


def without_repetition(
    answers: Generator[Any, None, None], differs: Callable[[], None], stored: Episode | None
) -> Iterator[Any]:
    """Yield the results among the answers; the first one when it is known how its repetition went.

    Args:
        answers: Those to the items of :func:`with_repetition`.
        differs: Called where the repetition has another digest.
        stored: Episode 0 as an earlier process played it.
    """
    with closing(answers):
        for result, digest in itertools.islice(answers, 1):
            if next(answers) != (digest if stored is None else episode_digest(stored)):
                differs()
            yield result
        yield from answers


def warn_not_repeatable(env: str, *, continued: bool = False, recorded: bool = False) -> None:
    """Warn that an episode of an environment came out otherwise when it was played again.

    Args:
        env: The environment's name.
        continued: Whether an earlier process had played it.
        recorded: Whether a dataset says so.
    """
    elsewhere = ", or the work began on another machine" if continued else ""
    text = (
        f"{env}: an episode played again from its seed came out otherwise, so the environment "
        f"keeps state from one episode to the next or draws from sources that are not seeded"
        f"{elsewhere}; the same seed need not give the same results, and --workers and "
        "interruptions change them"
    )
    if recorded:
        text += "; the dataset's manifest and card say so"
    warnings.warn(text, NotRepeatableWarning, stacklevel=2)
