"""``pbvf info``: what is in anything that this project writes."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Annotated, Any, Final

from pbvf_cli.shared.command import command
from pbvf_cli.shared.options import argument
from pbvf_cli.shared.terminal.output import Sink
from pbvf_offline.errors import counted

_HEADER: Final = ("what", "kind", "environment", "holds", "digest")
_COUNTS: Final = {
    "episodes": "episode",
    "steps": "step",
    "policies": "policy",
    "updates": "update",
    "parts": "part",
    "runs": "run",
}


@command(
    "pbvf info lab/swimmer-v0",
    "pbvf info critic.safetensors --json",
    "pbvf info lab/swimmer-v0 model.safetensors critic.safetensors policies.safetensors",
)
def info(
    paths: Annotated[
        list[str],
        argument(
            "PATH…",
            "A dataset's id or folder, a critic, model, policies or checkpoint file, an exported "
            "policy, the folder of a run or of several, a bundle, an archive or a signature; "
            "several for what was made from which.",
        ),
    ],
    *,
    sink: Sink,
) -> None:
    """Show what something holds, what it was made from and with what settings.

    What it is, its content tells. Nothing in it is run. 'pbvf verify' checks it. Of several, and
    of a bundle, it shows what was made from which, by their digests.
    """
    from pbvf_cli.shared.kinds import show
    from pbvf_cli.shared.outputs import lineage as shared
    from pbvf_runs.share.kinds import kind_of
    from pbvf_runs.share.lineage import lineage, things

    found = [kind_of(path) for path in paths]
    one = len(found) == 1
    ties = lineage([t for path in paths for t in things(path)]) if _has_parts(found) else []
    table = (shared.HEADER, shared.lines(ties)) if ties else None
    if one:
        kind, place = found[0]
        shown = show(kind, place)
        payload = {"kind": kind, **shown.payload}
        if _has_parts(found):
            payload["lineage"] = shared.payload(ties)
        sink.result(payload, [("kind", kind), *shown.rows], table=table or shown.table)
        return
    told = [{"kind": kind, **show(kind, place).payload} for kind, place in found]
    rows = [
        (path, _what(one), one.get("env") or "-", _holds(one), shared.short_digests(_digest(one)))
        for path, one in zip(paths, told, strict=True)
    ]
    payload = {"things": told, "lineage": shared.payload(ties)}
    sink.result(payload, rows, header=_HEADER, table=table)


def _what(told: Mapping[str, Any]) -> str:
    """Return the kind of a thing, and of a critic which it is: its name need not tell."""
    return f"critic ({told['critic']})" if told["kind"] == "critic" else str(told["kind"])


def _holds(told: Mapping[str, Any]) -> str:
    """Return how much a thing holds, of what tells it from others of its kind."""
    counts = {name: told.get(name) for name in _COUNTS}
    if told["kind"] in ("critic", "model"):  # a critic also keeps some policies of its data
        counts = {"updates": told["updates"]}
    known = {n: len(c) if isinstance(c, Sized) else c for n, c in counts.items() if c is not None}
    words = [counted(count, _COUNTS[name]) for name, count in known.items()]
    if told["kind"] == "model" and told["finished"] and "search" not in told["fit_for"]:
        words.append("unfit for whole episodes")
    return ", ".join(words) or "-"


def _digest(told: Mapping[str, Any]) -> str:
    return told.get("digest") or told.get("sha256") or "-"


def _has_parts(found: list[tuple[str, Path]]) -> bool:
    """Whether there are several things, of which one may be made from another."""
    return len(found) > 1 or found[0][0] == "bundle"
