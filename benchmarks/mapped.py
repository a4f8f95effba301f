"""Gradient steps on data that stay in the mapped cache against the same steps on data in memory.

Seconds are CPU time, so that other work on the machine counts little.

Run: python benchmarks/mapped.py [--steps 10000000] [--rounds 3]
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import torch

from pbvf_datasets import load_dataset
from pbvf_offline.fit.loop import advance, batch_indices, batch_noise, start_fit, training_set
from pbvf_offline.fit.settings import default_fit_settings
from pbvf_offline.fit.steps import gradient_step
from tools.alternate import Benchmark
from tools.synthetic import write_dataset

POLICIES, PER_EPISODE, UPDATES = 500, 5, 3000
CPU = torch.device("cpu")

if __name__ == "__main__":
    benchmark = Benchmark(__doc__, steps=10_000_000)
    steps = benchmark.arguments.steps
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"PBVF_CACHE": str(Path(folder) / "cache"), "MINARI_DATASETS_PATH": folder}
        write_dataset(
            Path(folder),
            "bench/large-v0",
            episodes=POLICIES // PER_EPISODE,
            fragments=PER_EPISODE,
            fragment_steps=steps // POLICIES,
        )
        data = load_dataset("bench/large-v0").trajectories
        settings = default_fit_settings("psvf", None, data.policies.spec, seed=0)
        mapped, loaded = (start_fit(data, settings, CPU) for _ in range(2))
        stored = training_set(mapped, data, CPU)
        whole = stored.picked(torch.arange(steps))
        shape = mapped.online.noise_shape(whole)

        def from_the_cache() -> float:
            """Return updates a second of CPU time, read from the cache."""
            started = time.process_time()
            advance(mapped, stored, mapped.updates + UPDATES)
            return UPDATES / (time.process_time() - started)

        def in_memory() -> float:
            """Return the same of tensors that hold all the data."""
            started = time.process_time()
            span = settings, steps, loaded.updates, loaded.updates + UPDATES
            for index, noise in zip(batch_indices(*span), batch_noise(*span, shape), strict=True):
                drawn = None if noise is None else torch.from_numpy(noise)
                gradient_step(loaded, whole, torch.from_numpy(index), drawn)
            return UPDATES / (time.process_time() - started)

        benchmark.compare(
            f"mapped / in memory, {steps:,} transitions",
            from_the_cache,
            in_memory,
            target=0.8,
            unit="updates a second",
        )
        same = zip(mapped.critic.parameters(), loaded.critic.parameters(), strict=True)
        if not all(torch.equal(one, other) for one, other in same):
            raise SystemExit("the two sides came to other weights")
    benchmark.write()
