"""``pbvf fit-critic``: fit a parameter-based value function to a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pbvf_cli.commands.parts import fit_imagined as imagined
from pbvf_cli.shared import devices, options, values
from pbvf_cli.shared.command import Given, command
from pbvf_cli.shared.errors import signals
from pbvf_cli.shared.inputs.data import Data, open_data
from pbvf_cli.shared.options import DeviceName, option
from pbvf_cli.shared.outputs.curves import Curve
from pbvf_cli.shared.registered import Critic, CurveLoggers
from pbvf_cli.shared.settings import SettingsTable
from pbvf_cli.shared.terminal.output import Sink, number, time_taken
from pbvf_cli.shared.terminal.progress import Bar
from pbvf_offline.fit.rounds import IMAGINED, RoundSettings
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.setting_types import MAX_UPDATES

if TYPE_CHECKING:
    from pbvf_offline.fit.to_file import FitResult


@command(
    "pbvf fit-critic lab/swimmer-v0 --critic psvf --out critic.safetensors",
    "pbvf fit-critic lab/swimmer-v0 --critic psvf --snapshots 500,1000 --out critic.safetensors",
    "pbvf fit-critic ./swimmer-v0 --critic pssvf --validation-policies 0.1 "
    "--out critic.safetensors",
    "pbvf fit-critic lab/swimmer-v0 --critic pssvf --model model.safetensors "
    "--out critic.safetensors",
    "pbvf fit-critic lab/swimmer-v0 --critic pssvf --model model.safetensors --fingerprint 64 "
    "--policy 64,64 --out critic.safetensors",
    "pbvf fit-critic runs/swimmer --critic psvf --out critic.safetensors",
    continues=True,
)
def fit_critic(
    dataset: options.DatasetOrRun,
    *,
    critic: Critic,
    out: Annotated[Path, option("--out", "Where the critic is written.", "FILE")],
    updates: Annotated[
        int | None,
        options.counting(
            "--updates",
            "Gradient steps in all; more of them extend a finished fit.",
            most=MAX_UPDATES,
            show_default="3000",
        ),
    ] = None,
    given: Given[FitSettings],
    snapshots: Annotated[
        str | None,
        option(
            "--snapshots",
            "Updates at which NAME-000500.safetensors, … are written beside the output.",
            "500,1000,…",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        option(
            "--model",
            "Fit to episodes imagined in this learned environment, of the policies that the "
            "critic's own ascent proposes.",
            "FILE",
            panel=IMAGINED,
        ),
    ] = None,
    search: Annotated[Given[RoundSettings], "rounds", "tries", "caution", "policy", "compare"],
    force: Annotated[
        bool, option("--force", "Use the model though its own check failed.", panel=IMAGINED)
    ] = False,
    log_dir: options.LogDir = None,
    logger: CurveLoggers = None,
    threads: options.Threads = None,
    require_manifest: options.RequireManifest = False,
    overwrite: options.Overwrite = False,
    device: options.Device = DeviceName.AUTO,
    sink: Sink,
) -> None:
    """Fit a critic to a dataset, or a run's episodes, and write it to one self-contained file.

    The same command continues an interrupted fit, and finds a finished one complete.
    """
    wanted = values.parse_numbers(snapshots, "--snapshots")
    values.output_file(out)
    curve = Curve(log_dir, logger, out)
    asked = imagined.shared(critic, given, search)
    more = {"--updates": updates, "--snapshots": snapshots}
    imagined.refuse_others(
        model,
        beside=[
            *(option for option in given.options() if option not in asked.options()),
            *(option for option, value in more.items() if value is not None),
        ],
        without=[*search.options(), *(["--force"] if force else [])],
    )

    torch_device = devices.torch_device(device)

    from pbvf_offline.critics import CRITICS
    from pbvf_offline.fit.settings import fit_defaults
    from pbvf_offline.fit.to_file import fit_to_file, stored_seed

    table = SettingsTable()
    data = open_data(dataset, table, require_manifest=require_manifest)
    table.show("critic", critic)
    table.show("out", out)
    devices.use_threads(threads, table)
    if model is not None:
        devices.runs_on_cpu(device, sink)
        imagined.fit_imagined(
            sink,
            table,
            data,
            critic,
            model,
            out,
            asked,
            curve,
            overwrite=overwrite,
            force=force,
        )
        return
    bonus = data.trajectories.reward_survive is not None
    updates = table.choose("updates", updates, CRITICS[critic].offline.updates)
    settings = table.fill(
        given,
        fit_defaults(critic, data.env_id, data.trajectories.policies.spec, survival_bonus=bonus),
        stored_seed=None if overwrite else lambda: stored_seed(out),
    )
    if wanted:
        table.show("snapshots", wanted)
    curve.show(table)
    table.show("device", str(torch_device), devices.source(device))
    sink.settings("pbvf fit-critic", table.settings)
    if cut := data.counts["cut_episodes"]:
        sink.note(
            f"note: {cut:,} of {data.trajectories.episodes:,} episodes, cut by the step budget: no "
            "return, so no Monte Carlo target; they serve TD learning only"
        )
    with (
        Bar("fitting", "updates", sink=sink) as bar,
        curve.opened("fit-critic", table) as on_event,
        signals.held(),
    ):

        def report(done: int, total: int, loss: float) -> None:
            signals.check()  # between two whole updates, so that what is kept is whole
            bar.update(done, total, f"loss {number(loss, 4)}")

        result = fit_to_file(
            data.trajectories,
            settings,
            out,
            updates=updates,
            snapshots=wanted or (),
            environment=data.environment,
            dataset=data.digest_in(out),
            overwrite=overwrite,
            device=torch_device,
            progress=report,
            on_event=on_event,
        )
    _print(sink, out, result, data)


def _print(sink: Sink, out: Path, result: FitResult, data: Data) -> None:
    fit, validation = result.file.fit, result.file.validation
    done, seconds = result.updates_done_now, result.seconds
    rate = done / seconds if done and seconds > 0 else None
    rows = [
        ("critic", str(out)),
        ("updates", f"{fit.updates:,}"),
        ("loss", number(fit.loss)),
        ("gamma", number(fit.settings.gamma)),
        ("seed", str(fit.settings.seed)),
        ("time", time_taken(seconds, rate, "updates")),
        *(("snapshot", str(path)) for path in result.snapshots),
    ]
    if validation is not None:
        rows += [
            ("policies held out", f"{len(validation['policies'])}"),
            ("rank correlation", number(validation["rank_correlation"], 3)),
            ("return of the critic's top tenth", number(validation["top_tenth_return"])),
            ("return of all held out", number(validation["mean_return"])),
        ]
    payload = {
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
        **data.counts,
        "snapshots": result.snapshots,
        "validation": validation,
        "already_complete": result.already_complete,
    }
    sink.result(payload, rows, place=out)
