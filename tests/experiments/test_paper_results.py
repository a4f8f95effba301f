from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from pbvf_experiments.paper_results import PaperResult, agrees, paper_result, return_range
from pbvf_offline.errors import UsageError
from pbvf_offline.presets.paper import TODAY

LINEAR, SHALLOW, DEEP = (), (32,), (64, 64)
ALGORITHMS = ("ars", "pssvf", "ddpg", "psvf", "pavf")

# Read off the paper: a cell with continuous and one with discrete actions of each table.
CELLS = [
    ("ars", "MountainCarContinuous", LINEAR, "avg", 63, 6),
    ("ars", "Acrobot", LINEAR, "avg", -161, 23),
    ("ars", "Swimmer", SHALLOW, "avg", 139, 78),
    ("pssvf", "Reacher", SHALLOW, "avg", -10.4, 0.5),  # printed without its sign
    ("pssvf", "CartPole", SHALLOW, "avg", 463, 18),
    ("ars", "MountainCarContinuous", DEEP, "avg", 28, 8),
    ("ars", "Acrobot", DEEP, "avg", -335, 35),
    ("ars", "MountainCarContinuous", LINEAR, "last", 73, 5),
    ("pssvf", "Acrobot", LINEAR, "last", -97, 6),
    ("ars", "InvertedPendulum", SHALLOW, "last", 936, 146),
    ("ars", "CartPole", SHALLOW, "last", 471, 110),
    ("ars", "Hopper", DEEP, "last", 1006, 47),
    ("pssvf", "Acrobot", DEEP, "last", -233, 139),
]
# Sums over each table, of means and of standard deviations, each times its place from 1 on: no
# other cell changes unnoticed, and no two change places.
SUMS = {
    ("avg", LINEAR): (194982.4, 37831.7),
    ("avg", SHALLOW): (171148.1, 54381.7),
    ("avg", DEEP): (155436.6, 53301.6),
    ("last", LINEAR): (211654.5, 72381.2),
    ("last", SHALLOW): (205524.9, 82838.2),
    ("last", DEEP): (227730.3, 58266.4),
}


def test_cells() -> None:
    for algorithm, env, hidden, metric, mean, std in CELLS:
        result = paper_result(algorithm, TODAY[env], hidden, metric)
        assert result == PaperResult(mean, std), (algorithm, env, hidden, metric)


def test_no_other_cell_changes_unnoticed() -> None:
    for (metric, hidden), sums in SUMS.items():
        found = [paper_result(a, env, hidden, metric) for a, env in product(ALGORITHMS, TODAY)]
        cells = list(enumerate(filter(None, found), start=1))
        means, stds = (sum(k * getattr(c, name) for k, c in cells) for name in ("mean", "std"))
        assert (means, stds) == pytest.approx(sums, abs=1e-6), (metric, hidden)


def test_the_paper_has_this_many_and_each_is_possible() -> None:
    largest = {"Acrobot": 0, "CartPole": 500, "InvertedPendulum": 1000, "Reacher": 0}
    smallest = {"Acrobot": -500}
    count = 0
    for algorithm, env, hidden, metric in product(
        ALGORITHMS, TODAY, (LINEAR, SHALLOW, DEEP), ("avg", "last")
    ):
        result = paper_result(algorithm, env, hidden, metric)
        if result is None:
            assert algorithm in ("ddpg", "pavf")
            assert env in ("Acrobot", "CartPole")
            continue
        count += 1
        assert result.std >= 0
        assert result.mean <= largest.get(env, math.inf)
        assert result.mean >= smallest.get(env, -100)
    assert count == 2 * 3 * (5 * 5 + 3 * 2)


def test_ids_of_any_version_and_nothing_where_the_paper_has_nothing() -> None:
    expected = PaperResult(350.0, 8.0)
    for name in ("Swimmer", "Swimmer-v3", "module:Swimmer-v5"):
        assert paper_result("pssvf", name, [], "last") == expected
    for algorithm, env, hidden, metric in (
        ("pavf", "CartPole-v1", LINEAR, "avg"),
        ("ddpg", "Acrobot-v1", LINEAR, "avg"),
        ("td3", "Swimmer-v5", LINEAR, "avg"),
        ("pssvf", "Swimmer-v5", (16,), "avg"),
        ("pssvf", "Swimmer-v5", LINEAR, "best"),
        ("pssvf", "Other-v0", LINEAR, "avg"),
    ):
        assert paper_result(algorithm, env, hidden, metric) is None
        assert agrees(1e9, algorithm, env, hidden, metric) is None


def test_ranges() -> None:
    for env, env_id in TODAY.items():
        assert return_range(env) == return_range(env_id) > 0
    assert return_range("CartPole-v1") == 500
    assert return_range("InvertedPendulum-v2") == 1000
    assert return_range("MountainCarContinuous-v0") == 100
    with pytest.raises(UsageError, match=r"^environment Other-v0 is not .*; those are Acrobot, "):
        return_range("Other-v0")


@pytest.mark.parametrize(
    ("case", "border"),
    [
        (("pssvf", "Swimmer-v5", LINEAR, "avg"), 259 - 47),  # the paper's own spread
        (("pssvf", "Swimmer-v5", LINEAR, "last"), 350 - 18),  # 5 % of 360, above the spread of 8
        (("psvf", "CartPole-v1", LINEAR, "last"), 500 - 25),  # 5 % of 500, there is no spread
        (("ddpg", "MountainCarContinuous-v0", DEEP, "avg"), 0 - 5),
        (("psvf", "Acrobot-v1", DEEP, "last"), -406 - 51),
        (("pssvf", "Acrobot-v1", LINEAR, "last"), -97 - 20),
        (("pssvf", "Reacher-v5", SHALLOW, "avg"), -10.4 - 0.5),
        (("ars", "Hopper-v5", DEEP, "last"), 1006 - 100),
    ],
)
def test_agreement_ends_at_the_larger_tolerance(
    case: tuple[str, str, tuple[int, ...], str], border: float
) -> None:
    assert agrees(border, *case) is True
    assert agrees(math.nextafter(border, -math.inf), *case) is False
    assert agrees(1e6, *case) is True
    assert agrees(-1e6, *case) is False


def test_agreement_is_a_plain_bool_and_never_with_nan() -> None:
    case = ("pssvf", "Swimmer-v5", LINEAR, "avg")
    assert agrees(float("nan"), *case) is False
    assert agrees(np.float64(300.0), *case) is True
