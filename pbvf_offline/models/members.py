"""What the members of an ensemble say together: a cautious value, and an interval."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def cautious_values(members: NDArray[np.float64], caution: float) -> NDArray[np.float64]:
    """Return the members' mean less ``caution`` of their population standard deviations (…,).

    The sum of squares is divided by M and not by M - 1, so nothing is taken off one member.

    Args:
        members: (…, M), what each member says.
        caution: How many standard deviations are taken off.
    """
    values: NDArray[np.float64] = members.mean(axis=-1) - caution * members.std(axis=-1)
    return values


def interval_90(
    members: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return low and high (…,) of a 90 % prediction interval; None for one member.

    The interval for one more draw from the normal distribution that the M members are draws
    from: Student's t with M - 1 degrees of freedom, times the sample standard deviation,
    times ``sqrt(1 + 1 / M)``.

    Args:
        members: (…, M), what each member says.
    """
    count = members.shape[-1]
    if count < 2:
        return None
    mean, half = members.mean(axis=-1), student_width(count) * members.std(axis=-1, ddof=1)
    return mean - half, mean + half


def student_width(count: int) -> float:
    """Return half the width of :func:`interval_90` in sample deviations of ``count`` members."""
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, 0.95)) * math.sqrt(1 + 1 / count)
