"""Section 4.4, offline learning with fragmented behaviours, over several datasets.

For each dataset seed: collect fragments, fit PSVFs, grow five fresh policies through
snapshots of each, and measure them beside the dataset's best episode, its best policy,
and two controls that need no synthesis.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.collect import CollectSettings, collect
from pbvf_datasets.reader import Dataset, load_dataset
from pbvf_experiments.cells import cell
from pbvf_offline.critic_files import CriticFile, load_critic
from pbvf_offline.envs import EnvConfig, EnvReference
from pbvf_offline.errors import UsageError
from pbvf_offline.fit import FitSettings, default_fit_settings, paper_fit_settings
from pbvf_offline.fit_files import fit_to_file, snapshot_path
from pbvf_offline.policies import PolicySpec
from pbvf_offline.presets import CRITIC_PRESETS, SYNTHESIS
from pbvf_offline.rollout import evaluate_policies
from pbvf_offline.synthesis import default_synthesis_settings
from pbvf_offline.synthesis_files import EvaluationSettings, synthesize_to_file
from pbvf_offline.targets import segment_starts

Note = Callable[[str], None]


@dataclass(frozen=True)
class OfflineSettings:
    """What the experiment runs; defaults are the paper's where it says.

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
        recipes: Which critics to fit: ``default`` and ``paper``.
        workers: Number of processes; does not change the results.
    """

    env: str = "Swimmer-v5"
    steps: int = 100_000
    perturb_every: int = 200
    sigma: float = 0.5
    snapshots: tuple[int, ...] = (500, 1_000, 2_000, 3_000, 5_000, 7_000)
    plain_steps: int = 200
    evaluate_every: int = 10
    episodes: int = 2
    policies: int = 5
    recipes: tuple[str, ...] = ("default", "paper")
    workers: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Return what decides the results, in JSON form."""
        data = dataclasses.asdict(self)
        del data["workers"]
        return data


def run_offline(
    settings: OfflineSettings, seeds: list[int], out: Path, note: Note
) -> dict[int, dict[str, Any]]:
    """Run every seed and return its result; finished cells are read back.

    Args:
        settings: What to run.
        seeds: Dataset seeds; every other random number of a cell comes from them too.
        out: Folder of the results; datasets, critics and policies go to its ``work`` folder.
        note: Called with a line about each stage.
    """
    results = {}
    for seed in seeds:
        described = {
            **settings.to_dict(),
            "seed": seed,
            "recipe": dataclasses.asdict(CRITIC_PRESETS["psvf"]) | dataclasses.asdict(SYNTHESIS),
        }
        results[seed] = cell(
            out / "raw" / f"seed-{seed:03d}.json",
            described,
            lambda seed=seed: _run_seed(settings, seed, out / "work" / f"seed-{seed:03d}", note),  # type: ignore[misc]
        )
    return results


def parse_recipes(text: str | None) -> tuple[str, ...]:
    """Parse ``default,paper``; both when None.

    Raises:
        UsageError: Another name is given.
    """
    known = ("default", "paper")
    names = known if text is None else tuple(dict.fromkeys(text.split(",")))
    if not names or any(name not in known for name in names):
        raise UsageError(f"cells {text!r} are not {' or '.join(known)}", where="--cells")
    return names


def summary(results: Mapping[int, Mapping[str, Any]]) -> list[dict[str, float | str]]:
    """Return one row a seed and their mean: what was grown beside what the dataset holds.

    ``region``: through the first critic run, inside the trust region, at the chosen step;
    ``plain peak`` and ``plain last``: plain ascent through the same critic, mean over its policies.
    """
    rows: list[dict[str, float | str]] = []
    for seed, result in results.items():
        name = "default" if "default" in result else "paper"
        recipe = result[name]
        last = max(
            (key for key in recipe if key.startswith("plain_")),
            key=lambda key: int(key.removeprefix("plain_")),
        )
        curve = [float(np.mean(point["returns"])) for point in recipe[last]["curve"]]
        rows.append(
            {
                "seed": str(seed),
                "region": float(np.mean(recipe["trust_region"]["returns"])),
                "plain peak": max(curve),
                "plain last": curve[-1],
                "best episode": result["best_episode"],
                "best policy": result["best_policy"],
                "top ranked": recipe["top_ranked"],
                "best fragments": result["best_fragments"],
            }
        )
    names = [key for key in rows[0] if key != "seed"]
    mean = {key: float(np.mean([float(row[key]) for row in rows])) for key in names}
    return [*rows, {"seed": "mean", **mean}]


