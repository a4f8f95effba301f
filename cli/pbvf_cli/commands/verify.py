"""``pbvf verify``: check anything that this project writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pbvf_cli.shared import options
from pbvf_cli.shared.command import command
from pbvf_cli.shared.options import argument
from pbvf_cli.shared.terminal.output import Sink, number
from pbvf_cli.shared.terminal.progress import Bar
from pbvf_offline.errors import PbvfError, UnsafeError

if TYPE_CHECKING:
    from pbvf_datasets.inspect.findings import Verification


@command(
    "pbvf verify lab/swimmer-v0",
    "pbvf verify ./downloaded-v0 --require-manifest --json",
    "pbvf verify critic.safetensors",
    "pbvf verify runs/pendulum",
    "pbvf dataset verify lab/swimmer-v0",
)
def verify(
    path: Annotated[
        str,
        argument(
            "PATH",
            "A dataset's id or folder, a critic, model, policies or checkpoint file, an exported "
            "policy, the folder of a run or of several, or an archive.",
        ),
    ],
    *,
    require_manifest: options.RequireManifest = False,
    sink: Sink,
) -> None:
    """Check that something is whole, consistent and safe; report everything that is wrong.

    What it is, its content tells. Digests, structure, links, sizes, shapes, finite values,
    tags, whether the files of a run belong together, and for deterministic policies that every
    stored action is the one that its policy gives. Ends with 0 when it is intact or only
    unverified, 3 damaged, 4 unsafe, 5 of a form that cannot be checked.
    """
    from pbvf_cli.shared.kinds import KINDS
    from pbvf_runs.kinds import kind_of

    kind, place = kind_of(path)
    with Bar("verifying", "bytes" if kind == "archive" else "steps", sink=sink) as bar:
        found = KINDS[kind].verify(place, bar.update)
    for warning in found.warnings:
        sink.note(f"warning: {warning}")
    table = None
    if found.problems:
        table = ("problem", "where", "what"), [_line(problem) for problem in found.problems]
    sink.result(found.to_dict(), _rows(found), table=table)
    if require_manifest and found.manifest is False:
        raise UnsafeError(
            "it has no manifest.json, so its content cannot be checked",
            where=found.path,
            remedy="get it with its manifest, or check it without --require-manifest",
        )
    error = found.error
    if error is not None:
        raise _with_others(error, len(found.problems) - 1)


def _with_others(error: PbvfError, others: int) -> PbvfError:
    """Return an error that also says how many other problems there are."""
    if others == 0:
        return error
    what = f"{error.what} (and {others:,} more {'problem' if others == 1 else 'problems'})"
    return type(error)(what, where=error.where, remedy=error.remedy)


def _line(problem: PbvfError) -> tuple[str, str, str]:
    kind = type(problem).__name__.removesuffix("Error").lower()
    return kind, problem.where or "-", problem.what


def _rows(found: Verification) -> list[tuple[str, str]]:
    meanings = {
        "intact": "all checks passed",
        "damaged": "something is not as it should be",
        "unsafe": "do not open it with other tools",
        "unverified": "it has no manifest to check its content against",
    }
    if found.manifest is None:
        meanings["unverified"] = "it holds no digest to check its content against"
    if found.status == "unverified" and found.problems:
        meanings["unverified"] = "it could not be checked completely"
    rows = [
        ("path", str(found.path)),
        ("kind", found.kind),
        ("status", f"{found.status}: {meanings[found.status]}"),
        ("problems", number(len(found.problems))),
    ]
    if found.digest is not None:
        rows.append(("digest", found.digest))
    rows += [(name, number(count)) for name, count in found.counts.items()]
    if found.safe_for_minari is not None:
        answer = "yes" if found.safe_for_minari else "no"
        rows.append(("safe for Minari", f"{answer}: {found.minari_reason}"))
    return rows
