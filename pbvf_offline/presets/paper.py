"""The hyperparameters of the paper's online experiments; its tables are ``paper_tables.txt``.

Source: Faccio, Kirsch and Schmidhuber (ICLR 2021), "Implementation details" and "Table of best
hyperparameters". Rows are environment families (ids without version): the paper's v2 and v3
are today's v5, see ``TODAY``. Discount factors and Hopper's survival bonus are in
:mod:`pbvf_offline.presets.offline`, which also holds the defaults of the offline setting.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
# Stochastic, biased: the tables' word for it.
_VARIANTS = {
    (False, False): "deterministic",
    (True, False): "stochastic",
    (False, True): "biased",
}


@dataclass(frozen=True)
class _Table:
    """A table of ``paper_tables.txt``.

    Attributes:
        algorithm: Its name.
        variant: ``deterministic`` or ``stochastic`` policies, or the ``biased`` PAVF.
        columns: What a block's columns are for: the policy's sizes and the metric.
        rows: An environment's cells by the name of the block.
    """

    algorithm: str
    variant: str
    columns: tuple[str, ...]
    rows: dict[str, dict[str, tuple[str, ...]]]


@functools.cache
def _tables() -> tuple[_Table, ...]:
    text = Path(__file__).with_name("paper_tables.txt").read_text("utf-8")
    tables = []
    for part in text.strip().split("\n\n")[1:]:
        (name, *blocks), (_, columns), *rows = (
            [piece.strip() for piece in line.split("|")] for line in part.splitlines()
        )
        cells = {
            environment: {block: tuple(row.split()) for block, row in zip(blocks, own, strict=True)}
            for environment, *own in rows
        }
        algorithm, variant = name.split()
        tables.append(_Table(algorithm, variant, tuple(columns.split()), cells))
    return tuple(tables)


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
    cells = _find(kind, env_id, hidden, metric, stochastic=stochastic, biased=biased)
    return PaperChoice(**{name: float(cell) for name, cell in cells.items()})


def ars_choice(env_id: str, hidden: Sequence[int], metric: str = "avg") -> ArsChoice:
    """Return the hyperparameters that the paper found best for ARS.

    Raises:
        UsageError: The paper does not have this combination.
    """
    cells = _find("ars", env_id, hidden, metric)
    directions, elite = map(int, cells["directions"].split("/"))
    return ArsChoice(float(cells["lr_policy"]), directions, elite, float(cells["sigma"]))


def ddpg_choice(env_id: str, hidden: Sequence[int], metric: str = "avg") -> DdpgChoice:
    """Return the hyperparameters that the paper found best for DDPG.

    Raises:
        UsageError: The paper does not have this combination.
    """
    cells = _find("ddpg", env_id, hidden, metric)
    return DdpgChoice(*(float(cells[name]) for name in ("lr_policy", "lr_critic", "sigma")))


def _find(
    algorithm: str,
    env_id: str,
    hidden: Sequence[int],
    metric: str,
    *,
    stochastic: bool = False,
    biased: bool = False,
) -> dict[str, str]:
    """Return a combination's cells by the name of the block."""
    variant = _VARIANTS.get((stochastic, biased))
    row, sizes = env_family(env_id), ",".join(map(str, hidden)) or "linear"
    column = f"{sizes}/{metric}"
    for table in _tables():
        if (table.algorithm, table.variant) != (algorithm, variant):
            continue
        if row in table.rows and column in table.columns:
            i = table.columns.index(column)
            return {block: cells[i] for block, cells in table.rows[row].items()}
    raise UsageError(
        f"the paper has no hyperparameters for {_variant(algorithm, stochastic, biased)} on "
        f"{env_id}, architecture {sizes}, metric {metric}",
        remedy=f"it has {'; '.join(_contents(algorithm))}",
    )


def _contents(algorithm: str) -> Iterator[str]:
    """Say what each of the paper's tables about an algorithm covers."""
    asked = {variant: flags for flags, variant in _VARIANTS.items()}
    for table in _tables():
        if table.algorithm == algorithm:
            sizes, metrics = zip(*(column.split("/") for column in table.columns), strict=True)
            yield (
                f"{_variant(algorithm, *asked[table.variant])} on {_or(table.rows)}, "
                f"architecture {_or(sizes)}, metric {_or(metrics)}"
            )


def _variant(algorithm: str, stochastic: bool, biased: bool) -> str:
    policies = "stochastic" if stochastic else "deterministic"
    return f"{'biased ' if biased else ''}{algorithm} with {policies} policies"


def _or(names: Iterable[str]) -> str:
    *first, last = dict.fromkeys(names)
    return f"{', '.join(first)} or {last}" if first else last
