"""Killed or out of space at any operation: the same command ends as if nothing had been.

One test for all that write outputs. What each of them keeps of its progress is tested beside it.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cli_tools
import pbvf_offline.fit.to_file as fitting
import pbvf_runs.train as runs
import toyenv  # noqa: F401
import writer_tools
from faults import Killed, read_only, sabotaged
from hostile import episode
from libtools import fit_settings, make_data, make_file
from pbvf_datasets.share.archive import pack, unpack
from pbvf_datasets.share.transfer import pull, push
from pbvf_datasets.write.edit import SplitSettings, merge, split
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import ConflictError, ResourceError
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.io.lock import OutputLock
from pbvf_offline.synthesis.settings import SynthesisSettings
from pbvf_offline.synthesis.to_file import synthesize_to_file
from pbvf_runs.train import train_run
from run_tools import run_config
from share_tools import SOMEBODY, licensed

DERIVED = {"metrics.jsonl", "tensorboard"}
DATA = make_data(policies=6)
NAME = writer_tools.NAME

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Job:
    """A command that writes.

    Attributes:
        call: The command, in a folder; with ``overwrite`` as its argument.
        output: What it writes there; of several, the first.
        before: Makes what is there before; None: nothing.
        overwrite: Whether it replaces that.
        at_once: Whether no file is seen under its name before all of them are, so that every
            visible file is an old or a finished one.
    """

    call: Callable[[Path, bool], object]
    output: str
    before: Callable[[Path], object] | None = None
    overwrite: bool = False
    at_once: bool = True


@dataclass(frozen=True)
class Given:
    """What the commands read; made once."""

    dataset: Path
    other: Path
    archive: Path
    critic: Path


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    folder = tmp_path_factory.mktemp("given")
    made = Given(
        licensed(folder / "one", episodes=[episode(0), episode(1)]),
        licensed(folder / "two", license="MIT", episodes=[episode(2)]),
        folder / "toy.tar",
        folder / "critic.safetensors",
    )
    pack(made.dataset, made.archive)
    make_file("psvf", 4).save(made.critic)
    return made


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting for the disk, and short distances between what is kept."""
    monkeypatch.setattr(os, "fsync", os.fstat)
    monkeypatch.setattr(fitting, "CHECKPOINT_SECONDS", -math.inf)
    monkeypatch.setattr(runs, "SHARD_STEPS", 25)
    monkeypatch.setattr("pbvf_datasets.write.writer.MAX_SHARD_BYTES", 1)
    monkeypatch.setattr("pbvf_datasets.share.privacy.Machine.this", lambda: SOMEBODY)


def write(folder: Path, overwrite: bool, **options: Any) -> None:
    writer_tools.run(folder, episodes=writer_tools.EPISODES[:3], overwrite=overwrite, **options)


def fit(folder: Path, overwrite: bool, updates: int = 4, seed: int = 0) -> None:
    fitting.fit_to_file(
        DATA,
        fit_settings("psvf", hidden=(4,), validation=0.3, seed=seed),
        folder / "c.safetensors",
        updates=updates,
        snapshots=(2,),
        environment=EnvReference("LQR-v0"),
        dataset="d" * 64,
        overwrite=overwrite,
    )


def train(
    folder: Path, overwrite: bool, steps: int = 60, seed: int = 0, snapshots: tuple[int, ...] = (9,)
) -> None:
    changes: dict[str, Any] = {"hidden": (2,), "update_every": 20, "critic_updates": 1}
    config = run_config(evaluations=1, seed=seed, **changes)
    train_run(config, folder / "run", steps, snapshots=snapshots, overwrite=overwrite)


