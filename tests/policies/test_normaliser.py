from __future__ import annotations

import numpy as np
import pytest

from pbvf_offline.policies.normaliser import Normaliser, RunningStatistics


@pytest.mark.parametrize("cuts", [[], [1], [3, 3, 50], list(range(1, 100))])
def test_any_split_gives_numpys_mean_and_std(cuts: list[int], rng: np.random.Generator) -> None:
    obs = rng.normal([0, 1e4, -3], [1, 0.01, 20], (100, 3))
    statistics = RunningStatistics(3)
    for part in np.split(obs, cuts):
        statistics.update(part)
    frozen = statistics.freeze()
    assert statistics.count == 100
    assert np.allclose(frozen.mean, obs.mean(axis=0), rtol=1e-12)
    assert np.allclose(frozen.std, obs.std(axis=0), rtol=1e-8)


def test_by_hand() -> None:
    # 1, 2, 3, 6: mean 3, squared distances 4 + 1 + 0 + 9 = 14, std sqrt(14 / 4).
    statistics = RunningStatistics(1)
    statistics.update(np.array([[1], [2]], np.int32))
    statistics.update(np.array([[3], [6]], np.float32))
    frozen = statistics.freeze()
    assert frozen.mean.tolist() == [3.0]
    assert frozen.std[0] == pytest.approx(np.sqrt(3.5), rel=1e-14)
    assert frozen.apply(np.array([[3.0], [3.0 + np.sqrt(3.5)]])).flatten() == pytest.approx([0, 1])


def test_constant_dimension_counts_as_one() -> None:
    obs = np.stack([np.arange(10.0), np.full(10, 0.1), np.full(10, 1e9 / 3)], axis=1)
    statistics = RunningStatistics(3)
    for part in np.split(obs, [1, 4]):
        statistics.update(part)
    frozen = statistics.freeze()
    assert frozen.std[1:].tolist() == [1.0, 1.0]
    assert np.abs(frozen.apply(obs)[:, 1:]).max() < 1e-6


def test_spread_just_above_the_threshold_is_kept() -> None:
    # +-2e-6 has standard deviation 2e-6; +-5e-7 is under 1e-6.
    for half, want in ((2e-6, 2e-6), (5e-7, 1.0)):
        statistics = RunningStatistics(1)
        statistics.update(np.array([[-half], [half]]))
        assert statistics.freeze().std[0] == pytest.approx(want)


def test_empty_is_identity() -> None:
    statistics = RunningStatistics(2)
    statistics.update(np.zeros((0, 2)))
    frozen, identity = statistics.freeze(), Normaliser.identity(2)
    assert np.array_equal(frozen.mean, identity.mean)
    assert np.array_equal(frozen.std, identity.std)
    obs = np.array([[1.5, -2.0]])
    assert np.array_equal(frozen.apply(obs), obs)


def test_frozen_means_frozen(rng: np.random.Generator) -> None:
    statistics = RunningStatistics(2)
    statistics.update(rng.normal(size=(5, 2)))
    frozen = statistics.freeze()
    mean, std = frozen.mean.copy(), frozen.std.copy()
    statistics.update(rng.normal(9, 5, (5, 2)))
    assert np.array_equal(frozen.mean, mean)
    assert np.array_equal(frozen.std, std)
