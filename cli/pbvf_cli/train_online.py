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
    run = options.output_folder(run)
    options.fraction(gamma, "--gamma")
    options.positive(lr_policy, "--lr-policy")
    options.positive(lr_critic, "--lr-critic")
    if seed is not None and seeds is not None:
        raise UsageError("give either --seed or --seeds, not both")
    _check_export(export_dataset, seeds, license_id, author, run)
    config = options.env_config(env, env_kwargs, max_episode_steps)

    import contextlib
    import dataclasses
    import time

    from pbvf_cli.environments import silence_gymnasium
    from pbvf_datasets.runs import RunConfig, check_export, stored_run_seed
    from pbvf_datasets.runs import export_dataset as export_run
    from pbvf_datasets.schema import check_dataset_id
    from pbvf_experiments.seeds import SeedJob, SeedRun, train_seeds
    from pbvf_offline.envs import close_env, make_env, spec_for_env
    from pbvf_offline.paper_presets import ALGORITHMS, TODAY, env_family, paper_steps
    from pbvf_offline.presets import CRITIC_PRESETS, env_preset

    silence_gymnasium()
    torch_device = options.torch_device(device)
    if export_dataset is not None:
        check_dataset_id(export_dataset)
    several = None if seeds is None else _seeds(seeds, run)
    kind, env_id = critic.value, env.rpartition(":")[2]
    of_env, of_kind = options.paper_source(env_id), f"paper default for {kind}"

    form = Form()
    form.show("environment", env)
    for name, value in (("env-kwargs", config.kwargs), ("max-episode-steps", max_episode_steps)):
        if value:
            form.show(name, value)
    form.show("critic", kind)
    form.show("policy", policy or "linear", "default" if policy is None else "given")
    form.show("stochastic", stochastic, "given" if stochastic else "default")
    squash = form.choose("squash", squash, SquashName(env_preset(env_id).squash), of_env)
    made = make_env(config)
    spec = spec_for_env(made, arch, squash=squash.value, stochastic=stochastic)
    close_env(made)
    defaults = _defaults(kind, env_id, spec, biased, preset)
    usual, tuned, paper = defaults.settings, defaults.source, ALGORITHMS[kind]

    def origin(value: object, of_paper: object) -> str:
        return of_kind if value == of_paper else tuned

    form.show("biased", biased, "given" if biased else "default")
    form.show("run", run)
    family = env_family(env_id)
    steps = form.choose(
        "steps",
        steps,
        paper_steps(env_id),
        f"paper default for {family}" if family in TODAY else "default",
    )
    form.show("preset", tuned, "default" if preset is None else "given")
    every = form.choose(
        "update-every",
        update_every,
        "episode" if usual.update_every is None else str(usual.update_every),
        origin(usual.update_every, paper.update_every),
    )
    settings = dataclasses.replace(
        usual,
        gamma=form.choose(
            "gamma", gamma, usual.gamma, of_kind if CRITIC_PRESETS[kind].undiscounted else of_env
        ),
        sigma=form.choose("sigma", sigma, usual.sigma, tuned),
        hidden=form.choose(
            "hidden",
            sizes,
            usual.hidden,
            "the authors' code" if kind == "pssvf" else origin(usual.hidden, paper.hidden),
        ),
        lr_policy=form.choose("lr-policy", lr_policy, usual.lr_policy, tuned),
        lr_critic=form.choose("lr-critic", lr_critic, usual.lr_critic, tuned),
        batch_size=form.choose("batch-size", batch_size, usual.batch_size, of_kind),
        actor_states=form.choose("actor-states", actor_states, usual.actor_states, of_kind),
        update_every=options.steps_or_episode(every, "--update-every"),
        critic_updates=form.choose(
            "critic-updates",
            critic_updates,
            usual.critic_updates,
            origin(usual.critic_updates, paper.critic_updates),
        ),
        actor_updates=form.choose(
            "actor-updates",
            actor_updates,
            usual.actor_updates,
            origin(usual.actor_updates, paper.actor_updates),
        ),
        buffer_size=form.choose("buffer-size", buffer_size, usual.buffer_size, of_kind),
        reward=form.choose(
            "reward", reward, RewardName(usual.reward), of_env if kind == "pssvf" else of_kind
        ).value,
        normalization=form.choose(
            "normalization", normalization, NormalizationName(usual.normalization), "default"
        ).value,
    )
    form.show("activation", settings.activation, origin(settings.activation, "relu"))
    evaluations = form.choose("evaluations", evaluations, _EVALUATIONS)
    evaluation_episodes = form.choose(
        "evaluation-episodes", evaluation_episodes, _EVALUATION_EPISODES
    )
    if wanted:
        form.show("snapshots", wanted)
    if several is None:
        several = [form.seed(seed, None if overwrite else lambda: stored_run_seed(run))]
    else:
        form.show("seeds", several)
    if export_dataset is not None:
        form.show("export-dataset", export_dataset)
        form.show("license", license_id, "default" if license_id is None else "given")
        if author:
            form.show("author", author)
    form.show("workers", workers, "default" if workers == 1 else "given")
    form.show("device", str(torch_device), "default" if device is DeviceName.AUTO else "given")
    sink.settings("pbvf train-online", form.settings)
    if workers > 1 and len(several) == 1:
        sink.note("note: one run takes one process; --workers is for several --seeds")

    runs = [
        SeedRun(
            RunConfig(
                config,
                spec,
                dataclasses.replace(settings, seed=each),
                evaluations,
                evaluation_episodes,
            ),
            run if seeds is None else run / f"seed-{each}",
        )
        for each in several
    ]
    if export_dataset is not None and not overwrite:
        check_export(
            runs[0].config, steps, export_dataset, license=license_id, authors=author or ()
        )
    alone = workers == 1 or len(runs) == 1
    started = time.perf_counter()
    with (
        Bar("training", "steps" if alone else "runs", sink=sink) as bar,
        # Workers are stopped at once and go on from their last checkpoints.
        signals.held() if alone else contextlib.nullcontext(),
    ):

        def told(done: int, total: int, of_seed: int | None, last: float | None) -> None:
            words = [f"seed {of_seed}"] if seeds is not None and alone else []
            words += [] if last is None else [f"last evaluation {number(last, 4)}"]
            bar.update(done, total, ", ".join(words))

        results = train_seeds(
            SeedJob(steps, wanted or (), torch_device, overwrite),
            runs,
            workers=workers,
            progress=told,
            stop_soon=signals.check,  # between episodes, so that what is kept is whole
            note=sink.note,
        )
    if all(result.already_complete for result in results):
        sink.note(f"already complete: {run}")
    if seeds is not None:
        seconds = time.perf_counter() - started
        _print_several(sink, run, results, tuned, seconds)
        return
    (result,) = results
    if export_dataset is not None:
        path = export_run(
            result,
            export_dataset,
            license=license_id,
            authors=tuple(author or ()),
            command=_command(result, export_dataset, license_id, author or ()),
            overwrite=overwrite,
        )
        result = dataclasses.replace(result, exported=path)
    _print(sink, result, tuned)


