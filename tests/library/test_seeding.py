from __future__ import annotations

import pytest

from pbvf_offline.errors import UsageError
from pbvf_offline.seeding import (
    MAX_SEED,
    Stream,
    check_seed,
    draw_seed,
    generator,
    reset_seed,
)

# The values are part of the format: stored seeds must keep their meaning.
STREAMS = {
    "BASE_POLICY": 0,
    "RESET": 1,
    "PERTURBATION": 2,
    "ACTION": 3,
    "WARMUP_RESET": 4,
    "WARMUP_PERTURBATION": 5,
    "WARMUP_ACTION": 6,
    "CRITIC_INIT": 7,
    "BATCH": 8,
    "SYNTHESIS_INIT": 9,
    "SYNTHESIS_STATES": 10,
    "EVALUATION_RESET": 11,
    "EVALUATION_ACTION": 12,
    "VALIDATION_SPLIT": 13,
    "SUBSAMPLE": 14,
}


def test_streams_keep_their_numbers() -> None:
    assert {s.name: s.value for s in Stream}.items() >= STREAMS.items()
    assert len({s.value for s in Stream}) == len(Stream)


def test_draws_depend_on_seed_stream_and_place_alone() -> None:
    draws = {
        generator(seed, stream, i, j).integers(2**62)
        for seed in (0, 1)
        for stream in Stream
        for i in range(3)
        for j in range(3)
    }
    assert len(draws) == 2 * len(Stream) * 9
    late = generator(0, Stream.RESET, 2).standard_normal(3)
    assert (generator(0, Stream.RESET, 2).standard_normal(3) == late).all()


def test_fewer_indices_are_another_place() -> None:
    assert generator(0, Stream.RESET, 1).integers(2**62) != generator(
        0, Stream.RESET, 1, 0
    ).integers(2**62)


def test_reset_seed_fits_gymnasium() -> None:
    seeds = {reset_seed(0, Stream.RESET, i) for i in range(200)}
    assert len(seeds) == 200
    assert all(0 <= s < 2**32 for s in seeds)


def test_drawn_seeds_are_valid_and_differ() -> None:
    drawn = {draw_seed() for _ in range(20)}
    assert all(check_seed(s) == s for s in drawn)
    assert len(drawn) > 1


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1])
def test_seed_out_of_range(seed: int) -> None:
    with pytest.raises(UsageError, match="out of range") as caught:
        check_seed(seed)
    assert caught.value.exit_code == 2
    assert caught.value.where == "--seed"
