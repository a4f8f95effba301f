"""Jobs played natively: chunks of episodes as items of work, and results in order again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any

from pbvf_offline.errors import PbvfError
from pbvf_offline.rollout.episodes import Episode
from pbvf_offline.rollout.native.chunks import Chunks
from pbvf_offline.rollout.native.play import Player
from pbvf_offline.rollout.repetition import OTHERS, Again, Item, Played, Several, episode_digest


def play_several(
    player: Player,
    item: Several,
    again: Callable[[int], Episode],
    reduce: Callable[[Episode], Any] | None,
) -> Played:
    """Play a chunk of episodes.

    Args:
        player: Plays them natively.
        item: Which.
        again: Plays one through Gymnasium, which says what is wrong with one that is not finite.
        reduce: What to keep of each; None keeps it whole.
    """
    found: dict[int, Any] = {}
    digest, steps = None, 0
    for index, played in player.play(item.indices):
        try:
            episode = again(index) if played is None else played
        except PbvfError as error:
            found[index] = error
            continue
        if index == item.indices[0] and played is not None:
            digest = episode_digest(episode)
        steps += len(episode)
        found[index] = episode if reduce is None else reduce(episode)
    results = []
    for index in item.indices:
        results.append(found[index])
        if isinstance(found[index], PbvfError):
            break
    return Played(results, steps, digest)


def items(chunks: Chunks, *, check: bool, stored: bool) -> Iterator[Item | None]:
    """Yield the items of work: chunks, and after the first what is to be compared.

    Args:
        chunks: The episodes.
        check: Whether Gymnasium plays the first of them too.
        stored: Whether it plays episode 0 of an earlier process too.
    """
    for k, chunk in enumerate(chunks):
        if chunk is None:
            yield None
            continue
        yield Several(chunk)
        others = chunk[1 : 1 + OTHERS]
        if k == 0 and check:
            yield Again(chunk[0], others)
        if k == 0 and stored:
            yield Again(0, others)


def results(
    answers: Generator[Any, None, None],
    chunks: Chunks,
    *,
    agreed: Callable[[], None] | None,
    stored: Episode | None,
    differs: Callable[[], None] | None,
) -> Generator[Any, None, bool]:
    """Yield results in order; return whether the first episode was Gymnasium's.

    Where it was not, nothing has been yielded.

    Args:
        answers: Those to :func:`items`.
        chunks: The episodes, which learn how long they are.
        agreed: Called where the first episode was Gymnasium's; None if that was not checked.
        stored: Episode 0 as an earlier process played it.
        differs: Called where that came out otherwise now.

    Raises:
        PbvfError: An episode failed.
    """
    with closing(answers):
        for k, played in enumerate(answers):
            if k == 0 and agreed is not None:
                if next(answers) != played.digest:
                    return False
                if played.digest is not None:
                    agreed()
            if k == 0 and stored is not None:
                same = next(answers) == episode_digest(stored)
                if not same and differs is not None:
                    differs()
            chunks.learn(len(played.results), played.steps)
            for result in played.results:
                if isinstance(result, PbvfError):
                    raise result
                yield result
    return True
