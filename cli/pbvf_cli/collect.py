"""``pbvf collect``: roll perturbed or given policies out into a dataset."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pbvf_cli import options
from pbvf_cli.options import DeviceName, Form, SquashName
from pbvf_cli.output import Sink, number, time_taken
from pbvf_cli.progress import Bar
from pbvf_offline.errors import UsageError

if TYPE_CHECKING:
    from pbvf_datasets.collect import CollectResult, CollectSettings

EXAMPLES = """Examples:

pbvf collect Swimmer-v5 --dataset lab/swimmer-v0 --steps 100000 --perturb-every 200

pbvf collect mymodule:Mine-v0 --dataset lab/mine-v0 --episodes 500 --policy 64,64 --workers 4

pbvf collect Swimmer-v5 --dataset lab/best-v0 --policies policies.safetensors --episodes 50"""


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("collect", epilog=EXAMPLES)(collect)


def collect(
    env: Annotated[str, typer.Argument(metavar="ENV", help="A Gymnasium id, or module:Name-v0.")],
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", metavar="ID", help="Where to: an id such as lab/swimmer-v0."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            min=1,
            metavar="N",
            help="Steps in all; the last episode is cut to fit.",
            show_default="100000",
        ),
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option("--episodes", min=1, metavar="N", help="Whole episodes, in place of --steps."),
    ] = None,
    perturb_every: Annotated[
        str | None,
        typer.Option(
            "--perturb-every",
            metavar="K|episode",
            help="Steps between perturbations, counted from each reset.",
            show_default="episode",
        ),
    ] = None,
    sigma: Annotated[
        float | None,
        typer.Option(
            "--sigma",
            metavar="S",
            help="Standard deviation of the parameter noise.",
            show_default="0.5",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="ARCH",
            help="A fresh policy's architecture: linear, or sizes such as 64,64.",
            show_default="linear",
        ),
    ] = None,
    stochastic: Annotated[
        bool, typer.Option("--stochastic", help="A fresh policy draws its actions.")
    ] = False,
    squash: Annotated[
        SquashName | None,
        typer.Option(
            "--squash",
            help="How a fresh policy's output becomes an action.",
            show_default="tanh; none for the LQR",
        ),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option("--base", metavar="FILE", help="Perturb this policy, not a fresh one."),
    ] = None,
    policies: Annotated[
        Path | None,
        typer.Option("--policies", metavar="FILE", help="Roll these policies out unperturbed."),
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help="A fresh policy sees normalised observations.",
            show_default="normalize; not for the LQR",
        ),
    ] = None,
    warmup_episodes: Annotated[
        int | None,
        typer.Option(
            "--warmup-episodes",
            min=0,
            metavar="N",
            help="Episodes that the normaliser is taken from; not stored.",
            show_default="10",
        ),
    ] = None,
    env_kwargs: options.EnvKwargs = None,
    max_episode_steps: options.MaxEpisodeSteps = None,
    workers: options.Workers = 1,
    license_id: Annotated[
        str | None,
        typer.Option("--license", metavar="ID", help="Licence of the data, such as CC-BY-4.0."),
    ] = None,
    author: Annotated[
        list[str] | None, typer.Option("--author", metavar="NAME", help="May be repeated.")
    ] = None,
    overwrite: options.Overwrite = False,
    seed: options.Seed = None,
    device: options.Device = DeviceName.AUTO,
    json_only: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Collect a dataset: episodes whose every step is tagged with the policy that acted.

    The same command continues an interrupted collection, and finds a finished one complete.
    """
    del debug  # the error boundary looks for it
    sink = Sink(json_only=json_only, quiet=quiet)
    options.runs_on_cpu(device, sink)
    every = _perturb_every(perturb_every)
    hidden = options.parse_sizes(policy, "--policy")
    _check_sigma(sigma)
    if dataset is None:
        raise UsageError("is missing", where="--dataset", remedy="give an id such as lab/name-v0")
    if steps is not None and episodes is not None:
        raise UsageError("give either --steps or --episodes, not both")
    _check_combination(
        {
            "--perturb-every": perturb_every is not None,
            "--sigma": sigma is not None,
            "--policy": policy is not None,
            "--stochastic": stochastic,
            "--squash": squash is not None,
            "--normalize/--no-normalize": normalize is not None,
            "--warmup-episodes": warmup_episodes is not None,
        },
        base=base,
        policies=policies,
    )
    config = options.env_config(env, env_kwargs, max_episode_steps)

    from pbvf_cli.environments import silence_gymnasium
    from pbvf_datasets.collect import CollectSettings, stored_seed
    from pbvf_datasets.collect import collect as collect_dataset
    from pbvf_datasets.schema import check_dataset_id
    from pbvf_offline.policy_files import load_policies, single_policy
    from pbvf_offline.presets import env_preset

    silence_gymnasium()
    check_dataset_id(dataset)
    preset, paper = env_preset(env), options.paper_source(env.rpartition(":")[2])
    base_file = None if base is None else single_policy(base)
    policies_file = None if policies is None else load_policies(policies)
    fresh = base is None and policies is None

    form = Form()
    form.show("environment", env)
    for name, value in (("env-kwargs", config.kwargs), ("max-episode-steps", max_episode_steps)):
        if value:
            form.show(name, value)
    form.show("dataset", dataset)
    if episodes is None:
        steps = form.choose("steps", steps, preset.steps, paper)
    else:
        form.show("episodes", episodes)
    if policies is None:
        form.choose("perturb-every", perturb_every, "episode")
        sigma = form.choose("sigma", sigma, preset.sigma, paper)
    if fresh:
        form.choose("policy", policy, "linear")
        form.show("stochastic", stochastic, "given" if stochastic else "default")
        squash = form.choose("squash", squash, SquashName(preset.squash), paper)
        normalize = form.choose("normalize", normalize, preset.normalize, paper)
        if normalize:
            warmup_episodes = form.choose("warmup-episodes", warmup_episodes, 10)
    else:
        form.show("base" if policies is None else "policies", base or policies)
    seed = form.seed(seed, None if overwrite else lambda: stored_seed(dataset))
    form.show("license", license_id, "default" if license_id is None else "given")
    if author:
        form.show("author", author)
    form.show("workers", workers, "default" if workers == 1 else "given")

    settings = CollectSettings(
        env=config,
        dataset=dataset,
        steps=steps,
        episodes=episodes,
        perturb_every=every,
        sigma=preset.sigma if sigma is None else sigma,
        hidden=hidden or (),
        stochastic=stochastic,
        squash="tanh" if squash is None else squash.value,
        base=base_file,
        policies=policies_file,
        normalize=bool(normalize),
        warmup_episodes=warmup_episodes or 0,
        seed=seed,
        license=license_id,
        authors=tuple(author or ()),
        command=None,
    )
    settings = _with_command(settings, base or policies)
    sink.settings("pbvf collect", form.settings)
    with Bar("collecting", "steps" if episodes is None else "episodes", sink=sink) as bar:

        def told(steps_done: int, steps_wanted: int | None, episodes_done: int) -> None:
            if episodes is None:
                bar.update(steps_done, steps_wanted, f"{episodes_done:,} episodes")
            else:
                bar.update(episodes_done, episodes, f"{steps_done:,} steps")

        result = collect_dataset(settings, overwrite=overwrite, workers=workers, progress=told)
    if result.already_complete:
        sink.note(f"already complete: {result.path}")
    _print(sink, result)


