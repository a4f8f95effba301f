"""Section 4.4, offline learning with fragmented behaviours, over several datasets.

For each dataset seed: collect fragments, fit PSVFs, or learn the environment and fit a PSSVF to
imagined returns, grow five fresh policies through each critic, and measure them beside the
dataset's best episode, its best policy, and two controls that need no synthesis.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.read.dataset import Dataset, load_dataset
from pbvf_experiments.cells import cell
from pbvf_experiments.growing import grow
from pbvf_offline.critics import CRITICS
from pbvf_offline.envs.make import close_env, make_env
from pbvf_offline.envs.reference import EnvConfig, EnvReference
from pbvf_offline.errors import UsageError
from pbvf_offline.fit.critic_file import CriticFile
from pbvf_offline.fit.rounds import RoundSettings
from pbvf_offline.fit.settings import FitSettings, default_fit_settings, paper_fit_settings
from pbvf_offline.fit.to_file import fit_to_file, snapshot_path
from pbvf_offline.io.reading import file_digest
from pbvf_offline.models.network import has_bfloat16
from pbvf_offline.models.settings import ModelRequest
from pbvf_offline.models.to_file import fit_model_to_file
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.rollout.evaluation import evaluate_policies
from pbvf_offline.rollout.targets import segment_starts
from pbvf_offline.synthesis.rounds_to_file import rounds_to_file
from pbvf_offline.synthesis.settings import SynthesisSettings, default_synthesis_settings
from pbvf_runs.collection import collect
from pbvf_runs.settings import CollectSettings

Note = Callable[[str], None]
_MODEL = ModelRequest(seed=0)
_ROUNDS = RoundSettings(seed=0)


@dataclass(frozen=True)
class OfflineSettings:
    """What the experiment runs.

    The dataset, the fits and the learning rates are the paper's. Measurements are sparser
    than its 5 episodes every 5 gradient steps.

    Attributes:
        env: The environment.
        steps: Transitions of each dataset.
        perturb_every: Steps of each fragment.
        sigma: Standard deviation of the parameter noise.
        snapshots: Updates of the paper's critic at which policies are grown.
        plain_steps: Gradient steps of plain ascent.
        evaluate_every: Gradient steps between measurements of plain ascent.
        episodes: Test episodes of each measurement.
        policies: Fresh policies grown through each critic.
        recipes: Which critics to fit: ``default``, ``paper`` and ``model``.
        model_updates: Gradient steps of the learned environment.
        model: What else decides it; the seed is the dataset's.
        rounds: What decides the critic of imagined returns; the seed is the dataset's.
        workers: Number of processes; does not change the results.
    """

    env: str = "Swimmer-v5"
    steps: int = 100_000
    perturb_every: int = 200
    sigma: float = 0.5
    snapshots: tuple[int, ...] = (500, 2_000, 4_000, 7_000)
    plain_steps: int = 200
    evaluate_every: int = 20
    episodes: int = 2
    policies: int = 5
    recipes: tuple[str, ...] = ("default", "paper")
    model_updates: int = 8_000
    model: ModelRequest = _MODEL
    rounds: RoundSettings = _ROUNDS
    workers: int = 1

    def data_settings(self) -> dict[str, Any]:
        """Return what decides the dataset, in JSON form."""
        return {
            "env": self.env,
            "steps": self.steps,
            "perturb_every": self.perturb_every,
            "sigma": self.sigma,
        }


def parse_recipes(text: str | None) -> tuple[str, ...]:
    """Parse ``default,paper,model``; the first two when None.

    Raises:
        UsageError: Another name is given.
    """
    known = ("default", "paper", "model")
    names = known[:2] if text is None else tuple(dict.fromkeys(text.split(",")))
    if not names or any(name not in known for name in names):
        raise UsageError(f"cells {text!r} are not {' or '.join(known)}", where="--cells")
    return names


def summary(results: Mapping[int, Mapping[str, Any]]) -> list[dict[str, float | str]]:
    """Return one row a seed and their mean: what was grown beside what the dataset holds.

    ``model``: through the critic of imagined returns; ``region``: through the first other
    critic run, inside the trust region; both at the chosen step. ``plain peak`` and ``plain
    last``: plain ascent through that other critic, mean over its policies.
    """
    rows: list[dict[str, float | str]] = []
    for seed, result in results.items():
        row: dict[str, float | str] = {"seed": str(seed)}
        if "model" in result:
            grown = result["model"]["trust_region"]
            row["model"] = float(np.mean(grown["returns"]))
            row["imagined"] = float(np.mean(grown["predicted"]))
        name = next((name for name in ("default", "paper") if name in result), None)
        if name is not None:
            row |= _summary_of_fit(result[name])
        row["best episode"] = result["best_episode"]
        row["best policy"] = result["best_policy"]
        if name is not None:
            row["top ranked"] = result[name]["top_ranked"]
        row["best fragments"] = result["best_fragments"]
        rows.append(row)
    names = [key for key in rows[0] if key != "seed"]
    mean = {key: float(np.mean([float(row[key]) for row in rows])) for key in names}
    return [*rows, {"seed": "mean", **mean}]


def _summary_of_fit(recipe: Mapping[str, Any]) -> dict[str, float | str]:
    last = max(
        (key for key in recipe if key.startswith("plain_")),
        key=lambda key: int(key.removeprefix("plain_")),
    )
    curve = [float(np.mean(point["returns"])) for point in recipe[last]["curve"]]
    return {
        "region": float(np.mean(recipe["trust_region"]["returns"])),
        "plain peak": max(curve),
        "plain last": curve[-1],
    }


def run_offline(
    settings: OfflineSettings, seeds: list[int], out: Path, note: Note
) -> dict[int, dict[str, Any]]:
    """Run every seed and return its result; finished cells are read back.

    A seed has a cell for its dataset and one for each recipe; every random number comes from it.
    Datasets, critics and policies go to the ``work`` folder of ``out``.
    """
    results = {}
    for seed in seeds:
        run = _Seed(settings, seed, out, note)
        results[seed] = {**run.dataset(), **{name: run.recipe(name) for name in settings.recipes}}
    return results


class _Seed:
    """The cells of one dataset seed; the dataset is collected when a cell needs it."""

    def __init__(self, settings: OfflineSettings, seed: int, out: Path, note: Note) -> None:
        self._settings, self._seed, self._note = settings, seed, note
        self._raw = out / "raw"
        self._work = out / "work" / f"seed-{seed:03d}"

    @cached_property
    def _data(self) -> Dataset:
        settings = self._settings
        self._note(f"seed {self._seed}: collecting {settings.steps:,} transitions")
        collected = collect(
            CollectSettings(
                env=EnvConfig(settings.env),
                dataset="offline/fragments-v0",
                steps=settings.steps,
                perturb_every=settings.perturb_every,
                sigma=settings.sigma,
                seed=self._seed,
            ),
            root=self._work,
            workers=settings.workers,
        )
        return load_dataset(collected.path, cache=False)

    def dataset(self) -> dict[str, Any]:
        """Return what the dataset holds, and what its policies do in whole episodes."""
        described = {"seed": self._seed, "data": self._settings.data_settings()}
        return cell(self._raw / f"seed-{self._seed:03d}-dataset.json", described, self._dataset)

    def _dataset(self) -> dict[str, Any]:
        data, settings, seed = self._data, self._settings, self._seed
        self._note(f"seed {seed}: measuring all {len(data.policies)} dataset policies")
        truth, best_means = _true_returns(settings, data, seed)
        return {
            "digest": data.digest,
            "best_episode": float(data.trajectories.whole_returns().max()),
            "best_policy": float(best_means.max()),
            "best_fragments": _mean_return(settings, data, _best_fragments(data), seed),
            "policy_return_quantiles": np.quantile(truth, [0, 0.5, 0.9, 0.99, 1]).tolist(),
        }

    def recipe(self, name: str) -> dict[str, Any]:
        """Return what grew through the critic of one recipe."""
        if name == "model":
            return self.model()
        settings = self._settings
        fit_settings, updates, snapshots = _recipe(settings, self._seed, name)
        described = {
            "seed": self._seed,
            "data": settings.data_settings(),
            "fit": fit_settings.to_dict() | {"updates": updates, "snapshots": list(snapshots)},
            "synthesis": self._synthesis(trust_region=True).to_dict(),
            "plain": self._synthesis(trust_region=False).to_dict(),
            "evaluate_every": settings.evaluate_every,
            "episodes": settings.episodes,
        }
        return cell(
            self._raw / f"seed-{self._seed:03d}-{name}.json",
            described,
            lambda: self._recipe(name, fit_settings, updates, snapshots),
        )

    def _recipe(
        self, name: str, fit_settings: FitSettings, updates: int, snapshots: tuple[int, ...]
    ) -> dict[str, Any]:
        data, seed = self._data, self._seed
        self._note(f"seed {seed}: fitting the {name} critic, {updates:,} updates")
        path = self._work / f"{name}.safetensors"
        fitted = fit_to_file(
            data.trajectories,
            fit_settings,
            path,
            updates=updates,
            snapshots=snapshots,
            environment=EnvReference.from_dict(data.environment, str(data.path)),
            dataset=data.digest,
        )
        ranked = np.argsort(-_predictions(fitted.file, data), kind="stable")[:5]
        self._note(f"seed {seed}: growing policies through the {name} critic")
        result: dict[str, Any] = {
            "loss": fitted.file.fit.record,
            "top_ranked": _mean_return(self._settings, data, ranked, seed),
            "trust_region": self._grow(path, trust_region=True),
        }
        for update in snapshots or (updates,):
            at = snapshot_path(path, update) if snapshots else path
            result[f"plain_{update}"] = self._grow(at, trust_region=False)
        return result

    def model(self) -> dict[str, Any]:
        """Return what grew through a PSSVF of imagined returns."""
        settings, seed = self._settings, self._seed
        request = dataclasses.replace(settings.model, seed=seed, bfloat16=has_bfloat16())
        rounds = dataclasses.replace(settings.rounds, seed=seed)
        described = {
            "seed": seed,
            "data": settings.data_settings(),
            "model": request.to_dict() | {"updates": settings.model_updates},
            "rounds": rounds.to_dict(),
            "synthesis": self._synthesis(trust_region=True).to_dict(),
            "episodes": settings.episodes,
        }
        return cell(
            self._raw / f"seed-{seed:03d}-model.json",
            described,
            lambda: self._model(request, rounds),
        )

    def _model(self, request: ModelRequest, rounds: RoundSettings) -> dict[str, Any]:
        data = self._data
        source: dict[str, Any] = {
            "environment": EnvReference.from_dict(data.environment, str(data.path)),
            "dataset": data.digest,
        }
        self._note(f"seed {self._seed}: learning the environment")
        path = self._work / "model.safetensors"
        learned = fit_model_to_file(
            data.trajectories, request, path, updates=self._settings.model_updates, **source
        )
        self._note(f"seed {self._seed}: fitting a critic to imagined returns")
        critic = self._work / "imagined.safetensors"
        fitted = rounds_to_file(
            data.trajectories,
            learned.file,
            rounds,
            critic,
            model_digest=file_digest(path),
            **source,
        )
        imagined, check = fitted.file.imagined, learned.file.check
        if imagined is None or check is None:
            raise TypeError("a finished model has a check, and its critic says how it was fitted")
        return {
            "noise": learned.file.ensemble.settings.noise,
            "angles": learned.file.ensemble.settings.angles,
            "unroll": learned.file.ensemble.settings.unroll,
            "check": check.to_dict(),
            "fit_for": list(check.fit_for),
            "kept": imagined.kept.to_dict(),
            "rounds": [done.to_dict() for done in imagined.rounds],
            "trust_region": self._grow(critic, trust_region=True),
        }

    def _synthesis(self, *, trust_region: bool) -> SynthesisSettings:
        settings = self._settings
        usual = default_synthesis_settings(
            settings.env, count=settings.policies, seed=self._seed, trust_region=trust_region
        )
        return usual if trust_region else dataclasses.replace(usual, steps=settings.plain_steps)

    def _grow(self, critic: Path, *, trust_region: bool) -> dict[str, Any]:
        settings = self._settings
        return grow(
            critic,
            self._synthesis(trust_region=trust_region),
            settings.env,
            episodes=settings.episodes,
            every=settings.evaluate_every,
            workers=settings.workers,
        )


def _recipe(
    settings: OfflineSettings, seed: int, name: str
) -> tuple[FitSettings, int, tuple[int, ...]]:
    """Return a recipe's fit settings, updates and snapshots."""
    env = make_env(EnvConfig(settings.env))
    spec = spec_for_env(env, ())
    close_env(env)
    default = default_fit_settings("psvf", settings.env, spec, seed=seed)
    if name == "default":
        return default, CRITICS["psvf"].offline.updates, ()
    return paper_fit_settings(default), max(settings.snapshots), settings.snapshots


