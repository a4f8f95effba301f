"""What a shell may complete: ids of datasets and environments, files by their suffix.

Names alone are looked at, in folders that may hold anything. Whatever goes wrong, there is nothing
to complete; then shells fall back on the names of files.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Final

Complete = Callable[[str], list[str]]


def _safely(find: Callable[[str], Iterable[str]]) -> Complete:
    """Return a function of what was typed: the finds that begin so, sorted. It never fails."""

    @functools.wraps(find)
    def complete(incomplete: str) -> list[str]:
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return sorted({name for name in find(incomplete) if name.startswith(incomplete)})
        return []

    return complete


@_safely
def datasets(incomplete: str) -> Iterator[str]:
    """Return ids of the datasets in their folder."""
    del incomplete
    from pbvf_datasets.format.names import dataset_ids

    return dataset_ids()


def _files(suffix: str) -> Callable[[str], Iterator[str]]:
    def files(incomplete: str) -> Iterator[str]:
        folder = incomplete[: incomplete.rfind("/") + 1]
        with os.scandir(os.path.expanduser(folder) or ".") as found:  # noqa: PTH111
            yield from (folder + e.name for e in found if e.name.endswith(suffix))

    return files


tensors: Final = _safely(_files(".safetensors"))
archives: Final = _safely(_files(".tar"))


@_safely
def datasets_and_files(incomplete: str) -> list[str]:
    """Return ids of datasets, and files of critics, models and policies."""
    return [*datasets(incomplete), *tensors(incomplete)]


@_safely
def environments(incomplete: str) -> Iterator[str]:
    """Yield the ids that Gymnasium knows and can make, and those of this project."""
    del incomplete
    from gymnasium.envs.registration import registry

    from pbvf_offline.envs.make import register_environments

    register_environments()
    for name, spec in registry.items():
        if isinstance(spec.entry_point, str):  # a function raises: the version is gone
            yield name


BY_METAVAR: Final[dict[str, Complete]] = {
    "DATASET": datasets,
    "DATASET|RUN": datasets,
    "POLICIES|DATASET": datasets_and_files,
    "PATH": datasets_and_files,
    "PATH…": datasets_and_files,
    "CRITIC": tensors,
    "POLICIES": tensors,
    "FILE.tar": archives,
    "ENV": environments,
}
"""By what an argument or option takes."""

BY_OPTION: Final[dict[str, Complete]] = dict.fromkeys(
    ("--model", "--critic", "--policies", "--base", "--from"), tensors
)
"""By the names of options that take a FILE: it is one of tensors."""
