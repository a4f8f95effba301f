"""Ordered parallel map over processes that survives workers which die or hang.

``multiprocessing.Pool.map`` waits for ever for a killed worker, and
``ProcessPoolExecutor`` can neither kill a hung one nor go on after a death, so the
few lines of supervision needed here are written out: each worker has a pipe of its
own, and whatever a lost worker still owed is handed to a fresh one.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Protocol, TypeVar

from pbvf_offline.errors import PbvfError, WorkerError

Item_contra = TypeVar("Item_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)
ItemT = TypeVar("ItemT")
OutT = TypeVar("OutT")

MAX_TRIES = 3
HANG_SECONDS = 600.0
_QUEUED = 2  # jobs in a worker's hands: one running, one waiting, so that it never idles
_POLL_SECONDS = 1.0


class Job(Protocol[Item_contra, Out_co]):
    """Work that a process prepares for once and then does item by item; must be picklable."""

    def start(self) -> Callable[[Item_contra], Out_co]:
        """Return the function from item to result."""


class _Worker(Generic[ItemT]):
    """One process, its pipe, and the items it still owes."""

    def __init__(self, context: Any, job: Job[ItemT, Any]) -> None:
        self.conn: Connection
        self.conn, child = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_serve, args=(child, self.conn, job, os.getpid()), daemon=True
        )
        self.process.start()
        child.close()
        self.owed: deque[tuple[int, ItemT]] = deque()
        self.last_sign = time.monotonic()

    def send(self, position: int, item: ItemT) -> None:
        if not self.owed:
            self.last_sign = time.monotonic()
        self.owed.append((position, item))
        with contextlib.suppress(OSError):  # a dead worker is noticed at the next wait
            self.conn.send((position, item))

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.conn.close()


def start_method() -> str:
    """Choose how workers start: ``fork`` where that is safe, because it costs nothing.

    A process that has loaded torch or runs threads may hold locks that a fork would
    copy in their locked state; there, fresh interpreters are spawned.
    """
    forkable = (
        sys.platform == "linux" and "torch" not in sys.modules and threading.active_count() == 1
    )
    return "fork" if forkable else "spawn"


def ordered_map(
    job: Job[ItemT, OutT],
    items: Iterable[ItemT],
    workers: int,
    *,
    hang_seconds: float = HANG_SECONDS,
    queued: int = _QUEUED,
) -> Iterator[OutT]:
    """Yield ``job(item)`` for every item in order, computed by ``workers`` processes.

    Items may be endless: they are drawn as workers become free. Closing the iterator
    stops the workers. An exception from the job is raised here, in its place.

    Args:
        job: What each worker runs.
        items: The work.
        workers: Number of processes.
        hang_seconds: A worker silent for so long with work in hand is taken for hung.
        queued: Items in a worker's hands at once; 1 for few long ones, of which none should
            wait for a busy worker while another idles.

    Raises:
        WorkerError: The same item lost its worker three times.
    """
    context = mp.get_context(start_method())
    source = enumerate(items)
    lost: deque[tuple[int, ItemT]] = deque()
    tries: dict[int, int] = {}
    done: dict[int, tuple[bool, Any]] = {}
    pool: list[_Worker[ItemT]] = []
    exhausted = False
    next_out = 0
    try:
        while True:
            while next_out in done:
                good, value = done.pop(next_out)
                next_out += 1
                if not good:
                    raise value
                yield value
            # Results that wait for an earlier one count too, so memory stays bounded.
            room = workers * queued * 2
            for worker in pool:
                while len(worker.owed) < queued and (lost or not exhausted):
                    waiting = len(done) + sum(len(w.owed) for w in pool)
                    if lost:
                        worker.send(*lost.popleft())
                    elif waiting >= room:
                        break
                    else:
                        try:
                            worker.send(*next(source))
                        except StopIteration:
                            exhausted = True
            if len(pool) < workers and (lost or not exhausted):
                pool.append(_Worker(context, job))
                continue
            if exhausted and not lost and not any(w.owed for w in pool):
                if next_out in done:
                    continue
                return
            ready = set(wait([w.conn for w in pool if w.owed], _POLL_SECONDS))
            for worker in list(pool):
                if worker.conn in ready and _receive(worker, done):
                    continue
                hung = bool(worker.owed) and time.monotonic() - worker.last_sign > hang_seconds
                if hung or worker.conn in ready or not worker.process.is_alive():
                    pool.remove(worker)
                    worker.kill()
                    _mourn(worker, tries, hung=hung)
                    lost.extendleft(reversed(worker.owed))
    finally:
        for worker in pool:
            worker.kill()


def _receive(worker: _Worker[Any], done: dict[int, tuple[bool, Any]]) -> bool:
    """Take one answer; False when the pipe is broken."""
    try:
        position, good, value = worker.conn.recv()
    except (EOFError, OSError):
        return False
    worker.owed.popleft()
    worker.last_sign = time.monotonic()
    done[position] = (good, value)
    return True


def _mourn(worker: _Worker[Any], tries: dict[int, int], *, hung: bool) -> None:
    """Count a lost worker against the item it was busy with."""
    if not worker.owed:
        return
    position = worker.owed[0][0]
    tries[position] = tries.get(position, 0) + 1
    if tries[position] >= MAX_TRIES:
        code = worker.process.exitcode
        how = "hung" if hung else f"died (exit code {code})"
        raise WorkerError(
            f"a worker {how} {MAX_TRIES} times on item {position}",
            remedy="what was finished is safe; check memory, or use --workers 1 to see the cause",
        )


def _end_with(parent: int) -> None:
    """End this process soon after its parent was killed."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)


def _serve(child: Connection, parent_end: Connection, job: Job[Any, Any], parent: int) -> None:
    """Answer items until the parent closes the pipe or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # An item may take hours: the loop below would notice a killed parent only after it.
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with contextlib.suppress(OSError):
        parent_end.close()  # else the pipe would outlive the parent
    run: Callable[[Any], Any] | None = None
    try:
        while True:
            # A killed parent cannot close pipes that sibling workers inherited; watch its id.
            while not child.poll(_POLL_SECONDS):
                if os.getppid() != parent:
                    return
            position, item = child.recv()
            try:
                if run is None:
                    run = job.start()
                answer = (position, True, run(item))
            except PbvfError as error:
                answer = (position, False, error)
            except Exception:
                answer = (position, False, RuntimeError(traceback.format_exc()))
            child.send(answer)
    except (EOFError, OSError):
        return
