from __future__ import annotations

import numpy as np
import pytest

from pbvf_experiments.metrics import coverage, estimate_metrics
from pbvf_offline.errors import UsageError


def test_metrics_worked_out_by_hand() -> None:
    # True ranks 1 to 7; estimates rank the policies 7, 6, 5, 4, 3, 1, 2, so the squared
    # differences of the ranks add up to 36 + 16 + 4 + 0 + 4 + 25 + 25 = 110.
    true = np.array([0.0, 10.0, 20.0, 30.0, 40.0, 90.0, 100.0])
    estimated = np.array([100.0, 90.0, 80.0, 70.0, 60.0, 0.0, 10.0])
    found = estimate_metrics(true, estimated)
    assert found.error == pytest.approx((100 + 80 + 60 + 40 + 20 + 90 + 90) / 7)
    assert found.absolute_error == pytest.approx(480 / 7 / 100)
    assert found.rank_correlation == pytest.approx(1 - 6 * 110 / (7 * 48))
    assert found.regret_at_1 == pytest.approx(1.0)  # the worst policy is liked best
    assert found.regret_at_5 == pytest.approx(0.6)  # the best of the first five has 40


def test_values_are_normalised_by_the_range_of_the_true_returns() -> None:
    true, estimated = np.array([-3.0, 1.0, 5.0]), np.array([0.0, 9.0, 6.0])
    found = estimate_metrics(true, estimated)
    assert found.absolute_error == pytest.approx((3 + 8 + 1) / 3 / 8)
    assert found.regret_at_1 == pytest.approx(4 / 8)
    assert found.regret_at_5 == 0.0  # fewer than five policies
    assert found.rank_correlation == pytest.approx(0.5)
    moved = estimate_metrics(true * 7 + 2, estimated * 7 + 2)
    assert moved.absolute_error == pytest.approx(found.absolute_error)
    assert (moved.regret_at_1, moved.rank_correlation) == pytest.approx(
        (found.regret_at_1, found.rank_correlation)
    )


def test_ties_share_their_rank_and_the_first_is_taken() -> None:
    true, estimated = np.array([1.0, 2.0, 3.0]), np.array([5.0, 5.0, 0.0])
    found = estimate_metrics(true, estimated)
    # Ranks 1, 2, 3 beside 2.5, 2.5, 1: covariance -1.5, variances 2 and 1.5.
    assert found.rank_correlation == pytest.approx(-1.5 / np.sqrt(2 * 1.5))
    assert found.regret_at_1 == pytest.approx(1.0)


def test_what_does_not_exist_is_none() -> None:
    constant, varied = np.array([2.0, 2.0]), np.array([1.0, 4.0])
    assert estimate_metrics(varied, constant).rank_correlation is None
    found = estimate_metrics(constant, varied)
    assert found.error == pytest.approx(1.5)
    assert found.to_dict() == {
        "error": found.error,
        "absolute_error": None,
        "rank_correlation": None,
        "regret_at_1": None,
        "regret_at_5": None,
    }


def test_returns_and_estimates_go_together() -> None:
    for true, estimated in ((np.zeros(0), np.zeros(0)), (np.zeros(2), np.zeros(3))):
        with pytest.raises(UsageError, match="do not go together"):
            estimate_metrics(true, estimated)


def test_coverage_counts_the_ends_in() -> None:
    true = np.array([0.0, 1.0, 2.0, 3.0])
    low, high = np.array([0.0, 2.0, 1.0, 0.0]), np.array([1.0, 3.0, 2.0, 2.9])
    assert coverage(true, low, high) == 0.5


def test_coverage_is_of_what_has_an_interval() -> None:
    true, none = np.array([0.0, 5.0, 2.0]), np.full(3, np.nan)
    low, high = np.array([0.0, 2.0, np.nan]), np.array([1.0, 3.0, np.nan])
    assert coverage(true, low, high) == 0.5
    assert coverage(true, none, none) is None
