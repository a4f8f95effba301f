"""``pbvf policies export``: policies for programs without pbvf."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pbvf_cli.shared import options, values
from pbvf_cli.shared.command import command
from pbvf_cli.shared.options import argument, option
from pbvf_cli.shared.terminal.output import Sink
from pbvf_cli.shared.terminal.policy_text import ROWS_SHOWN, actions_text
from pbvf_offline.errors import UsageError


@command(
    "pbvf policies export policies.safetensors --index 0 --out best.safetensors",
    "pbvf policies export policies.safetensors --out policy.onnx",
)
def export(
    policies: Annotated[Path, argument("POLICIES", "A policies file.")],
    *,
    out: Annotated[
        Path,
        option(
            "--out", "The file to write; NAME-0, NAME-1, … beside it for several policies.", "FILE"
        ),
    ],
    index: Annotated[
        int | None, option("--index", "One policy, counted from 0.", "K", default="all")
    ] = None,
    file_format: Annotated[
        Literal["torch", "onnx"] | None,
        option(
            "--format",
            "torch: a state dict as .safetensors; onnx: a graph.",
            default="onnx for .onnx, else torch",
        ),
    ] = None,
    dtype: Annotated[
        Literal["float64", "float32"],
        option(
            "--dtype",
            "What it computes in: float64 acts as policies here do; float32 is for runtimes "
            "that have nothing else.",
        ),
    ] = "float64",
    overwrite: options.Overwrite = False,
    sink: Sink,
) -> None:
    """Write policies for programs without pbvf: raw observations in, executed actions out.

    Normaliser, squashing and bounds are inside. A stochastic policy becomes its mean action.
    """
    values.output_file(out)
    if file_format is None:
        file_format = "onnx" if out.suffix.lower() == ".onnx" else "torch"

    from pbvf_offline.exchange.exporter import export_policies
    from pbvf_offline.exchange.output import refuse_own_input
    from pbvf_offline.policies.files import load_policies

    loaded = load_policies(policies)
    refuse_own_input(out, [policies])
    spec = loaded.policies.spec
    if index is not None and not 0 <= index < len(loaded.policies):
        raise UsageError(
            f"{index} is not in 0 … {len(loaded.policies) - 1}",
            where="--index",
            remedy=f"{policies} holds {len(loaded.policies)} policies",
        )
    if spec.stochastic:
        mean = "mean action" if spec.is_continuous else "most likely action"
        sink.note(f"note: the policies are stochastic; the export is their {mean}")
    done = export_policies(
        loaded.policies, out, row=index, file_format=file_format, dtype=dtype, overwrite=overwrite
    )
    payload = {
        "files": [{"path": file.path, "policy": file.row} for file in done],
        "format": file_format,
        "dtype": dtype,
        "spec": spec.to_dict(),
        "mean_of_stochastic": spec.stochastic,
        "already_complete": all(file.already_complete for file in done),
    }
    shown = done[:ROWS_SHOWN]
    rows = [(f"policy {file.row}", str(file.path)) for file in shown]
    if len(done) > len(shown):
        rows.append(("…", f"{len(done) - len(shown)} more"))
    rows += [
        ("format", file_format),
        ("takes", f"raw observations ({spec.obs_dim}), computes in {dtype}"),
        ("gives", actions_text(spec)),
    ]
    sink.result(payload, rows, place=done[0].path)
