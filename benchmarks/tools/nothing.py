"""A job for processes that costs nothing, in a module that they can import."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Nothing:
    """A job that does nothing with its items."""

    def start(self) -> Callable[[int], int]:
        """Return the function from item to result."""
        return abs
