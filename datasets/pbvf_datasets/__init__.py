"""Policy-tagged datasets: write, read, check and share them.

>>> from pbvf_datasets import load_dataset, from_minari, DatasetWriter

Names are resolved on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pbvf_datasets.minari_bridge import from_minari as from_minari
    from pbvf_datasets.reader import Dataset as Dataset
    from pbvf_datasets.reader import load_dataset as load_dataset
    from pbvf_datasets.writer import DatasetWriter as DatasetWriter

_HOMES = {
    "Dataset": "pbvf_datasets.reader",
    "DatasetWriter": "pbvf_datasets.writer",
    "from_minari": "pbvf_datasets.minari_bridge",
    "load_dataset": "pbvf_datasets.reader",
}

__all__ = ["Dataset", "DatasetWriter", "from_minari", "load_dataset"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
