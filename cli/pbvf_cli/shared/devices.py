"""Where tensors live, how many threads compute with them, and who works on units of work."""

from __future__ import annotations

import contextlib
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from pbvf_cli.shared.errors import signals
from pbvf_cli.shared.options import DeviceName
from pbvf_offline.errors import UsageError

_UNKNOWN_LIMIT = 1_000

if TYPE_CHECKING:
    import torch

    from pbvf_cli.shared.settings import SettingsTable
    from pbvf_cli.shared.terminal.output import Sink
    from pbvf_offline.envs.reference import EnvConfig


def torch_device(device: DeviceName) -> torch.device:
    """Return the device to compute on; imports torch, before the modules that need it.

    Raises:
        UsageError: The device asked for is not there.
    """
    with signals.held():  # an exception raised while torch loads would abort the process
        import torch

    cuda = torch.cuda.is_available()
    if cuda:
        # Read when CUDA starts: with it, cuBLAS adds up in the same order each time.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if device == DeviceName.AUTO:
        return torch.device("cuda" if cuda else "cpu")
    wanted = torch.device(device)
    if wanted.type == "cuda":
        _refuse_missing(cuda, "CUDA is not available here")
        count = torch.cuda.device_count()
        many = f"there are {count}, numbered from 0" if count > 1 else "there is one, cuda:0"
        _refuse_missing((wanted.index or 0) < count, f"{device} is not here: {many}")
    elif wanted.type == "mps":
        _refuse_missing(torch.backends.mps.is_available(), "MPS is not available here")
    return wanted


def _refuse_missing(there: bool, what: str) -> None:
    if not there:
        raise UsageError(what, where="--device", remedy="give --device cpu or auto")


def with_doubles(device: torch.device, sink: Sink) -> torch.device:
    """Return where a learned environment is; where that is another device, say so."""
    from pbvf_offline.policies.batch import double_device

    place = double_device(device)
    if place != device:
        sink.note(f"note: this needs double precision, which {device} has not; it runs on {place}")
    return place


def source(device: DeviceName) -> str:
    """Return where the choice of a device comes from."""
    return "default" if device == DeviceName.AUTO else "given"


def of_units(device: DeviceName, ray: str | None) -> DeviceName:
    """Return the device on which units of work compute: on nodes of Ray, the CPU.

    Raises:
        UsageError: Another one is asked for there.
    """
    if ray is None or device == DeviceName.CPU:
        return device
    if device != DeviceName.AUTO:
        raise UsageError(
            f"--device {device} is of this machine, and the nodes' may be others",
            where="--ray",
            remedy="give --device cpu, or no --ray",
        )
    return DeviceName.CPU


def runs_on_cpu(device: DeviceName, sink: Sink) -> None:
    """Say that a command which runs on the CPU alone has no use for another device."""
    if device not in (DeviceName.AUTO, DeviceName.CPU):
        sink.note(f"note: this runs on the CPU; --device {device} changes nothing here")


def use_threads(given: int | None, table: SettingsTable) -> int:
    """Have this process compute on so many threads, one by default, and add it to the settings.

    Returns how many.

    Threads wait for each other several times an update by running in circles. Where processes
    have more threads than there are cores, that takes the time of those that have work to do. And
    the order of a sum, with it the last digits of a result, may depend on their number.
    """
    import torch
    from threadpoolctl import threadpool_limits

    threads = table.choose("threads", given, 1)
    torch.set_num_threads(threads)
    threadpool_limits(threads, user_api="blas")  # numpy's
    return threads


def units(
    workers: int | None,
    ray: str | None,
    table: SettingsTable,
    shared: Path | None = None,
    steps: float = 0,
) -> AbstractContextManager[int]:
    """Add to the settings who works on units of work; returns the context in which they do.

    Args:
        workers: How many units at once; None: as many as the steps are worth, or with Ray as many
            as there are cores.
        ray: The address of Ray; None: processes of this machine.
        table: The settings.
        shared: What units write to, if they do.
        steps: Environment steps in all, at most; 0 where units are not shared out unasked.

    Returns:
        A context that yields how many units are worked on at once.
    """
    if ray is None:
        return contextlib.nullcontext(choose_workers(workers, steps, table))

    from pbvf_offline.rollout.cluster import ray_engine

    table.show("ray", ray)
    table.show("workers", workers or "as many as cores", "given" if workers else "default")
    return ray_engine(ray, workers=workers, shared=shared)


def choose_workers(workers: int | None, steps: float, table: SettingsTable) -> int:
    """Return how many processes play so many steps, and add that to the settings."""
    from pbvf_offline.rollout.workers import workers_worth

    usual = 1 if workers is not None else workers_worth(steps)
    source = "default" if usual == 1 else f"default for up to {steps:,.0f} steps"
    return table.choose("workers", workers, usual, source)


def steps_of(config: EnvConfig, episodes: int) -> int:
    """Return how many steps so many episodes may have, where that is known."""
    from pbvf_offline.envs.make import registered_limit

    limit = config.max_episode_steps or registered_limit(config.reference())
    return episodes * (limit or _UNKNOWN_LIMIT)
