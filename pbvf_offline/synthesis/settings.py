"""What decides a synthesis and how it is measured, and the defaults. Imports no array library."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import UsageError
from pbvf_offline.policies.families import FAMILIES
from pbvf_offline.presets.offline import SYNTHESIS, env_preset, env_source
from pbvf_offline.records import Defaults, Record, setting
from pbvf_offline.setting_types import MOST, Climbing, Seed, Width

if TYPE_CHECKING:
    from pbvf_offline.policies.spec import PolicySpec

_MOST_STARTS = 100_000
_OF_THE_DATA = "that of the dataset's policies"


@dataclass(frozen=True)
class SynthesisSettings(Record):
    """Everything that decides a synthesis, apart from the critic and the states.

    Attributes:
        count: Number K of policies.
        steps: Gradient steps.
        lr: Learning rate of Adam on theta.
        seed: Seed of initial weights and of the states drawn.
        trust_region: Stay where the critic is trustworthy; False is the paper's plain ascent.
        radius: Radius of the trust region, in units of the 95 % quantile of the dataset
            policies' own distances.
        states: Number of stored states the objective averages over.
        restarts: Random starts for each policy; the critic keeps the best of them halfway.
            Plain ascent has one.
        candidates: Of how many parts of the restarts the best goes on to the end; a learned
            environment then keeps one for each policy.
        hidden: Sizes of the policies' hidden layers; None: those of the dataset's policies.
        family: The policies' family; None: that of the dataset's policies.
        precision: In which numbers the critic multiplies between its hidden layers.

    Raises:
        UsageError: A value is out of range.
    """

    count: Annotated[
        int,
        setting(
            "Number of policies.",
            paper="sections 4.3 and 4.4, 5 new policies",
            ge=1,
            le=_MOST_STARTS,
            option="--from-scratch",
            metavar="K",
            default="5",
        ),
    ]
    steps: Annotated[int, setting("Gradient steps.", ge=0, le=MOST, default="200")]
    lr: Annotated[
        float,
        setting(
            "Learning rate of the policies' parameters. Where the critic reads actions, that of "
            "linear policies; others have less, the more parameters they have.",
            paper="appendix: 0.02 in the main Swimmer figures, 0.05 in the additional ones",
            gt=0,
            metavar="LR",
            default="0.05; Swimmer 0.02",
        ),
    ]
    seed: Seed
    trust_region: Annotated[
        bool,
        setting(
            "Stay near the dataset's policies, where the critic can be trusted.",
            option="--trust-region/--no-trust-region",
            default="trust-region",
        ),
    ] = True
    radius: Annotated[
        float,
        setting(
            "Size of the trust region: 1 holds 95 % of the dataset's policies.",
            gt=0,
            metavar="R",
            default="1",
        ),
    ] = 1.0
    states: Annotated[
        int,
        setting("Stored states that the objective averages over.", ge=1, le=MOST, default="1000"),
    ] = 1_000
    restarts: Annotated[
        int,
        setting(
            "Random starts for each policy; the critic keeps one of them halfway.",
            ge=1,
            le=_MOST_STARTS,
            metavar="R",
            default="32; plain ascent 1",
        ),
    ] = 1
    candidates: Annotated[
        int,
        setting(
            "Climbs to the end for each policy, from equal parts of its restarts; the one with the "
            "best cautious return in --model is kept.",
            ge=1,
            le=_MOST_STARTS,
            metavar="N",
            default="32 with --model; else 1",
            since=2,
        ),
    ] = 1
    hidden: (
        Annotated[
            tuple[Width, ...],
            setting(
                "The policies' architecture: linear, or sizes such as 64,64. Another one than the "
                "data's needs a critic that was fitted with --fingerprint.",
                max_length=16,
                option="--policy",
                metavar="ARCH",
                default=f"{_OF_THE_DATA}, or of the critic's rounds",
                blank="linear",
                since=2,
            ),
        ]
        | None
    ) = None
    family: (
        Annotated[
            str,
            setting("The policies' network.", choices=FAMILIES, default=_OF_THE_DATA, since=2),
        ]
        | None
    ) = None

    precision: Climbing = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count * self.restarts > _MOST_STARTS:
            raise UsageError(
                f"{self.restarts} restarts of {self.count} policies are not 1 … 100,000 starts",
                where="--restarts",
                remedy=f"give at most {max(1, _MOST_STARTS // self.count)}",
            )
        if self.restarts > 1 and not self.trust_region:
            raise UsageError(
                "plain ascent has one start a policy",
                where="--restarts",
                remedy="leave it out, or keep the trust region",
            )
        if self.restarts % self.candidates:
            raise UsageError(
                f"{self.restarts} restarts make no {self.candidates} equal parts",
                where="--candidates",
                remedy="give a number that divides --restarts",
            )

    def spec_like(self, spec: PolicySpec) -> PolicySpec:
        """Return the spec of the policies, with the observations and actions of a dataset's."""
        hidden = spec.hidden if self.hidden is None else self.hidden
        return dataclasses.replace(spec, hidden=hidden, family=self.family or spec.family)


