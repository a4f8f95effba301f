"""Episodes that several inputs of a merge share."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.read.episodes import CheckedEpisode
from pbvf_datasets.write.edit_inputs import Source
from pbvf_offline.io.strict_json import canonical_json


def repeats(sources: Sequence[Source]) -> list[set[int]]:
    """Return the episodes of each input that another input has too and that are left out.

    Rewards and parameters are compared first; only where both are equal, all arrays are.
    """
    left_out: list[set[int]] = [set() for _ in sources]
    groups: dict[bytes, list[tuple[int, int, int | None]]] = {}
    for s, (source, shared) in enumerate(zip(sources, _alike(sources), strict=True)):
        rows = np.flatnonzero(shared).tolist()
        for episode in source.episodes(rows) if rows else ():
            entry = s, episode.index, episode.seed
            groups.setdefault(_content(episode), []).append(entry)
    for group in groups.values():
        for s, i in redundant_copies(group):
            left_out[s].add(i)
    return left_out


def _alike(sources: Sequence[Source]) -> list[NDArray[np.bool_]]:
    """Return for each input which episodes may be equal to one of another input."""
    keys = [source.short_digests() for source in sources]
    every = np.concatenate(keys)
    owner = np.repeat(np.arange(len(sources)), [len(k) for k in keys])
    values, row = np.unique(every, return_inverse=True)
    low, high = np.full(len(values), len(sources)), np.full(len(values), -1)
    np.minimum.at(low, row, owner)
    np.maximum.at(high, row, owner)
    shared = (low < high)[row]
    return np.split(shared, np.cumsum([len(k) for k in keys])[:-1])


def _content(episode: CheckedEpisode) -> bytes:
    """Return a digest of all of an episode but its seed."""
    digest = hashlib.blake2b(episode.cut.encode(), digest_size=20)
    for name, array in sorted(episode.arrays.items()):
        digest.update(canonical_json([name, array.dtype.str, list(array.shape)]))
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()


def redundant_copies(group: Sequence[tuple[int, int, int | None]]) -> Iterator[tuple[int, int]]:
    """Yield which of equal episodes to leave out, so that no two inputs bring the same one.

    An episode matches one of an earlier input with the same seed, or either has none; of such
    a pair the one with a seed stays. Inside one input, equal episodes never match.

    Args:
        group: ``(input, episode, seed)`` of episodes with equal content, inputs in order.
    """
    kept: dict[int | None, list[tuple[int, int]]] = {}
    for s in dict.fromkeys(entry[0] for entry in group):
        free = Counter({seed: len(places) for seed, places in kept.items()})
        anyone = list(free.elements())
        new: list[tuple[int | None, tuple[int, int]]] = []
        own = [entry for entry in group if entry[0] == s]
        for _, i, seed in sorted(own, key=lambda entry: entry[2] is None):
            match = seed if free[seed] else None
            if not free[match] and seed is None:
                while anyone and not free[anyone[-1]]:
                    anyone.pop()
                match = anyone[-1] if anyone else None
            if not free[match]:
                new.append((seed, (s, i)))
                continue
            free[match] -= 1
            if match is None and seed is not None:
                yield kept[None].pop(0)
                new.append((seed, (s, i)))
            else:
                yield s, i
        for seed, place in new:
            kept.setdefault(seed, []).append(place)
