"""Ray as the engine of :func:`pbvf_offline.rollout.workers.ordered_map`: units of work on nodes.

Each item is one task of Ray, which says on which node it runs. What a node that is lost had in hand
is given out again; an answer comes back as the bytes that a local worker's pipe would carry.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib.metadata
import itertools
import logging
import math
import os
import pickle
import platform
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pbvf_offline import __version__
from pbvf_offline.errors import (
    IncompatibleError,
    NetworkError,
    ResourceError,
    UsageError,
    shorten,
)
from pbvf_offline.io.durable import make_folders, write_file
from pbvf_offline.rollout.workers import ItemT, Job, OutT, Pool, answer, usable_cores, using

OPTION: Final = "--ray"
_POLL_SECONDS = 0.5
_CONNECT_SECONDS = 10.0
_LONGEST_TEMPORARY = 16
_PACKAGES = ("torch", "numpy", "gymnasium", "mujoco")
_VARIABLES = ("MINARI_DATASETS_PATH", "PBVF_CACHE", "PYTHONPATH")
_AUTHENTICATION = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
_ADDRESS = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")


def versions() -> dict[str, str]:
    """Return the versions of this process that must be the same wherever a unit is worked on."""
    return {
        "python": platform.python_version(),
        "pbvf": __version__,
        **{name: importlib.metadata.version(name) for name in _PACKAGES},
    }


@dataclass(frozen=True)
class Place:
    """Where the command runs, for processes on other nodes to be like it.

    Attributes:
        versions: Of Python and packages.
        folder: The current folder.
        path: Where modules are found.
        variables: Of the environment, those that say where data are.
        mark: A file that every node must see, with its content, where units write files.
    """

    versions: dict[str, str]
    folder: str
    path: tuple[str, ...]
    variables: dict[str, str]
    mark: tuple[str, str] | None

    @classmethod
    def here(cls, mark: tuple[str, str] | None) -> Place:
        """Return that of this process."""
        folder = str(Path.cwd())
        path = tuple(os.path.abspath(entry) for entry in sys.path)  # noqa: PTH100
        variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        return cls(versions(), folder, path, variables, mark)

    def enter(self, node: str) -> None:
        """Make this process like it.

        Args:
            node: What this process's node is called.

        Raises:
            IncompatibleError: Versions differ, or the node does not see the same files.
        """
        own = versions()
        other = [
            f"{name} {own[name]} (not {wanted})"
            for name, wanted in self.versions.items()
            if own[name] != wanted
        ]
        if other:
            raise IncompatibleError(
                f"node {node} has {', '.join(other)}",
                where=OPTION,
                remedy="install the same versions on all nodes",
            )
        os.environ.update(self.variables)
        sys.path += [entry for entry in self.path if entry not in sys.path]
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise IncompatibleError(
                f"node {node} has no folder {self.folder}",
                where=OPTION,
                remedy="run the command in a folder that all nodes have",
            ) from error
        if self.mark is not None:
            file, content = self.mark
            try:
                same = Path(file).read_text() == content
            except OSError:
                same = False
            if not same:
                raise IncompatibleError(
                    f"node {node} does not see the folder {Path(file).parent}",
                    where=OPTION,
                    remedy="write to storage that all nodes share",
                )


class _Entered:
    """What a process of Ray has prepared for: the latest job."""

    key: str | None = None
    start: Callable[[], Callable[[Any], Any]]


def _unit(place: Place, key: str, job: bytes, item: bytes, hang_seconds: float) -> bytes:
    """Work on one item in a process of Ray; returns the pickled answer."""

    def work() -> Any:
        if _Entered.key != key:
            _Entered.key = None
            place.enter(socket.gethostname())
            _Entered.start = functools.cache(pickle.loads(job).start)  # noqa: S301
            _Entered.key = key
        return _Entered.start()(pickle.loads(item))  # noqa: S301

    if math.isfinite(hang_seconds):
        with Path(os.devnull).open("w") as nowhere:
            faulthandler.dump_traceback_later(hang_seconds, exit=True, file=nowhere)
            try:
                return pickle.dumps(answer(work))
            finally:
                faulthandler.cancel_dump_traceback_later()
    return pickle.dumps(answer(work))


def _enter(place: Place) -> bytes:
    """Have a process of Ray find out whether its node will do; returns the pickled answer."""
    return pickle.dumps(answer(lambda: place.enter(socket.gethostname())))


def _answer_of(ray: Any, task: Any) -> Any:
    """Return the answer of a task that has ended.

    Raises:
        IncompatibleError: Its node cannot load this program.
        RayError: It was lost.
    """
    try:
        return pickle.loads(ray.get(task))  # noqa: S301
    except ray.exceptions.RayTaskError as error:
        raise IncompatibleError(
            f"a node cannot run pbvf: {shorten(str(error).strip().splitlines()[-1])}",
            where=OPTION,
            remedy="install pbvf-offline on all nodes",
        ) from error


def _check_nodes(ray: Any, place: Place) -> None:
    """Check the nodes that are there; those that come later are checked by their first unit.

    Raises:
        IncompatibleError: One has other versions, or does not see the same files.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    check = ray.remote(_enter)
    waiting = [
        check.options(
            num_cpus=0,  # also on a node that is busy
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        ).remote(place)
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU")
    ]
    while waiting:
        ready, waiting = ray.wait(waiting, timeout=_POLL_SECONDS)
        for task in ready:
            with contextlib.suppress(ray.exceptions.RayError):  # a node that is gone by now
                good, error, _ = _answer_of(ray, task)
                if not good:
                    raise error