def _check_export(
    dataset: str | None,
    seeds: str | None,
    license_id: str | None,
    author: Sequence[str] | None,
    run: Path,
) -> None:
    """Refuse what does not go with ``--export-dataset``, or without it.

    Raises:
        UsageError: Something does not.
    """
    if dataset is None:
        for option, value in (("--license", license_id), ("--author", author)):
            if value:
                raise UsageError(
                    "is about a dataset", where=option, remedy="give --export-dataset too"
                )
    elif seeds is not None:
        raise UsageError(
            "makes a dataset of one run, and --seeds trains several",
            where="--export-dataset",
            remedy=f"train first, then export one of them: --run {run}/seed-N --seed N "
            "in place of --seeds",
        )


def _seeds(text: str, run: Path) -> list[int]:
    """Read ``--seeds``, whose runs go into one folder.

    Raises:
        UsageError: The seeds are malformed or out of range.
        ConflictError: The folder is that of a single run.
    """
    from pbvf_datasets.runs import CONFIG_FILE
    from pbvf_experiments.cells import parse_seeds
    from pbvf_offline.errors import ConflictError
    from pbvf_offline.seeding import check_seed

    seeds = [check_seed(seed) for seed in parse_seeds(text)]
    if (run / CONFIG_FILE).exists():
        raise ConflictError(
            "is the folder of a single run", where=run, remedy="choose another --run for --seeds"
        )
    return seeds


