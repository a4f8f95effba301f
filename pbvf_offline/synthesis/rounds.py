"""A PSSVF that knows the policies it is climbed to: rounds of ascent and imagination.

In each round fresh random policies climb the present critic, the way that
:func:`pbvf_offline.synthesis.ascent.synthesize` climbs it in the end. A learned
environment plays where they arrive, points of their ways, and their neighbours; the
critic is then fitted to all returns imagined so far. So wherever the ascent finds the
critic too high, the critic learns better. What is kept is the critic of the round
whose own fresh policies came out best in imagination. No environment step is taken.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pbvf_offline.critics import Critic, TrainingSet
from pbvf_offline.critics.trust_region import shrink
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.fit.critic_context import CriticContext, make_context
from pbvf_offline.fit.critic_file import CriticFile
from pbvf_offline.fit.loop import Fit, gradient_step, start_fit
from pbvf_offline.fit.rounds import ImaginedFit, Round, RoundSettings
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.imagine import imagine, refuse_other_policies
from pbvf_offline.models.members import cautious_values
from pbvf_offline.models.noise import action_noise
from pbvf_offline.policies.policy import init_theta, renormalise
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.seeding import Stream, generator, reset_seed
from pbvf_offline.synthesis.ascent import synthesize
from pbvf_offline.synthesis.settings import SynthesisSettings

_WAYPOINT_EVERY = 10
_NEAR, _FAR = 0.04, 0.5  # of the spread of the data's policies: how far neighbours are


@dataclass(frozen=True)
class World:
    """The learned environment as a place where policies are played.

    Attributes:
        ensemble: The learned environment.
        initial: (E, obs_dim) raw first observations of episodes.
        horizon: Time limit of an episode.
        caution: How many population standard deviations of the members' returns are taken off.
    """

    ensemble: Ensemble
    initial: NDArray[np.float64]
    horizon: int
    caution: float

    def play(
        self,
        context: Fit,
        theta: NDArray[np.float32],
        starts: NDArray[np.float64],
        rng: np.random.Generator,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the cautious value and the mean return (K,) of thetas (K, D).

        With stochastic policies each member and start has action noise of its own, the same
        for all thetas. So the members' deviation, and caution, hold the luck of the noise too.

        Args:
            context: The critic in whose normaliser the thetas are.
            theta: (K, D).
            starts: (S, obs_dim) raw first observations.
            rng: Source of the action noise of stochastic policies.
        """
        spec, own = context.critic.config.spec, self.ensemble.scales.normaliser
        seen = context.normaliser
        rows = (len(theta), spec.obs_dim)
        mean, std = np.broadcast_to(seen.mean, rows), np.broadcast_to(seen.std, rows)
        shown = renormalise(spec, theta, mean, std, own.mean, own.std)
        noise = action_noise(spec, rng, self.horizon, self.ensemble.members, len(starts))
        members = imagine(
            self.ensemble, spec, shown, starts, self.horizon, noise=noise
        ).member_values()
        means: NDArray[np.float64] = members.mean(axis=1)
        return cautious_values(members, self.caution), means


def imagined_rounds(
    data: Trajectories,
    ensemble: Ensemble,
    settings: RoundSettings,
    *,
    model: str,
    horizon: int,
    environment: EnvReference | None,
    dataset: str,
    after_round: Callable[[Round], None] | None = None,
) -> CriticFile:
    """Fit a PSSVF to imagined returns of the policies that its own ascent proposes.

    Args:
        data: The dataset, for its policies and initial states.
        ensemble: The environment learned from it.
        settings: What decides the rounds.
        model: Digest of the ensemble's file.
        horizon: Time limit of an episode.
        environment: The dataset's environment, for the critic's context.
        dataset: The dataset's digest.
        after_round: Called after each round, for progress; what it raises stops them.

    Returns:
        The critic of the best round, frozen; its values are cautious undiscounted returns.

    Raises:
        IncompatibleError: The policies act in another environment than the ensemble's.
        DivergedError: The critic's loss became NaN or infinite.
    """
    refuse_other_policies(ensemble, data.policies.spec)
    world = World(ensemble, data.initial_observations.astype(np.float64), horizon, settings.caution)
    rounds: list[Round] = []

    def advance(attempt: _Try, until: int) -> None:
        while attempt.number < until:
            rounds.append(attempt.next_round())
            if after_round is not None:
                after_round(rounds[-1])

    tries = [
        _Try(data, world, settings, attempt, environment, dataset)
        for attempt in range(settings.tries)
    ]
    if len(tries) > 1:
        for attempt in tries:
            advance(attempt, min(settings.first_rounds, settings.rounds))
        tries.sort(key=lambda attempt: -attempt.best)
    advance(tries[0], settings.rounds)
    file, kept = tries[0].frozen()
    imagined = ImaginedFit(model, horizon, settings, kept, tuple(rounds))
    return dataclasses.replace(file, imagined=imagined)