class _RayPool(Pool[ItemT, OutT]):
    """Tasks of Ray."""

    _keys = itertools.count()

    def __init__(
        self,
        place: Place,
        job: Job[ItemT, OutT],
        items: Iterable[ItemT | None],
        workers: int,
        hang_seconds: float,
        queued: int,
    ) -> None:
        import ray

        super().__init__(job, items, workers, hang_seconds, queued)
        self._ray = ray
        self._run = ray.remote(_unit).options(max_retries=0, num_cpus=1)
        self._key = f"{os.getpid()}-{next(self._keys)}"
        self._place, self._shared = ray.put(place), ray.put(pickle.dumps(job))
        self._flying: dict[Any, tuple[int, ItemT]] = {}

    @property
    def in_hand(self) -> int:
        """How many items are under way."""
        return len(self._flying)

    def hand_out(self) -> None:
        """Make tasks of as many items as may be under way; Ray starts each at once where it can."""
        while len(self._flying) < self._most and self._has_work:
            drawn = self._next()
            if drawn is None:
                return
            item = pickle.dumps(drawn[1])
            task = self._run.remote(self._place, self._key, self._shared, item, self._hang_seconds)
            self._flying[task] = drawn

    def collect(self) -> None:
        """Wait a moment for answers; what was lost will be handed out again.

        Raises:
            WorkerError: The same item was lost three times.
            IncompatibleError: A node cannot load this program.
        """
        # Signals are noticed between calls of Ray, which is why none may take long.
        ready, _ = self._ray.wait(list(self._flying), timeout=_POLL_SECONDS)
        for task in ready:
            position, item = self._flying.pop(task)
            try:
                self.done[position] = _answer_of(self._ray, task)
            except self._ray.exceptions.RayError as error:
                self._count_loss(position, f"or its node was lost ({type(error).__name__})")
                self._lost.append((position, item))

    def kill(self) -> None:
        """Stop all tasks."""
        for task in self._flying:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.cancel(task, force=True)


