"""``pbvf predict``: what a critic says of policies, without an environment."""

from __future__ import annotations

import contextlib
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

from pbvf_cli.shared import devices, options, values
from pbvf_cli.shared.command import command
from pbvf_cli.shared.inputs.critics import load_evaluator, load_judge, named
from pbvf_cli.shared.inputs.policies import (
    Choice,
    Source,
    note_fewer,
    open_policies,
    refuse_unexpressed,
)
from pbvf_cli.shared.options import DeviceName, argument, option
from pbvf_cli.shared.settings import SettingsTable
from pbvf_cli.shared.terminal.output import Sink, number
from pbvf_cli.shared.terminal.policy_text import ROWS_SHOWN
from pbvf_cli.shared.terminal.progress import Bar
from pbvf_offline.errors import PbvfError, UsageError
from pbvf_offline.setting_types import MAX_HORIZON

if TYPE_CHECKING:
    from pbvf_offline.models.check import ModelCheck
    from pbvf_offline.synthesis.prediction import Predictions


@command(
    "pbvf predict critic.safetensors policies.safetensors",
    "pbvf predict critic.safetensors lab/swimmer-v0 --top 5 --out best.safetensors",
    "pbvf predict critic.safetensors policies.safetensors --model model.safetensors",
)
def predict(
    critic: Annotated[Path, argument("CRITIC", "A critic file.")],
    policies: Source,
    *,
    model: Annotated[
        Path | None, option("--model", "Imagine their returns in this learned environment.", "FILE")
    ] = None,
    horizon: Annotated[
        int | None,
        options.counting(
            "--horizon",
            "Steps of an imagined episode at most.",
            most=MAX_HORIZON,
            show_default="the time limit, where it is known; else the longest episode of the "
            "model's data",
        ),
    ] = None,
    top: Annotated[
        int | None, options.counting("--top", "Write the best K policies to --out.", metavar="K")
    ] = None,
    out: Annotated[Path | None, option("--out", "Where the best are written.", "FILE")] = None,
    require_manifest: options.RequireManifest = False,
    overwrite: options.Overwrite = False,
    device: options.Device = DeviceName.AUTO,
    sink: Sink,
) -> None:
    """Say what a critic makes of policies, best first. No environment is built."""
    if (top is None) != (out is None):
        raise UsageError(
            "has no meaning without --top" if top is None else "needs --out FILE",
            where="--out" if top is None else "--top",
        )
    if horizon is not None and model is None:
        raise UsageError("has no meaning without --model", where="--horizon")
    if out is not None:
        values.output_file(out, policies if overwrite else None)

    torch_device = devices.torch_device(device)

    from pbvf_offline.io.reading import file_digest
    from pbvf_offline.policies.files import PoliciesFile, policies_to_file
    from pbvf_offline.synthesis.model_evaluation import IMAGINED_UNIT
    from pbvf_offline.synthesis.prediction import predict as predict_policies

    _refuse_swapped(critic, policies)
    given = open_policies(policies, require_manifest=require_manifest)
    judge = load_judge(critic, given, policies, torch_device)
    refuse_unexpressed(given.policies, judge.normaliser, policies)
    table = SettingsTable()
    table.show("critic", named(critic, judge))
    table.show("policies", policies)
    evaluator = None
    if model is not None:
        evaluator = load_evaluator(model, judge, horizon, table, sink)
        refuse_unexpressed(given.policies, evaluator.ensemble.scales.normaliser, policies)
    sink.settings("pbvf predict", table.settings)
    note_fewer(sink, top, len(given.policies))
    with Bar("imagining", "policies", sink=sink) as bar:
        said = predict_policies(judge, given.policies, evaluator, progress=bar.update)
    written = False
    if top is not None and out is not None:
        rows = said.order[:top]
        origin = {
            "made_by": "predict",
            "critic": file_digest(critic),
            "model": None if model is None else file_digest(model),
            "taken_from": given.digest,
            "settings": {"top": top},
            "result": Choice(rows, "predicted", said.predicted[rows]).said,
        }
        best = PoliciesFile(given.policies.select(rows), given.environment, origin)
        written = policies_to_file(best, out, results=("result",), overwrite=overwrite)
    check = None if evaluator is None else evaluator.check
    units = {"predicted": judge.unit, "imagined": None if evaluator is None else IMAGINED_UNIT}
    shown = ROWS_SHOWN if top is None else top
    done = out is not None and not written
    _print(sink, said, units, out, check, shown=shown, already_complete=done)


def _refuse_swapped(critic: Path, policies: str) -> None:
    """Refuse a critic in the place of policies, where the other may well be policies.

    Raises:
        UsageError: They have changed places.
    """
    from pbvf_runs.share.kinds import kind_of

    kinds = []
    for name in (policies, str(critic)):
        with contextlib.suppress(PbvfError):  # what is wrong, its reader says
            kinds.append(kind_of(name)[0])
    if kinds[:1] == ["critic"] and kinds[1:] in (["dataset"], ["run"], ["policies"]):
        command = f"pbvf predict {quote(policies)} {quote(str(critic))}"
        raise UsageError("the critic comes first", where=policies, remedy=f"use: {command}")


def _print(
    sink: Sink,
    said: Predictions,
    units: dict[str, str | None],
    out: Path | None,
    check: ModelCheck | None,
    *,
    shown: int,
    already_complete: bool,
) -> None:
    imagined = said.imagined
    entries = [
        {
            "index": int(row),
            "predicted": said.predicted[row],
            "low": said.low[row],
            "high": said.high[row],
            "inside": bool(said.inside[row]),
            "imagined": None if imagined is None else imagined[row],
        }
        for row in said.order
    ]
    payload = {
        "policies": entries,
        "units": units,
        "interval_of": said.interval_of,
        "coverage": None if check is None else check.held,
        "out": out,
        "already_complete": already_complete,
    }
    rows = [
        ("policies", f"{len(entries):,}, the one with the highest predicted return first"),
        *((f"{name} is the", unit) for name, unit in units.items() if unit is not None),
        ("90 % interval of", said.interval_of)
        if said.interval_of is not None
        else ("90 % interval", _missing_interval(said)),
    ]
    if check is not None and check.held_words is not None:
        rows.append(("in the model's check it held", check.held_words))
    if out is not None:
        rows.append(("written", str(out)))
    names = ["predicted"]
    names += ["low", "high"] if said.interval_of is not None else []
    names += ["imagined"] if imagined is not None else []
    if shown < len(entries):
        sink.note(f"the best {shown} of {len(entries):,} policies; --json lists all")
    header = ("policy", *names, "in trust region")
    lines = [
        (
            str(entry["index"]),
            *(number(entry[name]) for name in names),
            "yes" if entry["inside"] else "no",
        )
        for entry in entries[:shown]
    ]
    sink.result(payload, rows, table=(header, lines), place=out)


def _missing_interval(said: Predictions) -> str:
    if said.imagined is not None:
        return "none: the model has one network"
    return "needs --model, or a pssvf fitted with --validation-policies (19 or more)"
