"""Baselines of offline reinforcement learning: TD3+BC and IQL of d3rlpy on the same transitions.

The library's own settings are kept, except for what belongs to the task: the discount factor is
that of the project's critics of steps, and actions are scaled from their bounds to [-1, 1]. TD3+BC
sees standardised observations, which its authors count among its parts (Fujimoto and Gu, 2021).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import logging
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pbvf_experiments.offline.settings import OFFLINE_RL
from pbvf_experiments.private_randomness import private_randomness
from pbvf_offline.errors import IncompatibleError, UsageError
from pbvf_offline.exchange.interpret import ImportSettings, interpret
from pbvf_offline.exchange.weight_files import as_array
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.policy import Policies
from pbvf_offline.presets.offline import default_gamma
from pbvf_offline.records import Record
from pbvf_offline.rollout.episodes import Trajectories

_NAMES: Final = ", ".join((*OFFLINE_RL.values(), "FQE"))
# d3rlpy 2.8 asks for exactly gymnasium 1.0.0, and runs with later ones. So pip finds no
# installation of both with their dependencies, and what it needs otherwise is an extra.
_REMEDY: Final = (
    "pip install 'pbvf-offline[d3rlpy]', then pip install --no-deps 'd3rlpy>=2.8' (it asks for an "
    "older gymnasium than it needs)"
)
_NEEDED: Final = {"d3rlpy": "d3rlpy", "gym": "gym", "sklearn": "scikit-learn"} | {
    name: name for name in ("structlog", "dataclasses_json", "colorama")
}


@dataclass(frozen=True)
class OfflineRlSettings(Record):
    """What decides a baseline, apart from the data.

    Attributes:
        algorithm: Which one, of :data:`pbvf_experiments.offline.settings.OFFLINE_RL`.
        seed: Seed of all random numbers.
        updates: Gradient steps.
        gamma: Discount factor.
        standardise: Whether it sees standardised observations.
    """

    algorithm: str
    seed: int
    updates: int
    gamma: float
    standardise: bool


def offline_rl_settings(
    algorithm: str, env_id: str, *, seed: int, updates: int
) -> OfflineRlSettings:
    """Return the settings of a baseline in an environment."""
    gamma = default_gamma("psvf", env_id)
    return OfflineRlSettings(algorithm, seed, updates, gamma, standardise=algorithm == "td3bc")


def require_d3rlpy() -> None:
    """Refuse to go on without d3rlpy and what it imports.

    Raises:
        UsageError: A package is missing.
    """
    for module, package in _NEEDED.items():
        if importlib.util.find_spec(module) is None:
            raise UsageError(f"{package} is not installed, which {_NAMES} run on", remedy=_REMEDY)


def train_offline_rl(
    data: Trajectories, settings: OfflineRlSettings
) -> tuple[Policies, dict[str, str]]:
    """Train one baseline; return its policy, and the versions of the libraries.

    The policy is the one that acts without noise, after the last update.

    Args:
        data: The transitions.
        settings: What decides the baseline.

    Raises:
        UsageError: A package is missing.
        IncompatibleError: Actions are discrete.
        DivergedError: Its parameters became NaN or infinite.
    """
    actions = data.policies.spec.actions
    if not isinstance(actions, BoxActions):
        raise IncompatibleError("TD3+BC and IQL need continuous actions")
    require_d3rlpy()
    with private_randomness(), quiet():
        d3rlpy = importlib.import_module("d3rlpy")
        d3rlpy.seed(settings.seed)
        kinds = {"td3bc": d3rlpy.algos.TD3PlusBCConfig, "iql": d3rlpy.algos.IQLConfig}
        mean, std = np.zeros(data.policies.spec.obs_dim), np.ones(data.policies.spec.obs_dim)
        scaler = None
        if settings.standardise:
            mean = data.observations.mean(axis=0, dtype=np.float64)
            scaler = d3rlpy.preprocessing.StandardObservationScaler(
                mean, data.observations.std(axis=0, dtype=np.float64)
            )
            std = scaler.std + scaler.eps
        learner = kinds[settings.algorithm](
            gamma=settings.gamma,
            observation_scaler=scaler,
            action_scaler=d3rlpy.preprocessing.MinMaxActionScaler(
                np.asarray(actions.low), np.asarray(actions.high)
            ),
        ).create(device=False)
        fit_silently(learner, data, settings.updates)
    weights = {name: as_array(w) for name, w in learner.impl.policy.state_dict().items()}
    # Of the layers that end with the actions, the encoder's come first; IQL's noise is left out.
    layers = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
    read = ImportSettings(
        layers=tuple(name for name in layers if name != "_logstd"),
        squash="tanh",
        activation="relu",
        obs_mean=mean,
        obs_std=std,
    )
    policies = interpret(weights, data.policies.spec, read, OFFLINE_RL[settings.algorithm]).policies
    return policies, {"d3rlpy": importlib.metadata.version("d3rlpy")}


def d3rlpy_dataset(data: Trajectories) -> Any:
    """Return the episodes as d3rlpy's replay buffer.

    The last transition of an episode that did not terminate is not drawn from it: the buffer
    keeps no observation after it.
    """
    from d3rlpy.constants import ActionSpace
    from d3rlpy.dataset import MDPDataset

    ends = np.zeros(len(data), dtype=np.float32)
    ends[data.start[1:] - 1] = 1.0
    terminals = data.terminated.astype(np.float32)
    return MDPDataset(
        data.observations[data.obs_index].astype(np.float32),
        data.actions.astype(np.float32),
        data.rewards.astype(np.float32),
        terminals,
        ends * (1.0 - terminals),
        action_space=ActionSpace.CONTINUOUS,
        action_size=data.actions.shape[1],
    )


def fit_silently(learner: Any, data: Trajectories, updates: int) -> None:
    """Fit a learner of d3rlpy to the episodes; nothing is logged or shown."""
    d3rlpy = importlib.import_module("d3rlpy")
    learner.fit(
        d3rlpy_dataset(data),
        n_steps=updates,
        n_steps_per_epoch=updates,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
        show_progress=False,
    )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what d3rlpy says of its progress off standard output, and what gym says when loaded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "d3rlpy" not in sys.modules:
            with contextlib.redirect_stderr(io.StringIO()):
                importlib.import_module("gym")
            importlib.import_module("d3rlpy")  # configures structlog when it is loaded
        structlog = importlib.import_module("structlog")
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )
        yield
