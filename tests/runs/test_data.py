"""Runs as data to learn from: finished, stopped, going on, and damaged."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pbvf_runs.data as run_data
import pbvf_runs.episodes as run_episodes
from pbvf_datasets import load_dataset
from pbvf_datasets.format.columns import columns_to_image, pack_columns
from pbvf_offline.errors import DamagedError, IncompatibleError, UsageError
from pbvf_offline.fit.settings import fit_defaults
from pbvf_offline.fit.to_file import fit_to_file
from pbvf_offline.io.lock import locked
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_runs.data import load_run, run_progress
from pbvf_runs.episodes import stored_episodes
from pbvf_runs.export import export_dataset
from pbvf_runs.records import RunConfig
from pbvf_runs.train import train_run
from pbvf_runs.verify import verify_run
from run_tools import Stop, StopSoon, rewrite_checkpoint, run_config, stop_at

STEPS = 90


def configuration(**changes: Any) -> RunConfig:
    return run_config(evaluations=2, critic_updates=1, **changes)


CONFIG = configuration()


def arrays(data: Trajectories) -> dict[str, Any]:
    return {**vars(data), **vars(data.policies), "policies": None, "spec": None}


@pytest.mark.parametrize("stochastic", [False, True])
def test_a_finished_run_gives_what_its_dataset_gives(
    stochastic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    config = configuration(stochastic=stochastic)
    result = train_run(config, tmp_path / "run", STEPS)
    export_dataset(result, "lab/run-v0")
    run, dataset = load_run(tmp_path / "run"), load_dataset("lab/run-v0", cache=False)
    ours, theirs = arrays(run.trajectories), arrays(dataset.trajectories)
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value)
    assert run.trajectories.policies.spec == dataset.spec
    assert len(run.trajectories) == STEPS
    assert run.trajectories.cut.tolist()[-1]  # the one that the budget cut
    assert run.environment == config.env.reference()
    assert run.finished
    settings = fit_defaults("psvf", None, dataset.spec).settings
    critics = []
    for name, data, digest in (
        ("a", run.trajectories, run.digest),
        ("b", dataset.trajectories, dataset.digest),
    ):
        fit_to_file(data, settings, tmp_path / name, updates=3, environment=None, dataset=digest)
        critics.append((tmp_path / name).read_bytes().replace(digest.encode(), b""))
    assert critics[0][-1000:] == critics[1][-1000:]
    assert len(critics[0]) == len(critics[1])


def test_a_stopped_run_gives_what_it_finished(tmp_path: Path) -> None:
    whole = list(stored_episodes(train_run(CONFIG, tmp_path / "whole", STEPS).folder))
    digests = set()
    for episodes in (2, 5):
        folder = tmp_path / f"after-{episodes}"
        with pytest.raises(Stop):
            train_run(CONFIG, folder, STEPS, stop_soon=StopSoon(episodes))
        run = load_run(folder)
        assert not run.finished
        assert run.trajectories.episodes == episodes
        expected = np.concatenate([e.rewards for e in whole[:episodes]])
        np.testing.assert_array_equal(run.trajectories.rewards, expected)
        assert not run.trajectories.cut.any()
        digests.add(run.digest)
    digests.add(load_run(tmp_path / "whole").digest)
    assert len(digests) == 3


def test_a_killed_run_gives_what_was_on_disk_and_a_lock_does_not_matter(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Stop):
        train_run(CONFIG, folder, STEPS, tick=stop_at(70))
    with locked(folder):  # as a training that is under way holds it
        run = load_run(folder)
    assert 25 <= len(run.trajectories) < 70
    assert load_run(folder).digest == run.digest
    train_run(CONFIG, folder, STEPS)
    after = load_run(folder)
    assert after.finished
    np.testing.assert_array_equal(
        after.trajectories.rewards[: len(run.trajectories)], run.trajectories.rewards
    )
    assert after.digest != run.digest


def test_equal_episodes_have_equal_digests_however_they_are_stored(tmp_path: Path) -> None:
    """Stopped twice: the second time the first episodes are in another file."""
    for folder, stops in (("once", (4,)), ("twice", (2, 2))):
        for episodes in stops:
            with pytest.raises(Stop):
                train_run(CONFIG, tmp_path / folder, STEPS, stop_soon=StopSoon(episodes))
    once, twice = load_run(tmp_path / "once"), load_run(tmp_path / "twice")
    assert once.trajectories.episodes == 4
    assert once.digest == twice.digest


def test_a_run_that_goes_on_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, later = tmp_path / "run", tmp_path / "later"
    with pytest.raises(Stop):
        train_run(CONFIG, folder, STEPS, stop_soon=StopSoon(2))
    train_run(CONFIG, later, STEPS)
    first = True

    def reading(where: Path) -> Iterator[Any]:
        nonlocal first
        if first:
            first = False
            yield next(stored_episodes(where))
            shutil.rmtree(where)
            shutil.copytree(later, where)
            raise DamagedError("is missing", where=where)
        yield from stored_episodes(where)

    # Between two reads of one call, which nothing public comes between.
    monkeypatch.setattr(run_data, "stored_episodes", reading)
    assert load_run(folder).digest == load_run(later).digest


def test_runs_without_episodes_are_refused(tmp_path: Path) -> None:
    train_run(configuration(normalization="per-step"), tmp_path / "per-step", STEPS)
    with pytest.raises(IncompatibleError, match="--normalization per-step has no policies"):
        load_run(tmp_path / "per-step")
    with pytest.raises(Stop):
        train_run(CONFIG, tmp_path / "fresh", STEPS, tick=stop_at(5))
    with pytest.raises(UsageError, match="no finished episode on disk yet; let it go on"):
        load_run(tmp_path / "fresh")


@pytest.mark.parametrize("name", ["checkpoint", "pending", "shard"])
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train_run(CONFIG, folder, STEPS)
    path = folder / f"{name}.safetensors"
    if name == "shard":
        path = sorted((folder / "episodes").iterdir())[0]
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedError, match=path.name):
        load_run(folder)


def test_a_tail_with_malformed_episodes_is_damage(tmp_path: Path) -> None:
    """The digest is right: whoever wrote the file also wrote the result."""
    folder = tmp_path / "run"
    train_run(CONFIG, folder, STEPS)
    (tail,) = list(stored_episodes(folder))[-1:]
    rewards = tail.rewards.copy()
    rewards[0] = np.nan
    image = columns_to_image(pack_columns([replace(tail, rewards=rewards)]), {"episodes": 1})
    (folder / "tail.safetensors").write_bytes(image)
    result = json.loads((folder / "result.json").read_text())
    result["tail"] = hashlib.sha256(image).hexdigest()
    (folder / "result.json").write_text(json.dumps(result))
    with pytest.raises(DamagedError, match=r"episode \d+ rewards: .*NaN"):
        load_run(folder)


def rewrite_extra(folder: Path, change: Callable[[Any], Any]) -> None:
    """Change what a checkpoint says beside the training."""
    rewrite_checkpoint(folder, lambda header: header.update(extra=change(header["extra"])))


def test_a_checkpoint_names_no_file_outside_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train_run(CONFIG, folder, STEPS)
    name = next(iter(sorted((folder / "episodes").iterdir()))).name
    assert name.encode() in (folder / "checkpoint.safetensors").read_bytes()
    rewrite_extra(folder, lambda extra: extra | {"shards": ["../../" + name]})
    with pytest.raises(DamagedError, match="names a shard that no run writes"):
        load_run(folder)


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda extra: {key: value for key, value in extra.items() if key != name}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("shards"), "field 'shards' is missing"),
        (without("pending"), "field 'pending' is missing"),
        (lambda extra: extra | {"shards": 3}, "shards"),
        (lambda extra: extra | {"shards": [3]}, "shards"),
        (lambda extra: extra | {"pending": 5}, "pending"),
        (lambda extra: extra | {"pending": ""}, "without its digest"),
        (lambda extra: extra | {"pending": extra["pending"][:8]}, "without its digest"),
        (without("evaluations"), "field 'evaluations' is missing"),
        (lambda extra: extra | {"evaluations": 5}, "evaluations"),
        (lambda extra: extra | {"evaluations": [5]}, "evaluations"),
        (lambda extra: extra | {"training_returns": {"a": 1}}, "training_returns"),
        (lambda extra: extra | {"training_returns": [[1, 10**400]]}, "training_returns"),
        (lambda extra: 5, "extra|not the checkpoint of a run"),
    ],
)
def test_a_checkpoint_that_says_otherwise_of_its_episodes_is_damage(
    change: Callable[[Any], Any], words: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    train_run(CONFIG, folder, STEPS)
    rewrite_extra(folder, change)
    with pytest.raises(DamagedError, match=words):
        load_run(folder)
    with pytest.raises(DamagedError, match=words):
        train_run(CONFIG, folder, 2 * STEPS)
    assert verify_run(folder).status == "damaged"
    (folder / "result.json").unlink()
    if words != "without its digest":
        with pytest.raises(DamagedError, match=words):
            run_progress(folder)


def test_episodes_that_the_checkpoint_does_not_name_are_left_out(tmp_path: Path) -> None:
    """A call that was killed between the two files added some, here with and without shards."""
    train_run(CONFIG, tmp_path / "whole", STEPS)
    seen = set()
    for episodes in range(1, 12):
        folder, later = tmp_path / f"{episodes}", tmp_path / f"{episodes}-later"
        with pytest.raises(Stop):
            train_run(CONFIG, folder, STEPS, stop_soon=StopSoon(episodes))
        shutil.copytree(folder, later)
        with pytest.raises(Stop):
            train_run(CONFIG, later, STEPS, stop_soon=StopSoon(1))
        pending = [where / "pending.safetensors" for where in (folder, later)]
        shards = [len(list((where / "episodes").iterdir())) for where in (folder, later)]
        if not all(path.exists() for path in pending) or shards[0] != shards[1]:
            continue  # a shard was written
        before = load_run(folder)
        shutil.copy(pending[1], pending[0])
        assert load_run(folder).digest == before.digest
        assert before.trajectories.episodes == episodes
        assert verify_run(folder).status == "intact"
        train_run(CONFIG, folder, STEPS)
        assert load_run(folder).digest == load_run(tmp_path / "whole").digest
        seen.add(shards[0] > 0)
    assert seen == {False, True}


@pytest.mark.parametrize("episodes", [0, 3, 9, 10**9])
def test_a_wrong_digest_of_many_episodes_costs_little(
    episodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Stop):
        train_run(CONFIG, folder, STEPS, stop_soon=StopSoon(1))
    image = columns_to_image(pack_columns(list(stored_episodes(folder)) * 9), {"episodes": 9})
    (folder / "pending.safetensors").write_bytes(image)
    rewrite_checkpoint(folder, lambda header: header.update(episodes=episodes))
    rewrite_extra(folder, lambda extra: extra | {"pending": "0" * 64})
    packed: list[int] = []

    def noting(some: Any) -> Any:
        packed.append(len(some))
        return pack_columns(some)

    monkeypatch.setattr(run_episodes, "pack_columns", noting)
    for read in (lambda: load_run(folder), lambda: train_run(CONFIG, folder, STEPS)):
        packed.clear()
        with pytest.raises(DamagedError, match="does not belong to the checkpoint beside it"):
            read()
        assert len(packed) <= 1


def test_a_result_names_its_tail_by_the_whole_digest(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train_run(CONFIG, folder, STEPS)
    path = folder / "result.json"
    result = json.loads(path.read_text())
    path.write_text(json.dumps(result | {"tail": result["tail"][:6]}))
    with pytest.raises(DamagedError, match="without its digest"):
        load_run(folder)
