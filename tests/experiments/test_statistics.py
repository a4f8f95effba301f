"""Means over seeds and their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.intervals import coverage
from pbvf_runs.compare.statistics import (
    Interval,
    estimate,
    interquartile_mean,
    interval,
    probability_of_improvement,
)


def test_mean_and_sample_standard_deviation_worked_out_by_hand() -> None:
    found = interval([2.0, 4.0, 9.0])
    assert found.mean == 5.0
    assert found.std == pytest.approx(math.sqrt((9 + 1 + 16) / 2))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_of_few_values_there_is_no_interval_but_the_values(count: int) -> None:
    values = [3.0, 1.0, 5.0, 2.0][:count]
    found = interval(values)
    assert found.values == tuple(values)
    assert found.mean == pytest.approx(sum(values) / count)
    assert (found.low, found.high) == (None, None)
    assert (found.std is None) == (count == 1)


def test_equal_values_have_an_interval_of_no_width() -> None:
    assert interval([4.0] * 5) == Interval((4.0,) * 5, 4.0, 0.0, 4.0, 4.0)


def test_order_and_repetition_change_nothing(rng: np.random.Generator) -> None:
    values = rng.normal(size=9).tolist()
    found, turned = interval(values), interval(values[::-1])
    assert interval(values) == found
    assert (found.low, found.high, found.mean) == (turned.low, turned.high, turned.mean)


def test_the_interval_of_many_values_is_that_of_the_central_limit(
    rng: np.random.Generator,
) -> None:
    values = rng.normal(10.0, 2.0, 400)
    found = interval(values.tolist())
    assert found.low is not None
    assert found.high is not None
    half = 1.96 * values.std(ddof=1) / 20
    assert found.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.1 * half)


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [float("inf")]])
def test_what_has_no_mean_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        interval(values)


def test_the_interquartile_mean_worked_out_by_hand() -> None:
    values = np.array([90.0, 1.0, 4.0, 3.0, 2.0, -50.0, 5.0, 60.0])
    assert interquartile_mean(values) == pytest.approx((2 + 3 + 4 + 5) / 4)  # two off each end
    assert interquartile_mean(values[:5]) == pytest.approx((4 + 3 + 2) / 3)  # one
    assert interquartile_mean(values[:3]) == pytest.approx(95 / 3)  # none
    columns = np.stack([values, values + 1])
    assert interquartile_mean(columns, axis=1) == pytest.approx([3.5, 4.5])


def test_the_probability_of_improvement_counts_pairs_and_ties_half() -> None:
    first, second = np.array([1.0, 4.0, 4.0]), np.array([4.0, 0.0])
    # Pairs: 1 < 4, 1 > 0, and twice 4 = 4, 4 > 0.
    assert probability_of_improvement(first, second) == pytest.approx((1 + 1.5 + 1.5) / 6)
    assert probability_of_improvement(second, first) == pytest.approx(2 / 6)
    assert probability_of_improvement(first, first) == 0.5
    many = probability_of_improvement(np.stack([first, first + 9]), np.stack([second] * 2), axis=1)
    assert many == pytest.approx([4 / 6, 1])


# What rliable 1.2.0 gives with 20,000 resamples (percentile, one task).
X = np.array([261.0, 129.0, 203.0, 158.0, 170.0, 292.0, 225.0, 188.0, 240.0, 210.0])
Y = np.array([100.0, 261.0, 180.0, 150.0, 90.0, 203.0, 40.0])


@pytest.mark.parametrize(
    ("statistic", "samples", "value", "low", "high"),
    [
        (interquartile_mean, (X,), 206.0, 173.8, 240.5),
        (np.mean, (X,), 207.6, 178.9, 236.2),
        (probability_of_improvement, (X, Y), 0.75714286, 0.48571429, 0.97142857),
    ],
)
def test_estimates_are_those_of_rliable(statistic, samples, value, low, high) -> None:
    found = estimate(statistic, *samples)
    assert found.value == pytest.approx(value)
    assert found.low == pytest.approx(low, abs=0.02 * (high - low))
    assert found.high == pytest.approx(high, abs=0.02 * (high - low))


def test_points_of_a_curve_have_the_intervals_that_each_has_alone(
    rng: np.random.Generator,
) -> None:
    curves = rng.normal(size=(6, 3)).cumsum(axis=1)
    found = estimate(interquartile_mean, curves)
    assert found.low is not None
    for point in range(3):
        alone = estimate(interquartile_mean, curves[:, point])
        assert (found.value[point], found.low[point]) == (alone.value, alone.low)
    assert estimate(interquartile_mean, curves[:4]).low is None
    # Nor does it matter in which order the curves come.
    assert estimate(interquartile_mean, curves[::-1]).to_dict() == found.to_dict()


def test_samples_are_resampled_apart_and_one_of_few_has_no_interval() -> None:
    def less(one, other, axis):
        return one.mean(axis=axis) - other.mean(axis=axis)

    same = estimate(less, X, X)
    assert same.value == 0
    assert same.low is not None
    assert same.high is not None
    # Twice the variance of one mean; resampled together, the difference would always be 0.
    assert same.high - same.low == pytest.approx(2 * 1.96 * np.sqrt(2 * X.var() / 10), rel=0.05)
    assert estimate(less, X, X[:4]).low is None


@pytest.mark.parametrize(("values", "held"), [(5, 0.84), (20, 0.92)])
def test_intervals_of_few_values_are_too_narrow_by_as_much_as_is_said(
    values: int, held: float
) -> None:
    assert coverage(np.mean, values, samples=500) == pytest.approx(held, abs=0.04)
