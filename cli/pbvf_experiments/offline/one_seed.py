"""The cells of one dataset seed of section 4.4.

Cells share what is costly: datasets, and the environments learned from them, are kept in the
seed's work folder and found there by the cell that needs them next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.read.dataset import Dataset
from pbvf_experiments.cells import cell
from pbvf_experiments.growing import grow
from pbvf_experiments.offline.baselines import (
    OfflineRlSettings,
    offline_rl_settings,
    require_d3rlpy,
    train_offline_rl,
)
from pbvf_experiments.offline.cross_entropy import cross_entropy_search
from pbvf_experiments.offline.data import collect_fragments, describe, mean_return
from pbvf_experiments.offline.evaluation import evaluate_unseen, unseen_policies
from pbvf_experiments.offline.fqe import FqeSettings, evaluate_by_fqe, fqe_settings
from pbvf_experiments.offline.settings import (
    EVALUATION,
    FQE,
    IMAGINED,
    OFFLINE_RL,
    REFUSED,
    SEARCH,
    ImaginedRecipe,
    OfflineSettings,
)
from pbvf_offline.critics import CRITICS
from pbvf_offline.envs.make import close_env, make_env
from pbvf_offline.envs.reference import EnvConfig, EnvReference
from pbvf_offline.errors import IncompatibleError
from pbvf_offline.fit.critic_file import CriticFile
from pbvf_offline.fit.settings import FitSettings, default_fit_settings, paper_fit_settings
from pbvf_offline.fit.to_file import fit_to_file
from pbvf_offline.fit.work import snapshot_path
from pbvf_offline.io.reading import file_digest
from pbvf_offline.models.model_file import ModelFile
from pbvf_offline.models.settings import ModelRequest
from pbvf_offline.models.to_file import fit_model_to_file
from pbvf_offline.policies.batch import has_bfloat16
from pbvf_offline.policies.files import PoliciesFile
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.rollout.evaluation import evaluate_policies
from pbvf_offline.synthesis.model_evaluation import ModelEvaluator
from pbvf_offline.synthesis.rounds_to_file import episode_limit, rounds_to_file
from pbvf_offline.synthesis.settings import SynthesisSettings

Note = Callable[[str], None]


class OneSeed:
    """The cells of one dataset seed, from which every random number comes.

    Args:
        settings: What is run.
        seed: The seed.
        out: Folder of results; datasets, models, critics and policies go to its ``work`` folder.
        note: Told of each stage.
        within: Subfolder of results and of ``work``, where several experiments share ``out``.
    """

    def __init__(
        self, settings: OfflineSettings, seed: int, out: Path, note: Note, *, within: str = ""
    ) -> None:
        self._settings, self._seed = settings, seed
        self._raw = out / "raw" / within
        self._work = out / "work" / within / f"seed-{seed:03d}"
        self._tell = note
        self._datasets: dict[tuple[int, ...], Dataset] = {}
        self._models: dict[tuple[int, ...], tuple[Path, ModelFile]] = {}

    def dataset(self) -> dict[str, Any]:
        """Return what the dataset holds, and what its policies do in whole episodes."""
        hidden = self._settings.policy
        described = {"data": self._settings.data_settings(hidden)}
        return self._cell("dataset", described, lambda: self._describe(hidden))

    def recipe(self, name: str) -> dict[str, Any]:
        """Return the result of one of :data:`pbvf_experiments.offline.settings.RECIPES`."""
        if name in IMAGINED:
            return self.imagined(name, IMAGINED[name])
        if name == SEARCH:
            return self._search()
        if name in OFFLINE_RL:
            return self._offline_rl(name)
        if name == EVALUATION:
            return self._evaluation()
        if name == FQE:
            return self._fqe()
        return self._fit(name)

    def check(self) -> None:
        """Refuse recipes that are to be run and lack a library, before any work is done.

        Raises:
            UsageError: A package is missing.
        """
        if any(
            name in (*OFFLINE_RL, FQE) and not self._file(name).exists()
            for name in self._settings.recipes
        ):
            require_d3rlpy()

    def _cell(
        self, name: str, described: dict[str, Any], run: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        return cell(self._file(name), {"seed": self._seed, **described}, run)

    def _file(self, name: str) -> Path:
        return self._raw / f"seed-{self._seed:03d}-{name}.json"

    def _note(self, text: str) -> None:
        self._tell(f"seed {self._seed}: {text}")

    def _data(self, hidden: tuple[int, ...]) -> Dataset:
        """Return the dataset of linear policies or of such with hidden layers."""
        if hidden not in self._datasets:
            of = f" of {','.join(map(str, hidden))} policies" if hidden else ""
            self._note(f"collecting {self._settings.steps:,} transitions{of}")
            found = collect_fragments(self._settings, hidden, self._seed, self._work)
            self._datasets[hidden] = found
        return self._datasets[hidden]

    def _describe(self, hidden: tuple[int, ...]) -> dict[str, Any]:
        data = self._data(hidden)
        self._note(f"measuring all {len(data.policies)} dataset policies")
        return describe(self._settings, data, self._seed)

    def _source(self, data: Dataset) -> dict[str, Any]:
        """Return what files say of the data that they were made from."""
        return {
            "environment": EnvReference.from_dict(data.environment, str(data.path)),
            "dataset": data.digest,
        }

    # Critics of the data themselves.

    def _fit(self, name: str) -> dict[str, Any]:
        settings, seed = self._settings, self._seed
        fit_settings, updates, snapshots = _fit_recipe(settings, seed, name)
        described = {
            "data": settings.data_settings(settings.policy),
            "fit": fit_settings.to_dict() | {"updates": updates, "snapshots": list(snapshots)},
            "synthesis": settings.synthesis(seed, trust_region=True).to_dict(),
            "plain": settings.synthesis(seed, trust_region=False).to_dict()
            if settings.plain_steps
            else None,
            "evaluate_every": settings.evaluate_every,
            "episodes": settings.episodes,
        }
        return self._cell(
            name, described, lambda: self._run_fit(name, fit_settings, updates, snapshots)
        )

    def _run_fit(
        self, name: str, fit_settings: FitSettings, updates: int, snapshots: tuple[int, ...]
    ) -> dict[str, Any]:
        data = self._data(self._settings.policy)
        self._note(f"fitting the {name} critic, {updates:,} updates")
        path = self._work / f"{name}.safetensors"
        fitted = fit_to_file(
            data.trajectories,
            fit_settings,
            path,
            updates=updates,
            snapshots=snapshots,
            **self._source(data),
        )
        result: dict[str, Any] = {"loss": fitted.file.fit.record}
        if self._settings.top_ranked:
            ranked = np.argsort(-_predictions(fitted.file, data), kind="stable")[:5]
            result["top_ranked"] = mean_return(self._settings, data, ranked, self._seed)
        self._note(f"growing policies through the {name} critic")
        result["trust_region"] = self._grow(path, trust_region=True)
        for update in (snapshots or (updates,)) if self._settings.plain_steps else ():
            at = snapshot_path(path, update) if snapshots else path
            result[f"plain_{update}"] = self._grow(at, trust_region=False)
        return result

    def _grow(self, critic: Path, *, trust_region: bool) -> dict[str, Any]:
        settings = self._settings
        return grow(
            critic,
            settings.synthesis(self._seed, trust_region=trust_region),
            settings.env,
            episodes=settings.episodes,
            every=settings.evaluate_every,
            workers=settings.workers,
        )

    # Critics of imagined episodes.

    def imagined(self, name: str, recipe: ImaginedRecipe) -> dict[str, Any]:
        """Return the result of a critic of imagined episodes."""
        described = {
            **self._described(recipe),
            "synthesis": self._synthesis_of(recipe).to_dict(),
            "episodes": self._settings.episodes,
        }
        return self._cell(name, described, lambda: self._run_imagined(name, recipe))

    def _synthesis_of(self, recipe: ImaginedRecipe) -> SynthesisSettings:
        return self._settings.synthesis(
            self._seed, trust_region=True, hidden=recipe.policy, judged=True
        )

    def _described(self, recipe: ImaginedRecipe) -> dict[str, Any]:
        """Return what decides a critic of imagined episodes, in JSON form."""
        settings = self._settings
        return {
            "data": settings.data_settings(recipe.data),
            "model": self._request().to_dict() | {"updates": settings.model_updates},
            "rounds": settings.rounds_of(recipe, self._seed).to_dict(),
        }

    def _request(self) -> ModelRequest:
        return dataclasses.replace(self._settings.model, seed=self._seed, bfloat16=has_bfloat16())

    def _learn(self, hidden: tuple[int, ...]) -> tuple[Path, ModelFile]:
        """Return the environment learned from the dataset of such policies, and its file."""
        if hidden in self._models:
            return self._models[hidden]
        data = self._data(hidden)
        name = "model" if not hidden else f"model-of-{'x'.join(map(str, hidden))}"
        path = self._work / f"{name}.safetensors"
        self._note(f"learning the environment, {self._settings.model_updates:,} updates")
        learned = fit_model_to_file(
            data.trajectories,
            self._request(),
            path,
            updates=self._settings.model_updates,
            **self._source(data),
        )
        self._models[hidden] = path, learned.file
        return path, learned.file

    def _critic(self, name: str, recipe: ImaginedRecipe) -> tuple[Path, CriticFile]:
        """Return a critic of imagined episodes and its file."""
        data = self._data(recipe.data)
        path, model = self._learn(recipe.data)
        self._note(f"fitting the {name} critic to imagined episodes")
        critic = self._work / f"{name}-critic.safetensors"
        fitted = rounds_to_file(
            data.trajectories,
            model,
            self._settings.rounds_of(recipe, self._seed),
            critic,
            model_digest=file_digest(path),
            **self._source(data),
        )
        return critic, fitted.file

    def _run_imagined(self, name: str, recipe: ImaginedRecipe) -> dict[str, Any]:
        path, model = self._learn(recipe.data)
        check = model.check
        if check is None:
            raise TypeError("a finished model has a check")
        learned = {
            "noise": model.ensemble.settings.noise,
            "recovery": model.ensemble.settings.recovery,
            "huber": model.ensemble.settings.huber,
            "angles": model.ensemble.settings.angles,
            "unroll": model.ensemble.settings.unroll,
            "mixed": model.ensemble.settings.mixed,
            "check": check.to_dict(),
            "fit_for": list(check.fit_for),
        }
        refusal = check.refusal if recipe.compare else None
        if refusal is None:
            try:
                return learned | self._grow_imagined(name, recipe, path, model)
            except IncompatibleError as error:
                if not recipe.compare:
                    raise
                refusal = str(error)
        self._note(f"{refusal}; the default recipe stands")
        grown = self._fit("default")["trust_region"]
        return {**learned, "stands": REFUSED, "refusal": refusal, "trust_region": grown}

    def _grow_imagined(
        self, name: str, recipe: ImaginedRecipe, path: Path, model: ModelFile
    ) -> dict[str, Any]:
        settings = self._settings
        critic, fitted = self._critic(name, recipe)
        imagined = fitted.imagined
        if imagined is None:
            raise TypeError("a critic of imagined episodes says how it was fitted")
        self._note(f"growing policies through the {name} critic")
        result: dict[str, Any] = {
            "kept": imagined.kept.to_dict(),
            "rounds": [done.to_dict() for done in imagined.rounds],
            "trust_region": grow(
                critic,
                self._synthesis_of(recipe),
                settings.env,
                episodes=settings.episodes,
                every=settings.evaluate_every,
                workers=settings.workers,
                evaluator=ModelEvaluator.of(model, imagined.horizon),
                model_digest=file_digest(path),
            ),
        }
        if imagined.comparison is not None:
            result["stands"] = "imagined" if imagined.stands else "recipe"
            result["comparison"] = imagined.comparison.to_dict()
        if recipe.data != settings.policy:  # that dataset has a cell of its own
            result["dataset"] = self._describe(recipe.data)
        return result

    # Off-policy evaluation.

    def _evaluation(self) -> dict[str, Any]:
        return self._cell(EVALUATION, self._described_evaluation(), self._run_evaluation)

    def _described_evaluation(self) -> dict[str, Any]:
        """Return what decides the policies and what model and critic say, in JSON form."""
        evaluation = dataclasses.asdict(self._settings.ope)
        return {**self._described(IMAGINED["model"]), "evaluation": evaluation}

    def _run_evaluation(self) -> dict[str, Any]:
        settings, recipe = self._settings, IMAGINED["model"]
        _, critic = self._critic("model", recipe)
        return evaluate_unseen(
            self._data(recipe.data),
            self._learn(recipe.data)[1],
            critic,
            settings.ope,
            env=EnvConfig(settings.env),
            seed=self._seed,
            workers=settings.workers,
            note=self._note,
        )

    def _fqe(self) -> dict[str, Any]:
        settings = self._settings
        learner = fqe_settings(settings.env, seed=self._seed, updates=settings.fqe_updates)
        described = {
            **self._described_evaluation(),
            "fqe": learner.to_dict(),
            "policies": settings.fqe_policies,
        }
        return self._cell(FQE, described, lambda: self._run_fqe(learner))

    def _run_fqe(self, learner: FqeSettings) -> dict[str, Any]:
        settings, recipe = self._settings, IMAGINED["model"]
        evaluated, data = self._evaluation(), self._data(recipe.data)
        _, critic = self._critic("model", recipe)
        return evaluate_by_fqe(
            data.trajectories,
            unseen_policies(data, critic, settings.ope, env=settings.env, seed=self._seed),
            evaluated,
            learner,
            count=settings.fqe_policies,
            note=self._note,
        )

    # Controls and baselines.

    def _search(self) -> dict[str, Any]:
        settings = self._settings
        described = {
            **self._described(ImaginedRecipe()),
            "policies": settings.policies,
            "episodes": settings.episodes,
        }
        return self._cell(SEARCH, described, self._run_search)

    def _run_search(self) -> dict[str, Any]:
        settings, data = self._settings, self._data(())
        _, model = self._learn(())
        source = self._source(data)
        self._note("searching the learned environment by cross-entropy")
        found = cross_entropy_search(
            data.trajectories,
            model.ensemble,
            settings.rounds_of(ImaginedRecipe(), self._seed),
            horizon=episode_limit(data.trajectories, source["environment"]),
            count=settings.policies,
        )
        return {
            "returns": self._measure(SEARCH, data, found.policies, settings.episodes).tolist(),
            "cautious": found.cautious.tolist(),
            "mean": found.mean.tolist(),
            "played": found.played,
            "best": list(found.best),
        }

    def _offline_rl(self, name: str) -> dict[str, Any]:
        settings = self._settings
        learner = offline_rl_settings(
            name, settings.env, seed=self._seed, updates=settings.rl_updates
        )
        described = {
            "data": settings.data_settings(),
            "learner": learner.to_dict(),
            "episodes": settings.rl_episodes,
        }
        return self._cell(name, described, lambda: self._run_offline_rl(name, learner))

    def _run_offline_rl(self, name: str, learner: OfflineRlSettings) -> dict[str, Any]:
        data = self._data(())
        self._note(f"training {OFFLINE_RL[name]}, {learner.updates:,} updates")
        policies, libraries = train_offline_rl(data.trajectories, learner)
        returns = self._measure(name, data, policies, self._settings.rl_episodes)
        return {"returns": returns.tolist(), "libraries": libraries}

    def _measure(
        self, name: str, data: Dataset, policies: Policies, episodes: int
    ) -> NDArray[np.float64]:
        """Keep policies in the work folder and return the mean return of each."""
        environment = self._source(data)["environment"]
        origin = {"made_by": name, "dataset": data.digest, "seed": self._seed}
        file = PoliciesFile(policies, environment, origin)
        file.save(self._work / f"{name}-policies.safetensors")
        returns, _ = evaluate_policies(
            EnvConfig(self._settings.env),
            policies,
            episodes=episodes,
            seed=self._seed,
            workers=self._settings.workers,
        )
        means: NDArray[np.float64] = returns.mean(axis=1)
        return means


def _fit_recipe(
    settings: OfflineSettings, seed: int, name: str
) -> tuple[FitSettings, int, tuple[int, ...]]:
    """Return a recipe's fit settings, updates and snapshots."""
    env = make_env(EnvConfig(settings.env))
    spec = spec_for_env(env, settings.policy)
    close_env(env)
    default = default_fit_settings("psvf", settings.env, spec, seed=seed)
    if name == "default":
        return default, CRITICS["psvf"].offline.updates, ()
    return paper_fit_settings(default), max(settings.snapshots), settings.snapshots


def _predictions(critic: CriticFile, data: Dataset) -> NDArray[np.float64]:
    theta = data.policies.in_normaliser(critic.normaliser.mean, critic.normaliser.std)
    return critic.predict(theta)
