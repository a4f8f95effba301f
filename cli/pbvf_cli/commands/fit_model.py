"""``pbvf fit-model``: learn a dataset's environment, and check how far it can be relied on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pbvf_cli.shared import devices, options, values
from pbvf_cli.shared.command import Given, command
from pbvf_cli.shared.errors import signals
from pbvf_cli.shared.inputs.data import Data, naming_data, open_all
from pbvf_cli.shared.options import DeviceName, option
from pbvf_cli.shared.outputs.curves import Curve
from pbvf_cli.shared.registered import CurveLoggers
from pbvf_cli.shared.settings import SettingsTable
from pbvf_cli.shared.terminal.output import Sink, number, time_taken
from pbvf_cli.shared.terminal.progress import Bar
from pbvf_offline.errors import counted
from pbvf_offline.models.settings import MODEL_SOURCES, MODEL_UPDATES, ModelRequest
from pbvf_offline.records import Defaults
from pbvf_offline.setting_types import MAX_UPDATES

if TYPE_CHECKING:
    from pbvf_offline.models.choice import Trial
    from pbvf_offline.models.settings import ModelSettings
    from pbvf_offline.models.to_file import ModelResult

_SHOWN = (
    "steps",
    "pieces",
    "reached",
    "correlation",
    "slope",
    "error",
    "spread",
    "coverage",
    "calibrated",
)


@command(
    "pbvf fit-model lab/swimmer-v0 --out model.safetensors",
    "pbvf fit-model lab/swimmer-v0 --members 8 --updates 40000 --out model.safetensors",
    "pbvf fit-model lab/swimmer-v0 --noise 0 --no-angles --out model.safetensors",
    "pbvf fit-model lab/a-v0 lab/b-v0 --out model.safetensors",
    "pbvf fit-model runs/swimmer --out model.safetensors",
    continues=True,
)
def fit_model(
    datasets: options.DatasetsOrRuns,
    *,
    out: Annotated[Path, option("--out", "Where the model is written.", "FILE")],
    updates: Annotated[
        int | None,
        options.counting(
            "--updates",
            "Gradient steps in all; more of them extend a finished model.",
            most=MAX_UPDATES,
            show_default=str(MODEL_UPDATES),
        ),
    ] = None,
    given: Given[ModelRequest],
    log_dir: options.LogDir = None,
    logger: CurveLoggers = None,
    threads: options.Threads = None,
    require_manifest: options.RequireManifest = False,
    overwrite: options.Overwrite = False,
    device: options.Device = DeviceName.AUTO,
    sink: Sink,
) -> None:
    """Learn an environment from its data: an ensemble that predicts what a step leads to.

    It checks itself on episodes held out, and says what it may be used for. The same command
    continues an interrupted training, and finds a finished one complete.
    """
    values.output_file(out)
    curve = Curve(log_dir, logger, out)

    with signals.held():  # an exception raised while torch loads would abort the process
        from pbvf_offline.models.to_file import Hooks, fit_model_to_file, stored_model_seed
        from pbvf_offline.policies.batch import has_bfloat16

    place = devices.with_doubles(devices.torch_device(device), sink)
    table = SettingsTable()
    data = open_all(datasets, table, require_manifest=require_manifest, untagged=True)
    table.show("out", out)
    devices.use_threads(threads, table)
    updates = table.choose("updates", updates, MODEL_UPDATES)
    digest = data.digest_in(out)
    request = table.fill(
        given,
        Defaults(ModelRequest(seed=0, bfloat16=has_bfloat16()), MODEL_SOURCES),
        stored_seed=None if overwrite else lambda asked: stored_model_seed(out, asked, digest),
        hidden=_unused(given),
    )
    curve.show(table)
    table.show("device", str(place), devices.source(device))
    sink.settings("pbvf fit-model", table.settings)

    def tried(trial: Trial) -> None:
        signals.check()
        sink.begin()
        angles = "with" if trial.angles else "without"
        errors = number(trial.check.score, 3), number(trial.check.error_at_all_horizons, 3)
        mixed = ", mixed" if trial.mixed else ""
        sink.note(
            f"tried noise {trial.noise:g} {angles} angles{mixed}: error {errors[0]} spreads at "
            f"the longest horizon, {errors[1]} at all"
        )

    with (
        Bar("trying settings", "updates", sink=sink) as short,
        Bar("learning", "updates", sink=sink) as bar,
        curve.opened("fit-model", table) as on_event,
        signals.held(),
        naming_data(datasets),
    ):

        def trying(done: int, total: int, number: int, count: int) -> None:
            signals.check()
            short.update(done, total, f"trial {number} of {count}")

        def report(done: int, total: int, loss: float) -> None:
            signals.check()  # between two whole updates, so that what is kept is whole
            short.close()
            bar.update(done, total, f"loss {number(loss, 4)}")

        result = fit_model_to_file(
            data.trajectories,
            request,
            out,
            updates=updates,
            environment=data.environment,
            dataset=digest,
            overwrite=overwrite,
            hooks=Hooks(tried, trying, report, on_event, note=sink.note),
            device=place,
        )
    _print(sink, out, result, data)


_OF_THE_CHECK = ("length_error", "length_spread", "episode_steps", "time_limit", "replayed")
_NEAR_TIE = "a near tie goes to angles, to no noise, and to mixed networks"


def _unroll(settings: ModelSettings) -> str:
    """Return how many steps in a row networks learn, also where the two halves differ."""
    from pbvf_offline.models.objectives import objectives

    parts = objectives(settings)
    if len(parts) == 1:
        return counted(parts[0].unroll, "step")
    return ", ".join(
        f"{counted(part.unroll, 'step')} by "
        f"{counted(part.members.stop - part.members.start, 'network')}"
        for part in parts
    )


def _unused(given: Given[ModelRequest]) -> set[str]:
    """Return the settings that decide nothing, and were not given."""
    names = set()
    if all(given.get(name) is not None for name in ("noise", "angles", "mixed")):
        names.add("trial_updates")
    if given.get("noise") == 0:
        names.add("recovery")
    return names - set(given.values)


def _print(sink: Sink, out: Path, result: ModelResult, data: Data) -> None:
    from pbvf_offline.curve import last_loss

    file, seconds, done = result.file, result.seconds, result.updates_done_now
    settings, check = file.ensemble.settings, file.check
    horizons = () if check is None else check.horizons
    uses = () if check is None else check.fit_for
    training = result.training_seconds  # trials and the check are no updates
    rate = done / training if done and training > 0 else None
    payload: dict[str, Any] = {
        "model": out,
        "updates": file.fit.updates,
        "loss": last_loss(file.fit),
        "seconds": seconds,
        "updates_per_second": rate,
        "noise": settings.noise,
        "recovery": settings.recovery,
        "huber": settings.huber,
        "angles": settings.angles,
        "unroll": settings.unroll,
        "mixed": settings.mixed,
        "trials": [
            trial.to_dict() | {"mixed": trial.mixed, "score": trial.check.score}
            for trial in file.trials
        ],
        "seed": settings.seed,
        "dataset": file.dataset,
        **data.counts,
        "check": {
            name: [getattr(horizon, name) for horizon in horizons]
            for name in (*_SHOWN, "state_error")
        }
        | {name: None if check is None else getattr(check, name) for name in _OF_THE_CHECK},
        "fit_for": uses,
        "already_complete": result.already_complete,
    }
    chosen = [("chosen by", f"the check of {len(file.trials)} short trainings: {_NEAR_TIE}")]
    rows = [
        ("model", str(out)),
        ("updates", f"{file.fit.updates:,}"),
        ("noise", number(settings.noise)),
        ("angles", "yes" if settings.angles else "no"),
        ("unroll", _unroll(settings)),
        ("mixed", "yes" if settings.mixed else "no"),
        *(chosen if file.trials else ()),
        ("seed", str(settings.seed)),
        ("time", time_taken(seconds, rate, "updates", training, done=(done, file.fit.updates))),
        ("fit for", "not checked" if check is None else check.fit_for_words),
    ]
    if check is not None and check.held_words is not None:
        rows.append(("intervals hold", check.held_words))
    if check is not None and check.replayed:
        rows.append(("checked by", "replaying stored actions, without a policy that reacts"))
    if check is not None and check.shortage is not None:
        rows.append(("not for search", check.shortage))
    if check is not None and check.unseen is not None:
        rows.append(("not checked", check.unseen))
    header = [
        "after steps",
        "last so long",
        "correlation",
        "slope",
        "error",
        "spread",
        "in interval",
        "calibrated",
    ]
    lines = [
        [
            str(horizon.steps),
            f"{'?' if horizon.reached is None else horizon.reached} of {horizon.pieces}",
            number(horizon.correlation, 3),
            number(horizon.slope, 3),
            number(horizon.error, 4),
            number(horizon.spread, 4),
            "-" if horizon.coverage is None else f"{horizon.coverage:.0%}",
            "-" if horizon.calibrated is None else f"{horizon.calibrated:.0%}",
        ]
        for horizon in horizons
    ]
    if not all(horizon.passed for horizon in horizons):
        header.append("missed")
        for line, horizon in zip(lines, horizons, strict=True):
            line.append(", ".join(horizon.missed) or "nothing")
    sink.result(payload, rows, table=(header, lines) if lines else None, place=out)
