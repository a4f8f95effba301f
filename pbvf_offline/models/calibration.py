"""Intervals as wide as the errors on held-out episodes ask for.

The members of an ensemble are trained on the same data and share what these do not tell, so they
differ less from each other than from the truth. How much less, the check measures: errors of
held-out sums of rewards in units of the members' deviation. On Swimmer-v5 that ratio hardly
depends on the number of steps, so it is taken for whole episodes too, which no check can measure
where policies change within them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from pbvf_offline.models.members import student_width
from pbvf_offline.records import Record

_LEVEL = 0.9
_LARGEST_FACTOR, _LARGEST_FLOOR = 1e40, 1e250  # so that intervals are numbers
_GROUPS = 500  # of pieces that are left out together
_FLOOR = 0.1  # share of the mean error that counts as deviation where the members agree


@dataclass(frozen=True)
class HeldOutSums:
    """Imagined and stored sums of rewards of P held-out pieces, at one or more horizons.

    A piece may be there at several horizons; its sums are not independent of each other.

    Attributes:
        members: (n, M), what each member imagines.
        stored: (n,), what was earned.
        steps: (n,), the mean number of steps that the members imagine.
        piece: (n,) int64, which piece it is of.
    """

    members: NDArray[np.float64]
    stored: NDArray[np.float64]
    steps: NDArray[np.float64]
    piece: NDArray[np.int64]

    @classmethod
    def together(cls, parts: Sequence[HeldOutSums]) -> HeldOutSums:
        """Return the sums of several horizons as one."""
        return cls(
            *(
                np.concatenate([getattr(part, field.name) for part in parts])
                for field in dataclasses.fields(cls)
            )
        )

    def select(self, which: NDArray[np.bool_]) -> HeldOutSums:
        """Return the sums ``which`` (n,)."""
        return HeldOutSums(
            self.members[which], self.stored[which], self.steps[which], self.piece[which]
        )


@dataclass(frozen=True)
class Calibration(Record):
    """How wide an interval is, measured on held-out sums.

    The interval is ``mean ± factor * sqrt(s² + (floor * steps)²)``, where s is the sample standard
    deviation of what the members imagine and ``steps`` is for how many steps they do.

    Attributes:
        factor: Half the width in units of that root: the quantile of split conformal prediction,
            of the absolute errors in that unit; at least that of Student's t, see
            :func:`~pbvf_offline.models.members.interval_90`.
        floor: A tenth of the mean absolute error for each step, in units of reward: what counts
            as deviation where the members agree.
        pieces: Number of held-out pieces that were measured on.
    """

    factor: Annotated[float, Meta(ge=0, le=_LARGEST_FACTOR)]
    floor: Annotated[float, Meta(ge=0, le=_LARGEST_FLOOR)]
    pieces: Annotated[int, Meta(ge=1)]

    @classmethod
    def of(cls, sums: HeldOutSums) -> Calibration | None:
        """Measure how wide an interval has to be.

        Of P pieces, the quantile is the share ``ceil(0.9 (P + 1)) / P`` of all sums: a further
        piece like them is inside with a probability of about 0.9 (at least that, if pieces were
        independent and the floor given). None where there is none,
        below 9 pieces, for one member, and of numbers that no interval can be computed with.
        """
        pieces, count = len(np.unique(sums.piece)), sums.members.shape[-1]
        if count < 2 or _share(pieces) > 1:
            return None
        errors = np.abs(sums.stored - sums.members.mean(axis=1))
        floor = _FLOOR * float((errors / sums.steps).mean())
        ratios = np.sort(_ratios(sums, errors, floor))
        quantile = float(ratios[math.ceil(_share(pieces) * len(ratios) - 1e-9) - 1])
        if quantile > _LARGEST_FACTOR or floor > _LARGEST_FLOOR:
            return None
        return cls(max(quantile, student_width(count)), floor, pieces)

    def interval(
        self, members: NDArray[np.float64], steps: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return low and high (…,) of a 90 % interval of a sum of rewards.

        Args:
            members: (…, M), what each member imagines.
            steps: (…,), the mean number of steps that they imagine.
        """
        mean, half = members.mean(axis=-1), self.factor * _deviation(members, steps, self.floor)
        return mean - half, mean + half


def held_by_the_others(sums: HeldOutSums) -> NDArray[np.bool_] | None:
    """Return for each sum (n,) whether it is inside an interval that did not see its piece.

    Each piece is held against the calibration on all others; of more than 500 pieces, 500 groups
    of them. None where that is none.
    """
    inside = np.zeros(len(sums.stored), dtype=bool)
    pieces, place = np.unique(sums.piece, return_inverse=True)
    groups = min(len(pieces), _GROUPS)
    group = place % groups  # neighbours are alike, so they are in different ones
    for number in range(groups):
        mine = group == number
        calibration = Calibration.of(sums.select(~mine))
        if calibration is None:
            return None
        low, high = calibration.interval(sums.members[mine], sums.steps[mine])
        inside[mine] = (low <= sums.stored[mine]) & (sums.stored[mine] <= high)
    return inside


def _share(pieces: int) -> float:
    """Share of the sums of so many pieces that an interval has to hold; above 1 of too few."""
    return math.ceil(_LEVEL * (pieces + 1) - 1e-9) / pieces


def _ratios(sums: HeldOutSums, errors: NDArray[np.float64], floor: float) -> NDArray[np.float64]:
    """Return the errors (n,) in units of what they are expected to be; no error is no unit."""
    unit = _deviation(sums.members, sums.steps, floor)
    ratios: NDArray[np.float64] = np.divide(errors, unit, out=np.zeros_like(unit), where=unit > 0)
    return ratios


def _deviation(
    members: NDArray[np.float64], steps: NDArray[np.float64], floor: float
) -> NDArray[np.float64]:
    """Return the members' sample deviation (…,), with the floor added in squares."""
    largest = np.maximum(np.abs(members).max(axis=-1, keepdims=True), 1e-300)
    apart = (members / largest).std(axis=-1, ddof=1) * largest[..., 0]  # huge sums have no square
    deviation: NDArray[np.float64] = np.hypot(apart, floor * steps)
    return deviation
