"""What a check comes to: the problems that were found, and the verdict."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pbvf_datasets.format.statistics import Ends
from pbvf_offline.envs.portable import is_portable
from pbvf_offline.errors import DamagedError, IncompatibleError, PbvfError, UnsafeError, printable
from pbvf_offline.io.work_folder import Layout

Status = Literal["intact", "damaged", "unsafe", "unverified"]

MAX_PROBLEMS: Final = 1_000
"""More problems than this are not listed: a file could hold one in every byte."""

_SHOWN: Final = 8

FOUND: Final = (DamagedError, UnsafeError, IncompatibleError)
"""What is wrong with a file, as opposed to with the question or the machine."""


@dataclass(frozen=True)
class Verification:
    """What became of a check.

    Attributes:
        path: What was checked.
        kind: What it is, such as ``dataset`` or ``critic``; ``file`` when that could not be told.
        status: ``unsafe`` when anything in it is; else ``damaged`` when anything is; else
            ``unverified`` when no manifest vouches for it or it is of a form that this
            program cannot check; else ``intact``.
        problems: All that is wrong, as errors with ``where``, ``what`` and an exit code.
        warnings: What is odd and does no harm, such as an edited card.
        safe_for_minari: Whether stock Minari may open it; None for other files than datasets.
        minari_reason: Why.
        manifest: Whether a manifest came with it; None for other files than datasets.
        digest: What names the content: of a dataset the manifest's digest.
        counts: ``episodes``, ``steps`` and ``policies`` of a dataset that could be counted.
        ends: How its episodes ended, or those of a run.
    """

    path: Path
    kind: str
    status: Status
    problems: tuple[PbvfError, ...] = ()
    warnings: tuple[str, ...] = ()
    safe_for_minari: bool | None = None
    minari_reason: str = "this is no dataset"
    manifest: bool | None = None
    digest: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    ends: Ends | None = None

    @property
    def error(self) -> PbvfError | None:
        """The first problem of the worst kind, or None."""
        return next(
            (
                p
                for kind in (UnsafeError, DamagedError, PbvfError)
                for p in self.problems
                if isinstance(p, kind)
            ),
            None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "path": os.fspath(self.path),
            "kind": self.kind,
            "status": self.status,
            "problems": [problem_dict(p) for p in self.problems],
            "warnings": list(self.warnings),
            "safe_for_minari": self.safe_for_minari,
            "minari_reason": self.minari_reason,
            "manifest": self.manifest,
            "digest": self.digest,
            **{name: self.counts.get(name) for name in ("episodes", "steps", "policies")},
            "ends": None if self.ends is None else self.ends.to_dict(),
        }


def problem_dict(problem: PbvfError) -> dict[str, str | None]:
    """Return a problem in JSON form."""
    kind = type(problem).__name__.removesuffix("Error").lower()
    return {"where": problem.where, "what": problem.what, "kind": kind}


class Findings:
    """Problems as they are found, each once and not too many.

    Attributes:
        problems: In the order of finding.
        more: Whether there are others that were left out.
    """

    def __init__(self) -> None:
        self.problems: list[PbvfError] = []
        self.more = False
        self._seen: set[tuple[str | None, str]] = set()
        self._later: Future[PbvfError | None] | None = None

    def add(self, error: PbvfError) -> None:
        """Take in what was found."""
        self.settle()
        key = (error.where, error.what)
        if key in self._seen:
            return
        if self.full:
            self.more = True
            return
        self._seen.add(key)
        self.problems.append(error)

    def add_later(self, future: Future[PbvfError | None]) -> None:
        """Take in what a check under way will find, if anything, in its place in the order."""
        self.settle()
        self._later = future

    def settle(self) -> None:
        """Wait for the check under way; its own failure is raised here."""
        future, self._later = self._later, None
        error = None if future is None else future.result()
        if error is not None:
            self.add(error)

    @property
    def full(self) -> bool:
        """Whether it is time to stop."""
        return len(self.problems) >= MAX_PROBLEMS

    def first(self, kind: type[PbvfError]) -> PbvfError | None:
        """Return the first problem of a kind, or None."""
        return next((p for p in self.problems if isinstance(p, kind)), None)

    def status(self, *, verified: bool) -> Status:
        """Return the verdict.

        Args:
            verified: Whether digests vouch for the content.
        """
        if self.first(UnsafeError):
            return "unsafe"
        if self.first(DamagedError):
            return "damaged"
        return "intact" if verified and not self.problems else "unverified"


def warn_of_unlisted(folder: Path, layout: Layout) -> list[str]:
    """Return a warning that names what is in a folder and belongs to nothing there, if there is.

    Raises:
        OSError: It cannot be read.
    """
    found = layout.unlisted(folder)
    if not found:
        return []
    more = f" and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
    named = ", ".join(map(printable, found[:_SHOWN]))
    return [f"{folder}: holds what does not belong there and was not checked: {named}{more}"]


def check_environment(environment: Mapping[str, Any] | None, where: str) -> None:
    """Check that a reference to an environment is one that this project writes.

    Building it would not import or open anything only if all of its arguments are portable
    and its id names no module; files of this project keep the module apart, for people.

    Raises:
        UnsafeError: It is not.
    """
    if environment is None:
        return
    name = environment["id"]
    bad = [key for key, value in environment["kwargs"].items() if not is_portable(key, value)]
    if ":" in name or bad:
        what = (
            f"the argument {printable(sorted(bad)[0])!r} could name a file"
            if bad
            else f"the id {printable(name)!r} asks for a module to be imported"
        )
        raise UnsafeError(what, where=where, remedy="name the environment yourself with --env")
