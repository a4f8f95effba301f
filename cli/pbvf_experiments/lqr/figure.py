"""Section 4.1 and appendix "LQR": what critics make of a linear policy's whole parameter space.

The policy ``a = w s + b`` has two parameters, so its true return and what a critic
predicts can be looked at side by side, everywhere, at two stages of online training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pbvf_experiments.cells import cell
from pbvf_offline.critics import Critic
from pbvf_offline.envs.lqr import BOUND, MAX_ACTION, START
from pbvf_offline.envs.make import LQR_ID, close_env, make_env, time_limit
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import UsageError
from pbvf_offline.fit.validation import rank_correlation
from pbvf_offline.online.loop import Hooks, train
from pbvf_offline.online.settings import OnlineSettings, online_defaults
from pbvf_offline.online.training import Training, start_training
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.presets.offline import env_preset
from pbvf_offline.setting_types import Activation

Note = Callable[[str], None]

INITIAL_THETA = (3.2, -3.5)
"""Weight and bias of the first learned policy."""
EXTENT = 5.0
"""The grid of policies is [-EXTENT, EXTENT] in both parameters."""


@dataclass(frozen=True)
class Look:
    """How one critic is trained and looked at.

    Attributes:
        kind: The critic.
        episodes: Training episodes of the two stages.
        horizon: Steps of the true return; the environment's own 50 for episodic returns.
        arrow: Policy updates that an arrow of the figure stands for.
        activation: The critic's activation in place of its default.
    """

    kind: str
    episodes: tuple[int, int]
    horizon: int
    arrow: int
    activation: Activation | None = None


LOOKS: dict[str, Look] = {
    "pssvf": Look("pssvf", (60, 1_000), horizon=50, arrow=200),
    "psvf": Look("psvf", (15, 100), horizon=500, arrow=50),
    "pavf": Look("pavf", (15, 100), horizon=500, arrow=50),
    # Not the paper's: its TD critics with the activation of all its other experiments.
    "psvf-relu": Look("psvf", (15, 100), horizon=500, arrow=50, activation="relu"),
    "pavf-relu": Look("pavf", (15, 100), horizon=500, arrow=50, activation="relu"),
}
PAPER = ("pssvf", "psvf", "pavf")


@dataclass(frozen=True)
class LqrSettings:
    """What the experiment runs.

    Attributes:
        grid: Policies along each axis of the grid.
        near: Grid policies within this distance of a policy that the critic learned from count
            as near the data; one standard deviation of the parameter noise.
        looks: Critics by name.
    """

    grid: int = 100
    near: float = 0.5
    looks: Mapping[str, Look] = field(default_factory=lambda: LOOKS)


def true_returns(theta: NDArray[Any], steps: int, gamma: float) -> NDArray[np.float64]:
    """Return the discounted returns (K,) of policies in the LQR environment.

    All policies run side by side, by the environment's rules: the action is bounded as every
    policy's is, its cost is that of the action asked for, and the state stops at the bounds.

    Args:
        theta: (K, 2), weight and bias.
        steps: Length of the episode.
        gamma: Discount factor.
    """
    weight, bias = np.asarray(theta, np.float64).T
    state = np.full(len(weight), START)
    total = np.zeros(len(weight))
    for t in range(steps):
        action = np.clip(weight * state + bias, -MAX_ACTION, MAX_ACTION)
        total -= gamma**t * (state**2 + action**2)
        state = np.clip(state + action, -BOUND, BOUND)
    return total


def grid_axis(points: int) -> NDArray[np.float64]:
    """Return the values (points,) that each parameter takes on the grid."""
    return np.linspace(-EXTENT, EXTENT, points)


def grid_policies(points: int) -> NDArray[np.float32]:
    """Return all policies (points * points, 2) of the grid, bias by bias, weights ascending."""
    weight, bias = np.meshgrid(grid_axis(points), grid_axis(points))
    return np.stack([weight.ravel(), bias.ravel()], axis=1).astype(np.float32)


def predictions(critic: Critic, theta: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return what a critic of unnormalised observations predicts from the start, (K,).

    V(theta), V(s0, theta) or Q(s0, pi_theta(s0), theta) of theta (K, 2).
    """
    return critic.objective(torch.from_numpy(theta), torch.full((1, 1), START)).numpy()


