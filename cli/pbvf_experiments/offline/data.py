"""Datasets of section 4.4 and what they hold: their episodes, and their policies run whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.read.dataset import Dataset, load_dataset
from pbvf_experiments.offline.settings import OfflineSettings
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.policies.settings import NewPolicy
from pbvf_offline.rollout.evaluation import evaluate_policies
from pbvf_offline.rollout.targets import segment_starts
from pbvf_runs.collection import collect
from pbvf_runs.settings import CollectSettings


def collect_fragments(
    settings: OfflineSettings, hidden: tuple[int, ...], seed: int, root: Path
) -> Dataset:
    """Return a dataset of fragments of perturbed policies; one that is there is opened.

    Args:
        settings: What is collected.
        hidden: Sizes of the policies' hidden layers.
        seed: Seed of all random numbers.
        root: Folder of the dataset.
    """
    name = "fragments" if not hidden else f"fragments-{'x'.join(map(str, hidden))}"
    collected = collect(
        CollectSettings(
            env=EnvConfig(settings.env),
            dataset=f"offline/{name}-v0",
            steps=settings.steps,
            perturb_every=settings.perturb_every,
            sigma=settings.sigma,
            policy=NewPolicy(hidden=hidden),
            seed=seed,
        ),
        root=root,
        workers=settings.workers,
    )
    return load_dataset(collected.path, cache=False)


def describe(settings: OfflineSettings, data: Dataset, seed: int) -> dict[str, Any]:
    """Return what a dataset holds, and what its policies do in whole episodes."""
    truth, best_means = _true_returns(settings, data, seed)
    return {
        "digest": data.digest,
        "best_episode": float(data.trajectories.whole_returns().max()),
        "best_policy": float(best_means.max()),
        "best_fragments": mean_return(settings, data, _best_fragments(data), seed),
        "policy_return_quantiles": np.quantile(truth, [0, 0.5, 0.9, 0.99, 1]).tolist(),
    }


def mean_return(
    settings: OfflineSettings, data: Dataset, rows: NDArray[np.int64], seed: int
) -> float:
    """Return the mean return of some of a dataset's policies in whole episodes."""
    returns, _ = evaluate_policies(
        EnvConfig(settings.env),
        data.policies.select(rows),
        episodes=max(5, settings.episodes),
        seed=seed,
        workers=settings.workers,
    )
    return float(returns.mean())


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


def _best_fragments(data: Dataset) -> NDArray[np.int64]:
    """Return the five policies with the highest fragment returns."""
    trajectories = data.trajectories
    starts = segment_starts(trajectories)
    totals = np.add.reduceat(trajectories.rewards, starts[:-1])
    order = np.argsort(-totals, kind="stable")
    policies = trajectories.policy[starts[:-1]][order]
    return np.array(list(dict.fromkeys(policies.tolist()))[:5], dtype=np.int64)