def synthesis_defaults(
    env_id: str | None,
    *,
    count: int = 5,
    seed: int = 0,
    trust_region: bool = True,
    restarts: int | None = None,
    judged: bool = False,
) -> Defaults[SynthesisSettings]:
    """Return this project's defaults for growing policies, and where each value comes from.

    Args:
        env_id: The environment's id, for the paper's learning rate there.
        count: Number of policies.
        seed: Seed of initial weights and of the states drawn.
        trust_region: Whether the policies stay in the trust region.
        restarts: Random starts of each policy, where they are given.
        judged: Whether a learned environment chooses among candidates.
    """
    starts = (SYNTHESIS.restarts if trust_region else 1) if restarts is None else restarts
    settings = SynthesisSettings(
        count=count,
        steps=SYNTHESIS.steps,
        lr=env_preset(env_id).synthesis_lr,
        seed=seed,
        trust_region=trust_region,
        radius=SYNTHESIS.radius,
        states=SYNTHESIS.states,
        restarts=starts,
        candidates=math.gcd(SYNTHESIS.candidates, starts) if judged else 1,
    )
    of_data = dict.fromkeys(("hidden", "family"), _OF_THE_DATA)
    return Defaults(settings, {"lr": env_source("synthesis_lr", env_id), **of_data})


def default_synthesis_settings(
    env_id: str | None, *, count: int, seed: int, trust_region: bool = True, judged: bool = False
) -> SynthesisSettings:
    """Return the settings of :func:`synthesis_defaults`."""
    return synthesis_defaults(
        env_id, count=count, seed=seed, trust_region=trust_region, judged=judged
    ).settings


@dataclass(frozen=True)
class EvaluationSettings(Record):
    """How synthesized policies are measured.

    Attributes:
        env: The environment.
        episodes: Test episodes a policy (the paper's protocol: 5).
        every: Measure every so many gradient steps (the paper's protocol: 5).
        seed: Seed of resets; every policy meets the same ones.
        max_steps: Step limit where the environment has none.

    Raises:
        UsageError: A value is out of range.
    """

    env: EnvConfig
    episodes: Annotated[
        int,
        setting(
            "Test episodes of each policy.",
            ge=1,
            le=MOST,
            paper="appendix, offline experiments: 5 test trajectories",
            default="5",
        ),
    ]
    every: Annotated[
        int,
        setting(
            "Gradient steps between measurements.",
            paper="appendix, offline experiments: every 5 gradient steps",
            ge=1,
            le=MOST,
            option="--evaluate-every",
            default="5",
        ),
    ]
    seed: int
    max_steps: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return what decides the measurement, in JSON form."""
        return {
            "env": self.env.reference().to_dict(),
            "episodes": self.episodes,
            "every": self.every,
            "seed": self.seed,
            "max_steps": self.max_steps,
        }


def evaluation_defaults(env: EnvConfig, *, seed: int) -> Defaults[EvaluationSettings]:
    """Return the paper's protocol: 5 test episodes every 5 gradient steps."""
    settings = EvaluationSettings(env, episodes=5, every=5, seed=seed)
    return Defaults(settings, dict.fromkeys(("episodes", "every"), "the paper's protocol"))
