"""``pbvf train-online``: learn a policy in an environment by climbing a critic as it is learned."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from pbvf_cli.shared import devices, options, values
from pbvf_cli.shared.command import Given, command
from pbvf_cli.shared.errors import signals
from pbvf_cli.shared.options import DeviceName, option
from pbvf_cli.shared.registered import Critic, Loggers, Wrappers
from pbvf_cli.shared.settings import SettingsTable
from pbvf_cli.shared.terminal.output import Sink, number
from pbvf_cli.shared.terminal.progress import Bar
from pbvf_offline.errors import ConflictError, UsageError
from pbvf_offline.online.settings import OnlineSettings, Preset, online_defaults
from pbvf_offline.policies.settings import NewPolicy
from pbvf_offline.records import Defaults
from pbvf_runs.settings import RunEvaluation

if TYPE_CHECKING:
    from pbvf_offline.envs.reference import EnvConfig
    from pbvf_offline.online.settings import OnlineDefaults
    from pbvf_offline.policies.files import PoliciesFile
    from pbvf_offline.policies.spec import PolicySpec
    from pbvf_runs.records import RunConfig, RunResult
    from pbvf_runs.seeds import SeedJob, SeedRun


class Rights(TypedDict):
    """Licence and authors' names of a dataset."""

    license: str | None
    authors: tuple[str, ...]


@command(
    "pbvf train-online Swimmer-v5 --critic pssvf --run runs/swimmer",
    "pbvf train-online Hopper-v5 --critic psvf --policy 64,64 --preset paper-last "
    "--run runs/hopper",
    "pbvf train-online InvertedPendulum-v5 --critic pavf --seeds 0-4 --workers 2 "
    "--run runs/pendulum",
    "pbvf train-online Swimmer-v5 --critic pssvf --run runs/tagged --export-dataset lab/swimmer-v0",
    "pbvf train-online Swimmer-v5 --critic pssvf --base best.safetensors --run runs/further",
    continues=True,
)
def train_online(
    env: options.Environment,
    *,
    critic: Critic,
    run: Annotated[Path, option("--run", "The run's folder; with --seeds, of runs.", "DIR")],
    policy: Given[NewPolicy],
    base: Annotated[
        Path | None,
        option("--base", "Start from this policy, not a fresh one; its normaliser stays.", "FILE"),
    ] = None,
    steps: Annotated[
        int | None,
        options.counting(
            "--steps",
            "Environment steps in all; more of them extend a finished run.",
            show_default="100000; Swimmer and Hopper 1000000",
        ),
    ] = None,
    preset: Annotated[
        Preset | None,
        option(
            "--preset",
            "Insist on the paper's values: paper-avg, best for the average return, or "
            "paper-last, best for the last.",
            "NAME",
            default="paper-avg where the paper has it, else this project's values",
        ),
    ] = None,
    given: Given[OnlineSettings],
    seeds: Annotated[
        str | None, option("--seeds", "Several runs, in the folders seed-0, … of --run.", "0-4")
    ] = None,
    workers: Annotated[
        int | None,
        options.counting(
            "--workers",
            "Processes that train, each one seed at a time; results do not change.",
            most=options.MOST_WORKERS,
            show_default="1",
        ),
    ] = None,
    ray: options.Ray = None,
    evaluation: Given[RunEvaluation],
    snapshots: Annotated[
        str | None,
        option(
            "--snapshots",
            "Steps at which critic-0100000.safetensors and policy-0100000.safetensors, … "
            "are kept too.",
            "100000,…",
        ),
    ] = None,
    logger: Loggers = None,
    export_dataset: Annotated[
        str | None,
        option(
            "--export-dataset",
            "Make a dataset of all training episodes too, such as lab/swimmer-v0.",
            "ID",
            callback=options.dataset_id,
        ),
    ] = None,
    license_id: options.License = None,
    author: options.Authors = None,
    env_kwargs: options.EnvKwargs = None,
    max_episode_steps: options.MaxEpisodeSteps = None,
    wrapper: Wrappers = None,
    overwrite: options.Overwrite = False,
    device: options.Device = DeviceName.AUTO,
    threads: options.Threads = None,
    sink: Sink,
) -> None:
    """Train policy and critic together in an environment: the paper's Algorithms 1 to 4.

    The same command continues an interrupted run, and finds a finished one complete.
    """
    run = values.output_folder(run)
    wanted = values.parse_numbers(snapshots, "--snapshots")
    place = values.EnvOptions(env, env_kwargs, max_episode_steps, wrapper)
    table = SettingsTable()
    loaded = _base(base, policy)
    config = _environment(table, place, base, loaded)
    rights = Rights(license=license_id, authors=tuple(author or ()))
    _refuse_export(export_dataset, rights, seeds=seeds, run=run)

    from pbvf_cli.commands.parts.run_report import print_run, print_seeds
    from pbvf_cli.shared.inputs.environments import silence_gymnasium
    from pbvf_offline.presets.paper import paper_steps, steps_source
    from pbvf_runs.folder import stored_run_seed
    from pbvf_runs.loggers import DEFAULT
    from pbvf_runs.records import RunConfig
    from pbvf_runs.seeds import SeedJob

    silence_gymnasium()
    torch_device = devices.torch_device(devices.of_units(device, ray))
    several = _parse_run_seeds(seeds, given, run, ray)
    table.show("critic", critic)
    table.show("run", run)
    steps = table.choose("steps", steps, paper_steps(env), steps_source(env))
    spec = _spec(table, config, policy, base, loaded)
    usual = online_defaults(
        critic, env, spec, seed=0, biased=given.get("biased", False), preset=preset
    )
    usual = usual if base is None else _keeping_normaliser(usual)
    table.show("preset", usual.source, "default" if preset is None else "given")
    settings = table.fill(
        given,
        usual,
        stored_seed=None if overwrite else lambda _: stored_run_seed(run),
        hidden=() if several is None else ("seed",),
    )
    table.show("activation", settings.activation, usual.source_of("activation"))
    measured = table.fill(evaluation, Defaults(RunEvaluation(), {}))
    if wanted:
        table.show("snapshots", wanted)
    whole = RunConfig(
        config, spec, settings, measured.evaluations, measured.evaluation_episodes, loaded
    )
    if several is not None:
        table.show("seeds", several)
    if export_dataset is not None:
        table.show("export-dataset", export_dataset)
        table.rights(rights["license"], rights["authors"])
    loggers = tuple(table.choose("logger", logger, DEFAULT))
    engine = devices.units(workers, ray, table, shared=run)
    table.show("device", str(torch_device), devices.source(device))
    job = SeedJob(
        steps,
        wanted or (),
        torch_device,
        overwrite,
        loggers,
        devices.use_threads(threads, table),
    )
    sink.settings("pbvf train-online", table.settings)
    if export_dataset is not None:
        from pbvf_runs.export import check_export

        check_export(whole, steps, export_dataset, **rights, overwrite=overwrite)
    results, seconds = _train(
        job, _runs(whole, run, several), engine, name_seeds=several is not None, sink=sink
    )
    if several is not None:
        print_seeds(sink, run, results, usual.source, seconds)
        return
    result = _exported(results[0], export_dataset, rights, base=base, overwrite=overwrite)
    print_run(sink, result, usual.source)


