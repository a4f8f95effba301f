"""What decides a fit, and the defaults. Imports no array library."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pbvf_offline.critics import CRITICS
from pbvf_offline.errors import UsageError
from pbvf_offline.fit.augment import AUGMENTATIONS, RELABEL
from pbvf_offline.presets.offline import critic_sources, default_gamma, default_reward
from pbvf_offline.records import Defaults, Record, setting
from pbvf_offline.setting_types import (
    BATCH,
    MAX_PROBES,
    Activation,
    CriticHidden,
    Gamma,
    Reward,
    Seed,
)

if TYPE_CHECKING:
    from pbvf_offline.policies.spec import PolicySpec

_BEYOND = "Beyond the paper (its critic: --n-step 1 --relabel 0 --no-bound-values --no-standardise \
--average 0)"


@dataclass(frozen=True)
class FitSettings(Record):
    """Everything that decides a fit, apart from the data.

    Attributes:
        kind: Which critic, by its name in :data:`pbvf_offline.critics.CRITICS`.
        hidden: Sizes of its hidden layers.
        gamma: Discount factor.
        lr: Learning rate of Adam.
        batch_size: Entries that a gradient step draws, uniformly with replacement.
        n_step: Longest n-step target of a TD critic.
        reward: Which reward to add up.
        validation: Fraction of policies held out.
        seed: Seed of initial weights, batches and hold-out.
        activation: ``relu`` or ``tanh``.
        relabel: Strength of the augmentation: for relabelling the tolerated change of action;
            0: none.
        augment: The augmentation, by its name in
            :data:`pbvf_offline.fit.augment.AUGMENTATIONS`.
        bound_values: Keep bootstrapped values within what the data suggest.
        standardise: Show thetas to the network standardised over the dataset.
        average: Decay of the running average of weights that becomes the critic; 0: the
            last weights do.

    Raises:
        UsageError: A value is out of range.
    """

    kind: str
    hidden: CriticHidden
    gamma: Gamma
    lr: Annotated[float, setting("Learning rate.", gt=0, metavar="LR", default="0.001")]
    batch_size: Annotated[
        int,
        setting(
            "Entries that a gradient step draws.",
            symbol="|B₁|",
            paper=BATCH,
            ge=1,
            le=1_000_000,
            metavar="N",
            default="128; pssvf 16",
        ),
    ]
    n_step: Annotated[
        int,
        setting(
            "Longest n-step target; never beyond one policy's segment.",
            ge=1,
            metavar="N",
            default="200; pssvf has none",
        ),
    ]
    reward: Reward
    validation: Annotated[
        float,
        setting(
            "Share of the policies held out of the fit, to check the critic's ranking.",
            ge=0,
            lt=1,
            option="--validation-policies",
            metavar="FRACTION",
            default="0",
        ),
    ]
    seed: Seed
    activation: Activation = "relu"
    relabel: Annotated[
        float,
        setting(
            "Learn from parameters drawn anew that change a policy's actions by about TAU "
            "(1: half the action range), not from those that acted; 0: from those that acted.",
            ge=0,
            le=1000,
            metavar="TAU",
            default="0.3 where policies are deterministic and continuous",
            panel=_BEYOND,
        ),
    ] = 0.0
    bound_values: Annotated[
        bool,
        setting(
            "Keep bootstrapped values within what the best and worst segments suggest.",
            option="--bound-values/--no-bound-values",
            default="bounded; pssvf bootstraps nothing",
            panel=_BEYOND,
        ),
    ] = False
    standardise: Annotated[
        bool,
        setting(
            "Show the network parameters standardised over the dataset.",
            option="--standardise/--no-standardise",
            default="standardised",
            panel=_BEYOND,
        ),
    ] = False
    average: Annotated[
        float,
        setting(
            "Decay of the running average of weights that becomes the critic; 0: the last weights.",
            ge=0,
            lt=1,
            metavar="DECAY",
            default="0.998",
            panel=_BEYOND,
        ),
    ] = 0.0
    augment: Annotated[
        str,
        setting(
            "How parameters are drawn anew; TAU is the strength.",
            choices=AUGMENTATIONS,
            metavar="NAME",
            default=RELABEL,
            panel=_BEYOND,
            since=2,
        ),
    ] = RELABEL
    fingerprint: Annotated[
        int,
        setting(
            "Read policies by their actions in N probing states, not by their parameters; 0: by "
            "their parameters.",
            ge=0,
            le=MAX_PROBES,
            metavar="N",
            default="0",
            panel=_BEYOND,
            since=2,
        ),
    ] = 0

    def __post_init__(self) -> None:
        """Check every field, and that an augmentation asked for has a strength."""
        super().__post_init__()
        if self.augment != RELABEL and self.relabel == 0:
            raise UsageError(
                f"{self.augment} of strength 0 changes nothing",
                where="--augment",
                remedy="give its strength with --relabel",
            )


def fit_defaults(
    kind: str,
    env_id: str | None,
    spec: PolicySpec,
    *,
    seed: int = 0,
    survival_bonus: bool = True,
) -> Defaults[FitSettings]:
    """Return this project's default recipe for a critic, and where each value comes from.

    Args:
        kind: Which critic.
        env_id: The environment's id, for the paper's discount and reward there.
        spec: The policies' architecture; relabelling is left out where it cannot be done.
        seed: Seed of initial weights, batches and hold-out.
        survival_bonus: Whether the data say which part of a reward is a survival bonus.
            Without, the default reward is the raw one.
    """
    from pbvf_offline.fit.augment.relabel import can_relabel

    preset = CRITICS[kind].offline
    sources = critic_sources(kind, env_id)
    reward = default_reward(kind, env_id)
    if reward != "raw" and not survival_bonus:
        reward = "raw"
        sources["reward"] = "the dataset reports no survival bonus"
    settings = FitSettings(
        kind=kind,
        hidden=preset.hidden,
        gamma=default_gamma(kind, env_id),
        lr=preset.lr,
        batch_size=preset.batch_size,
        n_step=preset.n_step,
        reward=reward,
        validation=0.0,
        seed=seed,
        relabel=preset.relabel if can_relabel(spec) else 0.0,
        bound_values=preset.bound_values,
        standardise=preset.standardise,
        average=preset.average,
    )
    return Defaults(settings, {**sources, "relabel": "default for such policies"})


def default_fit_settings(
    kind: str, env_id: str | None, spec: PolicySpec, *, seed: int, validation: float = 0.0
) -> FitSettings:
    """Return the settings of :func:`fit_defaults`.

    Args:
        kind: Which critic.
        env_id: The environment's id, for the paper's discount and reward there.
        spec: The policies' architecture.
        seed: Seed of initial weights, batches and hold-out.
        validation: Fraction of policies held out.
    """
    settings = fit_defaults(kind, env_id, spec, seed=seed).settings
    return dataclasses.replace(settings, validation=validation)


def paper_fit_settings(settings: FitSettings) -> FitSettings:
    """Return the paper's critic with otherwise the same settings: one-step TD, nothing added."""
    return dataclasses.replace(
        settings,
        n_step=1,
        augment=RELABEL,
        relabel=0.0,
        bound_values=False,
        standardise=False,
        average=0.0,
        fingerprint=0,
    )
