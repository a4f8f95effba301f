"""A control without a critic: cross-entropy search among policies in a learned environment.

It imagines as many policies as the rounds of :mod:`pbvf_offline.synthesis.rounds` do, begins
with the same ones (drawn into the trust region), plays them from the same starts, takes off the
same caution and stays in the same trust region. What differs is how the next policies are chosen:
not by climbing a critic, but by drawing them from a normal distribution that moves to the best of
the last ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pbvf_offline.critics.trust_region import TrustRegion, shrink
from pbvf_offline.fit.loop import shared_normaliser
from pbvf_offline.fit.rounds import RoundSettings
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.imagine import refuse_other_policies
from pbvf_offline.policies.policy import Policies, init_theta
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.seeding import Stream, generator
from pbvf_offline.synthesis.model_evaluation import ImaginedReturns, ModelEvaluator

_KEPT = 0.8  # of the spread of a generation; without, a search is soon over and ends lower


@dataclass(frozen=True)
class Budget:
    """How many policies the rounds of one try imagine.

    Attributes:
        known: Dataset policies before the first round.
        fresh: Fresh policies before the first round.
        rounds: Number of rounds.
        each: Policies of a round: a quarter of those that climb, as many points of their ways,
            and twice as many neighbours.
        elite: A quarter of those, which is as many as arrived.
    """

    known: int
    fresh: int
    rounds: int
    each: int
    elite: int

    @classmethod
    def of(cls, settings: RoundSettings, policies: int) -> Budget:
        """Return the budget of rounds on a dataset of so many policies."""
        arrived = settings.fresh // 4
        known = min(settings.known, policies)
        return cls(known, settings.fresh, settings.rounds, 4 * arrived, arrived)

    @property
    def total(self) -> int:
        """All policies."""
        return self.known + self.fresh + self.rounds * self.each


@dataclass(frozen=True)
class Found:
    """What a search came to.

    Attributes:
        policies: The policies found, the most cautiously valued first.
        cautious: (count,) float64, their cautious imagined returns.
        mean: (count,) float64, their mean imagined returns.
        played: How many policies were imagined.
        best: The highest cautious value of each generation, the first of which is before the
            first round.
    """

    policies: Policies
    cautious: NDArray[np.float64]
    mean: NDArray[np.float64]
    played: int
    best: tuple[float, ...]


def cross_entropy_search(
    data: Trajectories,
    ensemble: Ensemble,
    settings: RoundSettings,
    *,
    horizon: int,
    count: int,
) -> Found:
    """Search for policies of the data's architecture in a learned environment.

    The first generation is dataset policies and fresh ones. The next ones are drawn around the
    mean of the best of the last one, in coordinates in which the trust region is a ball and the
    data's policies have a spread of one. The spread of each coordinate goes slowly from there to
    that of the best. The last generation plays the best of each before it once more, from the same
    starts for all, so that none is found by the luck of its starts. No environment step is taken.

    Args:
        data: The dataset, for its policies and initial states.
        ensemble: The environment learned from it.
        settings: The rounds whose budget, caution and region the search has; only their first
            try counts.
        horizon: Time limit of an episode.
        count: Policies wanted, at most as many as a round plays.

    Raises:
        IncompatibleError: The policies act in another environment than the ensemble's.
    """
    refuse_other_policies(ensemble, data.policies.spec)
    search = _Search(data, ensemble, settings, horizon)
    values = [search.play(search.first())]
    for number in range(1, search.budget.rounds):
        values.append(search.play(search.drawn(number, values[-1].cautious)))
    everything = np.concatenate(search.generations)
    finalists = _best_of_each([played.cautious for played in values])[: search.budget.each]
    values.append(search.play(everything[finalists]))
    chosen = np.argsort(-values[-1].cautious, kind="stable")[:count]
    return Found(
        search.policies(everything[finalists[chosen]]),
        values[-1].cautious[chosen],
        values[-1].mean[chosen],
        sum(map(len, search.generations)),
        tuple(float(played.cautious.max()) for played in values),
    )


class _Search:
    """The learned environment, the trust region, and all policies so far."""

    def __init__(
        self, data: Trajectories, ensemble: Ensemble, settings: RoundSettings, horizon: int
    ) -> None:
        self._settings = settings
        initial = data.initial_observations.astype(np.float64)
        self._evaluator = ModelEvaluator(ensemble, initial, horizon, settings.caution)
        self._normaliser = shared_normaliser(data)
        self._spec = data.policies.spec
        self._own = data.policies.in_normaliser(self._normaliser.mean, self._normaliser.std)
        self._region = TrustRegion.of(self._own)
        self.budget = Budget.of(settings, len(self._own))
        self._spread = np.ones(self._spec.size)
        self.generations: list[NDArray[np.float32]] = []

    def policies(self, theta: NDArray[np.float32]) -> Policies:
        """Return thetas (K, D) as policies."""
        own, rows = self._normaliser, (len(theta), 1)
        return Policies(self._spec, theta, np.tile(own.mean, rows), np.tile(own.std, rows))

    def first(self) -> NDArray[np.float32]:
        """Return what rounds play before the first one, drawn into the region."""
        rng = self._generator(Stream.ROUND_NEIGHBOUR, 0)
        rows = np.sort(rng.permutation(len(self._own))[: self.budget.known])
        fresh = [init_theta(self._spec, rng) for _ in range(self.budget.fresh)]
        theta = torch.from_numpy(np.concatenate([self._own[rows], np.stack(fresh)]))
        return self._inside(self._region.whiten(theta))

    def drawn(self, number: int, values: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return a generation that is drawn around the best of the last one."""
        best = np.argsort(-values, kind="stable")[: self.budget.elite]
        elite = self._region.whiten(torch.from_numpy(self.generations[-1][best])).numpy()
        self._spread = _KEPT * self._spread + (1 - _KEPT) * elite.std(axis=0)
        rng = self._generator(Stream.ROUND_NEIGHBOUR, number)
        noise = rng.standard_normal((self.budget.each, elite.shape[1]))
        return self._inside(torch.from_numpy(elite.mean(axis=0) + self._spread * noise))

    def play(self, theta: NDArray[np.float32]) -> ImaginedReturns:
        """Play a generation, from the starts that the round of its number has."""
        number = len(self.generations)
        self.generations.append(theta)
        starts = self._generator(Stream.IMAGINED_START, number).integers(
            len(self._evaluator.initial), size=self._settings.starts
        )
        noise = self._generator(Stream.IMAGINED_ACTION, number)
        return self._evaluator.play(self.policies(theta), self._evaluator.initial[starts], noise)

    def _inside(self, white: torch.Tensor) -> NDArray[np.float32]:
        radius = self._settings.radius * self._region.quantile
        theta: NDArray[np.float32] = self._region.colour(shrink(white, radius)).numpy()
        return theta

    def _generator(self, stream: Stream, number: int) -> np.random.Generator:
        return generator(self._settings.seed, stream, 0, number)


def _best_of_each(values: list[NDArray[np.float64]]) -> NDArray[np.int64]:
    """Return where policies are in all generations end to end: the best of each, the second ….

    Of those with the same place in their generation the latest comes first.
    """
    places = [np.argsort(np.argsort(-each, kind="stable"), kind="stable") for each in values]
    age = np.repeat(-np.arange(len(values)), [len(each) for each in values])
    order: NDArray[np.int64] = np.lexsort((age, np.concatenate(places)))
    return order
