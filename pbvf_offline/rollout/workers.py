"""Parallel map over processes that survives workers which die or hang.

``multiprocessing.Pool.map`` waits for ever for a killed worker, and
``ProcessPoolExecutor`` can neither kill a hung one nor go on after a death, so the
few lines of supervision needed here are written out: each worker has a pipe of its
own, and whatever a lost worker still owed is handed to a fresh one. Another engine (:func:`using`)
may take the place of these processes: it is given items and gives back answers in any order.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import multiprocessing as mp
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextvars import ContextVar
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pbvf_offline.errors import PbvfError, UsageError, WorkerError, shorten

Item_contra = TypeVar("Item_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)
ItemT = TypeVar("ItemT")
OutT = TypeVar("OutT")

MAX_TRIES = 3
HANG_SECONDS = 600.0
_WORTH: Mapping[str, int] = {"fork": 20_000, "spawn": 200_000}  # steps that pay a process's start
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_QUEUED = 2  # jobs in a worker's hands: one running, one waiting, so that it never idles
_POLL_SECONDS = 1.0
_BEGUN = "begun"  # a worker's first word
_Answer = tuple[bool, Any, list[tuple[str, type[Warning]]]]


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
        self.began = False
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


def usable_cores() -> int:
    """Return how many cores this process may keep busy.

    Those that the system lets it run on, no more than its container's share, or
    ``PBVF_WORKERS``.

    Raises:
        UsageError: That is no such number.
    """
    given = os.environ.get("PBVF_WORKERS")
    if given is not None:
        if re.fullmatch("[1-9][0-9]{0,3}", given) is None:
            raise UsageError(
                f"{shorten(repr(given))} is no number of processes",
                where="PBVF_WORKERS",
                remedy="give a whole number from 1 to 9999, or unset it",
            )
        return int(given)
    affinity = getattr(os, "sched_getaffinity", None)
    cores = (os.cpu_count() or 1) if affinity is None else len(affinity(0))
    with contextlib.suppress(OSError, ValueError):
        most, period = _QUOTA.read_text().split()
        cores = min(cores, max(1, int(most) // int(period)))
    return cores


def workers_worth(steps: float) -> int:
    """Return how many processes so many environment steps are worth: at most the usable cores.

    Raises:
        UsageError: ``PBVF_WORKERS`` is no such number.
    """
    return int(max(1, min(usable_cores(), steps // _WORTH[start_method()])))


class Pool(abc.ABC, Generic[ItemT, OutT]):
    """Items of work in the hands of one engine, and the answers that nobody has taken yet.

    The base of engines: those say who works, this says how many items may be under way, and how
    often one may be lost.

    Args:
        job: What is done with each item.
        items: The work; None while what comes next is not known.
        workers: How many items are worked on at once.
        hang_seconds: An item in hand for so long has hung.
        queued: Items in hand for each that is worked on.

    Attributes:
        done: Answers by position: whether the job succeeded, its result or exception, and what
            it warned of.
    """

    def __init__(
        self,
        job: Job[ItemT, OutT],
        items: Iterable[ItemT | None],
        workers: int,
        hang_seconds: float,
        queued: int,
    ) -> None:
        self._job, self._source = job, iter(items)
        self._drawn = 0
        self._most, self._hang_seconds, self._queued = workers, hang_seconds, queued
        self._lost: deque[tuple[int, ItemT]] = deque()
        self._tries: dict[int, int] = {}
        self._exhausted = False
        self.done: dict[int, _Answer] = {}

    @property
    @abc.abstractmethod
    def in_hand(self) -> int:
        """How many items are under way."""

    @property
    def finished(self) -> bool:
        """Whether every item has been answered."""
        return not self._has_work and not self.in_hand

    @abc.abstractmethod
    def hand_out(self) -> None:
        """Give out as many items as may be in hand."""

    @abc.abstractmethod
    def collect(self) -> None:
        """Wait a moment for answers; what was lost will be handed out again.

        Raises:
            WorkerError: The same item was lost three times.
        """

    @abc.abstractmethod
    def kill(self) -> None:
        """Stop all work."""

    @property
    def _has_work(self) -> bool:
        """Whether there may be items that nobody has in hand."""
        return bool(self._lost) or not self._exhausted

    def _next(self) -> tuple[int, ItemT] | None:
        """Return an item to hand out, with its position; None where there is none now."""
        if self._lost:
            return self._lost.popleft()
        # Results that wait for an earlier one count too, so memory stays bounded.
        if len(self.done) + self.in_hand >= self._most * self._queued * 2:
            return None
        try:
            item = next(self._source)
        except StopIteration:
            self._exhausted = True
            return None
        if item is None:
            return None
        self._drawn += 1
        return self._drawn - 1, item

    def _count_loss(self, position: int, how: str) -> None:
        """Count a loss against an item.

        Raises:
            WorkerError: It was the third.
        """
        self._tries[position] = self._tries.get(position, 0) + 1
        if self._tries[position] >= MAX_TRIES:
            raise WorkerError(
                f"a worker {how} {MAX_TRIES} times on item {position}",
                remedy="what was finished is safe; check memory, or use --workers 1, which shows "
                "the cause and waits for any time",
            )


class _Processes(Pool[ItemT, OutT]):
    """Processes of this machine."""

    def __init__(
        self,
        job: Job[ItemT, OutT],
        items: Iterable[ItemT | None],
        workers: int,
        hang_seconds: float,
        queued: int,
    ) -> None:
        super().__init__(job, items, workers, hang_seconds, queued)
        self._context = mp.get_context(start_method())
        self._workers: list[_Worker[ItemT]] = []

    @property
    def in_hand(self) -> int:
        """How many items are under way."""
        return sum(len(worker.owed) for worker in self._workers)

    def hand_out(self) -> None:
        """Give workers as many items as they may have, and start those there is work for."""
        while True:
            for worker in self._workers:
                while len(worker.owed) < self._queued and self._has_work:
                    drawn = self._next()
                    if drawn is None:
                        break
                    worker.send(*drawn)
            if len(self._workers) >= self._most or not self._has_work:
                return
            self._workers.append(_Worker(self._context, self._job))

    def collect(self) -> None:
        """Wait a moment for answers; replace workers that died or hang.

        Raises:
            WorkerError: The same item lost its worker three times.
            UsageError: A worker failed to import the script that started it.
        """
        ready = set(wait([w.conn for w in self._workers if w.owed], _POLL_SECONDS))
        for worker in list(self._workers):
            if worker.conn in ready and _receive(worker, self.done):
                continue
            silent = time.monotonic() - worker.last_sign
            hung = bool(worker.owed) and silent > self._hang_seconds
            if hung or worker.conn in ready or not worker.process.is_alive():
                self._workers.remove(worker)
                worker.kill()
                _refuse_unguarded(worker)
                if worker.owed:  # what it was busy with
                    code = worker.process.exitcode
                    gave_up = f"hung (no answer for {self._hang_seconds:g} seconds)"
                    how = gave_up if hung else f"died (exit code {code})"
                    self._count_loss(worker.owed[0][0], how)
                self._lost.extendleft(reversed(worker.owed))

    def kill(self) -> None:
        """Stop all workers."""
        for worker in self._workers:
            worker.kill()


Engine = Callable[..., Pool[Any, Any]]
"""Makes a pool of the arguments of :class:`Pool`."""

_engine: ContextVar[Engine] = ContextVar("engine", default=_Processes)


@contextlib.contextmanager
def using(engine: Engine) -> Iterator[None]:
    """Have another engine do all work that :func:`ordered_map` is given in the block.

    It changes where items are worked on and no result, so it is no argument of those who have work.
    """
    token = _engine.set(engine)
    try:
        yield
    finally:
        _engine.reset(token)


def is_done_here(workers: int) -> bool:
    """Whether work for so many workers is done by the process that has it."""
    return workers <= 1 and _engine.get() is _Processes


def ordered_map(
    job: Job[ItemT, OutT],
    items: Iterable[ItemT | None],
    workers: int,
    *,
    hang_seconds: float = HANG_SECONDS,
    queued: int = _QUEUED,
    ordered: bool = True,
) -> Generator[OutT, None, None]:
    """Yield ``job(item)`` for every item, computed by ``workers`` processes.

    Items may be endless: they are drawn as workers become free. Closing the iterator
    stops the workers. An exception from the job is raised here, in its place, and what it warned
    of is warned of here.

    Args:
        job: What each worker runs.
        items: The work; None while what comes next depends on answers that are still awaited.
        workers: Number of processes.
        hang_seconds: A worker silent for so long with work in hand is taken for hung.
        queued: Items in a worker's hands at once; 1 for few long ones, of which none should
            wait for a busy worker while another idles.
        ordered: Yield results in the order of items, else as they come.

    Raises:
        WorkerError: The same item lost its worker three times.
        UsageError: A worker failed to import the script that started it.
    """
    pool: Pool[ItemT, OutT] = _engine.get()(job, items, workers, hang_seconds, queued)
    next_out = 0
    try:
        while True:
            while pool.done and (next_out in pool.done or not ordered):
                good, value, told = pool.done.pop(next_out if ordered else min(pool.done))
                next_out += 1
                for text, category in told:
                    warnings.warn(text, category, stacklevel=2)
                if not good:
                    raise value
                yield value
            pool.hand_out()
            if pool.finished:
                return
            pool.collect()
    finally:
        pool.kill()


def _receive(worker: _Worker[Any], done: dict[int, _Answer]) -> bool:
    """Take one answer; False when the pipe is broken."""
    try:
        answer = worker.conn.recv()
    except (EOFError, OSError):
        return False
    if answer == _BEGUN:
        worker.began = True
        return True
    position, good, value, told = answer
    worker.owed.popleft()
    worker.last_sign = time.monotonic()
    done[position] = (good, value, told)
    return True


def _refuse_unguarded(worker: _Worker[Any]) -> None:
    """Say what is wrong where a worker ended with an exception before it came to its work."""
    if not worker.began and worker.process.exitcode == 1:
        raise UsageError(
            "a worker could not import the script that started it, which every worker runs anew",
            remedy='put what it does under `if __name__ == "__main__":`, or use one worker',
        )


def _end_with(parent: int) -> None:
    """End this process soon after its parent was killed."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)