def _defaults(
    kind: str, env_id: str, spec: PolicySpec, biased: bool, preset: PresetName | None
) -> OnlineDefaults:
    """Return the settings that the user did not choose; their seed is no one's.

    Raises:
        UsageError: The paper lacks the combination that ``--preset`` insists on.
    """
    from pbvf_offline.online_presets import online_defaults

    chosen: Any = None if preset is None else preset.value
    try:
        return online_defaults(kind, env_id, spec, seed=0, biased=biased, preset=chosen)
    except UsageError as error:
        if preset is None or error.where is not None:
            raise
        raise UsageError(error.what, where="--preset", remedy=error.remedy) from error


def _command(
    result: RunResult, dataset: str, license_id: str | None, authors: Sequence[str]
) -> str:
    """Return the command that makes the same dataset; it names no folder of this machine."""
    config = result.config
    spec, settings = config.spec, config.settings
    every = "episode" if settings.update_every is None else settings.update_every
    words: list[object] = ["pbvf", "train-online", config.env.name, "--critic", settings.kind]
    words += ["--policy", spec.arch, "--squash", spec.squash, "--run", "run"]
    words += ["--stochastic"] if spec.stochastic else []
    words += ["--biased"] if settings.biased else []
    words += ["--steps", result.steps, "--gamma", settings.gamma, "--sigma", settings.sigma]
    words += ["--hidden", ",".join(map(str, settings.hidden)) or "linear"]
    words += ["--lr-policy", settings.lr_policy, "--lr-critic", settings.lr_critic]
    words += ["--batch-size", settings.batch_size, "--actor-states", settings.actor_states]
    words += ["--update-every", every, "--critic-updates", settings.critic_updates]
    words += ["--actor-updates", settings.actor_updates, "--buffer-size", settings.buffer_size]
    words += ["--normalization", settings.normalization, "--reward", settings.reward]
    words += ["--evaluations", config.evaluations]
    words += ["--evaluation-episodes", config.evaluation_episodes]
    reference = config.env.reference()
    kwargs = {k: v for k, v in reference.kwargs.items() if k in config.env.kwargs}
    kwargs.update(dict.fromkeys(reference.withheld, "..."))
    words += ["--env-kwargs", json.dumps(kwargs, sort_keys=True)] if kwargs else []
    if config.env.max_episode_steps is not None:
        words += ["--max-episode-steps", config.env.max_episode_steps]
    words += ["--export-dataset", dataset]
    words += ["--license", license_id] if license_id else []
    for name in authors:
        words += ["--author", name]
    words += ["--seed", settings.seed]
    return shlex.join(str(word) for word in words)


_NUMBERS = (
    "average_return",
    "last20_return",
    "average_return_without_survival",
    "last20_return_without_survival",
    "perturbed_return",
)


def _payload(result: RunResult, source: str) -> dict[str, Any]:
    """Return what one run came to, as ``--json`` has it."""
    from pbvf_datasets.runs import snapshot_files

    config = result.config
    bonus = any(e.returns_without_survival is not None for e in result.evaluations)
    trained = [total for _, total in result.training_returns]
    steps = [int(path.stem.rpartition("-")[2]) for path in result.snapshots]
    files = [(step, *snapshot_files(result.folder, step)) for step in steps]
    return {
        "run": result.folder,
        **_setup(config, source),
        "seed": config.settings.seed,
        "steps": result.steps,
        "episodes": result.episodes,
        "evaluations": [e.to_dict() for e in result.evaluations],
        "average_return": result.average_return(),
        "last20_return": result.average_return(last=0.2),
        "average_return_without_survival": (
            result.average_return(without_survival=True) if bonus else None
        ),
        "last20_return_without_survival": (
            result.average_return(last=0.2, without_survival=True) if bonus else None
        ),
        "perturbed_return": sum(trained) / len(trained) if trained else None,
        "seconds": result.seconds,
        "critic": result.critic,
        "policy": result.policy,
        "snapshots": [{"step": s, "critic": c, "policy": p} for s, c, p in files],
        "dataset": result.exported,
        "already_complete": result.already_complete,
    }


def _setup(config: RunConfig, source: str) -> dict[str, Any]:
    settings = config.settings.to_dict()
    del settings["seed"]
    return {
        "environment": config.env.name,
        "kind": config.settings.kind,
        "architecture": config.spec.arch,
        "stochastic": config.spec.stochastic,
        "preset": source,
        "settings": settings,
    }


