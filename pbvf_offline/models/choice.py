"""Which noise, features and objectives suit an environment, by the held-out check.

Noise on the inputs teaches networks to come back to the data. Where the environment is
damped that keeps imagined episodes sound; where it is unstable it makes it stable in
imagination only. Sine and cosine of raw observations help where one is an angle that
winds, and are noise where observations are large. Networks that learn by different objectives are
hard to fool, and those that predict several steps in a row blur where episodes end. The one-step
error tells none of it, short trainings and the check do.

Features decide what can be predicted at all, which shows at every horizon. Noise and steps in a row
trade near horizons for far ones, so the sums over the longest one decide.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from pbvf_offline.errors import DivergedError
from pbvf_offline.models.check import ModelCheck, check_model
from pbvf_offline.models.ensemble import Ensemble, Steps
from pbvf_offline.models.scales import Scales
from pbvf_offline.models.settings import ModelSettings
from pbvf_offline.models.training import advance, start_training
from pbvf_offline.records import Record, since
from pbvf_offline.rollout.episodes import Trajectories

NOISES = (0.03, 0.0, 0.15)  # the first is the one at which features are compared
TRIAL_VALIDATION = 0.3  # least share of the episodes that the short trainings are checked on
_MEMBERS = 2  # networks of a short training
_NOT_MIXED = 1.25  # how much worse than by its score a model of networks of one objective counts
_WITHOUT_ANGLES = 1.1  # how much worse than by its errors a model without angles counts
_WITH_NOISE = 1.1  # how much worse than by its score a model of noisy inputs counts


@dataclass(frozen=True)
class Trial(Record):
    """One short training and what its check said.

    Attributes:
        noise: Noise on the inputs.
        angles: Whether sine and cosine were shown.
        unroll: Steps in a row.
        check: The held-out check; a smaller score is better.
        mixed: Whether networks learned by two objectives.
    """

    noise: float
    angles: bool
    unroll: int
    check: ModelCheck
    mixed: Annotated[bool, since(2)] = False


def _ignore(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class ChoiceHooks:
    """What is called while settings are chosen.

    Attributes:
        tried: Called after each short training.
        diverged: Called with the reason where networks of two objectives are not chosen since
            their training diverges.
        progress: Called after each update of short trainings, with those done and wanted in all,
            the number of the short training, and how many there are.
    """

    tried: Callable[[Trial], object] = _ignore
    diverged: Callable[[DivergedError], object] = _ignore
    progress: Callable[[int, int, int, int], object] = _ignore


def choose_settings(
    data: Trajectories,
    held: NDArray[np.bool_],
    settings: ModelSettings,
    *,
    noises: Sequence[float] = NOISES,
    angles: Sequence[bool] = (False, True),
    mixed: Sequence[bool] = (False, True),
    updates: int,
    hooks: ChoiceHooks | None = None,
    device: torch.device | None = None,
) -> tuple[ModelSettings, tuple[Trial, ...]]:
    """Return the settings whose check comes out best.

    One choice after the other: features at the first noise, by the error at all horizons; then
    the noise, then the objectives, by the score. The check sees only policies like those of the
    data. On others a model without the features that an environment needs, one whose networks
    learn by one objective, and one that noise made stable where the environment is not, err by far
    more. So sine and cosine win unless their error is worse by more than a tenth, no noise unless
    its score is, and two objectives unless their score is worse by more than a quarter. Where the
    data's episodes end before the check's longest horizon, two objectives win whatever their score.
    Where nothing at all could be checked, these three win too. Two objectives whose training
    diverges never do. Where there is nothing to choose, nothing is trained.

    Args:
        data: The dataset.
        held: (E,) episodes that are checked and not learned from.
        settings: What else decides the ensemble.
        noises: The noises to choose from.
        angles: Whether to show sine and cosine: one or both answers.
        mixed: Whether networks learn by two objectives: one or both answers.
        updates: Updates of each short training.
        hooks: What is called on the way.
        device: Where to compute; the CPU when None.

    Raises:
        DivergedError: A short training of networks of one objective diverges.
    """
    # A choice begins with what the one before it chose, and that was tried already.
    count = 1 + sum(len(values) - 1 for values in (angles, noises, mixed))
    trials = _Trials(data, held, updates, hooks or ChoiceHooks(), device, count)
    chosen = dataclasses.replace(settings, noise=noises[0], angles=angles[0], mixed=mixed[0])
    choices: tuple[tuple[str, Sequence[Any], Callable[[ModelSettings], float], bool], ...] = (
        ("angles", angles, trials.error_at_all_horizons, True),
        ("noise", noises, trials.noise_score, False),
        ("mixed", mixed, trials.mixed_score, True),
    )
    for name, values, error_of, usual in choices:
        if len(values) > 1:
            among = [dataclasses.replace(chosen, **{name: value}) for value in values]
            errors = [error_of(candidate) for candidate in among]
            # Errors are infinite where the check has no pieces long enough to measure any.
            ranks = [
                (candidate in trials.diverging, error, bool(value) != usual)
                for candidate, error, value in zip(among, errors, values, strict=True)
            ]
            chosen = among[ranks.index(min(ranks))]
    return chosen, tuple(trials.tried.values())


@dataclass
class _Trials:
    """Short trainings, each made when it is first asked for."""

    data: Trajectories
    held: NDArray[np.bool_]
    updates: int
    hooks: ChoiceHooks
    device: torch.device | None
    count: int
    tried: dict[ModelSettings, Trial] = field(default_factory=dict)
    diverging: set[ModelSettings] = field(default_factory=set)

    def error_at_all_horizons(self, candidate: ModelSettings) -> float:
        error = self._checked(candidate).error_at_all_horizons
        return error * (1.0 if candidate.angles else _WITHOUT_ANGLES)

    def score(self, candidate: ModelSettings) -> float:
        return self._checked(candidate).score

    def noise_score(self, candidate: ModelSettings) -> float:
        return self.score(candidate) * (_WITH_NOISE if candidate.noise > 0 else 1.0)

    def mixed_score(self, candidate: ModelSettings) -> float:
        if not candidate.mixed:
            # Over a few steps networks of one objective are better, and errors that grow from step
            # to step are seen over many.
            short = self._checked(candidate).unseen is not None
            return math.inf if short else self.score(candidate) * _NOT_MIXED
        try:
            return self.score(candidate)
        except DivergedError as error:
            self.hooks.diverged(error)
            self.diverging.add(candidate)
            return math.inf

    def _checked(self, candidate: ModelSettings) -> ModelCheck:
        if candidate not in self.tried:
            check = self._train_and_check(candidate)
            trial = Trial(
                candidate.noise, candidate.angles, candidate.unroll, check, candidate.mixed
            )
            self.tried[candidate] = trial
            self.hooks.tried(trial)
        return self.tried[candidate].check

    def _train_and_check(self, candidate: ModelSettings) -> ModelCheck:
        number = len(self.tried) + 1

        def updated(done: int) -> None:
            before = (number - 1) * self.updates
            self.hooks.progress(before + done, self.count * self.updates, number, self.count)

        short = dataclasses.replace(candidate, members=_MEMBERS)
        ensemble = train(self.data, self.held, short, self.updates, updated, self.device)
        return check_model(ensemble, self.data, self.held, candidate.seed)


def train(
    data: Trajectories,
    held: NDArray[np.bool_],
    settings: ModelSettings,
    updates: int,
    after_update: Callable[[int], None] | None = None,
    device: torch.device | None = None,
) -> Ensemble:
    """Return an ensemble trained on the episodes that are not held out (E,)."""
    step = np.flatnonzero(~held[data.episode])
    ensemble = Ensemble(data.policies.spec, Scales.of(data, step), settings).to(device)
    fit = start_training(ensemble, updates)
    advance(
        fit,
        Steps.of(data, ensemble.scales, step, device),
        updates,
        None if after_update is None else lambda fit: after_update(fit.updates),
    )
    return ensemble
