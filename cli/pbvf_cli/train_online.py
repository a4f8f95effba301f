"""``pbvf train-online``: learn a policy in an environment by climbing a critic as it is learned."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pbvf_cli import options
from pbvf_cli.errors import signals
from pbvf_cli.options import (
    CriticName,
    DeviceName,
    Form,
    NormalizationName,
    PresetName,
    RewardName,
    SquashName,
)
from pbvf_cli.output import Sink, number
from pbvf_cli.progress import Bar
from pbvf_offline.errors import UsageError

if TYPE_CHECKING:
    from pbvf_datasets.runs import Evaluation, RunConfig, RunResult
    from pbvf_experiments.statistics import Interval
    from pbvf_offline.online_presets import OnlineDefaults
    from pbvf_offline.policies import PolicySpec

EXAMPLES = """Examples:

pbvf train-online Swimmer-v5 --critic pssvf --run runs/swimmer

pbvf train-online Hopper-v5 --critic psvf --policy 64,64 --preset paper-last --run runs/hopper

pbvf train-online InvertedPendulum-v5 --critic pavf --seeds 0-4 --workers 2 --run runs/pendulum

pbvf train-online Swimmer-v5 --critic pssvf --run runs/tagged --export-dataset lab/swimmer-v0"""

_RARE = "Seldom needed"
_EVALUATIONS, _EVALUATION_EPISODES = 100, 10
_SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)  # of a run, for the table that people read


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("train-online", epilog=EXAMPLES)(train_online)


def train_online(
    env: Annotated[str, typer.Argument(metavar="ENV", help="A Gymnasium id, or module:Name-v0.")],
    critic: Annotated[
        CriticName,
        typer.Option("--critic", help="V(theta), V(s, theta) or Q(s, a, theta)."),
    ],
    run: Annotated[
        Path, typer.Option("--run", metavar="DIR", help="The run's folder; with --seeds, of runs.")
    ],
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="ARCH",
            help="The policy's architecture: linear, or sizes such as 64,64.",
            show_default="linear",
        ),
    ] = None,
    stochastic: Annotated[
        bool, typer.Option("--stochastic", help="The policy draws its actions.")
    ] = False,
    biased: Annotated[
        bool,
        typer.Option("--biased", help="PAVF without the gradient of Q in theta."),
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            min=1,
            metavar="N",
            help="Environment steps in all; more of them extend a finished run.",
            show_default="100000; Swimmer and Hopper 1000000",
        ),
    ] = None,
    preset: Annotated[
        PresetName | None,
        typer.Option(
            "--preset",
            help="Insist on the paper's values, best for the average or for the last return.",
            show_default="paper-avg where the paper has it, else this project's values",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds", metavar="0-4", help="Several runs, in the folders seed-0, … of --run."
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            min=1,
            metavar="N",
            help="Processes that train, each one seed at a time; results do not change.",
        ),
    ] = 1,
    gamma: Annotated[
        float | None,
        typer.Option(
            "--gamma",
            metavar="G",
            help="Discount factor.",
            show_default="0.99; Swimmer 0.999; pssvf 1",
        ),
    ] = None,
    sigma: Annotated[
        float | None,
        typer.Option(
            "--sigma",
            metavar="S",
            help="Standard deviation of the parameter noise of each episode.",
            show_default="the preset's",
        ),
    ] = None,
    hidden: Annotated[
        str | None,
        typer.Option(
            "--hidden",
            metavar="SIZES",
            help="The critic's hidden sizes.",
            show_default="512,512; pssvf 64,64",
        ),
    ] = None,
    lr_policy: Annotated[
        float | None,
        typer.Option(
            "--lr-policy", help="Learning rate of the policy.", show_default="the preset's"
        ),
    ] = None,
    lr_critic: Annotated[
        float | None,
        typer.Option(
            "--lr-critic", help="Learning rate of the critic.", show_default="the preset's"
        ),
    ] = None,
    normalization: Annotated[
        NormalizationName | None,
        typer.Option(
            "--normalization",
            help="Statistics of observations: frozen within each episode, the authors' "
            "step-by-step rule, or none.",
            show_default="episode; none for the LQR",
        ),
    ] = None,
    reward: Annotated[
        RewardName | None,
        typer.Option(
            "--reward",
            help="Which reward is learned from.",
            show_default="raw; pssvf on Hopper without-survival",
        ),
    ] = None,
    snapshots: Annotated[
        str | None,
        typer.Option(
            "--snapshots",
            metavar="100000,…",
            help="Steps at which critic-0100000.safetensors and policy-0100000.safetensors, … "
            "are kept too.",
        ),
    ] = None,
    export_dataset: Annotated[
        str | None,
        typer.Option(
            "--export-dataset",
            metavar="ID",
            help="Make a dataset of all training episodes too, such as lab/swimmer-v0.",
        ),
    ] = None,
    license_id: Annotated[
        str | None,
        typer.Option("--license", metavar="ID", help="Licence of that dataset, as CC-BY-4.0."),
    ] = None,
    author: Annotated[
        list[str] | None,
        typer.Option("--author", metavar="NAME", help="Of that dataset; may be repeated."),
    ] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(
            "--evaluations",
            min=0,
            metavar="N",
            help="Evaluations of the unperturbed policy, evenly over the run.",
            show_default=str(_EVALUATIONS),
            rich_help_panel=_RARE,
        ),
    ] = None,
    evaluation_episodes: Annotated[
        int | None,
        typer.Option(
            "--evaluation-episodes",
            min=1,
            metavar="N",
            help="Episodes of each evaluation.",
            show_default=str(_EVALUATION_EPISODES),
            rich_help_panel=_RARE,
        ),
    ] = None,
    update_every: Annotated[
        str | None,
        typer.Option(
            "--update-every",
            metavar="K|episode",
            help="Steps between rounds of updates.",
            show_default="50; pssvf episode",
            rich_help_panel=_RARE,
        ),
    ] = None,
    critic_updates: Annotated[
        int | None,
        typer.Option(
            "--critic-updates",
            min=0,
            metavar="N",
            help="Gradient steps of the critic in a round.",
            show_default="5; pssvf 10",
            rich_help_panel=_RARE,
        ),
    ] = None,
    actor_updates: Annotated[
        int | None,
        typer.Option(
            "--actor-updates",
            min=0,
            metavar="N",
            help="Gradient steps of the policy in a round.",
            show_default="1; pssvf 10",
            rich_help_panel=_RARE,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            min=1,
            metavar="N",
            help="Entries a gradient step of the critic draws.",
            show_default="128; pssvf 16",
            rich_help_panel=_RARE,
        ),
    ] = None,
    actor_states: Annotated[
        int | None,
        typer.Option(
            "--actor-states",
            min=1,
            metavar="N",
            help="Replayed states a gradient step of the policy averages over; pssvf has none.",
            show_default="128",
            rich_help_panel=_RARE,
        ),
    ] = None,
    buffer_size: Annotated[
        int | None,
        typer.Option(
            "--buffer-size",
            min=1,
            metavar="N",
            help="Entries of the replay buffer: steps; pssvf episodes.",
            show_default="100000",
            rich_help_panel=_RARE,
        ),
    ] = None,
    squash: Annotated[
        SquashName | None,
        typer.Option(
            "--squash",
            help="How the policy's output becomes an action.",
            show_default="tanh; none for the LQR",
            rich_help_panel=_RARE,
        ),
    ] = None,
    env_kwargs: options.EnvKwargs = None,
    max_episode_steps: options.MaxEpisodeSteps = None,
    overwrite: options.Overwrite = False,
    seed: options.Seed = None,
    device: options.Device = DeviceName.AUTO,
    json_only: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Train policy and critic together in an environment: the paper's Algorithms 1 to 4.

    The same command continues an interrupted run, and finds a finished one complete.
    """
    del debug  # the error boundary looks for it
    sink = Sink(json_only=json_only, quiet=quiet)
    arch = options.parse_sizes(policy, "--policy") or ()
    sizes = options.parse_sizes(hidden, "--hidden")
    wanted = options.parse_numbers(snapshots, "--snapshots")
    options.fraction(gamma, "--gamma")
    options.positive(lr_policy, "--lr-policy")
    options.positive(lr_critic, "--lr-critic")
    if seed is not None and seeds is not None:
        raise UsageError("give either --seed or --seeds, not both")
    _check_export(export_dataset, seeds, license_id, author, run)
    config = options.env_config(env, env_kwargs, max_episode_steps)

    import dataclasses

    from pbvf_cli.environments import silence_gymnasium
    from pbvf_datasets.runs import RunConfig, stored_run_seed
    from pbvf_datasets.runs import export_dataset as export_run
    from pbvf_datasets.schema import check_dataset_id
    from pbvf_experiments.seeds import SeedJob, SeedRun, train_seeds
    from pbvf_offline.envs import close_env, make_env, spec_for_env
    from pbvf_offline.paper_presets import env_family, paper_steps
    from pbvf_offline.presets import env_preset

    silence_gymnasium()
    torch_device = options.torch_device(device)
    if export_dataset is not None:
        check_dataset_id(export_dataset)
    numbers = None if seeds is None else _seeds(seeds, run)
    env_id = env.rpartition(":")[2]
    paper = options.paper_source(env_id)
    squash_source = paper if squash is None else "given"
    squash = SquashName(env_preset(env_id).squash) if squash is None else squash
    made = make_env(config)
    spec = spec_for_env(made, arch, squash=squash.value, stochastic=stochastic)
    close_env(made)
    defaults = _defaults(critic.value, env_id, spec, biased, preset)
    usual, tuned = defaults.settings, defaults.source

    form = Form()
    form.show("environment", env)
    for name, value in (("env-kwargs", config.kwargs), ("max-episode-steps", max_episode_steps)):
        if value:
            form.show(name, value)
    form.show("critic", critic.value)
    form.show("policy", spec.arch, "default" if policy is None else "given")
    for name, flag in (("stochastic", stochastic), ("biased", biased)):
        form.show(name, flag, "given" if flag else "default")
    form.show("squash", squash.value, squash_source)
    form.show("run", run)
    length = paper_steps(env_id)
    steps = form.choose("steps", steps, length, f"paper default for {env_family(env_id)}"
                        if _is_papers(env_id) else "default")
    form.show("preset", tuned, "default" if preset is None else "given")
