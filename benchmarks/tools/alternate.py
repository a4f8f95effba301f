"""Time two sides in turn, A B A B …, and print the ratio of each pair and its median."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Benchmark:
    """The options that all benchmarks share, and the figures of one of them.

    Args:
        description: The help.
        steps: The default of ``--steps``, where the benchmark has that option.
    """

    def __init__(self, description: str | None, *, steps: int | None = None) -> None:
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--rounds", type=int, default=5, help="pairs of runs (5)")
        parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
        if steps is not None:
            parser.add_argument("--steps", type=int, default=steps, help=f"steps ({steps:,})")
        self.arguments = parser.parse_args()
        self.results: list[dict[str, Any]] = []

    def compare(
        self,
        name: str,
        ours: Callable[[], float],
        reference: Callable[[], float],
        *,
        target: float | None,
        unit: str,
        higher_is_better: bool = True,
    ) -> None:
        """Run both sides in turn and print one line a round and a verdict.

        Args:
            name: What is measured.
            ours: Returns this project's figure, in ``unit``.
            reference: Returns the reference's figure, in the same unit.
            target: The ratio ours / reference wanted; None: for the record.
            unit: Unit of both figures.
            higher_is_better: Whether the ratio should be at least the target, or at most.
        """
        pairs = []
        for k in range(self.arguments.rounds):
            a, b = ours(), reference()
            pairs.append((a, b))
            print(f"{name} round {k + 1}: ours {a:,.2f} {unit}, reference {b:,.2f} {unit}")
            sys.stdout.flush()
        ratios = [a / b for a, b in pairs]
        median = statistics.median(ratios)
        text = f"{name}: median ratio {median:.3f} (min {min(ratios):.3f}, max {max(ratios):.3f})"
        reached = None
        if target is not None:
            reached = median >= target if higher_is_better else median <= target
            sign = ">=" if higher_is_better else "<="
            text += f", wanted {sign} {target:.3g}: {'reached' if reached else 'MISSED'}"
        print(text, flush=True)
        self.results.append(
            {
                "name": name,
                "unit": unit,
                "ours": [a for a, _ in pairs],
                "reference": [b for _, b in pairs],
                "median_ratio": median,
                "target": target,
                "reached": reached,
            }
        )

    def write(self) -> None:
        """Write the figures with the command that made them, where a file is given."""
        if self.arguments.json is not None:
            command = f"python benchmarks/{Path(sys.argv[0]).name}"
            text = json.dumps({"command": command, "results": self.results}, indent=1)
            Path(self.arguments.json).write_text(text + "\n")
