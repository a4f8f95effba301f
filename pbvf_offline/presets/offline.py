"""The paper's hyperparameters as data, by environment family (the id without its version).

Sources: Faccio, Kirsch and Schmidhuber (ICLR 2021), "Implementation details" (discount,
batch sizes, critic sizes, survival bonus), section 4.4 and "Offline experiments"
(sigma 0.5, critic learning rate 1e-3, policy learning rate 0.02 on Swimmer, 0.05 in
the additional figures), "LQR".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pbvf_offline.critics import CRITICS
from pbvf_offline.policies.settings import NewPolicy
from pbvf_offline.presets.paper import PBVFS, TODAY, env_family
from pbvf_offline.records import Defaults
from pbvf_offline.setting_types import RewardChoice, Squash


@dataclass(frozen=True)
class EnvPreset:
    """Defaults of one environment family.

    Attributes:
        gamma: Discount factor of TD critics.
        steps: Environment steps of a default collection.
        sigma: Standard deviation of the parameter noise.
        synthesis_lr: Learning rate of policies grown from scratch.
        squash: How the policy's output becomes an action.
        normalize: Whether policies see normalised observations.
        undiscounted_reward: Reward of critics of the undiscounted return (PSSVF); others use the
            raw one.
    """

    gamma: float = 0.99
    steps: int = 100_000
    sigma: float = 0.5
    synthesis_lr: float = 0.05
    squash: Squash = "tanh"
    normalize: bool = True
    undiscounted_reward: RewardChoice = "raw"


@dataclass(frozen=True)
class SynthesisPreset:
    """Defaults of growing policies from scratch.

    Attributes:
        steps: Gradient steps.
        radius: Radius of the trust region, in units of the 95 % quantile of the dataset
            policies' own distances.
        states: Stored states that the objective averages over.
        restarts: Random starts for each policy, of which the critic keeps one.
        candidates: Climbs to the end for each policy, of which a learned environment keeps one.
    """

    steps: int
    radius: float
    states: int
    restarts: int
    candidates: int = 1


ENVIRONMENTS: dict[str, EnvPreset] = {
    "Swimmer": EnvPreset(gamma=0.999, synthesis_lr=0.02),
    "Hopper": EnvPreset(undiscounted_reward="without-survival"),
    "LQR": EnvPreset(squash="none", normalize=False, steps=5_000),
}

SYNTHESIS = SynthesisPreset(steps=200, radius=1.0, states=1_000, restarts=32, candidates=32)


# Values of ENVIRONMENTS that the paper gives, and for which environments.
_IN_PAPER: dict[str, frozenset[str]] = {
    "gamma": frozenset({*TODAY, "LQR"}),
    "steps": frozenset({"Swimmer"}),
    "sigma": frozenset({"Swimmer", "LQR"}),
    # The environments of the appendix's figures are in their images alone.
    "synthesis_lr": frozenset({"Swimmer", "MountainCarContinuous", "InvertedPendulum"}),
    "squash": frozenset({*TODAY, "LQR"}),
    "normalize": frozenset({*TODAY, "LQR"}),
    "undiscounted_reward": frozenset(TODAY),
}
# Values of critics' offline presets that are not this project's own.
_OF_CRITICS: dict[str, Mapping[str, str]] = {
    "pssvf": {"hidden": "the authors' code", "batch_size": "paper default for pssvf"},
    "psvf": {
        "hidden": "paper default for psvf",
        "batch_size": "paper default for psvf",
        "lr": "the paper's offline experiment",
    },
    "pavf": {"hidden": "paper default for pavf", "batch_size": "paper default for pavf"},
}


def env_preset(env_id: str | None) -> EnvPreset:
    """Return the defaults for an environment; general ones where the paper has none."""
    return EnvPreset() if env_id is None else ENVIRONMENTS.get(env_family(env_id), EnvPreset())


def env_source(name: str, env_id: str | None) -> str:
    """Return where a value of :func:`env_preset` comes from.

    >>> env_source("gamma", "Swimmer-v5"), env_source("sigma", "Hopper-v5")
    ('paper default for Swimmer', 'default')
    """
    family = "" if env_id is None else env_family(env_id)
    return f"paper default for {family}" if family in _IN_PAPER[name] else "default"


def policy_defaults(env_id: str | None) -> Defaults[NewPolicy]:
    """Return the architecture of a fresh policy, and where each value comes from."""
    settings = NewPolicy(squash=env_preset(env_id).squash)
    return Defaults(settings, {"squash": env_source("squash", env_id)})


def critic_sources(kind: str, env_id: str | None) -> dict[str, str]:
    """Return where the defaults of a critic kind in an environment come from, by name.

    Names that are missing are this project's own values.
    """
    of_kind = f"paper default for {kind}" if kind in PBVFS else "default"
    undiscounted = CRITICS[kind].undiscounted
    return {
        **_OF_CRITICS.get(kind, {}),
        "gamma": of_kind if undiscounted else env_source("gamma", env_id),
        "reward": env_source("undiscounted_reward", env_id),
    }


def default_gamma(kind: str, env_id: str | None) -> float:
    """Return the discount factor of a critic kind in an environment."""
    return 1.0 if CRITICS[kind].undiscounted else env_preset(env_id).gamma


def default_reward(kind: str, env_id: str | None) -> RewardChoice:
    """Return the reward that a critic kind adds up in an environment."""
    return env_preset(env_id).undiscounted_reward if CRITICS[kind].undiscounted else "raw"
