"""Means over seeds and their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pbvf_runs.statistics import Interval, interval


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
