"""The result that a synthesized policies file holds, held to what it says of itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeGuard

from pbvf_offline.errors import DamagedError
from pbvf_offline.policies.files import PoliciesFile, load_policies

_ALWAYS: Final = ("predicted", "chosen_step", "objective", "distance")
_INTERVAL: Final = ("low", "high")
_NUMBERS: Final = (*_ALWAYS, "returns", "closest", "cautious", *_INTERVAL)
BEST_SHOWN: Final = 5
"""Dataset policies that others are held against, at most."""


def is_result(value: object, out: Path, count: int, steps: object) -> TypeGuard[dict[str, Any]]:
    """Whether a file has a record of its result; another tool may have left it out.

    Args:
        value: What stands in the place of the result.
        out: The file, for messages.
        count: Number K of its policies.
        steps: Gradient steps of the ascent, by the file's settings.

    Raises:
        DamagedError: It has one, but not of ``count`` policies, or it contradicts itself.
    """
    if not isinstance(value, dict) or not all(isinstance(value.get(n), list) for n in _ALWAYS):
        return False
    for name in _NUMBERS:
        numbers = value.get(name)
        if numbers is None:
            continue
        if not isinstance(numbers, list):
            raise _damaged(out, f"has values of {name} that cannot be")
        # Of a policy that acts for longer than the model's check looked there is no interval.
        present = [x for x in numbers if x is not None] if name in _INTERVAL else numbers
        _refuse_unless(_are_numbers(present), out, name)
        if len(numbers) != count:
            raise _damaged(out, f"has {len(numbers)} values of {name} for {count} policies")
    last = steps if type(steps) is int else math.inf
    chosen = value["chosen_step"]
    good = all(type(step) is int and 0 <= step <= last for step in chosen)
    _refuse_unless(good, out, "chosen_step")
    _refuse_unless(all(away >= 0 for away in value["distance"]), out, "distance")
    _check_curve(value.get("curve"), out, count)
    _check_verdict(value, out)
    return True


def check_policies(path: Path) -> PoliciesFile:
    """Read a policies file, and check its result if it was synthesized.

    Raises:
        PbvfError: As :func:`pbvf_offline.policies.files.load_policies` does.
        DamagedError: Its result contradicts itself.
    """
    file = load_policies(path)
    if file.origin.get("made_by") == "synthesize":
        settings = file.origin.get("settings")
        steps = settings.get("steps") if isinstance(settings, dict) else None
        is_result(file.origin.get("result"), path, len(file.policies), steps)
    return file


def _check_curve(curve: object, out: Path, count: int) -> None:
    """Check what was measured along the ascent."""
    if curve is None:
        return
    if not isinstance(curve, list):
        raise _damaged(out, "has values of curve that cannot be")
    for point in curve:
        good = isinstance(point, dict) and type(point.get("step")) is int
        for name in ("returns", "predicted"):
            good = good and _are_numbers(point.get(name)) and len(point[name]) == count
        _refuse_unless(good, out, "curve")


def _check_verdict(result: Mapping[str, Any], out: Path) -> None:
    """Check what was said of the policies beside the dataset's; it is all there, or nothing."""
    cautious, low, high = (result.get(name) for name in ("cautious", "low", "high"))
    said, best = result.get("above_data"), result.get("data_cautious")
    if cautious is None:
        _refuse_unless(said is best is low is high is None, out, "cautious")
        return
    if not (_are_numbers(best) and 0 < len(best) <= BEST_SHOWN):
        raise _damaged(out, "has values of data_cautious that cannot be")
    _refuse_unless(sorted(best, reverse=True) == best, out, "data_cautious")
    if low is None or high is None:
        _refuse_unless(low is high, out, "low")
        # Files of earlier versions judge by the cautious returns. A model of one network has no
        # interval, and is sure of nothing.
        verdicts = [[value > best[0] for value in cautious], [False] * len(cautious)]
        _refuse_unless(said in verdicts, out, "above_data")
        return
    ends = list(zip(low, high, strict=True))
    whole = all(b is None if a is None else b is not None and a <= b for a, b in ends)
    _refuse_unless(whole, out, "high")
    # An interval is around the mean, from which caution takes off.
    over = all(b is None or b >= c for b, c in zip(high, cautious, strict=True))
    _refuse_unless(over, out, "cautious")
    # It need not be said of all: files of earlier versions have intervals of policies that act for
    # longer than the model's check looked, and do not say it of them.
    if not isinstance(said, list) or len(said) != len(low):
        raise _damaged(out, "has values of above_data that cannot be")
    pairs = zip(said, low, strict=True)
    possible = all(
        one is False or (one is True and value is not None and value > best[0])
        for one, value in pairs
    )
    _refuse_unless(possible, out, "above_data")


def _are_numbers(values: object) -> TypeGuard[list[float]]:
    return isinstance(values, list) and all(
        type(value) in (int, float) and math.isfinite(value) for value in values
    )


def _refuse_unless(good: bool, out: Path, name: str) -> None:
    if not good:
        raise _damaged(out, f"has values of {name} that cannot be")


def _damaged(out: Path, what: str) -> DamagedError:
    return DamagedError(f"its result {what}", where=out, remedy="make it again with --overwrite")
