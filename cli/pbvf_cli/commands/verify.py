"""``pbvf verify``: check anything that this project writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pbvf_cli.shared import options
from pbvf_cli.shared.command import command
from pbvf_cli.shared.options import argument
from pbvf_cli.shared.outputs import lineage as shared
from pbvf_cli.shared.terminal.output import Sink, number
from pbvf_cli.shared.terminal.progress import Bar
from pbvf_offline.errors import IncompatibleError, PbvfError, UnsafeError, counted

if TYPE_CHECKING:
    from pbvf_datasets.inspect.findings import Verification
    from pbvf_runs.share.lineage import Source, Thing, Tie

_EXTENDS: Final = {"critic": "--updates", "model": "--updates", "run": "--steps"}
_SEVERITY: Final = ("intact", "unverified", "damaged", "unsafe")


@command(
    "pbvf verify lab/swimmer-v0",
    "pbvf verify ./downloaded-v0 --require-manifest --json",
    "pbvf verify critic.safetensors",
    "pbvf verify lab/swimmer-v0 critic.safetensors policies.safetensors",
    "pbvf dataset verify lab/swimmer-v0",
)
def verify(
    paths: Annotated[
        list[str],
        argument(
            "PATH…",
            "A dataset's id or folder, a critic, model, policies or checkpoint file, an exported "
            "policy, the folder of a run or of several, a bundle, or an archive; several to see "
            "whether they were made from each other.",
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
    unverified, 3 damaged, 4 unsafe, 5 of a form that cannot be checked, or made from other data
    or files than those given with it.
    """
    from pbvf_runs.share.kinds import kind_of
    from pbvf_runs.share.lineage import lineage

    kinds = [kind_of(path) for path in paths]
    found = [_verified(kind, place, sink) for kind, place in kinds]
    if len(found) == 1:
        problems = [_line(problem) for problem in found[0].problems]
        table = (("problem", "where", "what"), problems) if problems else None
        sink.result(found[0].to_dict(), _rows(found[0]), table=table)
    else:
        given = [] if any(one.problems for one in found) else _things(paths)
        ties = lineage(given)
        _print_several(sink, paths, found, ties)
    for one in found:
        if require_manifest and one.manifest is False:
            raise UnsafeError(
                "it has no manifest.json, so its content cannot be checked",
                where=one.path,
                remedy="get it with its manifest, or check it without --require-manifest",
            )
    worst = max(found, key=lambda one: _SEVERITY.index(one.status))
    if worst.error is not None:
        raise _with_others(worst.error, sum(len(one.problems) for one in found) - 1)
    if len(found) > 1:
        _refuse_others(ties, given)


def _verified(kind: str, place: Path, sink: Sink) -> Verification:
    from pbvf_cli.shared.kinds import KINDS

    with Bar("verifying", "bytes" if kind == "archive" else "steps", sink=sink) as bar:
        found = KINDS[kind].verify(place, bar.update)
    for warning in found.warnings:
        sink.note(f"warning: {warning}")
    return found


def _things(paths: list[str]) -> list[Thing]:
    from pbvf_runs.share.lineage import things

    return [thing for path in paths for thing in things(path)]


def _print_several(
    sink: Sink, paths: list[str], found: list[Verification], ties: list[Tie]
) -> None:
    payload = {
        "things": [one.to_dict() for one in found],
        "lineage": shared.payload(ties),
        "fits": None if any(one.problems for one in found) else all(tie.fits for tie in ties),
    }
    rows = [(path, f"{one.kind}: {one.status}") for path, one in zip(paths, found, strict=True)]
    table: tuple[Sequence[str], Sequence[Sequence[str]]] | None = None
    if problems := [_line(problem) for one in found for problem in one.problems]:
        table = ("problem", "where", "what"), problems
    elif ties:
        table = shared.HEADER, shared.lines(ties)
    sink.result(payload, rows, table=table)


def _refuse_others(ties: list[Tie], given: list[Thing]) -> None:
    """Refuse things that were made from others than those given.

    Raises:
        IncompatibleError: One was.
    """
    wrong = [tie for tie in ties if not tie.fits]
    if wrong:
        source = wrong[0].source
        error = IncompatibleError(
            f"it names {source.what} ({source.relation}), and none of those given is that",
            where=wrong[0].name,
            remedy=_extended(source, given) or "'pbvf info' of them shows what was made from which",
        )
        raise _with_others(error, len(wrong) - 1)


def _extended(source: Source, given: list[Thing]) -> str | None:
    """Return what may be the matter where one of those given was extended in its place since."""
    for thing in given:
        option = _EXTENDS.get(thing.kind)
        if thing.kind in source.kinds and option is not None:
            now = "" if thing.kind == "run" else f", now {', '.join(thing.digests())}"
            return (
                f"if {thing.name} was extended since ({option}), its digest changed{now}: take "
                "the copy from before, or make anew what was made from it"
            )
    return None


def _with_others(error: PbvfError, others: int) -> PbvfError:
    """Return an error that also says how many other problems there are."""
    if others == 0:
        return error
    what = f"{error.what} (and {counted(others, 'more problem')})"
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
    known = {name: number(count) for name, count in found.counts.items()}
    rows += ({**known, "episodes": str(found.ends)} if found.ends else known).items()
    if found.safe_for_minari is not None:
        answer = "yes" if found.safe_for_minari else "no"
        rows.append(("safe for Minari", f"{answer}: {found.minari_reason}"))
    return rows
