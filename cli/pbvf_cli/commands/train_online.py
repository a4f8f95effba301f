"""``pbvf train-online``: learn a policy in an environment by climbing a critic as it is learned."""

from __future__ import annotations

import time

import typer

from pbvf_cli.commands.online import options as online_options
from pbvf_cli.commands.online.export import chosen_export
from pbvf_cli.commands.online.report import print_run, print_seeds
from pbvf_cli.commands.online.seeds import parse_run_seeds, train
from pbvf_cli.commands.online.settings import Flags, plan_training
from pbvf_cli.shared import devices, options, values
from pbvf_cli.shared.form import Form
from pbvf_cli.shared.options import DeviceName
from pbvf_cli.shared.output import Sink
from pbvf_cli.shared.registered import Critic, Family, Loggers
from pbvf_offline.errors import UsageError

EXAMPLES = """Examples:

pbvf train-online Swimmer-v5 --critic pssvf --run runs/swimmer

pbvf train-online Hopper-v5 --critic psvf --policy 64,64 --preset paper-last --run runs/hopper

pbvf train-online InvertedPendulum-v5 --critic pavf --seeds 0-4 --workers 2 --run runs/pendulum

pbvf train-online Swimmer-v5 --critic pssvf --run runs/tagged --export-dataset lab/swimmer-v0"""


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("train-online", epilog=EXAMPLES)(train_online)


def train_online(
    env: options.Environment,
    critic: Critic,
    run: online_options.Run,
    policy: online_options.Policy = None,
    family: Family = None,
    stochastic: online_options.Stochastic = False,
    biased: online_options.Biased = False,
    steps: online_options.Steps = None,
    preset: online_options.Preset = None,
    seeds: online_options.Seeds = None,
    workers: online_options.Workers = 1,
    gamma: options.Gamma = None,
    sigma: online_options.Sigma = None,
    hidden: options.Hidden = None,
    lr_policy: online_options.LrPolicy = None,
    lr_critic: online_options.LrCritic = None,
    normalization: online_options.Normalization = None,
    reward: options.Reward = None,
    snapshots: online_options.Snapshots = None,
    logger: Loggers = None,
    export_dataset: online_options.ExportDataset = None,
    license_id: options.License = None,
    author: options.Authors = None,
    evaluations: online_options.Evaluations = None,
    evaluation_episodes: online_options.EvaluationEpisodes = None,
    update_every: online_options.UpdateEvery = None,
    critic_updates: online_options.CriticUpdates = None,
    actor_updates: online_options.ActorUpdates = None,
    batch_size: online_options.BatchSize = None,
    actor_states: online_options.ActorStates = None,
    buffer_size: online_options.BufferSize = None,
    squash: online_options.Squash = None,
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
    run = values.output_folder(run)
    flags = Flags(
        env=values.env_config(env, env_kwargs, max_episode_steps),
        critic=critic,
        run=run,
        policy=policy,
        family=family,
        stochastic=stochastic,
        biased=biased,
        steps=steps,
        preset=preset and preset.value,
        gamma=gamma,
        sigma=sigma,
        hidden=values.parse_hidden(hidden),
        lr_policy=lr_policy,
        lr_critic=lr_critic,
        normalization=normalization and normalization.value,
        reward=reward and reward.value,
        evaluations=evaluations,
        evaluation_episodes=evaluation_episodes,
        update_every=update_every,
        critic_updates=critic_updates,
        actor_updates=actor_updates,
        batch_size=batch_size,
        actor_states=actor_states,
        buffer_size=buffer_size,
        squash=squash and squash.value,
    )
    wanted = values.parse_numbers(snapshots, "--snapshots")
    if seed is not None and seeds is not None:
        raise UsageError("give either --seed or --seeds, not both")
    export = chosen_export(export_dataset, license_id, tuple(author or ()), seeds=seeds, run=run)

    from pbvf_cli.shared.environments import silence_gymnasium
    from pbvf_runs.folder import stored_run_seed
    from pbvf_runs.loggers import DEFAULT
    from pbvf_runs.seeds import SeedJob, SeedRun

    silence_gymnasium()
    torch_device = devices.torch_device(device)
    several = None if seeds is None else parse_run_seeds(seeds, run)

    form = Form()
    plan = plan_training(flags, form)
    if wanted:
        form.show("snapshots", wanted)
    if several is None:
        one = form.seed(seed, None if overwrite else lambda: stored_run_seed(run))
        runs = [SeedRun(plan.with_seed(one), run)]
    else:
        form.show("seeds", several)
        runs = [SeedRun(plan.with_seed(each), run / f"seed-{each}") for each in several]
    if export is not None:
        export.show(form)
    loggers = tuple(form.choose("logger", logger, DEFAULT))
    form.option("workers", workers, 1)
    form.show("device", str(torch_device), "default" if device is DeviceName.AUTO else "given")
    sink.settings("pbvf train-online", form.settings)
    if workers > 1 and len(runs) == 1:
        sink.note("note: one run takes one process; --workers is for several --seeds")

    if export is not None:
        export.check(runs[0].config, plan.steps, overwrite=overwrite)
    started = time.perf_counter()
    job = SeedJob(plan.steps, wanted or (), torch_device, overwrite, loggers)
    results = train(job, runs, workers=workers, name_seeds=several is not None, sink=sink)
    seconds = time.perf_counter() - started
    if all(result.already_complete for result in results):
        sink.note(f"already complete: {run}")
    if several is not None:
        print_seeds(sink, run, results, plan.source, seconds)
        return
    (result,) = results
    if export is not None:
        result = export.write(result, overwrite=overwrite)
    print_run(sink, result, plan.source)
