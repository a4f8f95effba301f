"""``pbvf fit-critic``: fit a parameter-based value function to a dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pbvf_cli.commands import fit_imagined as imagined
from pbvf_cli.shared import devices, options, values
from pbvf_cli.shared.errors import signals
from pbvf_cli.shared.form import Form
from pbvf_cli.shared.options import DeviceName
from pbvf_cli.shared.output import Sink, number, time_taken
from pbvf_cli.shared.progress import Bar
from pbvf_cli.shared.registered import Critic

if TYPE_CHECKING:
    from pbvf_offline.fit.to_file import FitResult

EXAMPLES = """Examples:

pbvf fit-critic lab/swimmer-v0 --critic psvf --out critic.safetensors

pbvf fit-critic lab/swimmer-v0 --critic psvf --snapshots 500,1000 --out critic.safetensors

pbvf fit-critic ./swimmer-v0 --critic pssvf --validation-policies 0.1 --out critic.safetensors

pbvf fit-critic lab/swimmer-v0 --critic pssvf --model model.safetensors --out critic.safetensors"""

_BEYOND = "Beyond the paper (its critic: --n-step 1 --relabel 0 --no-bound-values --no-standardise \
--average 0)"
_IMAGINED = "Imagined returns"
_MOST_UPDATES = 2**31 - 1  # that a critic file can hold


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("fit-critic", epilog=EXAMPLES)(fit_critic)


def fit_critic(
    dataset: options.Dataset,
    critic: Critic,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where the critic is written.")
    ],
    updates: Annotated[
        int | None,
        options.counting(
            "--updates",
            "Gradient steps in all; more of them extend a finished fit.",
            most=_MOST_UPDATES,
            show_default="3000",
        ),
    ] = None,
    gamma: options.Gamma = None,
    lr: Annotated[
        float | None,
        typer.Option(
            "--lr", callback=options.positive, help="Learning rate.", show_default="0.001"
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        options.counting(
            "--batch-size", "Entries a gradient step draws.", show_default="128; pssvf 16"
        ),
    ] = None,
    hidden: options.Hidden = None,
    n_step: Annotated[
        int | None,
        options.counting(
            "--n-step",
            "Longest n-step target; never beyond one policy's segment.",
            most=None,
            show_default="200; pssvf has none",
        ),
    ] = None,
    relabel: Annotated[
        float | None,
        typer.Option(
            "--relabel",
            metavar="TAU",
            help="Learn from parameters drawn anew that change a policy's actions by about TAU "
            "(1: half the action range), not from those that acted; 0: from those that acted.",
            show_default="0.3 where policies are deterministic and continuous",
            rich_help_panel=_BEYOND,
        ),
    ] = None,
    bound_values: Annotated[
        bool | None,
        typer.Option(
            "--bound-values/--no-bound-values",
            help="Keep bootstrapped values within what the best and worst segments suggest.",
            show_default="bounded; pssvf bootstraps nothing",
            rich_help_panel=_BEYOND,
        ),
    ] = None,
    standardise: Annotated[
        bool | None,
        typer.Option(
            "--standardise/--no-standardise",
            help="Show the network parameters standardised over the dataset.",
            show_default="standardised",
            rich_help_panel=_BEYOND,
        ),
    ] = None,
    average: Annotated[
        float | None,
        typer.Option(
            "--average",
            callback=options.fraction_below_one,
            metavar="DECAY",
            help="Decay of the running average of weights that becomes the critic; 0: the last.",
            show_default="0.998",
            rich_help_panel=_BEYOND,
        ),
    ] = None,
    reward: options.Reward = None,
    snapshots: Annotated[
        str | None,
        typer.Option(
            "--snapshots",
            metavar="500,1000,…",
            help="Updates at which NAME-000500.safetensors, … are written beside the output.",
        ),
    ] = None,
    validation_policies: Annotated[
        float | None,
        typer.Option(
            "--validation-policies",
            callback=options.fraction_below_one,
            metavar="FRACTION",
            help="Share of the policies held out of the fit, to check the critic's ranking.",
            show_default="0",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="FILE",
            help="Fit a pssvf to returns imagined in this learned environment, of the policies "
            "that its own ascent proposes.",
            rich_help_panel=_IMAGINED,
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        options.counting(
            "--rounds",
            "Rounds of ascent and imagination.",
            most=10_000,
            show_default="30",
            rich_help_panel=_IMAGINED,
        ),
    ] = None,
    tries: Annotated[
        int | None,
        options.counting(
            "--tries",
            "Tries of 8 rounds, of which the best goes on.",
            most=100,
            show_default="1",
            rich_help_panel=_IMAGINED,
        ),
    ] = None,
    caution: Annotated[
        float | None,
        typer.Option(
            "--caution",
            metavar="C",
            help="Standard deviations of the networks' returns that are taken off.",
            show_default="2",
            rich_help_panel=_IMAGINED,
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Use the model though its own check failed.",
            rich_help_panel=_IMAGINED,
        ),
    ] = False,
    require_manifest: options.RequireManifest = False,
    overwrite: options.Overwrite = False,
    seed: options.Seed = None,
    device: options.Device = DeviceName.AUTO,
    json_only: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Fit a critic to a dataset and write it to one self-contained file.

    The same command continues an interrupted fit, and finds a finished one complete.
    """
    del debug  # the error boundary looks for it
    sink = Sink(json_only=json_only, quiet=quiet)
    sizes = values.parse_hidden(hidden)
    wanted = values.parse_numbers(snapshots, "--snapshots")
    values.output_file(out)
    searched = {"rounds": rounds, "tries": tries, "caution": caution, "hidden": sizes}
    usual_fit = {
        "updates": updates,
        "gamma": gamma,
        "lr": lr,
        "batch_size": batch_size,
        "n_step": n_step,
        "relabel": relabel,
        "bound_values": bound_values,
        "standardise": standardise,
        "average": average,
        "reward": reward,
        "snapshots": snapshots,
        "validation_policies": validation_policies,
    }
    imagined.refuse_others(critic, model, usual_fit, searched, force=force)

    from pbvf_datasets import load_dataset
    from pbvf_datasets.format.schema import resolve_dataset
    from pbvf_offline.critics import CRITICS
    from pbvf_offline.envs.reference import EnvReference
    from pbvf_offline.fit.settings import fit_defaults
    from pbvf_offline.fit.to_file import fit_to_file, stored_seed

    torch_device = devices.torch_device(device)
    path = resolve_dataset(dataset)
    data = load_dataset(path, require_manifest=require_manifest)
    environment = (
        None if data.environment is None else EnvReference.from_dict(data.environment, str(path))
    )
    env_id = None if environment is None else environment.id
    if model is not None:
        imagined.fit_imagined(
            sink,
            dataset,
            data,
            environment,
            model,
            out,
            searched,
            seed=seed,
            overwrite=overwrite,
            force=force,
            device=device,
        )
        return
    kind = critic
    bonus = data.trajectories.reward_survive is not None
    usual = fit_defaults(kind, env_id, data.spec, survival_bonus=bonus)

    form = Form()
    form.show("dataset", dataset)
    form.show("environment", env_id, "stored in the dataset")
    form.show("critic", kind)
    form.show("out", out)
    updates = form.choose("updates", updates, CRITICS[critic].offline.updates)
    given = {
        "hidden": sizes,
        "gamma": gamma,
        "lr": lr,
        "batch_size": batch_size,
        "n_step": n_step,
        "relabel": relabel,
        "bound_values": bound_values,
        "standardise": standardise,
        "average": average,
        "reward": reward and reward.value,
        "validation": validation_policies,
    }
    chosen: dict[str, Any] = {
        name: form.choose(
            name.replace("_", "-"), value, getattr(usual.settings, name), usual.source_of(name)
        )
        for name, value in given.items()
    }
    chosen["seed"] = form.seed(seed, None if overwrite else lambda: stored_seed(out))
    settings = replace(usual.settings, **chosen)
    if wanted:
        form.show("snapshots", wanted)
    form.show("device", str(torch_device), "default" if device is DeviceName.AUTO else "given")
    sink.settings("pbvf fit-critic", form.settings)
    cut = int(data.trajectories.cut.sum())
    if cut:
        sink.note(
            f"note: {cut} episode(s) cut short by a step budget serve TD only: they have no "
            "return and no Monte Carlo target"
        )
    with Bar("fitting", "updates", sink=sink) as bar, signals.held():

        def told(done: int, total: int, loss: float) -> None:
            signals.check()  # between two whole updates, so that what is kept is whole
            bar.update(done, total, f"loss {number(loss, 4)}")

        result = fit_to_file(
            data.trajectories,
            settings,
            out,
            updates=updates,
            snapshots=wanted or (),
            environment=environment,
            dataset=data.digest,
            overwrite=overwrite,
            device=torch_device,
            progress=told,
        )
    if result.already_complete:
        sink.note(f"already complete: {out}")
    _print(sink, out, result, cut)


