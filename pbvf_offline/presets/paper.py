"""The hyperparameters of the paper's online experiments, laid out as its tables are.

Source: Faccio, Kirsch and Schmidhuber (ICLR 2021), "Implementation details" and "Table of best
hyperparameters". Rows are environment families (ids without version): the paper's v2 and v3
are today's v5, see ``TODAY``. Discount factors and Hopper's survival bonus are in
:mod:`pbvf_offline.presets.offline`, which also holds the defaults of the offline setting.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pbvf_offline.critics import OnlinePreset
from pbvf_offline.errors import UsageError

TODAY: dict[str, str] = {
    "Acrobot": "Acrobot-v1",
    "MountainCarContinuous": "MountainCarContinuous-v0",
    "CartPole": "CartPole-v1",
    "Swimmer": "Swimmer-v5",
    "InvertedPendulum": "InvertedPendulum-v5",
    "Reacher": "Reacher-v5",
    "Hopper": "Hopper-v5",
}


@dataclass(frozen=True)
class PaperChoice:
    """What the paper chose for a PBVF.

    Attributes:
        lr_policy: Adam's learning rate of the policy.
        lr_critic: Adam's learning rate of the critic.
        sigma: Standard deviation of the parameter noise.
    """

    lr_policy: float
    lr_critic: float
    sigma: float


@dataclass(frozen=True)
class ArsChoice:
    """What the paper chose for ARS.

    Attributes:
        lr: Step size.
        directions: Directions tried in an update.
        elite: Best directions, which the update uses.
        noise: Standard deviation of the parameter noise.
    """

    lr: float
    directions: int
    elite: int
    noise: float


@dataclass(frozen=True)
class DdpgChoice:
    """What the paper chose for DDPG.

    Attributes:
        lr_policy: Adam's learning rate of the policy.
        lr_critic: Adam's learning rate of the critic.
        noise: Standard deviation of the action noise.
    """

    lr_policy: float
    lr_critic: float
    noise: float


@dataclass(frozen=True)
class Grid:
    """The values that the paper tuned over; empty where the algorithm has no such choice.

    Attributes:
        lr_policy: Learning rates of the policy.
        lr_critic: Learning rates of the critic.
        sigma: Noise with deterministic policies (of actions for DDPG, else of parameters).
        stochastic_sigma: Parameter noise with stochastic policies.
        directions: Directions and elite directions.
    """

    lr_policy: tuple[float, ...]
    lr_critic: tuple[float, ...]
    sigma: tuple[float, ...]
    stochastic_sigma: tuple[float, ...] = ()
    directions: tuple[tuple[int, int], ...] = ()


PBVFS = ("pssvf", "psvf", "pavf")
"""The kinds of critics that the paper has; what each uses everywhere is in its preset."""
BUFFER_SIZE = 100_000

DDPG = OnlinePreset((256, 256), 128, 50, critic_updates=50, actor_updates=50)
DDPG_POLYAK = 0.995
DDPG_STARTING_FRACTION = 0.01
"""Share of a run's steps that act at random and train nothing."""

_RATES = (1e-2, 1e-3, 1e-4)
GRIDS: dict[str, Grid] = {
    "pssvf": Grid(_RATES, _RATES, (1.0, 1e-1), stochastic_sigma=(1.0, 1e-1, 0.0)),
    "psvf": Grid(_RATES, _RATES, (1.0, 1e-1), stochastic_sigma=(1.0, 1e-1, 0.0)),
    "pavf": Grid(_RATES, _RATES, (1.0, 1e-1)),
    "ars": Grid(
        _RATES,
        (),
        (1.0, 1e-1, 1e-2, 1e-3),
        directions=((1, 1), (4, 1), (4, 4), (16, 1), (16, 4), (16, 16)),
    ),
    "ddpg": Grid(_RATES, _RATES, (1e-1, 1e-2)),
}

_LONG = ("Swimmer", "Hopper")