def _true_returns(
    settings: OfflineSettings, data: Dataset, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return one whole episode of every policy (P,), and means of more for the best 20."""
    env = EnvConfig(settings.env)
    once, _ = evaluate_policies(env, data.policies, episodes=1, seed=seed, workers=settings.workers)
    best = np.argsort(-once[:, 0])[:20]
    again, _ = evaluate_policies(
        env,
        data.policies.select(best),
        episodes=max(5, settings.episodes),
        seed=seed + 1,
        workers=settings.workers,
    )
    return once[:, 0], again.mean(axis=1)


def _mean_return(
    settings: OfflineSettings, data: Dataset, rows: NDArray[np.int64], seed: int
) -> float:
    returns, _ = evaluate_policies(
        EnvConfig(settings.env),
        data.policies.select(rows),
        episodes=max(5, settings.episodes),
        seed=seed,
        workers=settings.workers,
    )
    return float(returns.mean())


def _best_fragments(data: Dataset) -> NDArray[np.int64]:
    """Return the five policies with the highest fragment returns."""
    trajectories = data.trajectories
    starts = segment_starts(trajectories)
    totals = np.add.reduceat(trajectories.rewards, starts[:-1])
    order = np.argsort(-totals, kind="stable")
    policies = trajectories.policy[starts[:-1]][order]
    return np.array(list(dict.fromkeys(policies.tolist()))[:5], dtype=np.int64)


def _predictions(critic: CriticFile, data: Dataset) -> NDArray[np.float64]:
    theta = data.policies.in_normaliser(critic.normaliser.mean, critic.normaliser.std)
    return critic.predict(theta)
