"""Columns of a training set that stay where the data are, and are made of them when needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ROWS = 2**18  # made together: they may be in double precision on the way
AT_ONCE = 128 * 2**20
"""Bytes of rows that are in memory at once; smaller sets are turned into tensors."""


class Column(Protocol):
    """What a training set holds of each step: a tensor, or something that makes its rows."""

    def __getitem__(self, rows: Tensor | slice, /) -> Tensor:
        """Return the given rows (…) int64 as (…, *shape of a row); ``[:]`` returns all."""

    def __len__(self) -> int:
        """Return the number of rows."""


class StoredColumn:
    """A column whose rows are made when they are asked for.

    Args:
        length: Number of rows.
        make: Returns the given rows (n,), as an array (n, *shape of a row).
        device: Where its tensors go.
    """

    def __init__(
        self,
        length: int,
        make: Callable[[NDArray[np.int64]], NDArray[Any]],
        device: torch.device,
    ) -> None:
        self._length, self._make, self._device = length, make, device

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Return the given rows (…) as a tensor (…, *shape of a row)."""
        if isinstance(rows, slice):
            rows = torch.arange(self._length)[rows]
        wanted = rows.reshape(-1).cpu().numpy()
        parts = [
            torch.from_numpy(self._make(wanted[at : at + _ROWS])).to(self._device)
            for at in range(0, max(len(wanted), 1), _ROWS)
        ]
        made = torch.cat(parts) if len(parts) > 1 else parts[0]
        return made.reshape(*rows.shape, *made.shape[1:])

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._length


def kept_entries(held_out: NDArray[np.bool_], device: torch.device) -> Column:
    """Return which entries (N,) may be drawn: those that are not held out."""
    if not held_out.any():
        return StoredColumn(len(held_out), np.copy, device)
    kept = np.flatnonzero(~held_out)
    if len(held_out) <= np.iinfo(np.int32).max:
        kept = kept.astype(np.int32)
    return StoredColumn(len(kept), lambda rows: kept[rows].astype(np.int64), device)
