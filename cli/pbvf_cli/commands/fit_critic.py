"""``pbvf fit-critic``: fit a parameter-based value function to a dataset."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Annotated

from pbvf_cli.commands.parts import fit_imagined as imagined
from pbvf_cli.commands.parts import fit_results as results
from pbvf_cli.shared import devices, options, values
from pbvf_cli.shared.command import Given, command
from pbvf_cli.shared.errors import signals
from pbvf_cli.shared.inputs.data import naming_data, open_all
from pbvf_cli.shared.options import DeviceName, option
from pbvf_cli.shared.outputs.curves import Curve
from pbvf_cli.shared.registered import Critic, CurveLoggers
from pbvf_cli.shared.settings import SettingsTable
from pbvf_cli.shared.terminal.output import Sink, number
from pbvf_cli.shared.terminal.progress import Bar
from pbvf_offline.errors import counted
from pbvf_offline.fit.rounds import IMAGINED, RoundSettings
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.setting_types import MAX_UPDATES


@command(
    "pbvf fit-critic lab/swimmer-v0 --critic psvf --out critic.safetensors",
    "pbvf fit-critic lab/swimmer-v0 --critic psvf --snapshots 500,1000 --out critic.safetensors",
    "pbvf fit-critic ./swimmer-v0 --critic pssvf --validation-policies 0.1 "
    "--out critic.safetensors",
    "pbvf fit-critic lab/swimmer-v0 --critic psvf --seeds 0-4 --out critic.safetensors",
    "pbvf fit-critic lab/swimmer-v0 --critic pssvf --model model.safetensors "
    "--out critic.safetensors",
    "pbvf fit-critic lab/swimmer-v0 --critic pssvf --model model.safetensors --fingerprint 64 "
    "--policy 64,64 --out critic.safetensors",
    "pbvf fit-critic lab/a-v0 lab/b-v0 --critic psvf --out critic.safetensors",
    "pbvf fit-critic runs/swimmer --critic psvf --out critic.safetensors",
    continues=True,
)
def fit_critic(
    datasets: options.DatasetsOrRuns,
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
    seeds: Annotated[
        str | None,
        option(
            "--seeds",
            "Several critics at once, written to NAME-seed-0.safetensors, … beside the output.",
            "0-4",
        ),
    ] = None,
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
    search: Annotated[
        Given[RoundSettings], "rounds", "tries", "leaders", "radius", "caution", "policy", "compare"
    ],
    force: Annotated[
        bool,
        option(
            "--force",
            "Use the model though its own check failed, or it is of another environment.",
            panel=IMAGINED,
        ),
    ] = False,
    log_dir: options.LogDir = None,
    logger: CurveLoggers = None,
    threads: options.Threads = None,
    require_manifest: options.RequireManifest = False,
    overwrite: options.Overwrite = False,
    device: options.Device = DeviceName.AUTO,
    sink: Sink,
) -> None:
    """Fit a critic to datasets, or runs' episodes, and write it to one self-contained file.

    Datasets may be larger than memory. Several are what their merge would be, without writing it.
    The same command continues an interrupted fit, and finds a finished one complete.
    """
    wanted = values.parse_numbers(snapshots, "--snapshots")
    values.output_file(out)
    curve = Curve(log_dir, logger, out)
    several = results.parse_fit_seeds(seeds, given, model)
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
    from pbvf_offline.fit.to_file import FitJob, fit_several_to_files, seed_path, stored_seed

    table = SettingsTable()
    data = open_all(datasets, table, require_manifest=require_manifest)
    table.show("critic", critic)
    table.show("out", out)
    devices.use_threads(threads, table)
    if model is not None:
        place = devices.with_doubles(torch_device, sink)
        table.show("device", str(place), devices.source(device))
        with naming_data(datasets):
            imagined.fit_imagined(
                sink,
                table,
                data,
                critic,
                model,
                asked,
                curve,
                device=place,
                overwrite=overwrite,
                force=force,
            )
        return
    bonus = data.trajectories.reward_survive is not None
    updates = table.choose("updates", updates, CRITICS[critic].offline.updates)
    digest = data.digest_in(out if several is None else seed_path(out, several[0]))
    settings = table.fill(
        given,
        fit_defaults(critic, data.env_id, data.trajectories.policies.spec, survival_bonus=bonus),
        stored_seed=None if overwrite else lambda asked: stored_seed(out, asked, digest),
        hidden=() if several is None else ("seed",),
    )
    if several is not None:
        table.show("seeds", several)
    if wanted:
        table.show("snapshots", wanted)
    curve.show(table)
    table.show("device", str(torch_device), devices.source(device))
    sink.settings("pbvf fit-critic", table.settings)
    if cut := data.counts["cut_episodes"]:
        sink.note(
            f"note: {cut:,} of {counted(data.trajectories.episodes, 'episode')}, cut by the step "
            "budget: no return, so no Monte Carlo target; they serve TD learning only"
        )
    curves = [curve] if several is None else [curve.of_seed(s, seed_path(out, s)) for s in several]
    with (
        Bar("fitting", "updates", sink=sink) as bar,
        contextlib.ExitStack() as logs,
        signals.held(),
        naming_data(datasets),
    ):
        jobs = [
            FitJob(
                settings if each.seed is None else dataclasses.replace(settings, seed=each.seed),
                values.output_file(each.out),
                logs.enter_context(each.opened("fit-critic", table)),
            )
            for each in curves
        ]

        def report(done: int, total: int, loss: float) -> None:
            signals.check()  # between two whole updates, so that what is kept is whole
            bar.update(done, total, f"loss {number(loss, 4)}")

        fitted = fit_several_to_files(
            data.trajectories,
            jobs,
            updates=updates,
            snapshots=wanted or (),
            environment=data.environment,
            dataset=digest,
            overwrite=overwrite,
            device=torch_device,
            progress=report,
            note=sink.note,
        )
    if several is None:
        results.print_fit(sink, out, fitted[0], data)
    else:
        results.print_fits(sink, [job.out for job in jobs], fitted, data)