def _print(sink: Sink, out: Path, result: FitResult, cut: int) -> None:
    fit = result.file.fit
    done, seconds = result.updates_done_now, result.seconds
    rate = done / seconds if done and seconds > 0 else None
    validation = result.file.validation
    payload: dict[str, Any] = {
        "critic": out,
        "kind": fit.settings.kind,
        "updates": fit.updates,
        "loss": fit.loss,
        "seconds": seconds,
        "updates_per_second": rate,
        "gamma": fit.settings.gamma,
        "reward": fit.settings.reward,
        "seed": fit.settings.seed,
        "dataset": result.file.context.dataset,
        "cut_episodes": cut,
        "snapshots": result.snapshots,
        "validation": validation,
        "already_complete": result.already_complete,
    }
    rows = [
        ("critic", str(out)),
        ("updates", f"{fit.updates:,}"),
        ("loss", number(fit.loss)),
        ("gamma", number(fit.settings.gamma)),
        ("seed", str(fit.settings.seed)),
        ("time", time_taken(seconds, rate, "updates")),
    ]
    rows += [("snapshot", str(path)) for path in result.snapshots]
    if validation is not None:
        rows += [
            ("policies held out", f"{len(validation['policies'])}"),
            ("rank correlation", number(validation["rank_correlation"], 3)),
            ("return of the critic's top tenth", number(validation["top_tenth_return"])),
            ("return of all held out", number(validation["mean_return"])),
        ]
    sink.result(payload, rows)
