"""What the experiment of section 4.4 runs: its settings and its recipes by name.

Imports no array library.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from pbvf_offline.errors import UsageError
from pbvf_offline.fit.rounds import RoundSettings, round_defaults
from pbvf_offline.models.settings import MODEL_UPDATES, ModelRequest
from pbvf_offline.synthesis.settings import SynthesisSettings, default_synthesis_settings

_MODEL = ModelRequest(seed=0)
_ROUNDS = RoundSettings(seed=0)
_DEEP = (64, 64)


@dataclass(frozen=True)
class ImaginedRecipe:
    """A critic of imagined episodes, and the policies that are grown through it.

    Attributes:
        kind: Which critic.
        fingerprint: Number of probing states by which it reads a policy; 0: it reads theta.
        policy: Hidden sizes of the policies that climb; None: those of the dataset's policies.
        data: Hidden sizes of the dataset's policies. All recipes of the same data share one
            dataset and one learned environment.
        compare: Whether it is what the commands do: the default recipe's critic stands where it is
            the better one, and also where they refuse to go on.
    """

    kind: str = "pssvf"
    fingerprint: int = 0
    policy: tuple[int, ...] | None = None
    data: tuple[int, ...] = ()
    compare: bool = False


FITS = ("default", "paper")
"""Recipes of a PSVF fitted to the dataset itself; run where nothing else is asked for."""
IMAGINED = {
    "model": ImaginedRecipe(),
    "model-psvf": ImaginedRecipe("psvf"),
    "model-pavf": ImaginedRecipe("pavf"),
    "model-64x64": ImaginedRecipe(fingerprint=64, policy=_DEEP),
    "deep-64x64": ImaginedRecipe(fingerprint=64, policy=_DEEP, data=_DEEP),
}
"""Recipes of a critic of imagined episodes."""
REFUSED = "refused"
STANDING = ("imagined", "recipe", REFUSED)
"""What stands where the commands choose: the critic of imagined episodes, that of the default
recipe because it is the better one, or that because a command refuses to go on."""
SEARCH = "cem"
"""Control: cross-entropy search in the learned environment of the first of these."""
OFFLINE_RL = {"td3bc": "TD3+BC", "iql": "IQL"}
"""Baselines of d3rlpy on the same data, and what they are called."""
EVALUATION = "evaluation"
"""Off-policy evaluation by model and critic of the first of :data:`IMAGINED`."""
FQE = "fqe"
"""Fitted Q evaluation of d3rlpy, on some of the policies of :data:`EVALUATION`."""
RECIPES = (*FITS, *IMAGINED, SEARCH, *OFFLINE_RL, EVALUATION, FQE)
"""What ``--cells`` can name."""


@dataclass(frozen=True)
class OpeSettings:
    """What off-policy evaluation is held against.

    Attributes:
        policies: Number of policies of each set.
        climbing: Fresh policies that climb the critic; the second set is drawn from their ways.
        every: Gradient steps between the points of a way.
        episodes: Whole episodes of each policy, of which the true return is the mean.
    """

    policies: int = 200
    climbing: int = 40
    every: int = 10
    episodes: int = 2


_OPE = OpeSettings()


@dataclass(frozen=True)
class OfflineSettings:
    """What the experiment runs.

    The dataset, the fits and the learning rates are the paper's. Measurements are sparser
    than its 5 episodes every 5 gradient steps.

    Attributes:
        env: The environment.
        policy: Hidden sizes of the policies of the dataset that is described, and that critics of
            the data themselves are fitted to.
        steps: Transitions of each dataset.
        perturb_every: Steps of each fragment.
        sigma: Standard deviation of the parameter noise.
        snapshots: Updates of the paper's critic at which policies are grown.
        plain_steps: Gradient steps of plain ascent; 0: there is none.
        evaluate_every: Gradient steps between measurements of plain ascent.
        episodes: Test episodes of each measurement.
        policies: Fresh policies grown through each critic.
        recipes: What to run, of :data:`RECIPES`.
        model_updates: Gradient steps of the learned environment.
        model: What else decides it; the seed is the dataset's.
        rounds: What decides the critics of imagined episodes where their recipe does not; the
            seed is the dataset's.
        rl_updates: Gradient steps of the baselines of :data:`OFFLINE_RL`.
        rl_episodes: Test episodes of each.
        ope: What off-policy evaluation is held against.
        fqe_policies: Policies of each set that fitted Q evaluation is asked about.
        fqe_updates: Its gradient steps for each.
        top_ranked: Whether the dataset policies that a critic ranks highest are run. Ranking tens
            of thousands of short fragments takes longer than the fit.
        workers: Number of processes; does not change the results.
    """

    env: str = "Swimmer-v5"
    policy: tuple[int, ...] = ()
    steps: int = 100_000
    perturb_every: int = 200
    sigma: float = 0.5
    snapshots: tuple[int, ...] = (500, 2_000, 4_000, 7_000)
    plain_steps: int = 200
    evaluate_every: int = 20
    episodes: int = 2
    policies: int = 5
    recipes: tuple[str, ...] = FITS
    model_updates: int = MODEL_UPDATES
    model: ModelRequest = _MODEL
    rounds: RoundSettings = _ROUNDS
    rl_updates: int = 16_000
    rl_episodes: int = 10
    ope: OpeSettings = _OPE
    fqe_policies: int = 10
    fqe_updates: int = 16_000
    top_ranked: bool = True
    workers: int = 1

    def data_settings(self, hidden: tuple[int, ...] = ()) -> dict[str, Any]:
        """Return what decides a dataset of such policies, in JSON form."""
        described: dict[str, Any] = {
            "env": self.env,
            "steps": self.steps,
            "perturb_every": self.perturb_every,
            "sigma": self.sigma,
        }
        return described | {"policy": list(hidden)} if hidden else described

    def rounds_of(self, recipe: ImaginedRecipe, seed: int) -> RoundSettings:
        """Return what decides a critic of imagined episodes."""
        usual = round_defaults(recipe.kind, self.env).settings
        return dataclasses.replace(
            self.rounds,
            seed=seed,
            kind=recipe.kind,
            gamma=usual.gamma,
            n_step=usual.n_step,
            fingerprint=recipe.fingerprint,
            policy=recipe.policy,
            compare=usual.compare if recipe.compare else 0,
        )

    def synthesis(
        self,
        seed: int,
        *,
        trust_region: bool,
        hidden: tuple[int, ...] | None = None,
        judged: bool = False,
    ) -> SynthesisSettings:
        """Return what decides the growth of policies of such hidden sizes; None: the data's.

        ``judged``: a learned environment chooses among candidates, as ``synthesize --model`` has
        it do.
        """
        usual = default_synthesis_settings(
            self.env, count=self.policies, seed=seed, trust_region=trust_region, judged=judged
        )
        steps = usual.steps if trust_region else self.plain_steps
        return dataclasses.replace(usual, steps=steps, hidden=hidden)


def parse_recipes(text: str | None) -> tuple[str, ...]:
    """Parse names of :data:`RECIPES` separated by commas; those of :data:`FITS` when None.

    Raises:
        UsageError: Another name is given.
    """
    names = FITS if text is None else tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in RECIPES:
            raise UsageError(
                f"no cell of fig-offline is called {name!r}",
                where="--cells",
                remedy=f"choose among {', '.join(RECIPES)}",
            )
    return names