def _print(sink: Sink, result: RunResult, source: str) -> None:
    payload = _payload(result, source)
    rows = [
        ("run", str(result.folder)),
        ("steps", f"{result.steps:,} in {result.episodes:,} whole episodes"),
        ("average return", number(payload["average_return"])),
        ("return over the last fifth", number(payload["last20_return"])),
        ("return of the perturbed policies", number(payload["perturbed_return"])),
    ]
    if payload["average_return_without_survival"] is not None:
        rows += [
            ("average without survival", number(payload["average_return_without_survival"])),
            ("last fifth without survival", number(payload["last20_return_without_survival"])),
        ]
    done = "nothing to do" if result.already_complete else f"{result.seconds:.1f} s"
    rows += [
        ("hyperparameters", source),
        ("seed", str(payload["seed"])),
        ("time", done),
        ("critic", str(result.critic)),
        ("policy", str(result.policy)),
    ]
    rows += [("snapshot", str(path)) for path in result.snapshots]
    if result.exported is not None:
        rows.append(("dataset", str(result.exported)))
    lines = [
        [f"{e.step:,}", number(sum(e.returns) / len(e.returns)), *map(number, _span(e.returns))]
        for e in _milestones(result)
    ]
    table = (("step", "mean return", "min", "max"), lines) if lines else None
    sink.result(payload, rows, table=table)


def _span(returns: Sequence[float]) -> tuple[float, float]:
    return min(returns), max(returns)


def _milestones(result: RunResult) -> list[Evaluation]:
    """Return the last evaluations within each fifth of a run."""
    found: dict[int, Evaluation] = {}
    for share in _SHARES:
        until = [e for e in result.evaluations if e.step <= share * result.steps]
        if until:
            found[until[-1].step] = until[-1]
    return list(found.values())


def _print_several(
    sink: Sink, run: Path, results: Sequence[RunResult], source: str, seconds: float
) -> None:
    """Print runs that differ in their seed, and what they say together."""
    parts = [_payload(result, source) for result in results]
    over = {name: _over([part[name] for part in parts]) for name in _NUMBERS}
    curve = [
        (step, [sum(r.evaluations[k].returns) / len(r.evaluations[k].returns) for r in results])
        for k, step in enumerate(e.step for e in results[0].evaluations)
    ]
    payload: dict[str, Any] = {
        "run": run,
        **_setup(results[0].config, source),
        "seeds": [part["seed"] for part in parts],
        "steps": results[0].steps,
        "episodes": [part["episodes"] for part in parts],
        "evaluations": [{"step": step, "returns": means} for step, means in curve],
    }
    for name in _NUMBERS:
        found = over[name]
        payload[name] = None if found is None else found.mean
        payload[f"{name}_interval"] = None if found is None else found.to_dict()
    payload |= {
        "seconds": seconds,
        "critic": [part["critic"] for part in parts],
        "policy": [part["policy"] for part in parts],
        "already_complete": all(part["already_complete"] for part in parts),
        "runs": parts,
    }
    complete = payload["already_complete"]
    rows = [
        ("run", str(run)),
        ("seeds", ",".join(str(part["seed"]) for part in parts)),
        ("steps", f"{results[0].steps:,} each"),
        ("average return", _shown(over["average_return"])),
        ("return over the last fifth", _shown(over["last20_return"])),
        ("return of the perturbed policies", _shown(over["perturbed_return"])),
    ]
    if over["average_return_without_survival"] is not None:
        rows += [
            ("average without survival", _shown(over["average_return_without_survival"])),
            ("last fifth without survival", _shown(over["last20_return_without_survival"])),
        ]
    rows += [
        ("hyperparameters", source),
        ("time", "nothing to do" if complete else f"{seconds:.1f} s"),
    ]
    shown = {e.step for e in _milestones(results[0])}
    lines = [
        [f"{step:,}", _shown(_over(means)), *map(number, _span(means))]
        for step, means in curve
        if step in shown
    ]
    header = ("step", "mean return over seeds", "min", "max")
    sink.result(payload, rows, table=(header, lines) if lines else None)


def _over(values: Sequence[float | None]) -> Interval | None:
    """Return what seeds say together; None where one of them has no value."""
    from pbvf_experiments.statistics import interval

    numbers = [value for value in values if value is not None]
    return interval(numbers) if len(numbers) == len(values) else None


def _shown(found: Interval | None) -> str:
    if found is None or found.std is None:
        return number(None if found is None else found.mean)
    span = f"{number(found.low)} to {number(found.high)}"
    return f"{number(found.mean)} ± {number(found.std, 4)} (95 % of the mean: {span})"