def _base(file: Path | None, policy: Given[NewPolicy]) -> PoliciesFile | None:
    """Return the one policy of ``--base``.

    Raises:
        PbvfError: The file cannot be read, holds several, or options say what it says.
    """
    if file is None:
        return None

    from pbvf_cli.shared.inputs.policies import open_policies_file

    for name in policy.options():
        raise UsageError(
            "does not go with --base: the file holds the architecture",
            where=name,
            remedy="leave it out",
        )
    return open_policies_file(file, single=True)


def _environment(
    table: SettingsTable, place: values.EnvOptions, file: Path | None, base: PoliciesFile | None
) -> EnvConfig:
    """Return the environment; what was not given of it is as in the file of ``--base``."""
    from pbvf_cli.shared.inputs.environments import named_environment, warn_if_other

    references = [] if base is None or file is None else [(base.environment, file)]
    config = named_environment(place, references)
    warn_if_other(config.reference(), references)
    return table.environment(config, place)


def _keeping_normaliser(usual: OnlineDefaults) -> OnlineDefaults:
    """Return the defaults of a run that starts from a given policy."""
    settings = dataclasses.replace(usual.settings, normalization="none")
    sources = {**usual.sources, "normalization": "the base's normaliser stays"}
    return dataclasses.replace(usual, settings=settings, sources=sources)


def _spec(
    table: SettingsTable,
    config: EnvConfig,
    policy: Given[NewPolicy],
    file: Path | None,
    base: PoliciesFile | None,
) -> PolicySpec:
    """Return the architecture: the base's, else what was given, and the environment's spaces."""
    if base is not None:
        table.show("base", file)
        return base.policies.spec

    from gymnasium.spaces import Discrete

    from pbvf_offline.envs.make import close_env, make_env
    from pbvf_offline.policies.spaces import spec_for_env
    from pbvf_offline.presets.offline import policy_defaults

    env = make_env(config)
    idle = isinstance(env.action_space, Discrete) and "squash" not in policy.values
    hidden = ("squash",) if idle else ()  # the largest output is the action
    fresh = table.fill(policy, policy_defaults(config.name), hidden=hidden)
    spec = spec_for_env(env, **fresh.architecture)
    close_env(env)
    return spec


