"""Random sources that an environment shares with its process, as one episode's own.

``env.reset(seed=…)`` seeds the environment's generator and nothing else. Environments draw from
others too; left alone, those would continue where the last episode or the caller left them.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from pbvf_offline.seeding import Stream, seed_words

_INSIDE = np.random.MT19937(0)  # numpy draws from this one inside a block


class SharedRandomness:
    """The global generators and the spaces' ones, in the state that belongs to one episode.

    The global ones are those of ``random``, of ``numpy.random`` and, where something has imported
    it, of torch on the CPU. The spaces are those of the environment and of all of its wrappers.

    Args:
        seed: What the episode's reset is seeded with. The sources get seeds made from it, unlike it
            and each other.
        env: The environment whose spaces are seeded too.

    Attributes:
        seed: As given.
    """

    def __init__(self, seed: int, env: gym.Env[Any, Any] | None = None) -> None:
        self.seed = seed
        self._env = env
        self._inside: _Globals | None = None
        self._lent = False

    @contextlib.contextmanager
    def lent(self, *, again: bool = True) -> Iterator[None]:
        """Put the sources into the episode's state; afterwards the global ones are the caller's.

        The first block seeds them, later ones continue where the one before ended. Inside a block
        of the same object this does nothing.

        Args:
            again: Whether there will be another block.
        """
        if self._lent:
            yield
            return
        outside = _Globals.now()
        self._lent = True
        try:
            if self._inside is None:
                self._seed()
            else:
                self._inside.restore()
            yield
        finally:
            self._inside = _Globals.now() if again else None
            outside.restore()
            self._lent = False

    def _seed(self) -> None:
        spaces = [] if self._env is None else _spaces(self._env)
        words = seed_words(self.seed, Stream.SHARED_SOURCES, count=3 + len(spaces))
        random.seed(words[0])
        # Exchanged, because to write back a state costs ten times as much as all the rest here.
        set_bit_generator(_INSIDE)
        np.random.seed(words[1])  # noqa: NPY002
        torch = _torch()
        if torch is not None:
            torch.default_generator.manual_seed(words[2])
        for space, word in zip(spaces, words[3:], strict=True):
            space.seed(word)


class _Globals(NamedTuple):
    """The states of the global generators; numpy's by the object that holds it."""

    python: Any
    bits: Any
    numpy: dict[str, Any]
    torch: Any

    @classmethod
    def now(cls) -> _Globals:
        torch = _torch()
        return cls(
            random.getstate(),
            get_bit_generator(),
            dict(np.random.get_state(legacy=False)),  # noqa: NPY002
            None if torch is None else torch.default_generator.get_state(),
        )

    def restore(self) -> None:
        """Put the states back, provided that nothing else drew from the caller's generators."""
        random.setstate(self.python)
        set_bit_generator(self.bits)
        # A normal that is left of a pair is not in ``bits``.
        if self.bits is _INSIDE or self.numpy["has_gauss"]:
            np.random.set_state(self.numpy)  # noqa: NPY002
        torch = _torch()
        if torch is not None and self.torch is not None:
            torch.default_generator.set_state(self.torch)


def _torch() -> Any:
    """Return torch where something has imported all of it, else None."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "default_generator") else None


def _spaces(env: gym.Env[Any, Any]) -> list[gym.Space[Any]]:
    """Return the distinct spaces of an environment and its wrappers, the outermost first."""
    found: dict[int, gym.Space[Any]] = {}
    while True:
        for name in ("observation_space", "action_space"):
            space = getattr(env, name, None)  # what a wrapper replaces may be missing inside
            if isinstance(space, gym.Space):
                found[id(space)] = space
        if not isinstance(env, gym.Wrapper):
            return list(found.values())
        env = env.env
