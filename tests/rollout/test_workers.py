from __future__ import annotations

import itertools
import multiprocessing as mp
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import pbvf_offline.rollout.workers as workers_module
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import DamagedError, DivergedError, WorkerError
from pbvf_offline.rollout.repetition import NotRepeatableWarning
from pbvf_offline.rollout.workers import (
    Pool,
    answer,
    is_done_here,
    ordered_map,
    start_method,
    usable_cores,
    using,
    workers_worth,
)


@dataclass(frozen=True)
class FunctionJob:
    """Applies a function; with fork it need not be picklable."""

    function: Callable[[int], Any]

    def start(self) -> Callable[[int], Any]:
        return self.function


def first_time(folder: Path, name: str) -> bool:
    """Whether this is the first process to get here."""
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def no_children_left() -> bool:
    deadline = time.monotonic() + 5
    while mp.active_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not mp.active_children()


@pytest.mark.usefixtures("forking")
class TestForked:
    def test_warnings_are_told_by_the_parent_in_the_order_of_items(self) -> None:
        class Theirs(UserWarning):
            pass

        def job(item: int) -> int:
            warnings.simplefilter("always")
            warnings.warn(f"of {item}", (NotRepeatableWarning, Theirs)[item % 2], stacklevel=2)
            return item

        with pytest.warns(UserWarning, match="^of ") as told:
            assert list(ordered_map(FunctionJob(job), range(4), 2)) == [0, 1, 2, 3]
        assert [str(w.message) for w in told] == ["of 0", "of 1", "of 2", "of 3"]
        assert [w.category for w in told] == 2 * [NotRepeatableWarning, UserWarning]

    def test_items_may_depend_on_answers(self) -> None:
        answers: list[int] = []

        def awaiting() -> Iterator[int | None]:
            for item in range(4):
                while len(answers) < item:
                    yield None
                yield item

        for found in ordered_map(FunctionJob(lambda item: item), awaiting(), 2):
            answers.append(found)
        assert answers == [0, 1, 2, 3]

    @pytest.mark.parametrize("workers", [1, 2, 3])
    def test_order_is_kept_whatever_the_speed(self, workers: int) -> None:
        def uneven(item: int) -> int:
            time.sleep(0.02 if item % 3 == 0 else 0)
            return item * item

        assert list(ordered_map(FunctionJob(uneven), range(12), workers)) == [
            i * i for i in range(12)
        ]
        assert no_children_left()

    def test_no_items(self) -> None:
        assert list(ordered_map(FunctionJob(abs), [], 2)) == []

    def test_fewer_items_than_workers(self) -> None:
        assert list(ordered_map(FunctionJob(abs), [-7], 3)) == [7]

    def test_results_larger_than_a_pipe(self) -> None:
        sizes = [300_000, 1, 200_000, 400_000]
        got = list(ordered_map(FunctionJob(bytes), sizes, 2))
        assert [len(b) for b in got] == sizes

    def test_worker_that_dies_once_is_replaced(self, tmp_path: Path) -> None:
        def die_once(item: int) -> int:
            if item in (3, 4) and first_time(tmp_path, str(item)):
                os._exit(7)
            return item

        assert list(ordered_map(FunctionJob(die_once), range(9), 2)) == list(range(9))
        assert no_children_left()

    def test_worker_that_always_dies(self, tmp_path: Path) -> None:
        def die(item: int) -> int:
            if item == 2:
                with (tmp_path / "tries").open("a") as file:
                    file.write("x")
                os._exit(7)
            return item

        results = ordered_map(FunctionJob(die), range(6), 2)
        assert [next(results), next(results)] == [0, 1]  # what came before is safe
        with pytest.raises(WorkerError, match=r"died \(exit code 7\) 3 times on item 2") as caught:
            list(results)
        assert caught.value.exit_code == 9
        assert (tmp_path / "tries").read_text() == "xxx"
        assert no_children_left()

    def test_hung_worker_is_killed_and_its_item_done_again(self, tmp_path: Path) -> None:
        def hang_once(item: int) -> int:
            if item == 1 and first_time(tmp_path, "hung"):
                time.sleep(60)
            return item

        started = time.monotonic()
        got = list(ordered_map(FunctionJob(hang_once), range(4), 2, hang_seconds=0.5))
        assert got == [0, 1, 2, 3]
        assert time.monotonic() - started < 20
        assert no_children_left()

    def test_always_hanging_worker(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(workers_module, "_POLL_SECONDS", 0.05)

        def hang(item: int) -> None:
            time.sleep(60)

        said = r"hung \(no answer for 0\.1 seconds\) 3 times on item 0"
        with pytest.raises(WorkerError, match=said):
            list(ordered_map(FunctionJob(hang), range(2), 1, hang_seconds=0.1))
        assert no_children_left()

    def test_our_errors_cross_as_they_are(self) -> None:
        def refuse(item: int) -> int:
            if item == 1:
                raise DamagedError("is cut", where="file", remedy="copy it")
            return item

        results = ordered_map(FunctionJob(refuse), range(5), 2)
        assert next(results) == 0
        with pytest.raises(DamagedError, match="file: is cut; copy it") as caught:
            next(results)
        assert caught.value.exit_code == 3
        assert no_children_left()

    def test_other_errors_cross_with_their_traceback(self) -> None:
        def divide(item: int) -> float:
            return 1 / item

        with pytest.raises(RuntimeError, match=r"(?s)in divide.*ZeroDivisionError"):
            list(ordered_map(FunctionJob(divide), [0], 1))

    def test_memory_that_runs_out_is_still_told_as_that(self) -> None:
        def fail(_: int) -> int:
            raise MemoryError

        with pytest.raises(MemoryError, match="MemoryError"):
            list(ordered_map(FunctionJob(fail), range(3), workers=2))

    def test_error_while_starting(self) -> None:
        class Broken:
            def start(self) -> Callable[[int], int]:
                raise DivergedError("at the start")

        with pytest.raises(DivergedError, match="at the start"):
            list(ordered_map(Broken(), range(3), 2))

    def test_endless_items_are_drawn_as_needed(self) -> None:
        drawn = []

        def endless() -> Iterator[int]:
            for item in itertools.count():
                drawn.append(item)
                yield item

        results = ordered_map(FunctionJob(abs), endless(), 2)
        assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
        assert len(drawn) < 5 + 20
        results.close()  # type: ignore[attr-defined]
        assert no_children_left()

    def test_one_slow_item_does_not_pile_up_the_others(self) -> None:
        drawn = []

        def endless() -> Iterator[int]:
            for item in itertools.count():
                drawn.append(item)
                yield item

        def first_is_slow(item: int) -> int:
            time.sleep(0.4 if item == 0 else 0)
            return item

        results = ordered_map(FunctionJob(first_is_slow), endless(), 2)
        assert next(results) == 0
        assert len(drawn) < 20
        results.close()  # type: ignore[attr-defined]

    def test_results_may_come_as_they_finish(self) -> None:
        others = mp.get_context("fork").Event()

        def first_waits(item: int) -> int:
            assert item > 0 or others.wait(60)
            return item

        got = []
        for item in ordered_map(FunctionJob(first_waits), range(20), 2, queued=1, ordered=False):
            got.append(item)
            if len(got) == 19:
                others.set()
        assert got == [*range(1, 20), 0]

    def test_a_slow_consumer_is_not_a_hung_worker(self, tmp_path: Path) -> None:
        def once(item: int) -> int:
            with (tmp_path / "runs").open("a") as file:
                file.write(f"{item}\n")
            return item

        got = []
        for item in ordered_map(FunctionJob(once), range(6), 2, hang_seconds=0.3):
            got.append(item)
            time.sleep(0.4)
        assert got == list(range(6))
        assert sorted((tmp_path / "runs").read_text().split()) == list("012345")


class Backwards(Pool[int, int]):
    """An engine that answers the latest item first, and loses some."""

    losses: dict[int, int]
    most_in_hand = 0

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self.hand: list[tuple[int, int]] = []

    @property
    def in_hand(self) -> int:
        return len(self.hand)

    def hand_out(self) -> None:
        while (drawn := self._next()) is not None:
            self.hand.append(drawn)
        Backwards.most_in_hand = max(self.most_in_hand, self.in_hand + len(self.done))

    def collect(self) -> None:
        position, item = self.hand.pop()
        if self.losses.get(item, 0) > 0:
            self.losses[item] -= 1
            self._count_loss(position, "was lost")
            self._lost.append((position, item))
        else:
            self.done[position] = answer(lambda: self._job.start()(item))

    def kill(self) -> None:
        self.hand.clear()


def test_another_engine_may_do_the_work_in_any_order() -> None:
    Backwards.losses = {3: 2}
    with using(Backwards):
        assert not is_done_here(1)
        assert list(ordered_map(FunctionJob(abs), range(-20, 0), 2)) == [*range(20, 0, -1)]
        got = list(ordered_map(FunctionJob(abs), range(20), 2, ordered=False))
    assert Backwards.losses == {3: 0}
    assert got[:3] == [7, 8, 9]  # the first eight, of 2 * 2 * 2, from behind
    assert sorted(got) == [*range(20)]
    assert Backwards.most_in_hand == 8
    assert is_done_here(1)
    assert not is_done_here(2)


def test_what_an_engine_loses_three_times_is_given_up() -> None:
    Backwards.losses = {3: 3}
    with using(Backwards), pytest.raises(WorkerError, match="was lost 3 times on item 3"):
        list(ordered_map(FunctionJob(abs), range(20), 2))


def test_start_method_is_safe_here() -> None:
    # torch is loaded, and a fork would copy its threads' locks.
    assert start_method() == "spawn"


def test_start_method_with_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(workers_module.sys.modules, "torch")
    with monkeypatch.context() as alone:  # pytest's own helpers may run threads here
        alone.setattr(threading, "active_count", lambda: 1)
        assert start_method() == ("fork" if sys.platform == "linux" else "spawn")
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert start_method() == "spawn"
    finally:
        stop.set()
        thread.join()


def test_a_script_without_a_main_guard_is_told_what_it_lacks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from pbvf_offline.rollout.workers import ordered_map\n"
        "from test_workers import FunctionJob\n"
        "try:\n"
        "    list(ordered_map(FunctionJob(abs), range(3), 2))\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
        "    raise\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    ran = subprocess.run(
        [sys.executable, script],
        check=False,
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
    )
    said = ran.stdout.splitlines()[-1]
    assert said.startswith("UsageError a worker could not import the script")
    assert "if __name__ ==" in said


