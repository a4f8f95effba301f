"""Which episodes a filter keeps and how a dataset is split. Imports no array library."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from pbvf_offline.errors import UsageError, shorten
from pbvf_offline.records import Record, setting
from pbvf_offline.setting_types import MOST, Seed

Ranges = tuple[tuple[int, int], ...]
"""Whole numbers from 0 as pairs ``(first, last)``, both included."""
SplitBy = Literal["episode", "policy"]

_PART_NAMES: Final = {2: ("train", "test"), 3: ("train", "validation", "test")}
_TOP: Final = setting(
    "Of what passes all else, this fraction with the highest returns.",
    gt=0,
    le=1,
    metavar="FRACTION",
)
_NUMBER: Final = re.compile(r"[0-9]{1,18}")


def parse_ranges(text: str, where: str) -> Ranges:
    """Read numbers and ranges such as ``0-99,200``; sorted, and joined where they meet.

    >>> parse_ranges("7,0-2,3", "--episodes")
    ((0, 3), (7, 7))

    Raises:
        UsageError: It is something else.
    """
    pairs = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if _NUMBER.fullmatch(first) is None or _NUMBER.fullmatch(last) is None:
            raise UsageError(f"{shorten(text)!r} is not such as 0-99,200", where=where)
        if int(last) < int(first):
            raise UsageError(f"the range {part.strip()} ends before it begins", where=where)
        pairs.append((int(first), int(last)))
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(pairs):
        if joined and begin <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return tuple(joined)


def ranges_text(ranges: Ranges) -> str:
    """Return ranges in the form that :func:`parse_ranges` reads."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def _ranges(help: str) -> Any:
    return setting(help, metavar="0-99,200", read=parse_ranges, write=ranges_text)


@dataclass(frozen=True)
class FilterSettings(Record):
    """Which episodes to keep: those that pass every criterion given.

    The return is undiscounted and raw. Episodes that a step budget cut short have none, so
    every criterion on returns leaves them out.

    Attributes:
        min_return: Least return.
        max_return: Greatest return.
        top: Of the episodes that pass all else, this fraction with the highest returns: their
            number is rounded up, of equal returns the earlier go first.
        min_steps: Least number of steps.
        max_steps: Greatest number of steps.
        terminated: True: the task ended. False: a limit or a budget ended the episode.
        no_cut: Leave out episodes that a step budget cut short.
        episodes: Numbers of episodes, from 0.
        seeds: What the environment was reset with.

    Raises:
        UsageError: A value is out of range, or there is no criterion.
    """

    min_return: Annotated[float, setting("Least return.", metavar="R")] | None = None
    max_return: Annotated[float, setting("Greatest return.", metavar="R")] | None = None
    top: Annotated[float, _TOP] | None = None
    min_steps: Annotated[int, setting("Least steps.", ge=1, le=MOST)] | None = None
    max_steps: Annotated[int, setting("Greatest steps.", ge=1, le=MOST)] | None = None
    terminated: bool | None = None
    no_cut: Annotated[
        bool, setting("No episodes that a step budget cut short.", option="--no-cut")
    ] = False
    episodes: Annotated[Ranges, _ranges("Only these, numbered from 0.")] | None = None
    seeds: Annotated[Ranges, _ranges("Only those reset with these seeds.")] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if all(getattr(self, f.name) == f.default for f in dataclasses.fields(self)):
            raise UsageError("there is nothing to filter by", remedy="give --min-return, --top, …")

    @property
    def by_return(self) -> bool:
        """Whether a criterion asks for returns."""
        return not (self.min_return is None and self.max_return is None and self.top is None)

    def to_dict(self) -> dict[str, Any]:
        """Return the criteria in JSON form."""
        return {
            field.name: ranges_text(value) if isinstance(value, tuple) else value
            for field in dataclasses.fields(self)
            for value in (getattr(self, field.name),)
        }

    def command_words(self) -> list[str]:
        """Return the options of the command line that ask for these criteria."""
        words = self.words("min_return", "max_return", "top", "min_steps", "max_steps")
        if self.terminated is not None:
            words.append("--terminated" if self.terminated else "--truncated")
        return words + self.words("no_cut", "episodes", "seeds")


@dataclass(frozen=True)
class SplitSettings(Record):
    """How to split: whole episodes, drawn by a seed.

    Attributes:
        fractions: Share of each part; they add up to 1.
        names: Name of each part, which becomes part of its id; empty: ``train`` and ``test``,
            ``train``, ``validation`` and ``test``, or ``part-1``, ``part-2``, …
        by: ``policy``: episodes that share a policy stay together, so no policy is in two parts.
        seed: Seed of the draw.

    Raises:
        UsageError: Fractions or names are not as they should be.
    """

    fractions: Annotated[
        tuple[Annotated[float, Meta(gt=0, lt=1)], ...],
        setting("Share of each part; they sum to 1.", min_length=2, metavar="0.8,0.2"),
    ]
    names: Annotated[
        tuple[str, ...],
        setting(
            "Names of the parts, which become part of their ids.",
            metavar="NAME,NAME",
            default="train,test; train,validation,test; part-1,…",
        ),
    ] = ()
    by: Annotated[
        SplitBy,
        setting(
            "episode; or policy: episodes that share a policy stay in one part.",
            default="episode",
        ),
    ] = "episode"
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        total = math.fsum(self.fractions)
        if not math.isclose(total, 1, abs_tol=1e-9):
            raise UsageError(f"they add up to {total:.12g}, not 1", where="--fractions")
        if not self.names:
            count = len(self.fractions)
            default = _PART_NAMES.get(count, tuple(f"part-{k + 1}" for k in range(count)))
            object.__setattr__(self, "names", default)
        if len(self.names) != len(self.fractions) or len(set(self.names)) != len(self.names):
            raise UsageError(
                f"{len(self.fractions)} different names are needed, not {list(self.names)}",
                where="--names",
            )

    def dataset_ids(self, dataset_id: str) -> tuple[str, ...]:
        """Return the id of each part: ``lab/x-v0`` becomes ``lab/x-train-v0``.

        Raises:
            UsageError: The id is malformed, or a name does not fit into one.
        """
        from pbvf_datasets.format.names import check_dataset_id

        namespace, name, version = check_dataset_id(dataset_id)
        ids = tuple(
            f"{namespace}/{name}-{part}-v{version}".removeprefix("/") for part in self.names
        )
        for part in ids:
            check_dataset_id(part)
        return ids
