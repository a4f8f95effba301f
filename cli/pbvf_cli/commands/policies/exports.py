"""``pbvf policies export``: some policies as a file of their own, or for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pbvf_cli.shared import devices, options, values
from pbvf_cli.shared.command import command
from pbvf_cli.shared.inputs.critics import load_judge
from pbvf_cli.shared.inputs.policies import (
    Index,
    Source,
    Top,
    choose_policies,
    note_fewer,
    note_luck,
    open_policies,
)
from pbvf_cli.shared.options import DeviceName, option
from pbvf_cli.shared.terminal.output import Sink, number
from pbvf_cli.shared.terminal.policy_text import ROWS_SHOWN, actions_text
from pbvf_offline.errors import UsageError, counted

if TYPE_CHECKING:
    from pbvf_cli.shared.inputs.policies import Choice
    from pbvf_offline.policies.spec import PolicySpec

Format = Literal["policies", "torch", "onnx"]


@command(
    "pbvf policies export lab/swimmer-v0 --top 10 --critic critic.safetensors "
    "--out best.safetensors",
    "pbvf policies export policies.safetensors --index 0 --out weights.safetensors",
    "pbvf policies export policies.safetensors --index 0 --format policies --out one.safetensors",
    "pbvf policies export policies.safetensors --out policy.onnx",
)
def export(
    policies: Source,
    *,
    out: Annotated[
        Path,
        option(
            "--out",
            "The file to write; torch, onnx: NAME-0, NAME-1, … beside it for several policies.",
            "FILE",
        ),
    ],
    index: Index = None,
    top: Top = None,
    critic: Annotated[
        Path | None, option("--critic", "What ranks the policies for --top.", "FILE")
    ] = None,
    file_format: Annotated[
        Format | None,
        option(
            "--format",
            "policies: a policies file; torch: a state dict as .safetensors; onnx: a graph.",
            default="onnx for .onnx; else policies of a dataset, torch of a policies file",
        ),
    ] = None,
    dtype: Annotated[
        Literal["float64", "float32"] | None,
        option(
            "--dtype",
            "What torch and onnx compute in: float64 acts as policies here do; float32 is for "
            "runtimes that have nothing else.",
            default="float64",
        ),
    ] = None,
    require_manifest: options.RequireManifest = False,
    overwrite: options.Overwrite = False,
    device: options.Device = DeviceName.AUTO,
    sink: Sink,
) -> None:
    """Write policies of a file, a dataset or a run: as a policies file, or for other programs.

    A policies file is what the other commands take. Programs without pbvf get raw observations
    in, executed actions out: normaliser, squashing and bounds are inside, and a stochastic policy
    becomes its mean action.
    """
    values.output_file(out)
    if critic is not None and top is None:
        raise UsageError("has no meaning without --top", where="--critic")

    from pbvf_offline.exchange.output import refuse_own_input
    from pbvf_offline.io.reading import file_digest
    from pbvf_offline.policies.files import PoliciesFile, policies_to_file

    given = open_policies(policies, require_manifest=require_manifest)
    refuse_own_input(out, [Path(policies), *([] if critic is None else [critic])])
    if file_format is None:
        usual: Format = "torch" if given.episodes is None else "policies"
        file_format = "onnx" if out.suffix.lower() == ".onnx" else usual
    if file_format == "policies" and dtype is not None:
        raise UsageError(
            "does not go with --format policies, which keeps every digit", where="--dtype"
        )
    judge = None
    if critic is None:
        devices.runs_on_cpu(device, sink)
    else:
        judge = load_judge(critic, given, policies, devices.torch_device(device))
    choice = choose_policies(given, policies, index=index, top=top, judge=judge)
    note_fewer(sink, top, len(choice.rows))
    note_luck(sink, choice)
    chosen = given.policies.select(choice.rows)
    payload: dict[str, Any] = {
        "format": file_format,
        "dtype": None if file_format == "policies" else dtype or "float64",
        "spec": chosen.spec.to_dict(),
        "mean_of_stochastic": file_format != "policies" and chosen.spec.stochastic,
        "ranked_by": choice.by,
        "values": choice.values,
        "episodes": choice.episodes,
    }
    if file_format == "policies":
        origin = {
            "made_by": "export",
            "critic": None if critic is None else file_digest(critic),
            "taken_from": given.digest,
            "settings": {"top": top, "index": index},
            "result": choice.said,
        }
        file = PoliciesFile(chosen, given.environment, origin)
        complete = not policies_to_file(file, out, results=("result",), overwrite=overwrite)
        paths = [out] * len(chosen)
    else:
        from pbvf_offline.exchange.exporter import export_policies

        if chosen.spec.stochastic:
            mean = "mean action" if chosen.spec.is_continuous else "most likely action"
            sink.note(f"note: the policies are stochastic; the export is their {mean}")
        done = export_policies(
            chosen, out, file_format=file_format, dtype=payload["dtype"], overwrite=overwrite
        )
        complete = all(part.already_complete for part in done)
        paths = [part.path for part in done]
    payload["already_complete"] = complete
    payload["files"] = [
        {"path": path, "policy": int(row)} for path, row in zip(paths, choice.rows, strict=True)
    ]
    payload["units"] = {"predicted": None if judge is None else judge.unit}
    _print(sink, payload, choice, chosen.spec)


def _print(sink: Sink, payload: dict[str, Any], choice: Choice, spec: PolicySpec) -> None:
    files, one_file = payload["files"], payload["format"] == "policies"
    ranks = "" if choice.by is None else f", the one with the highest {choice.by} return first"
    rows = [("policies", f"{len(files):,}{ranks}")]
    if payload["units"]["predicted"] is not None:
        rows.append(("predicted is the", payload["units"]["predicted"]))
    if one_file:
        rows.append(("written", str(files[0]["path"])))
    if not one_file or choice.values is not None:
        for k, file in enumerate(files[:ROWS_SHOWN]):
            value = "" if choice.values is None else f"{choice.by} {number(choice.values[k])}"
            if choice.episodes is not None:
                value += f" ({counted(int(choice.episodes[k]), 'episode')})"
            path = "" if one_file else str(file["path"])
            rows.append((f"policy {file['policy']}", ", ".join(filter(None, (path, value)))))
        if len(files) > ROWS_SHOWN:
            rows.append(("…", f"{len(files) - ROWS_SHOWN:,} more"))
    rows.append(("format", payload["format"]))
    takes = f"raw observations ({spec.obs_dim})"
    rows.append(("takes", takes if one_file else f"{takes}, computes in {payload['dtype']}"))
    rows.append(("gives", actions_text(spec)))
    sink.result(payload, rows, place=files[0]["path"])