def test_spawned_workers_find_the_users_module() -> None:
    from libtools import make_policies
    from pbvf_offline.envs.make import make_env
    from pbvf_offline.policies.spaces import spec_for_env
    from pbvf_offline.rollout.evaluation import ReturnOf
    from pbvf_offline.rollout.loop import EpisodeJob, run_episodes
    from pbvf_offline.rollout.schedules import GivenSchedule

    config = EnvConfig("toyenv:Toy-v0")
    env = make_env(config)
    policies = make_policies(spec_for_env(env, ()), 3)
    env.close()
    job = EpisodeJob(config, GivenSchedule(policies, 5), None, ReturnOf(0.9))
    inline = list(run_episodes(job, range(4)))
    assert start_method() == "spawn"
    assert list(run_episodes(job, range(4), workers=2)) == inline
    assert no_children_left()


def test_default_workers_are_no_more_than_the_containers_share_or_the_steps_are_worth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PBVF_WORKERS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(workers_module, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(workers_module, "start_method", lambda: "fork")
    assert usable_cores() == 8
    for quota, cores in (("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1)):
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
        assert usable_cores() == cores
    (tmp_path / "cpu.max").unlink()
    assert [workers_worth(steps) for steps in (0, 39_999, 40_000, 10**9)] == [1, 1, 2, 8]
