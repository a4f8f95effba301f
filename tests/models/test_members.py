"""What the members of an ensemble say together."""

from __future__ import annotations

import numpy as np
import pytest

from pbvf_offline.models.members import cautious_values, interval_90


def test_caution_takes_population_deviations_off_and_nothing_off_one_member() -> None:
    members = np.array([[1.0, 2.0, 4.0, 5.0], [3.0, 3.0, 3.0, 3.0]])
    assert cautious_values(members, 2.0) == pytest.approx([3.0 - 2.0 * np.sqrt(2.5), 3.0])
    assert cautious_values(members, 0.0).tolist() == [3.0, 3.0]
    assert cautious_values(members[:, :1], 2.0).tolist() == [1.0, 3.0]


def test_one_member_supports_no_interval() -> None:
    assert interval_90(np.array([[1.0], [2.0]])) is None


@pytest.mark.parametrize("count", [2, 4, 8])
def test_nine_of_ten_truths_that_are_drawn_like_the_members_are_inside(count: int) -> None:
    """1.645 population deviations would hold 0.50, 0.71 and 0.81 of them."""
    drawn = 7.0 + 3.0 * np.random.default_rng(0).standard_normal((100_000, count + 1))
    ends = interval_90(drawn[:, 1:])
    assert ends is not None
    inside = (ends[0] <= drawn[:, 0]) & (drawn[:, 0] <= ends[1])
    assert inside.mean() == pytest.approx(0.9, abs=0.004)
