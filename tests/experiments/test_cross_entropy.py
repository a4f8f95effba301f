"""The control without a critic: what it finds, and that its budget is that of the rounds."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from libtools import discrete_spec, make_policies
from model_tools import SETTINGS, TARGET_HORIZON, held_out, played, target_data, to_target
from pbvf_experiments.offline.cross_entropy import (
    Budget,
    Found,
    _best_of_each,
    cross_entropy_search,
)
from pbvf_offline.critics.trust_region import TrustRegion
from pbvf_offline.errors import IncompatibleError
from pbvf_offline.fit.rounds import RoundSettings
from pbvf_offline.models.choice import train
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.policies.policy import Policies
from pbvf_offline.synthesis.model_evaluation import ModelEvaluator
from pbvf_offline.synthesis.rounds import imagined_rounds

ROUNDS = RoundSettings(seed=0, rounds=6, fresh=32, known=40, starts=2, steps=2, updates=2)


@cache
def ensemble() -> Ensemble:
    return train(target_data(), held_out(target_data()), SETTINGS, 1_000)


def search(settings: RoundSettings = ROUNDS, count: int = 3) -> Found:
    return cross_entropy_search(
        target_data(), ensemble(), settings, horizon=TARGET_HORIZON, count=count
    )


def true_returns(policies: Policies) -> Any:
    return played(policies, to_target, np.zeros((len(policies), 1)), TARGET_HORIZON).returns()


def test_it_finds_policies_above_the_datas_inside_the_trust_region() -> None:
    found = search()
    assert true_returns(found.policies).min() > true_returns(target_data().policies).max()
    assert len({theta.tobytes() for theta in found.policies.theta}) == 3
    assert (np.diff(found.cautious) <= 0).all()
    assert (found.cautious <= found.mean).all()
    own = target_data().policies
    region = TrustRegion.of(own.in_normaliser(own.obs_mean[0], own.obs_std[0]))
    distance = region.distance(torch.from_numpy(found.policies.theta))
    assert (distance <= region.quantile * 1.0001).all()
    near = search(dataclasses.replace(ROUNDS, radius=0.5)).policies.theta
    assert (region.distance(torch.from_numpy(near)) <= 0.5001 * region.quantile).all()


def test_what_is_played_again() -> None:
    """The best of each generation, whatever starts the others had."""
    order = _best_of_each([np.array([5.0, 9.0, 7.0]), np.array([-1.0, -2.0])])
    assert order.tolist() == [3, 1, 4, 2, 0]


def test_one_seed_gives_one_result() -> None:
    first, again = search(), search()
    np.testing.assert_array_equal(first.policies.theta, again.policies.theta)
    assert first.best == again.best
    other = search(dataclasses.replace(ROUNDS, seed=1))
    assert (first.policies.theta != other.policies.theta).all()


@pytest.mark.parametrize("known", [40, 500])
def test_it_imagines_as_many_policies_as_the_rounds(
    known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = dataclasses.replace(ROUNDS, known=known, rounds=3)
    seen: list[tuple[int, bytes]] = []
    play = ModelEvaluator.play

    def counted(
        self: ModelEvaluator, policies: Policies, starts: Any, *args: Any, **kwargs: Any
    ) -> Any:
        seen.append((len(policies), starts.tobytes()))
        return play(self, policies, starts, *args, **kwargs)

    monkeypatch.setattr(ModelEvaluator, "play", counted)
    imagined_rounds(
        target_data(),
        ensemble(),
        settings,
        model="1" * 64,
        horizon=TARGET_HORIZON,
        environment=None,
        dataset="0" * 64,
    )
    by_rounds = seen.copy()
    seen.clear()
    found = search(settings)
    assert seen == by_rounds  # as many in each generation, from the same starts
    budget = Budget.of(settings, len(target_data().policies))
    assert found.played == budget.total == sum(count for count, _ in by_rounds)
    assert len(found.best) == 4


def test_the_budget_of_the_defaults() -> None:
    # 500 known and 32 fresh; then 8 that arrived, 8 points of ways and 16 neighbours a round.
    assert Budget.of(RoundSettings(seed=0), 500).total == 532 + 30 * 32


def test_policies_of_another_environment() -> None:
    other = played(
        make_policies(discrete_spec(2), 4), lambda obs, *_: (obs, 0.0, False), np.zeros((4, 2)), 3
    )
    with pytest.raises(IncompatibleError, match="other observations or actions"):
        cross_entropy_search(other, ensemble(), ROUNDS, horizon=3, count=1)
