"""The paper's results with deterministic policies, and what counts as agreeing with them.

Source: Faccio, Kirsch and Schmidhuber (ICLR 2021), "Full experimental results": mean and
standard deviation over 20 seeds of the undiscounted return, averaged over the evaluations of a
whole run (``avg``) or of its last fifth (``last``), each with its own best hyperparameters.

The paper does not say whether returns on Hopper hold the survival bonus; its authors' code
takes 1 off at each step of an evaluation, so the PBVFs' are without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pbvf_offline.errors import UsageError
from pbvf_offline.presets.paper import env_family


@dataclass(frozen=True)
class PaperResult:
    """Mean and standard deviation of the return over the paper's 20 seeds."""

    mean: float
    std: float


_FAMILIES = (
    *("MountainCarContinuous", "InvertedPendulum", "Reacher", "Swimmer", "Hopper"),
    *("Acrobot", "CartPole"),
)

# By metric and hidden sizes of the policy: for each algorithm mean and standard deviation on
# these families, or on the first five, whose actions are continuous.
# fmt: off
_TABLES: dict[tuple[str, tuple[int, ...]], dict[str, str]] = {
    ("avg", ()): {
        "ars":   "63 6  | 886 72  | -9.2 0.3  | 228 89 | 1184 345 | -161 23 | 476 13",
        "pssvf": "85 4  | 944 33  | -11.7 0.9 | 259 47 | 1392 287 | -137 14 | 443 105",
        "ddpg":  "0 0   | 612 169 | -8.6 0.9  | 95 112 | 629 145",
        "psvf":  "84 20 | 926 34  | -19.7 6.0 | 188 71 | 917 249  | -148 25 | 459 28",
        "pavf":  "82 21 | 913 40  | -17.0 7.7 | 231 56 | 814 223",
    },
    ("avg", (32,)): {
        "ars":   "37 11 | 851 46  | -9.6 0.3  | 139 78 | 1003 66  | -296 38  | 395 141",
        # Reacher is printed as 10.4: its sign was lost, a return there is never positive.
        "pssvf": "60 33 | 701 138 | -10.4 0.5 | 189 35 | 707 668  | -251 80  | 463 18",
        "ddpg":  "0 0   | 816 36  | -5.7 0.3  | 61 32  | 1384 125",
        "psvf":  "71 25 | 529 281 | -11.9 1.2 | 226 33 | 864 272  | -270 113 | 413 61",
        "pavf":  "71 27 | 563 228 | -10.9 1.1 | 222 28 | 793 322",
    },
    ("avg", (64, 64)): {
        "ars":   "28 8  | 812 239 | -9.8 0.3  | 129 68 | 964 47  | -335 35  | 416 105",
        "pssvf": "72 22 | 850 93  | -10.7 0.2 | 158 59 | 922 568 | -281 117 | 452 34",
        "ddpg":  "0 0   | 834 36  | -5.5 0.4  | 92 117 | 767 627",
        "psvf":  "80 9  | 580 107 | -10.7 0.6 | 137 38 | 843 282 | -397 71  | 394 71",
        "pavf":  "73 10 | 399 219 | -10.7 0.5 | 142 26 | 875 136",
    },
    ("last", ()): {
        "ars":   "73 5  | 657 477 | -8.6 0.5   | 334 34  | 1443 713 | -126 26 | 499 2",
        "pssvf": "84 28 | 970 126 | -10.0 1.0  | 350 8   | 1560 911 | -97 6   | 482 53",
        "ddpg":  "0 1   | 777 320 | -7.3 0.4   | 146 152 | 704 234",
        "psvf":  "76 36 | 906 289 | -16.5 1.6  | 238 107 | 1067 340 | -100 18 | 500 0",
        "pavf":  "68 42 | 950 223 | -17.2 15.4 | 298 40  | 720 281",
    },
    ("last", (32,)): {
        "ars":   "54 20 | 936 146 | -9.2 0.4  | 239 117 | 1048 68  | -215 97  | 471 110",
        "pssvf": "89 22 | 816 234 | -10.2 1.0 | 294 41  | 1204 615 | -116 33  | 500 0",
        "ddpg":  "0 0   | 703 283 | -4.6 0.6  | 179 150 | 1290 348",
        "psvf":  "84 31 | 493 462 | -11.3 0.8 | 290 70  | 1003 572 | -244 151 | 488 36",
        "pavf":  "92 7  | 854 295 | -10.1 0.9 | 307 34  | 967 411",
    },
    ("last", (64, 64)): {
        "ars":   "11 30 | 976 83  | -9.4 0.4  | 157 54  | 1006 47  | -182 45  | 492 18",
        "pssvf": "91 16 | 898 227 | -10.7 0.6 | 224 99  | 1412 691 | -233 139 | 500 0",
        "ddpg":  "0 0   | 943 73  | -4.4 0.4  | 196 151 | 1437 752",
        "psvf":  "93 1  | 1000 0  | -10.6 1.0 | 257 26  | 1247 344 | -406 51  | 499 2",
        "pavf":  "93 2  | 827 267 | -10.6 0.4 | 232 42  | 1005 155",
    },
}

# What a run can gain, rather small than large, since 5 % of it is a tolerance. A task is solved
# at the threshold that Gymnasium registers.
_RANGES: dict[str, float] = {
    "Acrobot": 400,                # -500: never up in 500 steps; -100: solved
    "MountainCarContinuous": 100,  # 0: doing nothing; 100: the prize for the top
    "CartPole": 500,               # 0 to 500 steps upright
    "Swimmer": 360,                # 0: doing nothing; 360: solved
    "InvertedPendulum": 1000,      # 0 to 1,000 steps upright
    "Reacher": 7.5,                # -11.5: doing nothing; -3.75: solved; at random -44
    "Hopper": 2000,                # 0: falling at once; 3,000 is good, less a bonus of 1,000
}
# fmt: on

_TOLERANCE = 0.05


def paper_result(
    algorithm: str, env_id: str, hidden: Sequence[int], metric: str
) -> PaperResult | None:
    """Return a cell of the paper's result tables; None where there is none.

    Args:
        algorithm: ``ars``, ``pssvf``, ``ddpg``, ``psvf`` or ``pavf``.
        env_id: Environment in any version, with or without its module.
        hidden: Hidden sizes of the policy; empty: linear.
        metric: ``avg`` or ``last``.
    """
    family = env_family(env_id)
    row = _TABLES.get((metric, tuple(hidden)), {}).get(algorithm, "")
    found = dict(zip(_FAMILIES, row.split("|"), strict=False)).get(family)
    return PaperResult(*map(float, found.split())) if found else None


def return_range(env_id: str) -> float:
    """Return how far apart a useless and a good return are in one of the paper's tasks.

    Raises:
        UsageError: The paper does not have this environment.
    """
    family = env_family(env_id)
    if family not in _RANGES:
        raise UsageError(
            f"environment {env_id} is not one of the paper's",
            remedy=f"those are {', '.join(_RANGES)}",
        )
    return float(_RANGES[family])


def agrees(
    mean: float, algorithm: str, env_id: str, hidden: Sequence[int], metric: str
) -> bool | None:
    """Return whether a mean return is as good as the paper's; None where the paper has none.

    It may fall short by the paper's standard deviation or by 5 % of the range of returns,
    whichever is larger. NaN does not agree.
    """
    paper = paper_result(algorithm, env_id, hidden, metric)
    if paper is None:
        return None
    return bool(mean >= paper.mean - max(paper.std, _TOLERANCE * return_range(env_id)))
