"""Global random generators for libraries that seed and draw from them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np


@contextlib.contextmanager
def private_randomness() -> Iterator[None]:
    """Lend the libraries the global generators that they seed and draw from, and one thread.

    With one thread a seed repeats its run bit for bit.
    """
    import torch

    threads = torch.get_num_threads()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