# Algorithm, hidden sizes of the policy, and the metric that the values are best for.
_Column = tuple[str, tuple[int, ...], str]
_Rows = dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class _Table:
    """A table of the paper: blocks of one row an environment, one value a column."""

    columns: tuple[_Column, ...]
    lr_policy: _Rows
    sigma: _Rows
    lr_critic: _Rows = field(default_factory=dict)
    directions: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    stochastic: bool = False
    biased: bool = False


def _six(algorithm: str) -> tuple[_Column, ...]:
    return tuple((algorithm, h, m) for h in ((), (32,), (64, 64)) for m in ("avg", "last"))


# fmt: off
_TABLES = (
    _Table(
        _six("pssvf"),
        # Policy:                  []            [32]          [64,64]
        # Metric:                  avg   last    avg   last    avg   last
        lr_policy={
            "Acrobot":               (1e-2, 1e-3,   1e-4, 1e-4,   1e-4, 1e-4),
            "MountainCarContinuous": (1e-2, 1e-3,   1e-4, 1e-4,   1e-4, 1e-4),
            "CartPole":              (1e-3, 1e-3,   1e-3, 1e-3,   1e-4, 1e-4),
            "Swimmer":               (1e-3, 1e-3,   1e-3, 1e-3,   1e-2, 1e-4),
            "InvertedPendulum":      (1e-3, 1e-3,   1e-3, 1e-3,   1e-4, 1e-4),
            "Reacher":               (1e-4, 1e-4,   1e-4, 1e-4,   1e-4, 1e-4),
            "Hopper":                (1e-4, 1e-4,   1e-4, 1e-3,   1e-4, 1e-4),
        },
        lr_critic={
            "Acrobot":               (1e-2, 1e-3,   1e-2, 1e-2,   1e-2, 1e-2),
            "MountainCarContinuous": (1e-3, 1e-2,   1e-3, 1e-2,   1e-2, 1e-2),
            "CartPole":              (1e-2, 1e-2,   1e-3, 1e-3,   1e-2, 1e-2),
            "Swimmer":               (1e-3, 1e-3,   1e-2, 1e-2,   1e-3, 1e-2),
            "InvertedPendulum":      (1e-2, 1e-2,   1e-3, 1e-2,   1e-3, 1e-3),
            "Reacher":               (1e-3, 1e-3,   1e-3, 1e-3,   1e-4, 1e-4),
            "Hopper":                (1e-3, 1e-3,   1e-2, 1e-2,   1e-2, 1e-2),
        },
        sigma={
            "Acrobot":               (1.0,  1.0,    1e-1, 1e-1,   1e-1, 1e-1),
            "MountainCarContinuous": (1.0,  1.0,    1e-1, 1e-1,   1e-1, 1e-1),
            "CartPole":              (1.0,  1.0,    1.0,  1.0,    1e-1, 1e-1),
            "Swimmer":               (1.0,  1.0,    1.0,  1.0,    1.0,  1e-1),
            "InvertedPendulum":      (1.0,  1.0,    1.0,  1.0,    1e-1, 1e-1),
            "Reacher":               (1e-1, 1e-1,   1e-1, 1e-1,   1e-1, 1e-1),
            "Hopper":                (1.0,  1.0,    1e-1, 1.0,    1e-1, 1e-1),
        },
    ),
    _Table(
        _six("ars"),
        lr_policy={
            "Acrobot":               (1e-2, 1e-3,   1e-2, 1e-2,   1e-2, 1e-2),
            "MountainCarContinuous": (1e-2, 1e-2,   1e-2, 1e-2,   1e-2, 1e-2),
            "CartPole":              (1e-2, 1e-2,   1e-2, 1e-2,   1e-2, 1e-2),
            "Swimmer":               (1e-2, 1e-2,   1e-2, 1e-2,   1e-2, 1e-2),
            "InvertedPendulum":      (1e-2, 1e-2,   1e-2, 1e-2,   1e-2, 1e-2),
            "Reacher":               (1e-2, 1e-2,   1e-3, 1e-2,   1e-3, 1e-3),
            "Hopper":                (1e-2, 1e-2,   1e-2, 1e-2,   1e-2, 1e-2),
        },
        directions={
            "Acrobot":               ((4, 4), (4, 4),     (1, 1), (1, 1),    (1, 1), (1, 1)),
            "MountainCarContinuous": ((1, 1), (1, 1),     (1, 1), (16, 4),   (1, 1), (1, 1)),
            "CartPole":              ((4, 4), (4, 4),     (1, 1), (1, 1),    (4, 1), (4, 1)),
            "Swimmer":               ((1, 1), (1, 1),     (1, 1), (4, 1),    (1, 1), (1, 1)),
            "InvertedPendulum":      ((4, 4), (4, 4),     (1, 1), (4, 4),    (4, 1), (16, 1)),
            "Reacher":               ((16, 16), (16, 16), (1, 1), (16, 4),   (1, 1), (1, 1)),
            "Hopper":                ((4, 1), (4, 1),     (1, 1), (1, 1),    (1, 1), (1, 1)),
        },
        sigma={
            "Acrobot":               (1e-2, 1e-3,   1e-1, 1e-1,   1e-1, 1e-1),
            "MountainCarContinuous": (1e-1, 1e-1,   1e-1, 1e-1,   1e-1, 1e-1),
            "CartPole":              (1e-2, 1e-2,   1e-1, 1e-1,   1e-2, 1e-2),
            "Swimmer":               (1e-1, 1e-1,   1e-2, 1e-1,   1e-1, 1e-1),
            "InvertedPendulum":      (1e-2, 1e-2,   1e-2, 1e-2,   1e-2, 1e-2),
            "Reacher":               (1e-2, 1e-2,   1e-2, 1e-2,   1e-2, 1e-2),
            "Hopper":                (1e-1, 1e-1,   1e-1, 1e-1,   1e-1, 1e-1),
        },
    ),
    _Table(
        _six("psvf"),
        lr_policy={
            "Acrobot":               (1e-2, 1e-2,   1e-4, 1e-4,   1e-4, 1e-2),
            "MountainCarContinuous": (1e-2, 1e-3,   1e-2, 1e-4,   1e-3, 1e-4),
            "CartPole":              (1e-2, 1e-2,   1e-2, 1e-4,   1e-3, 1e-4),
            "Swimmer":               (1e-3, 1e-3,   1e-3, 1e-3,   1e-3, 1e-3),
            "InvertedPendulum":      (1e-2, 1e-3,   1e-4, 1e-4,   1e-4, 1e-4),
            "Reacher":               (1e-3, 1e-2,   1e-4, 1e-4,   1e-4, 1e-4),
            "Hopper":                (1e-3, 1e-3,   1e-4, 1e-4,   1e-4, 1e-3),
        },
        lr_critic={
            "Acrobot":               (1e-3, 1e-4,   1e-2, 1e-2,   1e-3, 1e-2),
            "MountainCarContinuous": (1e-4, 1e-3,   1e-2, 1e-4,   1e-3, 1e-3),
            "CartPole":              (1e-2, 1e-2,   1e-2, 1e-3,   1e-2, 1e-4),
            "Swimmer":               (1e-4, 1e-4,   1e-4, 1e-4,   1e-4, 1e-4),
            "InvertedPendulum":      (1e-3, 1e-2,   1e-3, 1e-4,   1e-4, 1e-3),
            "Reacher":               (1e-2, 1e-2,   1e-3, 1e-3,   1e-4, 1e-4),
            "Hopper":                (1e-2, 1e-2,   1e-4, 1e-4,   1e-2, 1e-4),
        },
        sigma={
            "Acrobot":               (1.0,  1.0,    1e-1, 1e-1,   1e-1, 1e-1),
            "MountainCarContinuous": (1.0,  1e-1,   1e-1, 1.0,    1e-1, 1e-1),
            "CartPole":              (1.0,  1.0,    1.0,  1e-1,   1e-1, 1e-1),
            "Swimmer":               (1.0,  1.0,    1.0,  1.0,    1.0,  1.0),
            "InvertedPendulum":      (1.0,  1.0,    1e-1, 1e-1,   1e-1, 1e-1),
            "Reacher":               (1.0,  1.0,    1.0,  1.0,    1e-1, 1e-1),
            "Hopper":                (1.0,  1.0,    1e-1, 1e-1,   1e-1, 1.0),
        },
    ),
    _Table(
        # Algorithm:               PSSVF         PSVF
        # Policy:                  []    [64,64] []    [64,64]
        tuple((algorithm, h, "avg") for algorithm in ("pssvf", "psvf") for h in ((), (64, 64))),
        stochastic=True,
        lr_policy={
            "Acrobot":               (1e-2, 1e-2,   1e-2, 1e-3),
            "MountainCarContinuous": (1e-2, 1e-3,   1e-2, 1e-3),
            "CartPole":              (1e-3, 1e-4,   1e-2, 1e-3),
            "Swimmer":               (1e-2, 1e-4,   1e-3, 1e-4),
            "InvertedPendulum":      (1e-3, 1e-4,   1e-2, 1e-3),
            "Reacher":               (1e-4, 1e-3,   1e-2, 1e-2),
            "Hopper":                (1e-4, 1e-4,   1e-3, 1e-4),
        },
        lr_critic={
            "Acrobot":               (1e-2, 1e-4,   1e-4, 1e-2),
            "MountainCarContinuous": (1e-2, 1e-2,   1e-3, 1e-3),
            "CartPole":              (1e-2, 1e-3,   1e-2, 1e-2),
            "Swimmer":               (1e-2, 1e-3,   1e-3, 1e-4),
            "InvertedPendulum":      (1e-3, 1e-3,   1e-3, 1e-2),
            "Reacher":               (1e-3, 1e-3,   1e-3, 1e-3),
            "Hopper":                (1e-3, 1e-2,   1e-2, 1e-4),
        },
        sigma={
            "Acrobot":               (1.0,  1.0,    1.0,  1.0),
            "MountainCarContinuous": (1.0,  1e-1,   1.0,  1e-1),
            "CartPole":              (1.0,  1.0,    1.0,  1e-1),
            "Swimmer":               (1.0,  1e-1,   1.0,  1e-1),
            "InvertedPendulum":      (1.0,  1.0,    1.0,  1e-1),
            "Reacher":               (1e-1, 0.0,    1.0,  0.0),
            "Hopper":                (1.0,  1e-1,   1.0,  1e-1),
        },
    ),
    _Table(
        _six("pavf"),
        lr_policy={
            "MountainCarContinuous": (1e-2, 1e-3,   1e-3, 1e-4,   1e-4, 1e-4),
            "Swimmer":               (1e-3, 1e-3,   1e-3, 1e-3,   1e-3, 1e-3),
            "InvertedPendulum":      (1e-2, 1e-3,   1e-3, 1e-4,   1e-4, 1e-4),
            "Reacher":               (1e-3, 1e-3,   1e-4, 1e-4,   1e-4, 1e-4),
            "Hopper":                (1e-3, 1e-4,   1e-4, 1e-4,   1e-4, 1e-3),
        },
        lr_critic={
            "MountainCarContinuous": (1e-4, 1e-4,   1e-4, 1e-3,   1e-4, 1e-3),
            "Swimmer":               (1e-4, 1e-4,   1e-4, 1e-4,   1e-4, 1e-4),
            "InvertedPendulum":      (1e-3, 1e-2,   1e-2, 1e-4,   1e-2, 1e-3),
            "Reacher":               (1e-3, 1e-3,   1e-3, 1e-2,   1e-3, 1e-3),
            "Hopper":                (1e-4, 1e-3,   1e-3, 1e-2,   1e-4, 1e-3),
        },
        sigma={
            "MountainCarContinuous": (1.0,  1e-1,   1e-1, 1e-1,   1e-1, 1e-1),
            "Swimmer":               (1.0,  1.0,    1.0,  1.0,    1.0,  1.0),
            "InvertedPendulum":      (1.0,  1.0,    1e-1, 1e-1,   1e-1, 1e-1),
            "Reacher":               (1e-1, 1e-1,   1e-1, 1.0,    1.0,  1.0),
            "Hopper":                (1.0,  1.0,    1e-1, 1e-1,   1e-1, 1.0),
        },
    ),
    _Table(
        (("pavf", (), "avg"), ("pavf", (64, 64), "avg")),
        biased=True,
        lr_policy={
            "Swimmer":               (1e-3, 1e-4),
            "Hopper":                (1e-4, 1e-4),
        },
        lr_critic={
            "Swimmer":               (1e-4, 1e-4),
            "Hopper":                (1e-3, 1e-3),
        },
        sigma={
            "Swimmer":               (1.0,  1.0),
            "Hopper":                (1e-1, 1e-1),
        },
    ),
    _Table(
        _six("ddpg"),
        lr_policy={
            "MountainCarContinuous": (1e-2, 1e-2,   1e-2, 1e-4,   1e-3, 1e-3),
            "Swimmer":               (1e-3, 1e-3,   1e-2, 1e-2,   1e-2, 1e-2),
            "InvertedPendulum":      (1e-4, 1e-4,   1e-3, 1e-3,   1e-3, 1e-4),
            "Reacher":               (1e-4, 1e-3,   1e-2, 1e-2,   1e-3, 1e-3),
            "Hopper":                (1e-2, 1e-2,   1e-2, 1e-4,   1e-2, 1e-2),
        },
        lr_critic={
            "MountainCarContinuous": (1e-4, 1e-4,   1e-4, 1e-3,   1e-3, 1e-3),
            "Swimmer":               (1e-3, 1e-3,   1e-3, 1e-3,   1e-2, 1e-3),
            "InvertedPendulum":      (1e-3, 1e-3,   1e-3, 1e-4,   1e-3, 1e-3),
            "Reacher":               (1e-3, 1e-3,   1e-3, 1e-3,   1e-3, 1e-3),
            "Hopper":                (1e-3, 1e-3,   1e-4, 1e-4,   1e-4, 1e-4),
        },
        sigma={
            "MountainCarContinuous": (1e-2, 1e-2,   1e-2, 1e-1,   1e-1, 1e-1),
            "Swimmer":               (1e-1, 1e-1,   1e-2, 1e-2,   1e-2, 1e-1),
            "InvertedPendulum":      (1e-1, 1e-1,   1e-2, 1e-2,   1e-2, 1e-2),
            "Reacher":               (1e-1, 1e-2,   1e-1, 1e-1,   1e-1, 1e-1),
            "Hopper":                (1e-1, 1e-1,   1e-1, 1e-2,   1e-1, 1e-2),
        },
    ),
)
# fmt: on