def _category(category: type[Warning]) -> type[Warning]:
    """Return what a warning is for the parent, which may not know somebody else's class."""
    ours = category.__module__ == "builtins" or category.__module__.startswith("pbvf_")
    return category if ours else UserWarning


def _serve(child: Connection, parent_end: Connection, job: Job[Any, Any], parent: int) -> None:
    """Answer items until the parent closes the pipe or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the group; the parent decides
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # so does the end of the terminal
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # An item may take hours: the loop below would notice a killed parent only after it.
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with contextlib.suppress(OSError):
        parent_end.close()  # else the pipe would outlive the parent
    started = functools.cache(job.start)
    try:
        child.send(_BEGUN)
        while True:
            # A killed parent cannot close pipes that sibling workers inherited; watch its id.
            while not child.poll(_POLL_SECONDS):
                if os.getppid() != parent:
                    return
            position, item = child.recv()
            child.send((position, *answer(lambda: started()(item))))  # noqa: B023
    except (EOFError, OSError):
        return


def answer(work: Callable[[], Any]) -> _Answer:
    """Do one item's work; return whether it succeeded, its result or error, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        try:
            good, value = True, work()
        except PbvfError as error:
            # Tracebacks do not cross; --debug shows notes too.
            error.add_note(f"In a worker process:\n{traceback.format_exc()}")
            good, value = False, error
        except MemoryError:
            good, value = False, MemoryError(traceback.format_exc())
        except KeyboardInterrupt as error:  # an environment's: Ctrl-C is for the parent alone
            good, value = False, error
        except Exception:
            good, value = False, RuntimeError(traceback.format_exc())
    return good, value, [(str(w.message), _category(w.category)) for w in caught]
