"""The better of two critics stands: that of imagined episodes, or that of the default recipe.

Both are climbed by fresh policies, and the learned environment plays where they arrive, from
starts spread over the data's and with action noise that no round has seen. It keeps the best
candidate of each policy, as ``pbvf synthesize --model`` does, of fewer candidates and by ascents
over fewer states. The critic whose policies have the higher mean cautious return stands. The
estimate favours imagined episodes, which were sought in that very environment: where it prefers the
default recipe all the same, nothing speaks for them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.critics import CRITICS
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import DivergedError, IncompatibleError
from pbvf_offline.fit.critic_context import make_context
from pbvf_offline.fit.critic_file import CriticFile
from pbvf_offline.fit.loop import advance, start_fit, training_set
from pbvf_offline.fit.rounds import Comparison, RoundSettings
from pbvf_offline.fit.settings import FitSettings, fit_defaults
from pbvf_offline.fit.steps import Fit
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.rollout.targets import monte_carlo_returns
from pbvf_offline.synthesis.ascent import synthesize
from pbvf_offline.synthesis.model_evaluation import ModelEvaluator
from pbvf_offline.synthesis.settings import default_synthesis_settings

_STATES = 256  # over which the ascents average
_POLICIES, _CANDIDATES = 5, 8


def better_critic(
    imagined: CriticFile,
    data: Trajectories,
    evaluator: ModelEvaluator,
    settings: RoundSettings,
    *,
    environment: EnvReference | None,
    dataset: str,
    after_update: Callable[[Fit], None] | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> CriticFile:
    """Return a critic of imagined episodes, or the default recipe's where that is better.

    Either way the file says how the rounds went and what the two came to. Where the default recipe
    diverges, or no ascent can begin in its trust region, the critic of imagined episodes stands
    without a comparison.

    Args:
        imagined: The critic of imagined episodes.
        data: The dataset.
        evaluator: The learned environment.
        settings: What decided the rounds.
        environment: The dataset's environment.
        dataset: The dataset's digest.
        after_update: Called after each update of the default recipe; what it raises stops it.
        progress: Called with what is done, and how much of it out of how much: ``climb-imagined``
            (steps), ``judge-imagined`` (policies), ``fit`` (updates of the default recipe),
            ``climb-recipe`` and ``judge-recipe``.

    Raises:
        ValueError: The critic is of no imagined episodes.
        DivergedError: The ascent of the critic of imagined episodes diverged.
    """
    if imagined.imagined is None:
        raise ValueError("this critic is of no imagined episodes")
    env_id = None if environment is None else environment.id
    device = evaluator.ensemble.device
    fit = start_fit(data, default_recipe(data, settings, env_id), device)
    context = make_context(data, fit, environment=environment, dataset=dataset)
    usual = default_synthesis_settings(env_id, count=_POLICIES, seed=settings.seed, judged=True)
    climb = dataclasses.replace(
        usual,
        hidden=settings.policy,
        states=_STATES,
        candidates=math.gcd(_CANDIDATES, usual.restarts),
    )

    evaluator = dataclasses.replace(evaluator, caution=settings.caution)

    def worth(critic: CriticFile, name: str) -> float:
        def judge(policies: Policies) -> NDArray[np.float64]:
            told = partial(progress, f"judge-{name}")
            told(0, len(policies))
            return evaluator.judge(policies, climb.candidates, progress=told)

        own = settings.radius if critic is imagined else climb.radius
        asked = dataclasses.replace(climb, radius=own)
        grown = synthesize(critic, asked, judge=judge, progress=partial(progress, f"climb-{name}"))
        return float(evaluator.evaluate(grown.policies).cautious.mean())

    def updated(fit: Fit) -> None:
        progress("fit", fit.updates, settings.compare)
        if after_update is not None:
            after_update(fit)

    value = worth(imagined, "imagined")
    try:
        advance(fit, training_set(fit, data, device), settings.compare, after_update=updated)
        recipe = CriticFile(fit, context)
        said = Comparison(value, worth(recipe, "recipe"), recipe.fit.settings.kind)
    except (DivergedError, IncompatibleError):
        return imagined
    story = dataclasses.replace(imagined.imagined, comparison=said)
    return dataclasses.replace(imagined if said.imagined_stands else recipe, imagined=story)


def default_recipe(data: Trajectories, settings: RoundSettings, env_id: str | None) -> FitSettings:
    """Return what ``fit-critic`` does without a model, for the same kind of critic.

    For a PSVF where a Monte Carlo critic finds no whole episode of one policy.
    """
    kind = settings.kind
    if CRITICS[kind].monte_carlo:
        try:
            monte_carlo_returns(data, data.rewards, 1.0)
        except IncompatibleError:
            kind = "psvf"
    usual = fit_defaults(
        kind,
        env_id,
        data.policies.spec,
        seed=settings.seed,
        survival_bonus=data.reward_survive is not None,
    ).settings
    return dataclasses.replace(usual, fingerprint=settings.fingerprint)
