"""Random streams: every draw is a pure function of one stored seed and its place.

A *stream* names what is drawn (:class:`Stream`); indices say which one (episode,
segment, block of updates). Nothing depends on the order in which draws are made,
so an interrupted or parallel run repeats an undisturbed one exactly.
"""

from __future__ import annotations

import enum
import secrets

import numpy as np

from pbvf_offline.errors import UsageError
from pbvf_offline.setting_types import MAX_SEED


class Stream(enum.IntEnum):
    """What a random stream is used for. Values are part of the format: never renumber."""

    BASE_POLICY = 0
    RESET = 1
    PERTURBATION = 2
    ACTION = 3
    WARMUP_RESET = 4
    WARMUP_PERTURBATION = 5
    WARMUP_ACTION = 6
    CRITIC_INIT = 7
    BATCH = 8
    SYNTHESIS_INIT = 9
    SYNTHESIS_STATES = 10
    EVALUATION_RESET = 11
    EVALUATION_ACTION = 12
    VALIDATION_SPLIT = 13
    SUBSAMPLE = 14
    ONLINE_BATCH = 15
    ONLINE_EVALUATION = 16
    DATASET_SPLIT = 17
    MODEL_INIT = 18
    MODEL_BATCH = 19
    MODEL_SPLIT = 20
    MODEL_CHECK = 21
    IMAGINED_ACTION = 22
    IMAGINED_START = 23
    ROUND_POLICY = 24
    ROUND_CRITIC = 25
    ROUND_BATCH = 26
    ROUND_NEIGHBOUR = 27
    IMAGINED_EVALUATION = 28
    CHECK_ACTION = 29
    IMAGINED_STEP = 30
    SHARED_SOURCES = 31


def check_seed(seed: int) -> int:
    """Return ``seed`` when it lies in 0 … 2**32 - 1.

    Raises:
        UsageError: It does not.
    """
    if not 0 <= seed <= MAX_SEED:
        raise UsageError(
            f"seed {seed} is out of range", where="--seed", remedy=f"give 0 to {MAX_SEED}"
        )
    return seed


def draw_seed() -> int:
    """Return a fresh seed from the operating system's entropy."""
    return secrets.randbelow(MAX_SEED + 1)


def generator(seed: int, stream: Stream, *indices: int) -> np.random.Generator:
    """Return the generator of one place in one stream.

    >>> a = generator(0, Stream.PERTURBATION, 3, 1).standard_normal()
    >>> b = generator(0, Stream.PERTURBATION, 3, 1).standard_normal()
    >>> bool(a == b)
    True
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(stream), *indices)))


def reset_seed(seed: int, stream: Stream, *indices: int) -> int:
    """Return the integer seed handed to ``env.reset`` at one place in one stream."""
    return seed_words(seed, stream, *indices, count=1)[0]


def seed_words(seed: int, stream: Stream, *indices: int, count: int) -> list[int]:
    """Return ``count`` integer seeds, 0 to 2**32 - 1, of one place in one stream."""
    sequence = np.random.SeedSequence(seed, spawn_key=(int(stream), *indices))
    words: list[int] = sequence.generate_state(count, np.uint32).tolist()
    return words
