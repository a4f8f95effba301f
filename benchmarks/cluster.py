"""Collecting through Ray on this machine against worker processes, and growth on paper.

Both sides collect Swimmer-v5 with two workers, files included, without the start of Ray. From what
the one command does of each step (answers, files), what the start of Ray takes and what a core
plays, a table says what more cores would give, and from how many on the command is what limits.

Run: python benchmarks/cluster.py (needs the extra ``ray``)
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.rollout.cluster import ray_engine
from pbvf_offline.rollout.workers import ordered_map
from pbvf_runs.collection import collect
from pbvf_runs.settings import CollectSettings
from tools.alternate import Benchmark
from tools.nothing import Nothing

CORES = (10, 100, 1_000)
UNITS = 200
WORKERS = 2


class Sides:
    """Both sides, and what was seen of them.

    Attributes:
        starts: Seconds to start Ray.
        units: Seconds of a unit that does nothing, all workers together.
        driver: CPU seconds of the command a step, through Ray.
        alone: Steps a second of one worker process, of two that play.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.starts: list[float] = []
        self.units: list[float] = []
        self.driver: list[float] = []
        self.alone: list[float] = []

    def ray(self) -> float:
        """Return steps a second through Ray."""
        started = time.perf_counter()
        with ray_engine("local", workers=WORKERS) as workers:
            self.starts.append(time.perf_counter() - started)
            list(ordered_map(Nothing(), range(WORKERS), workers))  # its processes are there
            started = time.perf_counter()
            list(ordered_map(Nothing(), range(UNITS), workers))
            self.units.append((time.perf_counter() - started) / UNITS)
            used = time.process_time()
            rate, played = self._collect()
            self.driver.append((time.process_time() - used) / played)
        return rate

    def processes(self) -> float:
        """Return steps a second with worker processes."""
        rate, _ = self._collect()
        self.alone.append(rate / WORKERS)
        return rate

    def _collect(self) -> tuple[float, int]:
        with tempfile.TemporaryDirectory() as folder:
            settings = CollectSettings(
                EnvConfig("Swimmer-v5"), "bench/s-v0", steps=self._steps, perturb_every=200
            )
            result = collect(settings, root=Path(folder), workers=WORKERS)
        return result.steps_per_second or 0.0, result.steps + result.warmup_steps

    def growth(self) -> dict[str, Any]:
        """Return what more cores would give, printed as a table."""
        start, unit, driver, alone = (
            statistics.median(values)
            for values in (self.starts, self.units, self.driver, self.alone)
        )
        print(f"Ray starts in {start:.1f} s; a unit that does nothing takes {unit * 1e3:.2f} ms;")
        print(f"the command needs {driver * 1e6:.2f} µs a step, a worker {1e6 / alone:.1f} µs.")
        print(f"So the command is what limits from {math.ceil(1 / (driver * alone))} cores on.")
        rows = []
        print("| cores | steps/s | limit | seconds for 100 million steps, start included |")
        print("| -: | -: | -- | -: |")
        for cores in CORES:
            rate = min(cores * alone, 1 / driver)
            limit = "cores" if cores * alone < 1 / driver else "the command"
            rows.append({"cores": cores, "steps_per_second": rate, "limit": limit})
            print(f"| {cores:,} | {rate:,.0f} | {limit} | {start + 1e8 / rate:,.0f} |")
        return {
            "name": "growth on paper",
            "start_seconds": start,
            "unit_seconds": unit,
            "command_seconds_a_step": driver,
            "steps_per_second_a_core": alone,
            "cores": rows,
        }


if __name__ == "__main__":
    benchmark = Benchmark(__doc__, steps=300_000)
    sides = Sides(benchmark.arguments.steps)
    benchmark.compare(
        "collect --ray local / --workers, both with two",
        sides.ray,
        sides.processes,
        target=0.9,
        unit="steps/s",
    )
    benchmark.results.append(sides.growth())
    benchmark.write()
