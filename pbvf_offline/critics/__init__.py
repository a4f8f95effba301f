"""Parameter-based value functions; :data:`CRITICS` is the table of all kinds."""

from __future__ import annotations

import numpy as np

from pbvf_offline.critics.base import ActorStep, Critic, CriticConfig, TrainingSet
from pbvf_offline.critics.pavf import PAVF
from pbvf_offline.critics.pssvf import PSSVF
from pbvf_offline.critics.psvf import PSVF
from pbvf_offline.critics.stochastic_pavf import StochasticPAVF
from pbvf_offline.errors import UsageError

CRITICS: dict[str, type[Critic]] = {kind.kind: kind for kind in (PSSVF, PSVF, PAVF)}
FOR_STOCHASTIC_POLICIES: dict[str, type[Critic]] = {**CRITICS, "pavf": StochasticPAVF}


def make_critic(kind: str, config: CriticConfig, rng: np.random.Generator) -> Critic:
    """Return a freshly initialised critic.

    Raises:
        UsageError: There is no such kind.
        IncompatibleError: The kind cannot evaluate such policies.
    """
    if kind not in CRITICS:
        raise UsageError(
            f"there is no critic {kind!r}", remedy=f"choose one of {', '.join(CRITICS)}"
        )
    table = FOR_STOCHASTIC_POLICIES if config.spec.stochastic else CRITICS
    return table[kind](config, rng)


__all__ = [
    "CRITICS",
    "PAVF",
    "PSSVF",
    "PSVF",
    "ActorStep",
    "Critic",
    "CriticConfig",
    "StochasticPAVF",
    "TrainingSet",
    "make_critic",
]