def train_kept_often(folder: Path, overwrite: bool) -> None:
    """As with episodes that take a minute each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "CHECKPOINT_SECONDS", -math.inf)
        patch.setattr(runs, "_CHECKPOINT_SHARE", math.inf)
        train(folder, overwrite)


def jobs(given: Given) -> dict[str, Job]:
    def grow(folder: Path, overwrite: bool, seed: int = 0) -> None:
        settings = SynthesisSettings(count=2, steps=2, lr=0.05, seed=seed)
        out = folder / "p.safetensors"
        synthesize_to_file(
            given.critic, load_critic(given.critic), settings, out, overwrite=overwrite
        )

    def receive(folder: Path, overwrite: bool) -> None:
        pull(str(given.dataset), NAME, root=folder, overwrite=overwrite)

    def open_archive(folder: Path, overwrite: bool) -> None:
        unpack(given.archive, NAME, root=folder, overwrite=overwrite)

    def send(folder: Path, overwrite: bool) -> None:
        push(given.dataset, str(folder / "sent/toy"), overwrite=overwrite)

    def archive(folder: Path, overwrite: bool) -> None:
        pack(given.dataset, folder / "x.tar", overwrite=overwrite)

    def join(folder: Path, overwrite: bool) -> None:
        merge([given.dataset, given.other], NAME, root=folder, license="MIT", overwrite=overwrite)

    def divide(folder: Path, overwrite: bool) -> None:
        settings = SplitSettings((0.5, 0.5), seed=0)
        split(given.dataset, NAME, settings, root=folder, overwrite=overwrite)

    def another(folder: Path) -> None:
        shutil.copytree(given.other, folder / NAME)

    def another_archive(folder: Path) -> None:
        pack(given.other, folder / "x.tar")

    return {
        "write": Job(write, NAME),
        "write over": Job(write, NAME, lambda f: write(f, False, settings={"sigma": 9}), True),
        "merge": Job(join, NAME),
        "split": Job(divide, "lab/toy-train-v0"),
        "pull": Job(receive, NAME),
        "pull over": Job(receive, NAME, another, True),
        "unpack": Job(open_archive, NAME),
        "unpack over": Job(open_archive, NAME, another, True),
        "push to a folder": Job(send, "sent/toy"),
        "pack": Job(archive, "x.tar"),
        "pack over": Job(archive, "x.tar", another_archive, True),
        "fit": Job(fit, "c.safetensors"),
        "fit more": Job(fit, "c.safetensors", lambda folder: fit(folder, False, 3)),
        "fit over": Job(fit, "c.safetensors", lambda folder: fit(folder, False, seed=9), True),
        "synthesize": Job(grow, "p.safetensors"),
        "synthesize over": Job(grow, "p.safetensors", lambda f: grow(f, False, seed=9), True),
        "train": Job(train, "run", at_once=False),
        "train kept often": Job(train_kept_often, "run", at_once=False),
        "train more": Job(train, "run", lambda folder: train(folder, False, 48), at_once=False),
        "train a little more": Job(
            lambda folder, _: train(folder, False, 12),
            "run",
            lambda folder: train(folder, False, 9),
            at_once=False,
        ),
        "train again": Job(train, "run", lambda f: train(f, False, snapshots=()), at_once=False),
        "train over": Job(train, "run", lambda folder: train(folder, False, seed=9), True, False),
    }


NAMES = list(jobs(Given(*[Path()] * 4)))
FRESH = [name for name in NAMES if name.split()[-1] not in ("over", "more", "again")]
OVER = [name for name in NAMES if name.endswith("over") and not name.startswith("train")]


def content(folder: Path) -> dict[str, bytes]:
    """Every file, hidden ones too, apart from what is derived."""
    found = cli_tools.content(folder)
    return {name: data for name, data in found.items() if not DERIVED & set(Path(name).parts)}


def visible(folder: Path) -> dict[str, bytes]:
    found = content(folder)
    return {n: d for n, d in found.items() if not any(p.startswith(".") for p in Path(n).parts)}


class Place:
    """A folder in which a job is run again and again from the same start."""

    def __init__(self, name: str, job: Job, folder: Path) -> None:
        self.name, self.job, self.folder = name, job, folder / "place"
        self._start = folder / "start"
        self._start.mkdir()
        if job.before is not None:
            job.before(self._start)

    def fresh(self) -> dict[str, bytes]:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._start, self.folder)
        return content(self.folder)

    def call(self) -> None:
        self.job.call(self.folder, self.job.overwrite)


@pytest.fixture
def place(request: pytest.FixtureRequest, given: Given, tmp_path: Path) -> Iterator[Place]:
    yield Place(request.param, jobs(given)[request.param], tmp_path)
    gc.collect()  # what a kill leaves open is closed now, not in a test that allows no warning


# A kill closes what was open; here the collector does, and complains.
kills = pytest.mark.filterwarnings("ignore::ResourceWarning")


@kills
@pytest.mark.parametrize("mode", ["kill", "full", "once"])
@pytest.mark.parametrize("place", NAMES, indirect=True)
def test_the_same_command_ends_with_the_same_bytes(place: Place, mode: str) -> None:
    place.fresh()
    operations, _ = sabotaged(place.call, None, mode)
    want = content(place.folder)
    assert operations > 6
    assert visible(place.folder) == want, "something is left beside the output"
    stopped = 0
    for at in range(1, operations + 1):
        before = place.fresh()
        _, outcome = sabotaged(place.call, at, mode)
        if mode == "kill":
            assert isinstance(outcome, Killed), at
        else:
            assert outcome is None or isinstance(outcome, ResourceError), (at, outcome)
        stopped += outcome is not None
        between = visible(place.folder)
        if place.job.at_once:
            for name, data in between.items():
                assert data in (before.get(name), want.get(name)), (at, name)
            if not set(before) <= set(between):  # between the two renames of a replacement
                (aside,) = place.folder.rglob(".*.replaced")
                assert set(content(aside).values()) == set(before.values()), at
        place.call()
        assert content(place.folder) == want, at
    assert stopped > 2


@kills
@pytest.mark.parametrize("place", NAMES, indirect=True)
def test_killed_again_and_again(place: Place) -> None:
    """Each call dies a few operations later than the one before; nothing is cleaned by hand."""
    place.fresh()
    place.call()
    want = content(place.folder)
    place.fresh()
    at, kills = 1, 0
    while isinstance(sabotaged(place.call, at, "kill")[1], Killed):
        at, kills = at + 5, kills + 1
    assert kills > 1
    place.call()
    assert content(place.folder) == want


@kills
@pytest.mark.parametrize("place", OVER, indirect=True)
def test_an_interrupted_replacement_goes_on_without_overwrite(place: Place) -> None:
    before = place.fresh()
    operations, _ = sabotaged(place.call, None, "kill")
    want = content(place.folder)
    for at in range(1, operations + 1):
        place.fresh()
        sabotaged(place.call, at, "kill")
        with contextlib.suppress(ConflictError):
            place.job.call(place.folder, False)
        if content(place.folder) != want:  # it had not begun what can be continued
            assert visible(place.folder) == before, at
        place.call()
        assert content(place.folder) == want, at


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("place", FRESH, indirect=True)
def test_one_process_an_output(place: Place, overwrite: bool) -> None:
    place.fresh()
    path = place.folder / place.job.output
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = OutputLock(path)
    before = content(place.folder)
    with pytest.raises(ConflictError, match="another process") as caught:
        place.job.call(place.folder, overwrite)
    assert caught.value.exit_code == 7
    assert content(place.folder) == before
    lock.release()
    place.call()
    assert content(place.folder)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("place", FRESH, indirect=True)
def test_on_a_read_only_disk(place: Place, code: int) -> None:
    """What is complete is complete; nothing else is begun, and nothing is changed."""
    place.fresh()
    with read_only(place.folder, code), pytest.raises(ResourceError) as caught:
        place.call()
    assert caught.value.exit_code == 6
    place.call()
    before = content(place.folder)
    with read_only(place.folder, code) as refused:
        place.call()
        assert not [name for name in refused if not name.endswith(".lock")]
        # A transfer compares digests first: of the same dataset, nothing is left to do.
        same = place.name in ("pull", "unpack", "push to a folder")
        with contextlib.nullcontext() if same else pytest.raises(ResourceError):
            place.job.call(place.folder, True)
    assert content(place.folder) == before


@pytest.mark.parametrize("seed", [0, 9])
def test_an_overwriting_command_gives_what_it_gives_alone(seed: int, tmp_path: Path) -> None:
    for name, call in (("fit", fit), ("run", train)):
        alone, over = tmp_path / f"{name}-alone", tmp_path / f"{name}-over"
        call(alone, False, seed=seed)
        call(over, False, seed=seed + 1)
        call(over, True, seed=seed)
        assert content(over) == content(alone)