def slopes(critic: Critic, theta: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the length (K,) of the gradient of :func:`predictions` in each theta (K, 2)."""
    start = torch.full((1, 1), START)
    _, gradient = critic.objective_and_gradient(torch.from_numpy(theta), start)
    lengths: NDArray[np.float64] = np.linalg.norm(gradient.numpy().astype(np.float64), axis=1)
    return lengths


def to_lines(table: NDArray[Any]) -> list[str]:
    """Return the rows of a table (R, C) as text of six digits each, small in JSON."""
    return [" ".join(f"{value:.6g}" for value in row) for row in table]


def from_lines(lines: Sequence[str]) -> NDArray[np.float64]:
    """Return the table (R, C) that :func:`to_lines` wrote."""
    return np.array([[float(value) for value in line.split()] for line in lines])


def run_lqr(
    settings: LqrSettings,
    seeds: Sequence[int],
    out: Path,
    note: Note,
    *,
    kinds: Sequence[str] | None = None,
) -> dict[str, dict[str, Any]]:
    """Train each critic with each seed and compare it with the truth; finished cells are read back.

    Args:
        settings: What to run.
        seeds: Seeds of training.
        out: Folder of the results.
        note: Called with a line about each stage.
        kinds: Names of critics; None: the paper's three.

    Raises:
        UsageError: There is no such critic.

    Returns:
        For each critic ``look``, ``truth`` (``returns``, ``best``) and ``runs``, which has for
        each seed ``stages``, ``path``, ``updates_per_round`` and ``points``. Tables are
        texts for :func:`from_lines`: the grids have a row for each bias and a column for each
        weight, ``path`` is the learned policy's weight and bias at the start and after
        each round of updates, ``points`` are the perturbed policies' weight, bias and
        undiscounted return, episode by episode. A stage has the learned policy's ``theta``, true
        ``return``, ``predicted`` return and the prediction's ``slope`` there; how well
        predictions agree with the truth on the ``grid`` and ``near`` the data; the grid's
        policy that the critic puts on ``top``; and its ``prediction`` for all of them.
    """
    names = PAPER if kinds is None else tuple(kinds)
    unknown = [name for name in names if name not in settings.looks]
    if unknown or not names:
        raise UsageError(
            f"there is no critic {', '.join(unknown)!r}",
            where="--cells",
            remedy=f"use {', '.join(settings.looks)}",
        )
    return {name: _Critic(settings, name, out / "raw", note).results(seeds) for name in names}


def summary(results: Mapping[str, Mapping[str, Any]]) -> list[dict[str, float | str | None]]:
    """Return one row for each critic and seed, and medians over the seeds.

    ``return 1`` and ``2``: the learned policy's true return at the two stages; ``rank`` and
    ``rmse``: Spearman's correlation and root mean squared error between prediction and
    truth, ``near`` the data or on the whole grid. None where a constant prediction has no rank.
    """
    rows: list[dict[str, float | str | None]] = []
    for name, result in results.items():
        own: list[dict[str, float | str | None]] = []
        for seed, run in result["runs"].items():
            row: dict[str, float | str | None] = {"critic": name, "seed": str(seed)}
            row |= {f"return {k}": stage["return"] for k, stage in enumerate(run["stages"], 1)}
            for where in ("near", "grid"):
                for k, stage in enumerate(run["stages"], 1):
                    row[f"{where} rank {k}"] = stage[where]["rank_correlation"]
                for k, stage in enumerate(run["stages"], 1):
                    row[f"{where} rmse {k}"] = stage[where]["rmse"]
            own.append(row)
        rows += own
        if len(own) > 1:
            rows.append({"critic": name, "seed": "median", **_medians(own)})
    return rows


def _medians(rows: Sequence[Mapping[str, float | str | None]]) -> dict[str, float | None]:
    medians: dict[str, float | None] = {}
    for key in rows[0]:
        if key not in ("critic", "seed"):
            values = [row[key] for row in rows if row[key.replace("rank", "rmse")] is not None]
            # Predictions that are all equal rank nothing: no correlation, not a missing one.
            numbers = [0.0 if value is None else float(value) for value in values]
            medians[key] = float(np.median(numbers)) if numbers else None
    return medians


def _as_stored(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values (n,) with the digits that are stored, so that files bear all numbers out.

    On the plateaus of a saturated critic the other digits would decide the ranks.
    """
    return from_lines(to_lines(values[:, None]))[:, 0]


class _Critic:
    """The cells of one critic: the truth, and one a seed."""

    def __init__(self, settings: LqrSettings, name: str, raw: Path, note: Note) -> None:
        self._settings, self._name, self._raw, self._note = settings, name, raw, note
        self._look = settings.looks[name]
        env = make_env(EnvConfig(LQR_ID))
        self._spec: PolicySpec = spec_for_env(env, (), squash=env_preset(LQR_ID).squash)
        self._limit = time_limit(env) or self._look.horizon
        close_env(env)
        self._gamma = self._online(0).gamma
        self._theta = grid_policies(settings.grid)
        self._truth = _as_stored(true_returns(self._theta, self._look.horizon, self._gamma))

    def results(self, seeds: Sequence[int]) -> dict[str, Any]:
        """Return the result of every seed beside the truth."""
        return {
            "look": dataclasses.asdict(self._look),
            "truth": self._true_grid(),
            "runs": {seed: self._seed(seed) for seed in seeds},
        }

    def _online(self, seed: int) -> OnlineSettings:
        defaults = online_defaults(self._look.kind, LQR_ID, self._spec, seed=seed).settings
        chosen = dataclasses.replace(defaults, initial_theta=INITIAL_THETA)
        if self._look.activation is None:
            return chosen
        return dataclasses.replace(chosen, activation=self._look.activation)

    def _grid_settings(self) -> dict[str, Any]:
        return {
            "env": LQR_ID,
            "grid": self._settings.grid,
            "extent": EXTENT,
            "horizon": self._look.horizon,
            "gamma": self._gamma,
        }

    def _true_grid(self) -> dict[str, Any]:
        # Critics with the same horizon and discount share it.
        path = self._raw / f"truth-{self._look.horizon}-steps-gamma-{self._gamma:g}.json"
        return cell(
            path,
            self._grid_settings(),
            lambda: {"best": self._at_best(self._truth), "returns": self._lines(self._truth)},
        )

    def _seed(self, seed: int) -> dict[str, Any]:
        settings = {
            "online": self._online(seed).to_dict(),
            "episodes": list(self._look.episodes),
            "near": self._settings.near,
            **self._grid_settings(),
        }
        return cell(
            self._raw / f"{self._name}-seed-{seed:03d}.json", settings, lambda: self._train(seed)
        )

    def _train(self, seed: int) -> dict[str, Any]:
        episodes = self._look.episodes
        self._note(f"{self._name}, seed {seed}: training for {episodes[-1]:,} episodes")
        online = self._online(seed)
        env = make_env(EnvConfig(LQR_ID))
        training = start_training(
            self._spec, online, obs_dtype=env.observation_space.dtype, device=torch.device("cpu")
        )
        path = [training.policy.theta[0]]
        stages: list[dict[str, Any]] = []

        def watch(now: Training) -> None:
            path.append(now.policy.theta[0])
            if now.steps in {count * self._limit for count in episodes}:
                stages.append(self._stage(now))

        until = episodes[-1] * self._limit
        every = online.update_every or self._limit
        train(training, env, until, Hooks(watch=watch, at=tuple(range(every, until + 1, every))))
        close_env(env)
        acted, returns = training.replay.policies()
        return {
            "stages": stages,
            "updates_per_round": online.actor_updates,
            "path": to_lines(np.stack(path)),
            "points": to_lines(np.column_stack([acted.theta, returns])),
        }

    def _stage(self, training: Training) -> dict[str, Any]:
        """Return how the critic and the learned policy stand against the truth."""
        from scipy.spatial import KDTree

        predicted = _as_stored(predictions(training.fit.critic, self._theta))
        acted, _ = training.replay.policies()
        distance, _ = KDTree(acted.theta).query(self._theta)
        learned = training.policy.theta
        true = true_returns(learned, self._look.horizon, self._gamma)
        return {
            "episodes": training.episodes,
            "theta": [float(value) for value in learned[0]],
            "return": float(true[0]),
            "predicted": float(predictions(training.fit.critic, learned)[0]),
            "slope": float(slopes(training.fit.critic, learned)[0]),
            "grid": self._agreement(predicted, np.ones(len(predicted), bool)),
            "near": self._agreement(predicted, distance <= self._settings.near),
            "top": self._at_best(predicted),
            "prediction": self._lines(predicted),
        }

    def _agreement(
        self, predicted: NDArray[np.float64], rows: NDArray[np.bool_]
    ) -> dict[str, float | int | None]:
        """Return how predictions agree with the truth on some rows of the grid."""
        errors = predicted[rows] - self._truth[rows]
        return {
            "policies": int(rows.sum()),
            "rank_correlation": rank_correlation(predicted[rows], self._truth[rows]),
            "rmse": float(np.sqrt(np.mean(errors**2))) if len(errors) else None,
        }

    def _at_best(self, values: NDArray[np.float64]) -> dict[str, Any]:
        """Return the grid's policy with the highest of some values, and its true return."""
        row = int(np.argmax(values))
        return {
            "theta": [float(value) for value in self._theta[row]],
            "return": float(self._truth[row]),
        }

    def _lines(self, values: NDArray[np.float64]) -> list[str]:
        points = self._settings.grid
        return to_lines(values.reshape(points, points))
