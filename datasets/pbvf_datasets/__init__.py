"""Policy-tagged datasets: write, read, check and share them.

>>> from pbvf_datasets import load_dataset, from_minari, DatasetWriter

Names are resolved on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pbvf_datasets.archive import pack as pack
    from pbvf_datasets.archive import unpack as unpack
    from pbvf_datasets.describe import list_datasets as list_datasets
    from pbvf_datasets.edit import filter_dataset as filter_dataset
    from pbvf_datasets.edit import merge as merge
    from pbvf_datasets.edit import split as split
    from pbvf_datasets.minari_bridge import from_minari as from_minari
    from pbvf_datasets.reader import Dataset as Dataset
    from pbvf_datasets.reader import load_dataset as load_dataset
    from pbvf_datasets.remote import pull as pull
    from pbvf_datasets.remote import push as push
    from pbvf_datasets.runs import train_run as train_run
    from pbvf_datasets.writer import DatasetWriter as DatasetWriter

_HOMES = {
    "Dataset": "pbvf_datasets.reader",
    "DatasetWriter": "pbvf_datasets.writer",
    "filter_dataset": "pbvf_datasets.edit",
    "from_minari": "pbvf_datasets.minari_bridge",
    "list_datasets": "pbvf_datasets.describe",
    "load_dataset": "pbvf_datasets.reader",
    "merge": "pbvf_datasets.edit",
    "pack": "pbvf_datasets.archive",
    "pull": "pbvf_datasets.remote",
    "push": "pbvf_datasets.remote",
    "split": "pbvf_datasets.edit",
    "train_run": "pbvf_datasets.runs",
    "unpack": "pbvf_datasets.archive",
}

__all__ = [
    "Dataset",
    "DatasetWriter",
    "filter_dataset",
    "from_minari",
    "list_datasets",
    "load_dataset",
    "merge",
    "pack",
    "pull",
    "push",
    "split",
    "train_run",
    "unpack",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
