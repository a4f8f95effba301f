"""Fitted Q evaluation (FQE) of d3rlpy: the values of given policies, from the same transitions.

Le et al., *Batch Policy Learning under Constraints*, 2019. Each policy has a Q-function of its own.
The library's own settings are kept, except for what belongs to the task: the discount factor is
that of the project's critics of steps, observations are standardised, actions are scaled from
their bounds to [-1, 1], and the target network is updated more often. Each of its updates carries
rewards over one step more, so the library's 100 gradient steps between them would make 16,000
gradient steps look 160 steps ahead in episodes of 1,000, and 20 make them look 800 ahead.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbvf_experiments.metrics import estimate_metrics
from pbvf_experiments.offline.baselines import fit_silently, quiet, require_d3rlpy
from pbvf_experiments.offline.evaluation import ESTIMATES, SETS
from pbvf_experiments.private_randomness import private_randomness
from pbvf_offline.errors import IncompatibleError
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.batch import network_output, squashed
from pbvf_offline.policies.policy import Policies
from pbvf_offline.presets.offline import default_gamma
from pbvf_offline.records import Record
from pbvf_offline.rollout.episodes import Trajectories


@dataclass(frozen=True)
class FqeSettings(Record):
    """What decides an estimate, apart from the data and the policy.

    Attributes:
        seed: Seed of all random numbers.
        updates: Gradient steps for each policy.
        gamma: Discount factor.
        batch_size: Transitions of a gradient step.
        lr: Learning rate.
        target_update_interval: Gradient steps between updates of the target network.
    """

    seed: int
    updates: int
    gamma: float
    batch_size: int = 100
    lr: float = 1e-4
    target_update_interval: int = 20


def fqe_settings(env_id: str, *, seed: int, updates: int) -> FqeSettings:
    """Return the settings of estimates in an environment."""
    return FqeSettings(seed, updates, default_gamma("psvf", env_id))


def evaluate_by_fqe(
    data: Trajectories,
    sets: Mapping[str, Policies],
    evaluated: Mapping[str, Any],
    settings: FqeSettings,
    *,
    count: int,
    note: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return what FQE says of some of the policies that model and critic were asked about.

    Args:
        data: The transitions.
        sets: The policies of each of :data:`~pbvf_experiments.offline.evaluation.SETS`.
        evaluated: What model and critic say of them, and their true returns.
        settings: What decides the estimates.
        count: Number of policies of each set, evenly spread in the order of true returns.
        note: Told of each policy.

    Returns:
        For each set: ``rows``, which of its policies; ``true`` and ``fqe``, lists with a number a
        policy; ``metrics``, an :class:`~pbvf_experiments.metrics.EstimateMetrics` of ``fqe`` and of
        each of :data:`~pbvf_experiments.offline.evaluation.ESTIMATES` on these policies alone.
        ``unit`` of ``fqe``: it is discounted, so its ``error`` and ``absolute_error`` mean nothing.
        ``libraries``: their versions.

    Raises:
        UsageError: A package is missing.
        IncompatibleError: Actions are discrete, or policies are stochastic.
    """
    result: dict[str, Any] = {"unit": f"return discounted by {settings.gamma} a step"}
    for name in SETS:
        of_all = {key: np.array(evaluated[name][key]) for key in ("true", *ESTIMATES)}
        order = np.argsort(of_all["true"], kind="stable")
        rows = order[np.linspace(0, len(order) - 1, min(count, len(order))).astype(np.int64)]
        values, result["libraries"] = fitted_q_values(
            data, sets[name].select(rows), settings, note=note
        )
        said = {"fqe": values, **{key: of_all[key][rows] for key in ESTIMATES}}
        true = of_all["true"][rows]
        result[name] = {
            "rows": rows.tolist(),
            "true": true.tolist(),
            "fqe": values.tolist(),
            "metrics": {key: estimate_metrics(true, of).to_dict() for key, of in said.items()},
        }
    return result


