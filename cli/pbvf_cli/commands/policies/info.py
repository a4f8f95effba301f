"""``pbvf policies info``: what a policies file holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pbvf_cli.commands.policies.text import ROWS_SHOWN, actions_text, kind_text
from pbvf_cli.shared.command import command
from pbvf_cli.shared.options import argument
from pbvf_cli.shared.output import Sink, number

if TYPE_CHECKING:
    from pbvf_offline.policies.files import PoliciesFile


@command(
    "pbvf policies info policies.safetensors", "pbvf policies info policies.safetensors --json"
)
def info(
    policies: Annotated[Path, argument("POLICIES", "A policies file.")], *, sink: Sink
) -> None:
    """Show what a policies file holds; nothing in it is run, and no environment is built."""
    import numpy as np

    from pbvf_offline.io.reading import file_digest
    from pbvf_offline.policies.files import load_policies

    loaded = load_policies(policies)
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
        ("kind", kind_text(spec)),
        ("parameters", f"{spec.size:,}"),
        ("observations", f"{spec.obs_dim}, {'normalised' if normalised else 'as they are'}"),
        ("actions", actions_text(spec)),
        ("environment", "not named" if reference is None else reference.name),
        *_origin_rows(loaded),
        ("sha256", str(payload["sha256"])),
    ]
    header = ["policy", "norm of theta", "largest |theta|", "mean of obs_mean", "mean of obs_std"]
    largest = np.abs(held.theta).max(axis=1)
    table = [
        [
            str(k),
            number(float(norms[k])),
            number(float(largest[k])),
            number(float(held.obs_mean[k].mean())),
            number(float(held.obs_std[k].mean())),
        ]
        for k in range(min(len(held), ROWS_SHOWN))
    ]
    if len(held) > ROWS_SHOWN:
        table.append(["…", f"{len(held) - ROWS_SHOWN:,} more"])
    sink.result(payload, rows, table=(header, table))


def _origin_rows(loaded: PoliciesFile) -> list[tuple[str, str]]:
    """Return where policies came from, without what is long."""
    rows = []
    for name, value in loaded.origin.items():
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            rows.append((name.replace("_", " "), str(value)[:80]))
        elif name in ("sources", "layers") and isinstance(value, list):
            rows.append((name, ", ".join(str(entry)[:64] for entry in value[:4])))
    return rows or [("origin", "not said")]