def env_family(env_id: str) -> str:
    """Return an environment's id without its module and its version.

    >>> env_family("my.envs:Swimmer-v3")
    'Swimmer'
    """
    return re.sub(r"-v\d+$", "", env_id.rsplit(":", 1)[-1])


def paper_steps(env_id: str) -> int:
    """Return the environment steps of a run; those of most tasks where the paper has none."""
    return 1_000_000 if env_family(env_id) in _LONG else 100_000


def steps_source(env_id: str) -> str:
    """Return where :func:`paper_steps` is from."""
    family = env_family(env_id)
    return f"paper default for {family}" if family in TODAY else "default"


def paper_choice(
    kind: str,
    env_id: str,
    hidden: Sequence[int],
    *,
    stochastic: bool = False,
    biased: bool = False,
    metric: str = "avg",
) -> PaperChoice:
    """Return the hyperparameters that the paper found best for a PBVF.

    Args:
        kind: ``pssvf``, ``psvf`` or ``pavf``.
        env_id: Environment in any version, with or without its module.
        hidden: Hidden sizes of the policy; empty: linear.
        stochastic: Whether the policy is stochastic.
        biased: Whether the PAVF's policy gradient leaves out the gradient of Q in theta.
        metric: Best for the mean return over the run (``avg``) or its last fifth (``last``).

    Raises:
        UsageError: The paper does not have this combination.
    """
    if kind not in PBVFS:
        raise UsageError(f"critic {kind!r} is not in the paper", remedy=f"choose {_or(PBVFS)}")
    table, row, i = _find(kind, env_id, hidden, metric, stochastic=stochastic, biased=biased)
    return PaperChoice(table.lr_policy[row][i], table.lr_critic[row][i], table.sigma[row][i])