def summary_of_fqe(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row: of each set rank correlation and regret of the best one.

    Beside FQE's those of imagined returns on the same policies. A number that does not exist is
    left out.
    """
    row: dict[str, float | None] = {}
    for name in SETS:
        for who, key in (("FQE's", "fqe"), ("model's", "imagined")):
            metrics = result[name]["metrics"][key]
            row[f"{who} rank {name}"] = metrics["rank_correlation"]
            row[f"{who} regret@1 {name}"] = metrics["regret_at_1"]
    return {name: value for name, value in row.items() if value is not None}


def fitted_q_values(
    data: Trajectories,
    policies: Policies,
    settings: FqeSettings,
    *,
    note: Callable[[str], None] | None = None,
) -> tuple[NDArray[np.float64], dict[str, str]]:
    """Return the discounted value (K,) of each policy, and the versions of the libraries.

    The value is the mean of the Q-function over the first observations of the data's episodes, with
    the policy's action there.

    Args:
        data: The transitions.
        policies: K deterministic policies.
        settings: What decides the estimates.
        note: Told of each policy.

    Raises:
        UsageError: A package is missing.
        IncompatibleError: Actions are discrete, or policies are stochastic.
    """
    actions = policies.spec.actions
    if not isinstance(actions, BoxActions) or policies.spec.stochastic:
        raise IncompatibleError("FQE needs deterministic policies with continuous actions")
    require_d3rlpy()
    values = []
    with private_randomness(), quiet():
        for row in range(len(policies)):
            if note is not None:
                note(f"fitting a Q-function to policy {row + 1} of {len(policies)}")
            values.append(_value(data, policies.select([row]), actions, settings))
    return np.array(values), {"d3rlpy": importlib.metadata.version("d3rlpy")}


def _value(
    data: Trajectories, policy: Policies, actions: BoxActions, settings: FqeSettings
) -> float:
    """Return the discounted value of one policy."""
    d3rlpy = importlib.import_module("d3rlpy")
    d3rlpy.seed(settings.seed)
    scaler = d3rlpy.preprocessing.StandardObservationScaler(
        data.observations.mean(axis=0, dtype=np.float64),
        data.observations.std(axis=0, dtype=np.float64),
    )
    config = d3rlpy.ope.FQEConfig(
        learning_rate=settings.lr,
        batch_size=settings.batch_size,
        gamma=settings.gamma,
        target_update_interval=settings.target_update_interval,
        observation_scaler=scaler,
        # Squashed actions are in [-1, 1] as the adapter returns them, others in the environment's
        # unit.
        action_scaler=d3rlpy.preprocessing.MinMaxActionScaler(
            np.asarray(actions.low), np.asarray(actions.high)
        )
        if policy.spec.squash == "tanh"
        else None,
    )
    fqe = d3rlpy.ope.FQE(_adapter(policy, scaler.mean, scaler.std + scaler.eps), config)
    fit_silently(fqe, data, settings.updates)
    first = data.initial_observations
    actor = policy.actor(0)
    chosen = np.stack([actor.act(obs)[0] for obs in first])
    return float(fqe.predict_value(first.astype(np.float32), chosen.astype(np.float32)).mean())


def _adapter(
    policy: Policies, mean: NDArray[np.float64], std: NDArray[np.float64]
) -> SimpleNamespace:
    """Return a policy as all that FQE asks of d3rlpy's algorithms: actions from observations.

    FQE hands over observations as its scaler leaves them and takes actions as its scaler would.
    """
    theta = torch.from_numpy(policy.in_normaliser(mean, std)[0])

    def predict_best_action(obs: Tensor) -> Tensor:
        with torch.no_grad():
            return squashed(policy.spec, network_output(policy.spec, theta, obs))

    return SimpleNamespace(impl=SimpleNamespace(predict_best_action=predict_best_action))
