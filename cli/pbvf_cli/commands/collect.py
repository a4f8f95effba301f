"""``pbvf collect``: roll perturbed or given policies out into a dataset."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pbvf_cli.shared import devices, options, values
from pbvf_cli.shared.card_commands import collect_command
from pbvf_cli.shared.form import Form, paper_source
from pbvf_cli.shared.options import DeviceName, SquashName
from pbvf_cli.shared.output import NO_RETURN, Sink, return_range, time_taken
from pbvf_cli.shared.progress import Bar
from pbvf_cli.shared.registered import Family, Schedule
from pbvf_offline.errors import UsageError

if TYPE_CHECKING:
    from pbvf_runs.collection import CollectResult

EXAMPLES = """Examples:

pbvf collect Swimmer-v5 --dataset lab/swimmer-v0 --steps 100000 --perturb-every 200

pbvf collect mymodule:Mine-v0 --dataset lab/mine-v0 --episodes 500 --policy 64,64 --workers 4

pbvf collect Swimmer-v5 --dataset lab/best-v0 --policies policies.safetensors --episodes 50"""


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("collect", epilog=EXAMPLES)(collect)


def collect(
    env: options.Environment,
    dataset: options.DatasetId = None,
    steps: Annotated[
        int | None,
        options.counting(
            "--steps", "Steps in all; the last episode is cut to fit.", show_default="100000"
        ),
    ] = None,
    episodes: Annotated[
        int | None, options.counting("--episodes", "Whole episodes, in place of --steps.")
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
    schedule: Schedule = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="ARCH",
            help="A fresh policy's architecture: linear, or sizes such as 64,64.",
            show_default="linear",
        ),
    ] = None,
    family: Family = None,
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
        options.counting(
            "--warmup-episodes",
            "Episodes that the normaliser is taken from; not stored.",
            least=0,
            show_default="10",
        ),
    ] = None,
    env_kwargs: options.EnvKwargs = None,
    max_episode_steps: options.MaxEpisodeSteps = None,
    workers: options.Workers = 1,
    license_id: options.License = None,
    author: options.Authors = None,
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
    devices.runs_on_cpu(device, sink)
    every = values.steps_or_episode(perturb_every or "episode", "--perturb-every")
    hidden = values.parse_sizes(policy, "--policy")
    _check_sigma(sigma)
    dataset = values.target_dataset(dataset)
    if steps is not None and episodes is not None:
        raise UsageError("give either --steps or --episodes, not both")
    _check_combination(
        {
            "--perturb-every": perturb_every is not None,
            "--sigma": sigma is not None,
            "--schedule": schedule is not None,
            "--policy": policy is not None,
            "--family": family is not None,
            "--stochastic": stochastic,
            "--squash": squash is not None,
            "--normalize/--no-normalize": normalize is not None,
            "--warmup-episodes": warmup_episodes is not None,
        },
        base=base,
        policies=policies,
    )
    config = values.env_config(env, env_kwargs, max_episode_steps)

    from pbvf_cli.shared.environments import silence_gymnasium
    from pbvf_offline.policies.families import DEFAULT_FAMILY
    from pbvf_offline.policies.files import load_policies, single_policy
    from pbvf_offline.presets.offline import env_preset
    from pbvf_offline.rollout.schedule_kinds import INDEPENDENT
    from pbvf_runs.collection import CollectSettings, stored_seed
    from pbvf_runs.collection import collect as collect_dataset

    silence_gymnasium()
    preset, paper = env_preset(env), paper_source(env.rpartition(":")[2])
    base_file = None if base is None else single_policy(base)
    policies_file = None if policies is None else load_policies(policies)
    fresh = base is None and policies is None

    form = Form()
    form.environment(config)
    form.show("dataset", dataset)
    if episodes is None:
        steps = form.choose("steps", steps, preset.steps, paper)
    else:
        form.show("episodes", episodes)
    if policies is None:
        form.choose("perturb-every", perturb_every, "episode")
        sigma = form.choose("sigma", sigma, preset.sigma, paper)
        schedule = form.choose("schedule", schedule, INDEPENDENT)
    if fresh:
        form.choose("policy", policy, "linear")
        family = form.choose("family", family, DEFAULT_FAMILY)
        form.option("stochastic", stochastic, False)
        squash = form.choose("squash", squash, SquashName(preset.squash), paper)
        normalize = form.choose("normalize", normalize, preset.normalize, paper)
        if normalize:
            warmup_episodes = form.choose("warmup-episodes", warmup_episodes, 10)
    else:
        form.show("base" if policies is None else "policies", base or policies)
    seed = form.seed(seed, None if overwrite else lambda: stored_seed(dataset))
    form.rights(license_id, author or ())
    form.option("workers", workers, 1)

    settings = CollectSettings(
        env=config,
        dataset=dataset,
        steps=steps,
        episodes=episodes,
        perturb_every=every,
        sigma=preset.sigma if sigma is None else sigma,
        schedule=schedule or INDEPENDENT,
        hidden=hidden or (),
        family=family or DEFAULT_FAMILY,
        stochastic=stochastic,
        squash="tanh" if squash is None else squash.value,
        base=base_file,
        policies=policies_file,
        normalize=bool(normalize),
        warmup_episodes=warmup_episodes or 0,
        seed=seed,
        license=license_id,
        authors=tuple(author or ()),
    )
    settings = replace(settings, command=collect_command(settings, base or policies))
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
    perturbs = ("--perturb-every", "--sigma", "--schedule")
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


def _print(sink: Sink, result: CollectResult) -> None:
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
        "return": result.returns or NO_RETURN,
        "already_complete": result.already_complete,
    }
    sink.result(
        payload,
        [
            ("dataset", result.dataset),
            ("path", str(result.path)),
            ("episodes", f"{result.episodes:,} ({result.cut} cut short by the step budget)"),
            ("steps", f"{result.steps:,} ({result.warmup_steps:,} more for the normaliser)"),
            ("policies", f"{result.policies:,}"),
            ("return", return_range(result.returns)),
            ("seed", str(result.seed)),
            ("time", time_taken(result.seconds, result.steps_per_second, "steps")),
        ],
    )
