"""A critic that knows the policies it is climbed to: rounds of ascent and imagination.

In each round fresh random policies climb the present critic, the way that
:func:`pbvf_offline.synthesis.ascent.synthesize` climbs it in the end. A learned
environment plays where they arrive, points of their ways, and their neighbours (where asked for,
those of the best policies so far too); the critic is then fitted to all that was imagined so far,
as :mod:`pbvf_offline.synthesis.examples` tells it. So wherever the ascent finds the critic too
high, the critic learns better. What is kept is the critic of the round whose own fresh policies
came out best in imagination. No environment step is taken.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from pbvf_offline.critics import CRITICS, Critic
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import DivergedError
from pbvf_offline.fit.critic_context import CriticContext, make_context
from pbvf_offline.fit.critic_file import CriticFile
from pbvf_offline.fit.loop import start_fit
from pbvf_offline.fit.rounds import ImaginedFit, Round, RoundSettings
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.fit.steps import Fit, descend
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.imagine import Imagined, refuse_other_policies
from pbvf_offline.policies.policy import Policies, init_theta
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.seeding import Stream, generator, reset_seed
from pbvf_offline.synthesis.ascent import synthesize
from pbvf_offline.synthesis.examples import Scale, examples_for
from pbvf_offline.synthesis.model_evaluation import ImaginedReturns, ModelEvaluator, together
from pbvf_offline.synthesis.neighbours import neighbours
from pbvf_offline.synthesis.settings import SynthesisSettings

_STATES = 64  # over which a round's ascent averages, where the critic looks at states
_WAYPOINT_EVERY = 10


def imagined_rounds(
    data: Trajectories,
    ensemble: Ensemble,
    settings: RoundSettings,
    *,
    model: str,
    horizon: int,
    environment: EnvReference | None,
    dataset: str,
    unfit: bool = False,
    where: str | None = None,
    after_round: Callable[[Round], None] | None = None,
) -> CriticFile:
    """Fit a critic to imagined episodes of the policies that its own ascent proposes.

    Args:
        data: The dataset, for its policies and initial states.
        ensemble: The environment learned from it.
        settings: What decides the rounds.
        model: Digest of the ensemble's file.
        horizon: Time limit of an episode.
        environment: The dataset's environment, for the critic's context.
        dataset: The dataset's digest.
        unfit: Whether the check of the ensemble's file refuses whole episodes, which the critic's
            file is to say.
        where: The ensemble's file, for messages.
        after_round: Called after each round, for progress; what it raises stops them.

    Returns:
        The critic of the best round, frozen; its values are of cautious returns.

    Raises:
        IncompatibleError: The policies act in another environment than the ensemble's, or the
            critic cannot be fitted to such policies, or does not read those that are to climb.
        DivergedError: The critic's loss became NaN or infinite, or returns in the unit of the
            rewards are beyond single precision.
    """
    refuse_other_policies(ensemble, data.policies.spec)
    evaluator = ModelEvaluator(
        ensemble,
        data.initial_observations.astype(np.float64),
        horizon,
        settings.caution,
        where=where,
    )
    rounds: list[Round] = []

    def advance(attempt: _Try, until: int) -> None:
        while attempt.number < until:
            rounds.append(attempt.next_round())
            if after_round is not None:
                after_round(rounds[-1])

    tries = [
        _Try(data, evaluator, settings, attempt, environment, dataset)
        for attempt in range(settings.tries)
    ]
    if len(tries) > 1:
        for attempt in tries:
            advance(attempt, min(settings.first_rounds, settings.rounds))
        tries.sort(key=lambda attempt: -attempt.best)
    advance(tries[0], settings.rounds)
    file, kept = tries[0].frozen()
    imagined = ImaginedFit(model, horizon, settings, kept, tuple(rounds), unfit=unfit)
    return dataclasses.replace(file, imagined=imagined)


class _Leaders:
    """The policies with the highest cautious returns so far.

    Attributes:
        theta: (n, D), best first, in the critic's normaliser.
        cautious: (n,) their cautious returns.
    """

    def __init__(self, most: int, parameters: int) -> None:
        self._most = most
        self.theta = np.empty((0, parameters), np.float32)
        self.cautious = np.empty(0)

    def take(self, theta: NDArray[np.float32], cautious: NDArray[np.float64]) -> None:
        """Look at the cautious returns (K,) of more thetas (K, D), and keep the best of all."""
        theta = np.concatenate([self.theta, theta])
        cautious = np.concatenate([self.cautious, cautious])
        best = np.argsort(-cautious, kind="stable")[: self._most]
        self.theta, self.cautious = theta[best], cautious[best]


class _Try:
    """One critic, what it has been told, and the best round so far."""

    def __init__(
        self,
        data: Trajectories,
        evaluator: ModelEvaluator,
        settings: RoundSettings,
        attempt: int,
        environment: EnvReference | None,
        dataset: str,
    ) -> None:
        self._evaluator, self._settings, self._attempt = evaluator, settings, attempt
        fit_settings = FitSettings(
            kind=settings.kind,
            hidden=settings.hidden,
            gamma=settings.gamma,
            lr=1e-3,
            batch_size=128,
            n_step=settings.n_step,
            reward="raw",
            validation=0.0,
            seed=reset_seed(settings.seed, Stream.ROUND_CRITIC, attempt),
            bound_values=not CRITICS[settings.kind].monte_carlo,
            standardise=True,
            average=0.99,
            fingerprint=settings.fingerprint,
        )
        self._fit = start_fit(data, fit_settings, evaluator.ensemble.device)
        context: CriticContext = make_context(
            data, self._fit, environment=environment, dataset=dataset
        )
        # What is imagined are whole episodes, so that is what the ascent is to improve.
        if self._fit.critic.kind.depends_on_state:
            context = dataclasses.replace(context, observations=context.initial_observations)
        self._file = CriticFile(self._fit, context)
        own = data.policies.spec
        hidden = own.hidden if settings.policy is None else settings.policy
        self._grown = dataclasses.replace(own, hidden=hidden)
        self._file.critic_of(self._grown)  # refuses what it does not read
        self._leaders = _Leaders(settings.leaders, self._grown.size)
        self.number = 0
        self.best = self._highest = -math.inf
        self._kept: tuple[Critic, Round] | None = None
        choice = self._generator(Stream.IMAGINED_STEP)
        self._examples = {
            spec: examples_for(self._fit, evaluator.ensemble, choice)
            for spec in dict.fromkeys((own, self._grown))
        }
        first = self._first(data)
        # The critic learns values of unit spread; a frozen one gets their unit back.
        with np.errstate(over="ignore"):
            self._scale = Scale.of(first, settings.gamma)
        if not math.isfinite(self._scale.unit):
            raise self._beyond(self._scale.shift)
        self._learn()

    def next_round(self) -> Round:
        """Climb, play, learn."""
        self.number += 1
        settings = self._settings
        climbed = synthesize(
            self._file,
            SynthesisSettings(
                count=settings.fresh,
                steps=settings.steps,
                lr=settings.lr,
                seed=self._seed(Stream.ROUND_POLICY),
                radius=settings.radius,
                states=_STATES,
                hidden=settings.policy,
            ),
            waypoint_every=_WAYPOINT_EVERY,
        )
        rng = self._generator(Stream.ROUND_NEIGHBOUR)
        liked = np.argsort(-climbed.objective, kind="stable")[: settings.fresh // 4]
        arrived = climbed.policies.theta[liked]
        on_the_way = np.concatenate([point.theta[liked] for point in climbed.path])
        points = on_the_way[rng.permutation(len(on_the_way))[: len(liked)]]
        around = self._file.policies(
            np.concatenate([arrived, arrived, self._leaders.theta]), self._grown
        )
        near = neighbours(self._file, around, settings.radius, rng)
        played = self._play(np.concatenate([arrived, points, near]), self._grown)
        scale, count = self._scale, len(liked)
        done = Round(
            attempt=self._attempt,
            number=self.number,
            believed=float(climbed.objective[liked].mean()) * scale.unit + scale.shift,
            cautious=float(played.cautious[:count].mean()),
            mean=float(played.mean[:count].mean()),
            highest=self._highest,
        )
        if done.cautious > self.best:
            self.best = done.cautious
            self._kept = copy.deepcopy(self._fit.critic), done
        self._learn()
        return done

    def frozen(self) -> tuple[CriticFile, Round]:
        """Return the critic of the best round, in the unit of returns, and that round.

        Raises:
            DivergedError: In that unit its weights, or values, are beyond single precision.
        """
        if self._kept is None:
            raise RuntimeError("no round has been played")
        (critic, kept), scale = self._kept, self._scale
        with torch.no_grad():
            critic.network.weights[-1].mul_(scale.unit)
            critic.network.biases[-1].mul_(scale.unit).add_(scale.shift)
        fit = Fit(self._fit.settings, critic, critic, self._fit.normaliser, self._fit.optimiser)
        file = CriticFile(fit, self._file.context)
        # A weight that is no number leaves no value one.
        if not np.isfinite(file.predict(file.context.theta)).all():
            raise self._beyond(max(abs(scale.shift), scale.unit))
        return file, kept

    def _beyond(self, size: float) -> DivergedError:
        return DivergedError(
            f"the critic's values, which are about {abs(size):.3g}, are beyond single precision",
            where=self._evaluator.where,
            remedy="learn the model again, from rewards of a smaller scale",
        )

    def _first(self, data: Trajectories) -> ImaginedReturns:
        """Play dataset policies and fresh ones."""
        settings, normaliser = self._settings, self._fit.normaliser
        rng = self._generator(Stream.ROUND_NEIGHBOUR)
        rows = np.sort(rng.permutation(len(data.policies))[: settings.known])
        some, model = data.policies.select(rows), self._evaluator.ensemble.scales.normaliser
        some.in_normaliser(model.mean, model.std, rows)  # refused by their numbers in the data
        known = some.in_normaliser(normaliser.mean, normaliser.std)
        fresh = np.stack([init_theta(self._grown, rng) for _ in range(settings.fresh)])
        own = data.policies.spec
        if own == self._grown:
            return self._play(np.concatenate([known, fresh]), own)
        return together([self._play(known, own), self._play(fresh, self._grown)])

    def _learn(self) -> None:
        """Fit the critic to all that it was told so far, of policies of every architecture."""
        online = self._fit.online
        parts = [
            (
                online if spec == online.config.spec else online.of_policies(spec),
                examples.training_set(self._scale),
            )
            for spec, examples in self._examples.items()
        ]
        ends = np.cumsum([len(told) for _, told in parts])
        shape = (self._settings.updates, self._fit.settings.batch_size)
        rng = self._generator(Stream.ROUND_BATCH)
        drawn = torch.from_numpy(rng.integers(ends[-1], size=shape))
        numbers = online.noise_shape(parts[0][1])
        device = online.device
        for index in drawn:
            noise = None
            if numbers is not None:
                noise = torch.from_numpy(
                    rng.standard_normal((shape[1], *numbers), dtype=np.float32)
                )
            loss = torch.zeros((), device=device)
            for (critic, told), end in zip(parts, ends.tolist(), strict=True):
                mine = (index < end) & (index >= end - len(told))
                count = int(mine.sum())
                if count:
                    entries = (index[mine] - (end - len(told))).to(device)
                    own = None if noise is None else noise[mine].to(device)
                    part = critic.loss(told, entries, own)
                    loss = loss + part * (count / shape[1])
            descend(self._fit, loss)

    def _play(self, theta: NDArray[np.float32], spec: PolicySpec) -> ImaginedReturns:
        """Play thetas from the starts and with the noise of this round, and tell the critic.

        Trusted values so far limit what it is told. Where steps are recorded, and too many for one
        block, those are the values of this block and the ones before it.
        """
        initial = self._evaluator.initial
        drawn = self._generator(Stream.IMAGINED_START).integers(
            len(initial), size=self._settings.starts
        )
        examples = self._examples[spec]

        def tell(some: Policies, imagined: Imagined, played: ImaginedReturns) -> None:
            self._highest = max(self._highest, float(played.cautious.max()))
            if spec == self._grown:
                self._leaders.take(some.theta, played.cautious)
            # The first policies were not searched for.
            level = self._highest if self.number else math.inf
            examples.add(some, imagined, played, played.limited(level))

        return self._evaluator.play(
            self._file.policies(theta, spec),
            initial[drawn],
            self._generator(Stream.IMAGINED_ACTION),
            record=examples.records,
            after_block=tell,
        )

    def _generator(self, stream: Stream) -> np.random.Generator:
        return generator(self._settings.seed, stream, self._attempt, self.number)

    def _seed(self, stream: Stream) -> int:
        return reset_seed(self._settings.seed, stream, self._attempt, self.number)
