"""Rounds of ascent and imagination as records: what decides them and what they came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta

from pbvf_offline.critics import CRITICS
from pbvf_offline.errors import UsageError
from pbvf_offline.presets.offline import critic_sources, default_gamma
from pbvf_offline.records import Defaults, Record, setting, since
from pbvf_offline.setting_types import (
    MAX_HORIZON,
    MAX_PROBES,
    MAX_UPDATES,
    CriticHidden,
    Gamma,
    Seed,
    Width,
)

IMAGINED: Final = "Imagined returns"


@dataclass(frozen=True)
class RoundSettings(Record):
    """Everything that decides the rounds, apart from the data and the learned environment.

    Attributes:
        seed: Seed of all random numbers.
        rounds: Rounds of the try that is gone on with.
        tries: Tries with weights and policies of their own; the one that comes out best
            in imagination is gone on with.
        first_rounds: Rounds of each try before that choice.
        fresh: Random policies that climb in a round. A quarter of them, those that the
            critic likes best, are played, with as many points of their ways and twice as
            many neighbours.
        leaders: Policies with the highest cautious returns so far, the dataset's among them,
            of which a neighbour is played in each round too: those of the architecture that
            climbs. One outside the trust region has its neighbour inside, where that is a
            ball in theta.
        known: Dataset policies that are played before the first round, at most.
        starts: Start states that each policy is played from.
        steps: Gradient steps of each climb.
        lr: Learning rate of each climb.
        radius: Radius of the trust region, as in synthesis.
        updates: Gradient steps of the critic in a round.
        hidden: Sizes of the critic's hidden layers.
        caution: How many population standard deviations of the members' returns (divided by
            their number, not by one less) are taken off.
        kind: Which critic, by its name in :data:`pbvf_offline.critics.CRITICS`.
        gamma: Discount factor of its values; 1 of a Monte Carlo critic.
        n_step: Longest n-step target of a TD critic.
        fingerprint: Number of probing states by which it reads a policy; 0: it reads theta.
        policy: Sizes of the hidden layers of the policies that climb; None: those of the
            dataset's policies.
        compare: Gradient steps of the default recipe, which the result is held against; 0: it
            is held against nothing.

    Raises:
        UsageError: A value is out of range.
    """

    seed: Seed
    rounds: Annotated[
        int,
        setting("Rounds of ascent and imagination.", ge=1, le=10_000, default="30", panel=IMAGINED),
    ] = 30
    tries: Annotated[
        int,
        setting(
            "Tries of 8 rounds, of which the best goes on.",
            ge=1,
            le=100,
            default="1",
            panel=IMAGINED,
        ),
    ] = 1
    first_rounds: Annotated[int, setting("Rounds of each try before the choice.", ge=1)] = 8
    fresh: Annotated[int, setting("Fresh policies of a round.", ge=4, le=10_000)] = 32
    known: Annotated[int, setting("Dataset policies played at first.", ge=0, le=100_000)] = 500
    starts: Annotated[int, setting("Start states of a policy.", ge=1, le=1_000)] = 4
    steps: Annotated[int, setting("Gradient steps of a climb.", ge=1)] = 100
    lr: Annotated[float, setting("Learning rate of a climb.", gt=0)] = 0.05
    leaders: Annotated[
        int,
        setting(
            "Best policies so far, the data's among them, near which others are imagined in each "
            "round.",
            ge=0,
            le=10_000,
            default="0",
            panel=IMAGINED,
            since=2,
        ),
    ] = 0
    radius: Annotated[
        float,
        setting(
            "Size of the trust region of its climbs; 1 holds 95 % of the data's policies.",
            gt=0,
            metavar="R",
            default="1",
            panel=IMAGINED,
        ),
    ] = 1.0
    updates: Annotated[int, setting("The critic's gradient steps in a round.", ge=1)] = 400
    hidden: CriticHidden = (256, 256)
    caution: Annotated[
        float,
        setting(
            "Standard deviations of the networks' returns that are taken off.",
            ge=0,
            le=100,
            metavar="C",
            default="1",
            panel=IMAGINED,
        ),
    ] = 1.0
    kind: Annotated[str, setting("Which critic.", choices=CRITICS, since=2)] = "pssvf"
    gamma: Annotated[Gamma, since(2)] = 1.0
    n_step: Annotated[int, setting("Longest n-step target.", ge=1, since=2)] = 1
    fingerprint: Annotated[
        int, setting("Probing states by which it reads policies.", ge=0, le=MAX_PROBES, since=2)
    ] = 0
    policy: (
        Annotated[
            tuple[Width, ...],
            setting(
                "Architecture of the policies that climb: linear, or sizes such as 64,64. Another "
                "one than the data's needs --fingerprint.",
                max_length=16,
                metavar="ARCH",
                default="that of the dataset's policies",
                blank="linear",
                panel=IMAGINED,
                since=2,
            ),
        ]
        | None
    ) = None
    compare: Annotated[
        int,
        setting(
            "Gradient steps of the default recipe, whose critic stands where it is the better one; "
            "0: no comparison.",
            ge=0,
            le=MAX_UPDATES,
            metavar="N",
            default="3000",
            panel=IMAGINED,
            since=2,
        ),
    ] = 0


def round_defaults(kind: str, env_id: str | None) -> Defaults[RoundSettings]:
    """Return this project's defaults for a critic of imagined episodes, and their origins.

    Args:
        kind: Which critic.
        env_id: The environment's id, for the paper's discount factor there.
    """
    known = CRITICS[kind]
    settings = RoundSettings(
        seed=0,
        kind=kind,
        gamma=1.0 if known.monte_carlo else default_gamma(kind, env_id),
        n_step=1 if known.monte_carlo else known.offline.n_step,
        compare=known.offline.updates,
    )
    sources = critic_sources(kind, env_id)
    return Defaults(settings, {name: sources[name] for name in ("gamma",) if name in sources})


@dataclass(frozen=True)
class Round(Record):
    """What one round came to, over the policies that climbed and were played.

    Attributes:
        attempt: Which try, from 0.
        number: Which round of it, from 1.
        believed: Mean of what the critic said of them: its objective, in its own unit.
        cautious: Mean of their cautious imagined returns.
        mean: Mean of their imagined returns.
        highest: Highest cautious value of any policy so far.
    """

    attempt: int
    number: int
    believed: float
    cautious: float
    mean: float
    highest: float


@dataclass(frozen=True)
class Comparison(Record):
    """A critic of imagined episodes held against the default recipe's.

    Attributes:
        imagined: Mean cautious imagined return of policies grown from the former.
        recipe: The same of policies grown from the latter.
        kind: The latter's kind.
    """

    imagined: float
    recipe: float
    kind: str

    @property
    def imagined_stands(self) -> bool:
        """Whether the critic of imagined episodes is at least as good."""
        return self.imagined >= self.recipe


@dataclass(frozen=True)
class ImaginedFit(Record):
    """How a critic was fitted to imagined returns, also where the default recipe's stands.

    Attributes:
        model: Digest of the model file.
        horizon: Time limit of an imagined episode.
        settings: What decided the rounds.
        kept: The round whose critic was kept: the one that its own fresh policies came out
            best of.
        rounds: All rounds of all tries, in order.
        comparison: What came of holding it against the default recipe, if it was.
        unfit: Whether the model's own check said that it is unfit for whole episodes, so that it
            was used by force.

    Raises:
        UsageError: The horizon is out of range, or the round that was kept is none of the rounds.
    """

    model: str
    horizon: Annotated[int, Meta(ge=1, le=MAX_HORIZON)]
    settings: RoundSettings
    kept: Round
    rounds: tuple[Round, ...]
    comparison: Annotated[Comparison | None, since(2)] = None
    unfit: Annotated[bool, since(2)] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kept not in self.rounds:
            raise UsageError("the round that was kept is none of its rounds", where="kept")

    @property
    def stands(self) -> bool:
        """Whether the critic beside this record is that of imagined episodes."""
        return self.comparison is None or self.comparison.imagined_stands
