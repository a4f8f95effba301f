"""Policies for other programs: torch modules and files that others read.

The normaliser, the squashing and the bounds are inside: raw observations in, executed actions out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pbvf_offline.errors import UsageError
from pbvf_offline.exchange.exported import is_exported
from pbvf_offline.exchange.output import already_written
from pbvf_offline.exchange.state_dict import ExportType, encode_state_dict
from pbvf_offline.io.durable import write_file
from pbvf_offline.io.lock import locked
from pbvf_offline.policies.policy import Policies

if TYPE_CHECKING:
    from pbvf_offline.exchange.torch_module import PolicyModule

ExportFormat = Literal["torch", "onnx"]


@dataclass(frozen=True)
class Exported:
    """One policy in a file that other programs read.

    Attributes:
        path: The file.
        row: The policy's row in the policies file.
        already_complete: Whether the file stood there already.
    """

    path: Path
    row: int
    already_complete: bool


def to_module(policies: Policies, row: int = 0) -> PolicyModule:
    """Return one policy as a torch module: raw observations in, executed actions out.

    It computes in float64, as policies here act; ``.float()`` makes it a float32 module. A
    stochastic policy acts by its mean, or its most likely choice.

    Raises:
        UsageError: There is no such row.
    """
    from pbvf_offline.exchange.torch_module import PolicyModule

    return PolicyModule(_row(policies, row))


def export_policies(
    policies: Policies,
    out: Path,
    *,
    row: int | None = None,
    file_format: ExportFormat = "torch",
    dtype: ExportType = "float64",
    overwrite: bool = False,
) -> list[Exported]:
    """Write policies for programs that know nothing of this one, one file each.

    Args:
        policies: K policies.
        out: The file; for several policies ``NAME-0.EXT``, ``NAME-1.EXT``, … beside it.
        row: Which policy; None: all.
        file_format: ``torch``: a state dict as safetensors; ``onnx``: a graph.
        dtype: What the file computes in. float64 acts as policies here do; float32 is for
            runtimes that have nothing else.
        overwrite: Replace other policies that were exported in that format.

    Raises:
        UsageError: There is no such row, or onnx is not installed.
        ConflictError: A file holds something else, which is not to be replaced; none is written.
    """
    rows = range(len(policies)) if row is None else [row]
    digits = len(str(len(policies) - 1))

    def place(k: int) -> Path:
        if len(rows) == 1:
            return out
        return out.with_name(f"{out.stem}-{k:0{digits}d}{out.suffix}")

    encode = encode_state_dict
    if file_format == "onnx":
        from pbvf_offline.exchange.onnx_graph import encode_onnx

        encode = encode_onnx
    with locked(out, look=True) as refusal:
        images = {k: encode(_row(policies, k), dtype) for k in rows}
        done = {
            k: already_written(
                place(k),
                images[k],
                overwrite=overwrite,
                is_own=lambda path: is_exported(path, file_format),
                what=f"policy that was exported to {file_format}",
            )
            for k in rows
        }
        if refusal is not None and not all(done.values()):
            raise refusal
        for k in rows:
            if not done[k]:
                write_file(place(k), images[k])
    return [Exported(place(k), k, done[k]) for k in rows]


def _row(policies: Policies, row: int) -> Policies:
    if not 0 <= row < len(policies):
        raise UsageError(
            f"there is no policy {row} among {len(policies)}",
            remedy=f"count from 0 to {len(policies) - 1}",
        )
    return policies.select([row])
