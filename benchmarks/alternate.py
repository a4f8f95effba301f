"""Time two sides in turn, A B A B …, and print the ratio of each pair and its median."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable


def alternate(
    name: str,
    ours: Callable[[], float],
    reference: Callable[[], float],
    *,
    rounds: int = 5,
    target: float | None,
    unit: str,
    higher_is_better: bool = True,
) -> dict[str, object]:
    """Run both sides ``rounds`` times in turn and print one line a round and a verdict.

    Args:
        name: What is measured.
        ours: Returns this project's figure, in ``unit``.
        reference: Returns the reference's figure, in the same unit.
        rounds: Number of pairs.
        target: The ratio ours / reference wanted; None: for the record.
        unit: Unit of both figures.
        higher_is_better: Whether the ratio should be at least the target, or at most.
    """
    pairs = []
    for k in range(rounds):
        pairs.append((ours(), reference()))
        a, b = pairs[-1]
        print(f"{name} round {k + 1}: ours {a:,.2f} {unit}, reference {b:,.2f} {unit}", flush=True)
    ratios = [a / b for a, b in pairs]
    median = statistics.median(ratios)
    text = f"{name}: median ratio {median:.3f} (min {min(ratios):.3f}, max {max(ratios):.3f})"
    reached = None
    if target is not None:
        reached = median >= target if higher_is_better else median <= target
        sign = ">=" if higher_is_better else "<="
        text += f", wanted {sign} {target:.3g}: {'reached' if reached else 'MISSED'}"
    print(text, flush=True)
    return {
        "name": name,
        "unit": unit,
        "ours": [a for a, _ in pairs],
        "reference": [b for _, b in pairs],
        "median_ratio": median,
        "target": target,
        "reached": reached,
    }


def options(description: str | None) -> argparse.Namespace:
    """Parse the options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs (5)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    return parser.parse_args()


def write(path: str | None, command: str, results: list[dict[str, object]]) -> None:
    """Write the figures with the command that made them, when a path is given."""
    if path is not None:
        from pathlib import Path

        text = json.dumps({"command": command, "results": results}, indent=1)
        Path(path).write_text(text + "\n")