def has_paper_choice(
    kind: str,
    env_id: str,
    hidden: Sequence[int],
    *,
    stochastic: bool = False,
    biased: bool = False,
    metric: str = "avg",
) -> bool:
    """Return whether :func:`paper_choice` has an answer to the same arguments."""
    try:
        paper_choice(kind, env_id, hidden, stochastic=stochastic, biased=biased, metric=metric)
    except UsageError:
        return False
    return True


def ars_choice(env_id: str, hidden: Sequence[int], metric: str = "avg") -> ArsChoice:
    """Return the hyperparameters that the paper found best for ARS.

    Raises:
        UsageError: The paper does not have this combination.
    """
    table, row, i = _find("ars", env_id, hidden, metric)
    return ArsChoice(table.lr_policy[row][i], *table.directions[row][i], table.sigma[row][i])


def ddpg_choice(env_id: str, hidden: Sequence[int], metric: str = "avg") -> DdpgChoice:
    """Return the hyperparameters that the paper found best for DDPG.

    Raises:
        UsageError: The paper does not have this combination.
    """
    table, row, i = _find("ddpg", env_id, hidden, metric)
    return DdpgChoice(table.lr_policy[row][i], table.lr_critic[row][i], table.sigma[row][i])


def _find(
    algorithm: str,
    env_id: str,
    hidden: Sequence[int],
    metric: str,
    *,
    stochastic: bool = False,
    biased: bool = False,
) -> tuple[_Table, str, int]:
    """Return the table, the row's name and the column's index of a combination."""
    row, column = env_family(env_id), (algorithm, tuple(hidden), metric)
    for table in _TABLES:
        if (table.stochastic, table.biased) != (stochastic, biased):
            continue
        if row in table.sigma and column in table.columns:
            return table, row, table.columns.index(column)
    raise UsageError(
        f"the paper has no hyperparameters for {_variant(algorithm, stochastic, biased)} on "
        f"{env_id}, architecture {_architecture(column[1])}, metric {metric}",
        remedy=f"it has {'; '.join(_contents(algorithm))}",
    )


def _contents(algorithm: str) -> list[str]:
    """Say what each of the paper's tables about an algorithm covers."""
    contents = []
    for table in _TABLES:
        columns = [column for column in table.columns if column[0] == algorithm]
        if columns:
            contents.append(
                f"{_variant(algorithm, table.stochastic, table.biased)} on {_or(table.sigma)}, "
                f"architecture {_or(_architecture(hidden) for _, hidden, _ in columns)}, "
                f"metric {_or(metric for *_, metric in columns)}"
            )
    return contents


def _variant(algorithm: str, stochastic: bool, biased: bool) -> str:
    policies = "stochastic" if stochastic else "deterministic"
    return f"{'biased ' if biased else ''}{algorithm} with {policies} policies"


def _architecture(hidden: tuple[int, ...]) -> str:
    return ",".join(map(str, hidden)) or "linear"


def _or(names: Iterable[str]) -> str:
    *first, last = dict.fromkeys(names)
    return f"{', '.join(first)} or {last}" if first else last
