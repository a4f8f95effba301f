"""The kinds of critics: what is known of each without importing torch.

A new kind is two files: a module with a :class:`~pbvf_offline.critics.base.Critic`, and its entry
in :data:`OWN`. A package adds one with the entry point group ``pbvf_offline.critics``, whose
value names a :class:`CriticKind` (see :mod:`pbvf_offline.registry`).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pbvf_offline.registry import Registry

if TYPE_CHECKING:
    import numpy as np

    from pbvf_offline.critics.base import Critic, CriticConfig


@dataclass(frozen=True)
class OfflinePreset:
    """Defaults of fitting a kind of critic to a dataset.

    Attributes:
        hidden: Sizes of the hidden layers (ReLU).
        batch_size: Entries a gradient step draws.
        lr: Learning rate of Adam.
        updates: Gradient steps.
        n_step: Longest n-step target; the paper's critics use 1.
        relabel: Tolerated change of action of behaviour-preserving relabelling (not the
            paper's), where the policies allow it; 0: none.
        bound_values: Keep bootstrapped values within what the data suggest (not the paper's).
        standardise: Show thetas to the network standardised (not the paper's).
        average: Decay of the running average of weights (not the paper's); 0: none.
    """

    hidden: tuple[int, ...]
    batch_size: int
    lr: float
    updates: int
    n_step: int = 1
    relabel: float = 0.0
    bound_values: bool = False
    standardise: bool = False
    average: float = 0.0


@dataclass(frozen=True)
class OnlinePreset:
    """What online training with a kind of critic uses in every environment.

    Attributes:
        hidden: Sizes of the critic's hidden layers (ReLU).
        batch_size: Entries that a gradient step draws.
        update_every: Environment steps between updates; None: at the end of each episode.
        critic_updates: Gradient steps of the critic at an update.
        actor_updates: Gradient steps of the policy at an update.
    """

    hidden: tuple[int, ...]
    batch_size: int
    update_every: int | None
    critic_updates: int
    actor_updates: int


@dataclass(frozen=True)
class CriticKind:
    """A kind of critic.

    Attributes:
        name: Its name in :data:`CRITICS`, on the command line and in files.
        summary: One line for the help of ``--critic``.
        implementation: Its class as ``module:Class``.
        inputs: What its network sees: ``theta``, and ``obs`` and ``action`` where its value
            depends on the state and on an action.
        offline: Defaults of a fit.
        online: Defaults of online training.
        for_stochastic: The class for stochastic policies as ``module:Class``; None: the same.
        monte_carlo: Whether it learns from returns of whole episodes instead of single steps.
        undiscounted: Whether its value is the return that the environment is judged by: gamma
            is 1, and the reward is the one that the environment's preset names.
    """

    name: str
    summary: str
    implementation: str
    inputs: tuple[str, ...]
    offline: OfflinePreset
    online: OnlinePreset
    for_stochastic: str | None = None
    monte_carlo: bool = False
    undiscounted: bool = False

    @property
    def depends_on_state(self) -> bool:
        """Whether the value differs from state to state."""
        return "obs" in self.inputs

    def critic_class(self, *, stochastic: bool) -> type[Critic]:
        """Import and return the class for deterministic or for stochastic policies."""
        target = self.for_stochastic if stochastic else None
        module, _, name = (target or self.implementation).partition(":")
        found: type[Critic] = getattr(importlib.import_module(module), name)
        return found


_TD_OFFLINE = OfflinePreset(
    hidden=(512, 512),
    batch_size=128,
    lr=1e-3,
    updates=3_000,
    n_step=200,
    relabel=0.3,
    bound_values=True,
    standardise=True,
    average=0.998,
)
_TD_ONLINE = OnlinePreset((512, 512), 128, 50, critic_updates=5, actor_updates=1)

PSSVF = CriticKind(
    name="pssvf",
    summary="V(theta), fitted to returns of whole episodes (Algorithm 1)",
    implementation="pbvf_offline.critics.pssvf:PSSVF",
    inputs=("theta",),
    # The paper's text gives sizes for PSVF and PAVF only; these are those of the authors' code.
    offline=OfflinePreset(
        hidden=(64, 64),
        batch_size=16,
        lr=1e-3,
        updates=3_000,
        relabel=0.3,
        standardise=True,
        average=0.998,
    ),
    online=OnlinePreset((64, 64), 16, None, critic_updates=10, actor_updates=10),
    monte_carlo=True,
    undiscounted=True,
)
PSVF = CriticKind(
    name="psvf",
    summary="V(s, theta), fitted by temporal differences (Algorithm 2)",
    implementation="pbvf_offline.critics.psvf:PSVF",
    inputs=("theta", "obs"),
    offline=_TD_OFFLINE,
    online=_TD_ONLINE,
)
PAVF = CriticKind(
    name="pavf",
    summary="Q(s, a, theta), fitted by temporal differences (Algorithms 3 and 4)",
    implementation="pbvf_offline.critics.pavf:PAVF",
    inputs=("theta", "obs", "action"),
    offline=_TD_OFFLINE,
    online=_TD_ONLINE,
    for_stochastic="pbvf_offline.critics.stochastic_pavf:StochasticPAVF",
)

OWN: dict[str, CriticKind] = {kind.name: kind for kind in (PSSVF, PSVF, PAVF)}
CRITICS: Registry[CriticKind] = Registry("critic", "pbvf_offline.critics", OWN)


def make_critic(name: str, config: CriticConfig, rng: np.random.Generator) -> Critic:
    """Return a freshly initialised critic.

    Raises:
        UsageError: There is no such kind.
        IncompatibleError: The kind cannot evaluate such policies.
    """
    kind = CRITICS.choose(name)
    return kind.critic_class(stochastic=config.spec.stochastic)(config, rng)
