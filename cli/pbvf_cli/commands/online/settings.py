"""From what a user typed to the settings of an online training: flags, else presets."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbvf_cli.commands.online.options import EVALUATION_EPISODES, EVALUATIONS
from pbvf_cli.shared.form import Form, paper_source
from pbvf_cli.shared.values import parse_sizes, steps_or_episode
from pbvf_offline.errors import UsageError

if TYPE_CHECKING:
    from pbvf_offline.envs.reference import EnvConfig
    from pbvf_offline.online.settings import OnlineDefaults, OnlineSettings
    from pbvf_offline.policies.spec import PolicySpec
    from pbvf_runs.records import RunConfig


@dataclass(frozen=True)
class Flags:
    """What a user typed, each as the option is called; None where nothing was.

    The names of a training's settings are those of ``OnlineSettings``.
    """

    env: EnvConfig
    critic: str
    run: Path
    policy: str | None
    family: str | None
    stochastic: bool
    biased: bool
    steps: int | None
    preset: str | None
    gamma: float | None
    sigma: float | None
    hidden: tuple[int, ...] | None
    lr_policy: float | None
    lr_critic: float | None
    normalization: str | None
    reward: str | None
    evaluations: int | None
    evaluation_episodes: int | None
    update_every: str | None
    critic_updates: int | None
    actor_updates: int | None
    batch_size: int | None
    actor_states: int | None
    buffer_size: int | None
    squash: str | None

    @property
    def env_id(self) -> str:
        """The environment's id without its module."""
        return self.env.name.rpartition(":")[2]


@dataclass(frozen=True)
class Plan:
    """What is to be trained.

    Attributes:
        config: The run, with a seed that is no one's.
        steps: Environment steps.
        source: What to call the origin of the tuned hyperparameters.
    """

    config: RunConfig
    steps: int
    source: str

    def with_seed(self, seed: int) -> RunConfig:
        """Return the run of a seed."""
        settings = dataclasses.replace(self.config.settings, seed=seed)
        return dataclasses.replace(self.config, settings=settings)


def plan_training(flags: Flags, form: Form) -> Plan:
    """Return what is to be trained; the form remembers where each value is from.

    Raises:
        UsageError: The environment cannot be built, a value is out of range, or the paper
            lacks the combination that ``--preset`` insists on.
    """
    from pbvf_offline.presets.paper import TODAY, env_family, paper_steps
    from pbvf_runs.records import RunConfig

    spec = _spec(flags, form)
    defaults = _defaults(flags, spec)
    form.option("biased", flags.biased, False)
    form.show("run", flags.run)
    family = env_family(flags.env_id)
    known = f"paper default for {family}" if family in TODAY else "default"
    steps = form.choose("steps", flags.steps, paper_steps(flags.env_id), known)
    form.show("preset", defaults.source, "default" if flags.preset is None else "given")
    config = RunConfig(
        flags.env,
        spec,
        _settings(flags, form, defaults),
        form.choose("evaluations", flags.evaluations, EVALUATIONS),
        form.choose("evaluation-episodes", flags.evaluation_episodes, EVALUATION_EPISODES),
    )
    return Plan(config, steps, defaults.source)


def _spec(flags: Flags, form: Form) -> PolicySpec:
    """Return the policy's spec: what was typed, and the environment's spaces."""
    from pbvf_offline.envs.make import close_env, make_env
    from pbvf_offline.policies.families import DEFAULT_FAMILY
    from pbvf_offline.policies.spaces import spec_for_env
    from pbvf_offline.presets.offline import env_preset

    arch = parse_sizes(flags.policy, "--policy") or ()
    form.environment(flags.env)
    form.show("critic", flags.critic)
    form.choose("policy", flags.policy, "linear")
    family = form.choose("family", flags.family, DEFAULT_FAMILY)
    form.option("stochastic", flags.stochastic, False)
    default: str = env_preset(flags.env_id).squash
    squash: Any = form.choose("squash", flags.squash, default, paper_source(flags.env_id))
    env = make_env(flags.env)
    spec = spec_for_env(env, arch, squash=squash, stochastic=flags.stochastic, family=family)
    close_env(env)
    return spec


def _defaults(flags: Flags, spec: PolicySpec) -> OnlineDefaults:
    """Return the settings that the user did not choose; their seed is no one's.

    Raises:
        UsageError: The paper lacks the combination that ``--preset`` insists on.
    """
    from pbvf_offline.online.settings import online_defaults

    preset: Any = flags.preset
    try:
        return online_defaults(
            flags.critic, flags.env_id, spec, seed=0, biased=flags.biased, preset=preset
        )
    except UsageError as error:
        if preset is None or error.where is not None:
            raise
        raise UsageError(error.what, where="--preset", remedy=error.remedy) from error


def _settings(flags: Flags, form: Form, defaults: OnlineDefaults) -> OnlineSettings:
    """Return the training's settings: what was typed, else the defaults."""
    from pbvf_offline.critics import CRITICS
    from pbvf_offline.presets.paper import PBVFS

    kind, usual, tuned = flags.critic, defaults.settings, defaults.source
    critic = CRITICS[kind]
    of_env = paper_source(flags.env_id)
    of_kind = f"paper default for {kind}" if kind in PBVFS else f"default for {kind}"

    def origin(name: str) -> str:
        """Name the origin of a value that is the algorithm's, unless it is tuned."""
        return of_kind if getattr(usual, name) == getattr(critic.online, name) else tuned

    every = form.choose(
        "update-every",
        flags.update_every,
        "episode" if usual.update_every is None else str(usual.update_every),
        origin("update_every"),
    )
    sources = {
        "gamma": of_kind if critic.undiscounted else of_env,
        "sigma": tuned,
        "hidden": "the authors' code" if kind == "pssvf" else origin("hidden"),
        "lr_policy": tuned,
        "lr_critic": tuned,
        "batch_size": of_kind,
        "actor_states": of_kind,
        "critic_updates": origin("critic_updates"),
        "actor_updates": origin("actor_updates"),
        "buffer_size": of_kind,
        "reward": of_env if critic.undiscounted else of_kind,
        "normalization": "default",
    }
    chosen: dict[str, Any] = {
        name: form.choose(
            name.replace("_", "-"), getattr(flags, name), getattr(usual, name), source
        )
        for name, source in sources.items()
    }
    form.show("activation", usual.activation, of_kind if usual.activation == "relu" else tuned)
    return dataclasses.replace(
        usual, update_every=steps_or_episode(every, "--update-every"), **chosen
    )