def _run_seed(settings: OfflineSettings, seed: int, work: Path, note: Note) -> dict[str, Any]:
    note(f"seed {seed}: collecting {settings.steps:,} transitions")
    collected = collect(
        CollectSettings(
            env=EnvConfig(settings.env),
            dataset="offline/fragments-v0",
            steps=settings.steps,
            perturb_every=settings.perturb_every,
            sigma=settings.sigma,
            seed=seed,
        ),
        root=work,
        workers=settings.workers,
    )
    data = load_dataset(collected.path, cache=False)
    trajectories = data.trajectories
    note(f"seed {seed}: measuring all {len(data.policies)} dataset policies")
    truth, top_truth = _true_returns(settings, data, seed)
    fragments = _best_fragments(data)
    result: dict[str, Any] = {
        "best_episode": float(trajectories.whole_returns().max()),
        "best_policy": float(top_truth.max()),
        "best_fragments": _mean_return(settings, data, fragments, seed),
        "fragment_rows": fragments.tolist(),
    }
    for name, fit_settings, updates, snapshots in _critics(settings, data.spec, seed):
        note(f"seed {seed}: fitting the {name} critic, {updates:,} updates")
        path = work / f"{name}.safetensors"
        fitted = fit_to_file(
            trajectories,
            fit_settings,
            path,
            updates=updates,
            snapshots=snapshots,
            environment=EnvReference.from_dict(data.environment, str(data.path)),
            dataset=data.digest,
        )
        result[name] = {"seconds": round(fitted.seconds, 1), "loss": fitted.file.fit.record}
        ranked = np.argsort(-_predictions(fitted.file, data), kind="stable")[:5]
        result[name]["top_ranked"] = _mean_return(settings, data, ranked, seed)
        note(f"seed {seed}: growing policies through the {name} critic")
        grown = _grow(settings, path, seed, trust_region=True, steps=SYNTHESIS.steps)
        result[name]["trust_region"] = grown
        for update in snapshots or (updates,):
            at = snapshot_path(path, update) if snapshots else path
            plain = _grow(settings, at, seed, trust_region=False, steps=settings.plain_steps)
            result[name][f"plain_{update}"] = plain
    result["truth_quantiles"] = np.quantile(truth, [0, 0.5, 0.9, 0.99, 1]).tolist()
    return result


def _critics(
    settings: OfflineSettings, spec: PolicySpec, seed: int
) -> list[tuple[str, FitSettings, int, tuple[int, ...]]]:
    """Return the two recipes: this project's default and the paper's one-step TD."""
    default = default_fit_settings("psvf", settings.env, spec, seed=seed)
    paper = paper_fit_settings(default)
    both = [
        ("default", default, CRITIC_PRESETS["psvf"].updates, ()),
        ("paper", paper, max(settings.snapshots), settings.snapshots),
    ]
    return [recipe for recipe in both if recipe[0] in settings.recipes]


def _grow(
    settings: OfflineSettings, critic: Path, seed: int, *, trust_region: bool, steps: int
) -> dict[str, Any]:
    kind = "region" if trust_region else "plain"
    grown = synthesize_to_file(
        critic,
        load_critic(critic),
        dataclasses.replace(
            default_synthesis_settings(
                settings.env, count=settings.policies, seed=seed, trust_region=trust_region
            ),
            steps=steps,
        ),
        critic.with_name(f"{critic.stem}-{kind}-policies.safetensors"),
        evaluation=EvaluationSettings(
            EnvConfig(settings.env),
            settings.episodes,
            settings.evaluate_every if not trust_region else steps,
            seed,
            settings.workers,
        ),
    )
    return {
        "returns": grown.returns,
        "predicted": grown.predicted,
        "chosen_step": grown.chosen_step,
        "closest": grown.closest,
        "curve": grown.curve,
    }


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