@contextlib.contextmanager
def ray_engine(
    address: str, *, workers: int | None = None, shared: Path | None = None
) -> Iterator[int]:
    """Give the units of all work in the block to Ray; yields how many are to be worked on at once.

    Args:
        address: ``local`` (Ray is started for the block), ``auto`` (a cluster that this machine is
            a node of) or ``HOST:PORT`` of one.
        workers: Units at once; None: as many as there are cores.
        shared: A file or folder that units write to: all nodes must see the folder it is in.

    Raises:
        UsageError: Ray is not installed, or the address is malformed.
        NetworkError: There is no cluster.
        IncompatibleError: It is of other versions of Ray or Python.
        ResourceError: Ray cannot be started here, or the mark that nodes look for not be written.
    """
    _check_address(address)
    with contextlib.ExitStack() as stack:
        if address == "local" and not _AUTHENTICATION & set(os.environ):
            # Ray listens to the network. Its own default would leave a token in the user's home.
            for name, value in (("MODE", "token"), ("TOKEN", _token())):
                os.environ[f"RAY_AUTH_{name}"] = value
                stack.callback(os.environ.pop, f"RAY_AUTH_{name}", None)
        ray = _imported()
        mark = None
        if shared is not None:
            full = Path(os.path.abspath(shared))  # noqa: PTH100
            file = full.with_name(f".{full.name}.ray")
            mark = (str(file), secrets.token_hex(16))
            try:
                make_folders(file.parent)
            except OSError as error:
                raise ResourceError("cannot be made", where=file.parent) from error
            write_file(file, mark[1].encode())
            stack.callback(file.unlink, missing_ok=True)
        _connect(ray, address, workers, stack)
        cores = int(ray.cluster_resources().get("CPU", 1))
        place = Place.here(mark)
        _check_nodes(ray, place)
        stack.enter_context(using(functools.partial(_RayPool, place)))
        yield workers or max(1, cores)


@functools.cache
def _token() -> str:
    """Return the token of clusters that this process starts; Ray keeps the first that it reads."""
    return secrets.token_hex(32)


def _check_address(address: str) -> None:
    """Check the form of an address, and that somebody answers there.

    Raises:
        UsageError: It has another form.
        NetworkError: Nobody answers.
    """
    if address in ("local", "auto"):
        return
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise UsageError(
            f"{address!r} is no address",
            where=OPTION,
            remedy="give local, auto, or HOST:PORT of the head node, on a node of the cluster",
        )
    try:
        place = (found[1].strip("[]"), int(found[2]))
        socket.create_connection(place, _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise NetworkError(
            f"no cluster answers at {address}",
            where=OPTION,
            remedy="start one with 'ray start --head', or give --ray local",
        ) from error


def _imported() -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read when Ray is imported
    try:
        import ray
        from ray._private import worker
    except ImportError as error:
        raise UsageError(
            "Ray is not installed",
            where=OPTION,
            remedy="pip install 'pbvf-offline[ray]'",
        ) from error
    # What becomes of tasks is said in our own words.
    worker._worker_logs_enabled = False
    return ray


def _connect(ray: Any, address: str, workers: int | None, stack: contextlib.ExitStack) -> None:
    """Connect until the stack is closed.

    Raises:
        NetworkError: There is no cluster.
        IncompatibleError: It is of other versions of Ray or Python.
        ResourceError: None can be started here.
    """
    quiet = {"logging_level": logging.CRITICAL, "log_to_driver": False}
    if address == "local":
        # Names of sockets are below it, and the system bounds their length.
        short = len(tempfile.gettempdir()) <= _LONGEST_TEMPORARY
        folder = tempfile.mkdtemp(prefix="pbvf-ray-", dir=None if short else "/tmp")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        where: dict[str, Any] = {
            "address": "local",
            "num_cpus": workers or usable_cores(),
            "include_dashboard": False,
            "_temp_dir": f"{folder}/r",  # which Ray opens to all users; the one above stays ours
        }
    else:
        where = {"address": address}
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    stack.callback(ray.shutdown)
    try:
        ray.init(**where, **quiet)
    except Exception as error:
        if "ersion mismatch" in str(error):
            raise IncompatibleError(
                f"the cluster has another Ray or Python: {shorten(error, 300)}", where=OPTION
            ) from error
        if address == "local":
            raise ResourceError(
                f"Ray could not be started: {shorten(error)}", where=OPTION, remedy="use --workers"
            ) from error
        wants_token = "AuthenticationError" in f"{type(error)} {error}" or "RAY_AUTH" in str(error)
        raise NetworkError(
            f"no cluster at {address}: {shorten(error)}",
            where=OPTION,
            remedy="set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to the file of its token"
            if wants_token
            else "start one with 'ray start --head', or give --ray local",
        ) from error
    finally:
        for number, handler in handlers.items():  # Ray's own ends the process at once
            signal.signal(number, handler)