def _runs(config: RunConfig, folder: Path, seeds: Sequence[int] | None) -> list[SeedRun]:
    """Return the runs: that of the configuration, or one for each of several seeds."""
    from pbvf_runs.seeds import SeedRun

    if seeds is None:
        return [SeedRun(config, folder)]
    runs = []
    for seed in seeds:
        settings = dataclasses.replace(config.settings, seed=seed)
        each = dataclasses.replace(config, settings=settings)
        runs.append(SeedRun(each, folder / f"seed-{seed}"))
    return runs


def _parse_run_seeds(
    text: str | None, given: Given[OnlineSettings], run: Path, ray: str | None
) -> list[int] | None:
    """Read ``--seeds``, whose runs go into one folder; None: there is one run.

    Raises:
        UsageError: The seeds are malformed or out of range, one seed is given too, or one run is
            to be given to Ray.
        ConflictError: The folder is that of a single run, or without ``text`` that of several.
    """
    from pbvf_offline.seeding import check_seed
    from pbvf_runs.data import runs_in, runs_text
    from pbvf_runs.folder import is_run
    from pbvf_runs.seeds import parse_seeds

    if text is None:
        if ray is not None:
            raise UsageError("is for several runs", where="--ray", remedy="give --seeds too")
        runs = runs_in(run) if run.is_dir() and not is_run(run) else []
        if runs:
            raise ConflictError(
                f"holds {runs_text(runs)}",
                where=run,
                remedy="name one of them, choose another --run, or give --seeds",
            )
        return None
    if "seed" in given.values:
        raise UsageError("give either --seed or --seeds, not both")
    seeds = [check_seed(seed) for seed in parse_seeds(text)]
    if is_run(run):
        raise ConflictError(
            "is the folder of a single run", where=run, remedy="choose another --run for --seeds"
        )
    return seeds


def _train(
    job: SeedJob,
    runs: Sequence[SeedRun],
    engine: AbstractContextManager[int],
    *,
    name_seeds: bool,
    sink: Sink,
) -> tuple[list[RunResult], float]:
    """Train runs with progress and clean interrupts; return their results and the seconds taken.

    Raises:
        PbvfError: A run failed, after all others were finished.
    """
    from pbvf_offline.rollout.workers import is_done_here
    from pbvf_runs.seeds import train_seeds

    started = time.perf_counter()
    with engine as workers:
        alone = is_done_here(min(workers, len(runs)))
        if workers > 1 and alone:
            sink.note("note: one run takes one process; --workers is for several --seeds")
        with (
            Bar("training", "steps" if alone else "runs", sink=sink) as bar,
            # Workers stop at once and continue from their last checkpoints.
            signals.held() if alone else contextlib.nullcontext(),
        ):

            def report(done: int, total: int, seed: int | None, last: float | None) -> None:
                words = [f"seed {seed}"] if name_seeds and alone else []
                words += [] if last is None else [f"last evaluation {number(last, 4)}"]
                bar.update(done, total, ", ".join(words))

            results = train_seeds(
                job,
                runs,
                workers=workers,
                progress=report,
                stop_soon=signals.check,  # between episodes, so that what is kept is whole
                note=sink.note,
            )
            return results, time.perf_counter() - started


def _refuse_export(dataset: str | None, rights: Rights, *, seeds: str | None, run: Path) -> None:
    """Check what was asked of ``--export-dataset``.

    Raises:
        UsageError: Something does not go with it, or without it.
    """
    if dataset is None:
        for option, value in (("--license", rights["license"]), ("--author", rights["authors"])):
            if value:
                raise UsageError(
                    "is about a dataset", where=option, remedy="give --export-dataset too"
                )
        return
    if seeds is not None:
        raise UsageError(
            "makes a dataset of one run, and --seeds trains several",
            where="--export-dataset",
            remedy="train first, then export one of them: "
            f"--run {shlex.quote(str(run))}/seed-N --seed N "
            "in place of --seeds",
        )
    values.check_dataset(dataset)


def _exported(
    result: RunResult, dataset: str | None, rights: Rights, *, base: Path | None, overwrite: bool
) -> RunResult:
    """Make the dataset of a finished run, if one is wanted; the result has its folder."""
    if dataset is None:
        return result

    from pbvf_cli.shared.outputs.card_commands import train_online_command
    from pbvf_runs.export import export_dataset

    command = train_online_command(result, dataset, rights["license"], rights["authors"], base=base)
    path = export_dataset(result, dataset, **rights, command=command, overwrite=overwrite)
    return dataclasses.replace(result, exported=path)
