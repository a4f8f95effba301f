"""Intervals of imagined sums: split conformal prediction, by hand and on drawn errors."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pbvf_offline.models.calibration import Calibration, HeldOutSums, held_by_the_others
from pbvf_offline.models.members import student_width


def sums(errors: np.ndarray, apart: np.ndarray, steps: float = 10.0) -> HeldOutSums:
    """Pieces with these errors, of two members that are ``apart`` from their mean each."""
    count = len(errors)
    mean = np.linspace(-5, 5, count)
    members = np.stack([mean - apart, mean + apart], axis=1)
    return HeldOutSums(members, mean + errors, np.full(count, steps), np.arange(count))


def test_factor_and_floor_by_hand() -> None:
    """19 pieces: the quantile is the 18th of 19 errors in units of the deviation."""
    errors = np.arange(1.0, 20.0)
    measured = Calibration.of(sums(errors, np.ones(19)))
    assert measured is not None
    assert measured.floor == pytest.approx(0.1 * 10 / 10)  # mean error 10 over 10 steps
    unit = np.sqrt(2 + (0.1 * 10) ** 2)  # sample variance of two members at ±1, and the floor
    assert measured.factor == pytest.approx(18 / unit)
    assert measured.pieces == 19


def test_never_narrower_than_the_members_alone_say() -> None:
    measured = Calibration.of(sums(np.full(19, 1e-6), np.ones(19)))
    assert measured is not None
    assert measured.factor == student_width(2)


def test_further_pieces_are_inside_as_often_as_promised() -> None:
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(200):
        apart = rng.uniform(0.1, 2.0, 61)
        drawn = sums(20 * apart * rng.standard_normal(61), apart)
        seen = np.arange(61) < 60
        measured = Calibration.of(drawn.select(seen))
        assert measured is not None
        low, high = measured.interval(drawn.members[60:], drawn.steps[60:])
        inside.append(bool(low[0] <= drawn.stored[60] <= high[0]))
    assert 0.84 <= np.mean(inside) <= 0.97


def test_each_piece_is_held_against_the_others() -> None:
    """One error is far beyond all others: an interval that had seen it would hold it."""
    errors = np.append(np.linspace(1, 2, 18), 1e6)
    held = held_by_the_others(sums(errors, np.ones(19)))
    assert held is not None
    assert held[:18].all()
    assert not held[18]


def test_horizons_of_one_piece_are_left_out_together() -> None:
    both = [sums(np.append(np.linspace(1, 2, 18), 1e6), np.ones(19), steps) for steps in (10, 20)]
    held = held_by_the_others(HeldOutSums.together(both))
    assert held is not None
    assert np.flatnonzero(~held).tolist() == [18, 37]


def test_of_many_pieces_groups_are_held_against_the_others() -> None:
    """Of 600 pieces there are 500 groups; every piece is in one of them."""
    held = held_by_the_others(sums(np.append(np.linspace(1, 2, 599), 1e6), np.ones(600)))
    assert held is not None
    assert np.flatnonzero(~held).tolist() == [599]


def test_what_supports_no_interval() -> None:
    assert Calibration.of(sums(np.ones(8), np.ones(8))) is None
    alone = sums(np.ones(19), np.ones(19))
    assert Calibration.of(dataclasses.replace(alone, members=alone.members[:, :1])) is None
    assert held_by_the_others(sums(np.ones(9), np.ones(9))) is None
    assert Calibration.of(sums(np.ones(9), np.ones(9))) is not None
