"""How often the 95 % bootstrap intervals of a few values hold what they are of.

Samples of normal values, whose mean and interquartile mean are 0.

Run: python benchmarks/intervals.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pbvf_runs.compare.statistics import estimate, interquartile_mean

SAMPLES = 2_000


def coverage(statistic: Callable[..., Any], values: int, samples: int = SAMPLES) -> float:
    """Return the share of samples of so many values whose interval holds 0."""
    drawn = np.random.default_rng(values).standard_normal((values, samples))
    found = estimate(statistic, drawn)
    assert found.low is not None
    assert found.high is not None
    return float(np.mean((found.low <= 0) & (found.high >= 0)))


def main() -> None:
    """Print a row for each number of values."""
    print("values   mean   interquartile mean")
    for values in (5, 10, 20):
        shares = [coverage(statistic, values) for statistic in (np.mean, interquartile_mean)]
        print(f"{values:6}   {shares[0]:.0%}    {shares[1]:.0%}")


if __name__ == "__main__":
    main()
