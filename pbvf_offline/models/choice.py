"""Which noise and which features suit an environment: short trainings and the held-out check.

Noise on the inputs teaches networks to come back to the data. Where the environment is
damped that keeps imagined episodes sound; where it is unstable it makes it stable in
imagination only. Sine and cosine of raw observations help where one is an angle that
winds, and are noise where observations are large. The one-step error tells neither.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.models.check import ModelCheck, check_model
from pbvf_offline.models.ensemble import Ensemble, Steps
from pbvf_offline.models.scales import Scales
from pbvf_offline.models.settings import ModelSettings
from pbvf_offline.models.training import advance, start_training
from pbvf_offline.records import Record
from pbvf_offline.rollout.episodes import Trajectories

NOISES = (0.03, 0.0, 0.15)  # the first is the one at which features are compared


@dataclass(frozen=True)
class Trial(Record):
    """One short training and what its check said.

    Attributes:
        noise: Noise on the inputs.
        angles: Whether sine and cosine were shown.
        check: The held-out check; a smaller score is better.
    """

    noise: float
    angles: bool
    check: ModelCheck


def choose_settings(
    data: Trajectories,
    held: NDArray[np.bool_],
    settings: ModelSettings,
    *,
    noises: Sequence[float] = NOISES,
    angles: Sequence[bool] = (False, True),
    updates: int,
    members: int = 2,
    note: Callable[[Trial], None] | None = None,
) -> tuple[ModelSettings, tuple[Trial, ...]]:
    """Return the settings with the noise and the features whose check comes out best.

    Features are compared first, at the first noise, and then the noises with the better
    ones. Where there is nothing to choose nothing is trained.

    Args:
        data: The dataset.
        held: (E,) episodes that are checked and not learned from.
        settings: What else decides the ensemble.
        noises: The noises to choose from.
        angles: Whether to show sine and cosine: one or both answers.
        updates: Updates of each short training.
        members: Networks of each short training.
        note: Called after each of them.
    """
    trials: list[Trial] = []

    def score(noise: float, shown: bool) -> float:
        for trial in trials:
            if (trial.noise, trial.angles) == (noise, shown):
                return trial.check.score
        short = dataclasses.replace(settings, noise=noise, angles=shown, members=members)
        ensemble = train(data, held, short, updates)
        trials.append(Trial(noise, shown, check_model(ensemble, data, held, settings.seed)))
        if note is not None:
            note(trials[-1])
        return trials[-1].check.score

    shown, noise = angles[0], noises[0]
    if len(angles) > 1:
        shown = min(angles, key=lambda value: score(noises[0], value))
    if len(noises) > 1:
        noise = min(noises, key=lambda value: score(value, shown))
    return dataclasses.replace(settings, noise=noise, angles=shown), tuple(trials)


def train(
    data: Trajectories,
    held: NDArray[np.bool_],
    settings: ModelSettings,
    updates: int,
    after_update: Callable[[int], None] | None = None,
) -> Ensemble:
    """Return an ensemble trained on the episodes that are not held out (E,)."""
    step = np.flatnonzero(~held[data.episode])
    ensemble = Ensemble(data.policies.spec, Scales.of(data, step), settings)
    fit = start_training(ensemble, updates)
    advance(
        fit,
        Steps.of(data, ensemble.scales, step),
        updates,
        None if after_update is None else lambda fit: after_update(fit.updates),
    )
    return ensemble