def _perturb_every(text: str | None) -> int | None:
    """Read ``--perturb-every``; None means whole episodes."""
    if text is None or text == "episode":
        return None
    try:
        every = int(text)
    except ValueError:
        every = 0
    if every < 1:
        raise UsageError(
            f"{text!r} is neither a whole number from 1 nor 'episode'", where="--perturb-every"
        )
    return every


def _check_sigma(sigma: float | None) -> None:
    if sigma is not None and not (math.isfinite(sigma) and sigma >= 0):
        raise UsageError(f"{sigma} is not a finite number from 0", where="--sigma")


def _check_combination(given: dict[str, bool], *, base: Path | None, policies: Path | None) -> None:
    """Refuse options that decide nothing because a policies file decides it.

    Raises:
        UsageError: One was given.
    """
    if base is not None and policies is not None:
        raise UsageError(
            "give either --base (perturbed) or --policies (as they are)", where="--policies"
        )
    if base is None and policies is None:
        return
    perturbs = ("--perturb-every", "--sigma")
    for option, is_given in given.items():
        if not is_given or (policies is None and option in perturbs):
            continue
        other = "--base" if policies is None else "--policies"
        reason = (
            "the policies are rolled out unperturbed, for whole episodes"
            if option in perturbs
            else "the file holds architecture and normaliser"
        )
        raise UsageError(f"does not go with {other}: {reason}", where=option, remedy="leave it out")


