"""Policies files, and policies exported for other programs: what one holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pbvf_cli.shared.terminal.output import Shown, number, pairs
from pbvf_cli.shared.terminal.policy_text import (
    ROWS_SHOWN,
    actions_text,
    environment_rows,
    kind_text,
)

if TYPE_CHECKING:
    from pbvf_offline.exchange.exported import ExportedFile, Tensor
    from pbvf_offline.policies.files import PoliciesFile

_RETURNS = {
    "predicted": "predicted",
    "observed": "observed in its data",
    "cautious": "cautious return",
    "returns": "measured return",
}
"""What a file may say of the return of each policy, and what that is called."""


def show(policies: Path) -> Shown:
    """Return what a policies file holds; nothing in it is run, and no environment is built.

    Raises:
        PbvfError: As :func:`pbvf_offline.synthesis.stored_result.check_policies` does.
    """
    import numpy as np

    from pbvf_offline.io.reading import file_digest
    from pbvf_offline.synthesis.stored_result import check_policies

    loaded = check_policies(policies)
    held, spec = loaded.policies, loaded.policies.spec
    norms = np.linalg.norm(held.theta.astype(np.float64), axis=1)
    log_std = held.theta[:, : spec.log_std_size]
    parts = np.hstack([held.theta.astype(np.float64), held.obs_mean, held.obs_std])
    distinct = len(np.unique(parts, axis=0))
    normalised = bool(np.any(held.obs_mean != 0) or np.any(held.obs_std != 1))
    reference = loaded.environment
    payload = {
        "policies": len(held),
        "distinct": distinct,
        "path": policies,
        "env": None if reference is None else reference.name,
        "env_kwargs": {} if reference is None else reference.kwargs,
        "spec": spec.to_dict(),
        "architecture": spec.arch,
        "parameters": spec.size,
        "theta_norms": norms,
        "log_std": log_std if spec.log_std_size else None,
        "normalised": normalised,
        "obs_mean": held.obs_mean,
        "obs_std": held.obs_std,
        "origin": loaded.origin,
        "sha256": file_digest(policies),
    }
    rows = [
        ("policies", f"{len(held):,} ({distinct:,} distinct)"),
        ("architecture", kind_text(spec)),
        ("parameters", f"{spec.size:,}"),
        ("observations", f"{spec.obs_dim}, {'normalised' if normalised else 'as they are'}"),
        ("actions", actions_text(spec)),
        *environment_rows(reference),
        *_origin_rows(loaded),
        ("sha256", str(payload["sha256"])),
    ]
    said = _said_of_each(loaded)
    header = ["policy", *said]
    header += ["norm of theta", "largest |theta|", "mean of obs_mean", "mean of obs_std"]
    largest = np.abs(held.theta).max(axis=1)
    table = [
        [
            str(k),
            *(number(values[k]) for values in said.values()),
            number(float(norms[k])),
            number(float(largest[k])),
            number(float(held.obs_mean[k].mean())),
            number(float(held.obs_std[k].mean())),
        ]
        for k in range(min(len(held), ROWS_SHOWN))
    ]
    if len(held) > ROWS_SHOWN:
        table.append(["…", f"{len(held) - ROWS_SHOWN:,} more"])
    return Shown(payload, rows, (header, table))


def _said_of_each(loaded: PoliciesFile) -> dict[str, list[float]]:
    """Return what the file says of the return of each of its policies, by a name for people."""
    result = loaded.origin.get("result")
    said = {}
    for name, words in _RETURNS.items():
        values = result.get(name) if isinstance(result, dict) else None
        if (
            isinstance(values, list)
            and len(values) == len(loaded.policies)
            and all(type(value) in (int, float) for value in values)
        ):
            said[words] = values
    return said


def _origin_rows(loaded: PoliciesFile) -> list[tuple[str, str]]:
    """Return where policies came from, without what is long."""
    from pbvf_runs.share.lineage import ORIGINS

    rows = []
    for name, value in loaded.origin.items():
        if name in ORIGINS:
            continue  # digests of what they were made from, which `shown` adds in words
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            rows.append((name.replace("_", " "), str(value)))
        elif name == "layers" and isinstance(value, list):
            rows.append((name, ", ".join(str(entry)[:64] for entry in value[:4])))
        elif name == "settings" and isinstance(value, dict):
            rows.append((name, pairs(value)))
    return rows or [("origin", "not said")]


def show_weights(path: Path) -> Shown:
    """Return what a state dict of ``policies export`` holds.

    Raises:
        PbvfError: As :func:`pbvf_offline.exchange.exported.read_exported_weights` does.
    """
    from pbvf_offline.exchange.exported import read_exported_weights

    return _exported(path, read_exported_weights(path))


def show_graph(path: Path) -> Shown:
    """Return what an ONNX graph of ``policies export`` holds.

    Raises:
        PbvfError: As :func:`pbvf_offline.exchange.exported.read_exported_graph` does.
    """
    from pbvf_offline.exchange.exported import read_exported_graph

    return _exported(path, read_exported_graph(path))


def _exported(path: Path, file: ExportedFile) -> Shown:
    from pbvf_offline.io.reading import file_digest

    payload = {
        "path": path,
        "format": file.file_format,
        "summary": file.summary,
        **{
            name: [vars(tensor) for tensor in getattr(file, name)]
            for name in ("inputs", "outputs", "tensors")
        },
        "operators": file.operators,
        "sha256": file_digest(path),
    }
    rows = [("path", str(path)), ("format", file.file_format), ("holds", file.summary)]
    rows += [("takes", _tensor_text(tensor)) for tensor in file.inputs]
    rows += [("gives", _tensor_text(tensor)) for tensor in file.outputs]
    if file.operators is not None:
        rows.append(("operators", pairs(file.operators)))
    rows.append(("sha256", str(payload["sha256"])))
    lines = [(tensor.name, tensor.dtype, _shape_text(tensor)) for tensor in file.tensors]
    return Shown(payload, rows, (("tensor", "type", "shape"), lines))


def _tensor_text(tensor: Tensor) -> str:
    return f"{tensor.name}, {tensor.dtype} of shape {_shape_text(tensor)}"


def _shape_text(tensor: Tensor) -> str:
    return f"({', '.join('any' if n is None else str(n) for n in tensor.shape)})"