class _Try:
    """One critic, the values that it has been told, and the best round so far."""

    def __init__(
        self,
        data: Trajectories,
        world: World,
        settings: RoundSettings,
        attempt: int,
        environment: EnvReference | None,
        dataset: str,
    ) -> None:
        self._world, self._settings, self._attempt = world, settings, attempt
        fit_settings = FitSettings(
            kind="pssvf",
            hidden=settings.hidden,
            gamma=1.0,
            lr=1e-3,
            batch_size=128,
            n_step=1,
            reward="raw",
            validation=0.0,
            seed=reset_seed(settings.seed, Stream.ROUND_CRITIC, attempt),
            standardise=True,
            average=0.99,
        )
        self._fit = start_fit(data, fit_settings, torch.device("cpu"))
        self._context: CriticContext = make_context(
            data, self._fit, environment=environment, dataset=dataset
        )
        self.number = 0
        self.best = -math.inf
        self._kept: tuple[Critic, Round] | None = None
        self._theta, self._values = self._first(data)
        # The critic learns values of unit spread; a frozen one gets their unit back.
        self._shift = float(self._values.mean())
        self._unit = max(float(self._values.std()), 1e-6)
        self._learn()

    def next_round(self) -> Round:
        """Climb, play, learn."""
        self.number += 1
        settings, region = self._settings, self._context.region
        climbed = synthesize(
            CriticFile(self._fit, self._context),
            SynthesisSettings(
                count=settings.fresh,
                steps=settings.steps,
                lr=settings.lr,
                seed=self._seed(Stream.ROUND_POLICY),
                radius=settings.radius,
            ),
            waypoint_every=_WAYPOINT_EVERY,
        )
        rng = self._generator(Stream.ROUND_NEIGHBOUR)
        liked = np.argsort(-climbed.objective, kind="stable")[: settings.fresh // 4]
        arrived = climbed.policies.theta[liked]
        on_the_way = np.concatenate([point.theta[liked] for point in climbed.path])
        points = on_the_way[rng.permutation(len(on_the_way))[: len(liked)]]
        white = region.whiten(torch.from_numpy(np.concatenate([arrived, arrived])))
        far = np.exp(rng.uniform(math.log(_NEAR), math.log(_FAR), (len(white), 1)))
        white += torch.from_numpy(far * rng.standard_normal(white.shape))
        near = region.colour(shrink(white, settings.radius * region.quantile)).numpy()
        theta = np.concatenate([arrived, points, near])
        cautious, mean = self._play(theta)
        self._theta = np.concatenate([self._theta, theta])
        self._values = np.concatenate([self._values, cautious])
        done = Round(
            attempt=self._attempt,
            number=self.number,
            believed=float(climbed.objective[liked].mean()) * self._unit + self._shift,
            cautious=float(cautious[: len(liked)].mean()),
            mean=float(mean[: len(liked)].mean()),
            highest=float(self._values.max()),
        )
        if done.cautious > self.best:
            self.best = done.cautious
            self._kept = copy.deepcopy(self._fit.critic), done
        self._learn()
        return done

    def frozen(self) -> tuple[CriticFile, Round]:
        """Return the critic of the best round, in the unit of returns, and that round."""
        if self._kept is None:
            raise RuntimeError("no round has been played")
        critic, kept = self._kept
        with torch.no_grad():
            critic.network.weights[-1].mul_(self._unit)
            critic.network.biases[-1].mul_(self._unit).add_(self._shift)
        fit = Fit(self._fit.settings, critic, critic, self._fit.normaliser, self._fit.optimiser)
        return CriticFile(fit, self._context), kept

    def _first(self, data: Trajectories) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Play dataset policies and fresh ones."""
        settings, normaliser = self._settings, self._fit.normaliser
        rng = self._generator(Stream.ROUND_NEIGHBOUR)
        rows = np.sort(rng.permutation(len(data.policies))[: settings.known])
        known = data.policies.select(rows).in_normaliser(normaliser.mean, normaliser.std)
        fresh = [init_theta(data.policies.spec, rng) for _ in range(settings.fresh)]
        theta = np.concatenate([known, np.stack(fresh)])
        return theta, self._play(theta)[0]

    def _learn(self) -> None:
        """Fit the critic to all values so far."""
        count = len(self._values)
        told = TrainingSet(
            entry=torch.arange(count),
            theta=torch.from_numpy(self._theta),
            policy=torch.arange(count),
            value=torch.from_numpy(((self._values - self._shift) / self._unit).astype(np.float32)),
        )
        shape = (self._settings.updates, self._fit.settings.batch_size)
        drawn = self._generator(Stream.ROUND_BATCH).integers(count, size=shape)
        for index in torch.from_numpy(drawn):
            gradient_step(self._fit, told, index)

    def _play(self, theta: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Play thetas from the starts, and with the noise, of this round of this try."""
        initial = self._world.initial
        drawn = self._generator(Stream.IMAGINED_START).integers(
            len(initial), size=self._settings.starts
        )
        noise = self._generator(Stream.IMAGINED_ACTION)
        return self._world.play(self._fit, theta, initial[drawn], noise)

    def _generator(self, stream: Stream) -> np.random.Generator:
        return generator(self._settings.seed, stream, self._attempt, self.number)

    def _seed(self, stream: Stream) -> int:
        return reset_seed(self._settings.seed, stream, self._attempt, self.number)
