"""Fits that are killed or find no room at any moment: the same call ends as if nothing were."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pbvf_offline.fit.to_file as module
import pbvf_offline.fit.work as work
from faults import Killed, sabotaged
from libtools import box_spec, fit_settings, make_data, make_policies
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import ConflictError, DivergedError, ResourceError
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.fit.to_file import FitResult, fit_to_file
from pbvf_offline.io.output_file import partial_path
from pbvf_offline.policies.files import PoliciesFile, load_policies

DATA = make_data(policies=10)
SETTINGS = fit_settings("psvf", hidden=(4,), validation=0.3)
UPDATES, SNAPSHOTS, INTERVAL = 12, (5, 7), 3


@pytest.fixture(scope="module", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


class Fitting:
    """One call of ``fit_to_file`` with a checkpoint every ``INTERVAL`` updates.

    Attributes:
        reached: The last update that was made in the latest run.
        told: Called as ``progress`` is.
    """

    def __init__(self, out: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.out, self.patch, self.reached = out, monkeypatch, 0
        self.told: Callable[[int, int, float], None] | None = None
        self.settings = options.pop("settings", SETTINGS)
        self.options = {"updates": UPDATES, "snapshots": SNAPSHOTS, **options}

    def __call__(self) -> FitResult:
        self.reached = 0
        return fit_to_file(
            DATA,
            self.settings,
            self.out,
            environment=EnvReference("LQR-v0"),
            dataset="d" * 64,
            progress=self._told,
            **self.options,
        )

    def _told(self, done: int, total: int, loss: float) -> None:
        assert total == self.options["updates"]
        assert math.isfinite(loss)
        self.reached = done
        if self.told is not None:
            self.told(done, total, loss)
        due = done % INTERVAL == 0
        self.patch.setattr(module, "CHECKPOINT_SECONDS", -1.0 if due else math.inf)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def finished_files(folder: Path) -> dict[str, bytes]:
    """What stands under a name that is no dot-file."""
    return {n: image for n, image in content(folder).items() if not n.startswith(".")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an undisturbed fit."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        Fitting(folder / "c.safetensors", patch)()
    found = content(folder)
    assert sorted(found) == ["c-000005.safetensors", "c-000007.safetensors", "c.safetensors"]
    return found


def survives(
    call: Fitting,
    want: dict[str, bytes],
    mode: str,
    prepare: Callable[[Path], None] = lambda folder: None,
) -> int:
    """Let a call fail at each of its operations; the same call must then end as usual.

    Returns:
        How often it failed.
    """
    folder, stopped = call.out.parent, 0

    def fresh() -> dict[str, bytes]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        prepare(folder)
        return content(folder)

    fresh()
    calls, _ = sabotaged(call, None, mode)
    assert content(folder) == want
    for at in range(1, calls + 1):
        before = fresh()
        _, outcome = sabotaged(call, at, mode)
        if mode == "kill":
            assert isinstance(outcome, Killed), at
        elif outcome is not None:
            assert isinstance(outcome, ResourceError), (at, outcome)
            assert "no space left" in str(outcome)
            assert not any(name.endswith(".tmp") for name in names(folder)), at
        stopped += outcome is not None
        reached = call.reached
        between = finished_files(folder)
        # Nothing partial under a final name, and no finished file lost or changed back.
        for name, image in between.items():
            assert image in (before.get(name), want[name]), (at, name)
        assert set(before) - {partial_path(call.out).name} <= set(between), at
        result = call()
        assert content(folder) == want, at
        if not call.options.get("overwrite"):
            assert result.already_complete == (between == want), at
            # A disk that is full for a moment takes the last whole update after all.
            kept = reached if mode == "once" else reached - INTERVAL
            assert call.options["updates"] - result.updates_done_now >= kept, at
    return stopped


@pytest.mark.parametrize(("mode", "lost"), [("kill", INTERVAL), ("full", INTERVAL), ("once", 0)])
@pytest.mark.slow
def test_at_most_the_updates_since_a_checkpoint_are_made_again(
    mode: str, lost: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A disk that is full for a moment takes the last whole update after all.
    call = Fitting(tmp_path / "fits" / "c.safetensors", monkeypatch)
    operations, _ = sabotaged(call, None, mode)
    for at in range(1, operations + 1):
        shutil.rmtree(call.out.parent)
        sabotaged(call, at, mode)
        reached = call.reached
        assert UPDATES - call().updates_done_now >= reached - lost, at


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("overwrite", [False, True])
def test_nothing_but_a_critic_is_replaced_by_one(
    overwrite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Fitting(tmp_path / "c.safetensors", monkeypatch, overwrite=overwrite)
    policies = PoliciesFile(make_policies(box_spec(2), 1), None, {})
    snapshot = tmp_path / "c-000005.safetensors"
    for place in (call.out, snapshot):
        policies.save(place)
        with pytest.raises(ConflictError, match="no critic file"):
            call()
        assert load_policies(place).policies.spec == box_spec(2)
        place.unlink()
    call.out.write_text("notes")  # it does not even begin as a damaged critic would
    with pytest.raises(ConflictError, match="no critic file"):
        call()
    assert call.out.read_text() == "notes"


def test_a_last_checkpoint_beside_a_shorter_fit_is_not_taken_for_the_result(
    tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Fitting(tmp_path / "c.safetensors", monkeypatch, snapshots=())
    Fitting(call.out, monkeypatch, updates=6, snapshots=())()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "finished_file", _interrupted)  # all that is left is to write it
        with pytest.raises(KeyboardInterrupt):
            call()
    assert load_critic(call.out).fit.updates == 6
    assert load_critic(partial_path(call.out)).fit.updates == UPDATES
    result = call()
    assert (result.already_complete, result.updates_done_now) == (False, 0)
    assert content(tmp_path) == {"c.safetensors": whole["c.safetensors"]}


def test_a_finished_fit_goes_further_than_an_unfinished_one_of_no_use(
    tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Fitting(tmp_path / "c.safetensors", monkeypatch, snapshots=())
    Fitting(call.out, monkeypatch, updates=6, snapshots=())()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "finished_file", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            call()
    # The checkpoint at the 12th update has passed the snapshot; the fit of 6 has not.
    again = Fitting(call.out, monkeypatch, snapshots=(7,))
    assert again().updates_done_now == 6
    assert content(tmp_path) == {n: whole[n] for n in ("c-000007.safetensors", "c.safetensors")}


def test_nothing_finished_is_lost_when_a_fit_that_starts_anew_diverges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Fitting(tmp_path / "c.safetensors", monkeypatch)
    call()
    before = content(tmp_path)
    wild = fit_settings("psvf", hidden=(32, 32), lr=1e6)
    again = Fitting(call.out, monkeypatch, settings=wild, overwrite=True, updates=400)
    again.options["snapshots"] = (300,)
    with pytest.raises(DivergedError):
        again()
    assert finished_files(tmp_path) == before


def test_one_of_two_fits_into_one_file_works_and_the_other_is_a_conflict(
    tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Fitting(tmp_path / "c.safetensors", monkeypatch)
    refused = []

    def meanwhile(done: int, total: int, loss: float) -> None:
        for overwrite in (False, True):
            with pytest.raises(ConflictError, match="another process") as caught:
                Fitting(call.out, monkeypatch, overwrite=overwrite)()
            refused.append(caught.value.exit_code)

    call.told = meanwhile
    call()
    assert refused == [7, 7] * UPDATES
    assert content(tmp_path) == whole


def test_a_finished_fit_leaves_what_an_interrupted_replacement_of_it_left(
    tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Fitting(tmp_path / "c.safetensors", monkeypatch)
    call()
    other = Fitting(
        call.out,
        monkeypatch,
        settings=dataclasses.replace(SETTINGS, seed=9),
        overwrite=True,
        snapshots=(),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "finished_file", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            other()
    assert call().already_complete
    assert finished_files(tmp_path) == whole
    assert load_critic(partial_path(call.out)).fit.settings.seed == 9