def _with_command(settings: CollectSettings, file: Path | None) -> CollectSettings:
    """Add the command that makes the same dataset; it names no folder of this machine."""
    from dataclasses import replace

    words = ["pbvf", "collect", settings.env.name, "--dataset", settings.dataset]
    if settings.episodes is None:
        words += ["--steps", str(settings.steps)]
    else:
        words += ["--episodes", str(settings.episodes)]
    if settings.policies is None:
        words += ["--perturb-every", str(settings.perturb_every or "episode")]
        words += ["--sigma", repr(float(settings.sigma))]
    if file is not None:
        words += ["--policies" if settings.policies else "--base", file.name]
    else:
        words += ["--policy", ",".join(map(str, settings.hidden)) or "linear"]
        words += ["--squash", settings.squash]
        words += ["--stochastic"] if settings.stochastic else []
        words += ["--normalize" if settings.normalize else "--no-normalize"]
        if settings.normalize:
            words += ["--warmup-episodes", str(settings.warmup_episodes)]
    words += _env_words(settings)
    words += ["--license", settings.license] if settings.license else []
    for name in settings.authors:
        words += ["--author", name]
    words += ["--seed", str(settings.seed)]
    return replace(settings, command=shlex.join(words))


def _env_words(settings: CollectSettings) -> list[str]:
    import json

    reference = settings.env.reference()
    kwargs = {k: v for k, v in reference.kwargs.items() if k in settings.env.kwargs}
    kwargs.update(dict.fromkeys(reference.withheld, "..."))
    words = ["--env-kwargs", json.dumps(kwargs, sort_keys=True)] if kwargs else []
    if settings.env.max_episode_steps is not None:
        words += ["--max-episode-steps", str(settings.env.max_episode_steps)]
    return words


def _print(sink: Sink, result: CollectResult) -> None:
    returns = result.returns
    payload: dict[str, Any] = {
        "dataset": result.dataset,
        "path": result.path,
        "episodes": result.episodes,
        "steps": result.steps,
        "policies": result.policies,
        "cut": result.cut,
        "seed": result.seed,
        "warmup_steps": result.warmup_steps,
        "seconds": result.seconds,
        "steps_per_second": result.steps_per_second,
        "return": returns or {"mean": None, "min": None, "max": None},
        "already_complete": result.already_complete,
    }
    span = (
        "no whole episode"
        if returns is None
        else f"mean {number(returns['mean'])}, {number(returns['min'])} to {number(returns['max'])}"
    )
    sink.result(
        payload,
        [
            ("dataset", result.dataset),
            ("path", str(result.path)),
            ("episodes", f"{result.episodes:,} ({result.cut} cut short by the step budget)"),
            ("steps", f"{result.steps:,} ({result.warmup_steps:,} more for the normaliser)"),
            ("policies", f"{result.policies:,}"),
            ("return", span),
            ("seed", str(result.seed)),
            ("time", time_taken(result.seconds, result.steps_per_second, "steps")),
        ],
    )
