from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from libtools import box_spec, discrete_spec, fit_settings, make_data, of_newer_version
from pbvf_datasets.read.cache import load_cache, store_cache
from pbvf_offline.critics.stochastic_pavf import StochasticPAVF
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import (
    ConflictError,
    DivergedError,
    IncompatibleError,
    ResourceError,
    UsageError,
)
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.fit.to_file import FitResult, fit_to_file, stored_seed
from pbvf_offline.fit.work import snapshot_path
from pbvf_offline.io import columns, mapped
from pbvf_offline.io.output_file import partial_path
from pbvf_offline.io.tensor_file import encode, read_tensor_file
from pbvf_offline.policies import normaliser
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout import episodes
from pbvf_offline.rollout.episodes import Trajectories

DATA = make_data(policies=10)
SETTINGS = fit_settings("psvf", validation=0.3)


def run(
    out: Path,
    updates: int,
    settings: FitSettings = SETTINGS,
    data: Trajectories = DATA,
    **kwargs: Any,
) -> FitResult:
    values: dict[str, Any] = {
        "environment": EnvReference("LQR-v0"),
        "dataset": "d" * 64,
        **kwargs,
    }
    return fit_to_file(data, settings, out, updates=updates, **values)


@pytest.fixture
def undisturbed(tmp_path: Path) -> bytes:
    out = tmp_path / "undisturbed.safetensors"
    run(out, 120)
    return out.read_bytes()


def seed_there(out: Path, settings: FitSettings = SETTINGS) -> int | None:
    """What ``--seed`` is where it is not given."""
    return stored_seed(out, dataclasses.replace(settings, seed=0), "d" * 64)


class Interrupt:
    """Raises KeyboardInterrupt after one update."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, done: int, total: int, loss: float) -> None:
        if done == self.at:
            raise KeyboardInterrupt


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_result_and_again(tmp_path: Path) -> None:
    out = tmp_path / "new" / "c.safetensors"
    seen: list[tuple[int, int]] = []
    result = run(out, 30, progress=lambda done, total, loss: seen.append((done, total)))
    assert seen == [(k, 30) for k in range(1, 31)]
    assert not result.already_complete
    assert result.updates_done_now == 30
    assert result.file.fit.updates == 30
    assert names(out.parent) == ["c.safetensors"]
    before = out.read_bytes()
    again = run(out, 30)
    assert again.already_complete
    assert (again.updates_done_now, again.seconds) == (0, 0.0)
    assert out.read_bytes() == before


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    for kind in ("pssvf", "psvf", "pavf"):
        paths = [tmp_path / f"{kind}{k}.safetensors" for k in range(3)]
        settings = fit_settings(kind)
        for path, seed in zip(paths, (0, 0, 1), strict=True):
            run(path, 20, dataclasses.replace(settings, seed=seed))
        assert paths[0].read_bytes() == paths[1].read_bytes()
        assert paths[0].read_bytes() != paths[2].read_bytes()


@pytest.mark.parametrize(
    ("kind", "segments", "more"),
    [
        ("pssvf", 1, {"relabel": 0.1}),
        ("psvf", 2, {"relabel": 0.1, "fingerprint": 4}),
        ("pavf", 2, {"n_step": 9, "reward": "without-survival", "average": 0.9}),
    ],
)
def test_reading_piece_by_piece_changes_nothing(
    kind: str, segments: int, more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of data that are larger than memory, all that is done takes a small part at a time."""
    settings = fit_settings(kind, validation=0.3, bound_values=True, standardise=True, **more)
    data = make_data(policies=30, length=5, segments=segments)
    rng = np.random.default_rng(0)
    policies = dataclasses.replace(data.policies, obs_mean=rng.normal(size=(30, 2)))
    survive = rng.normal(size=len(data))
    data = dataclasses.replace(data, policies=policies, reward_survive=survive)
    whole, pieces = (tmp_path / f"{name}.safetensors" for name in ("whole", "pieces"))
    run(whole, 300, settings, data, snapshots=[7])
    monkeypatch.setattr(episodes, "PART_STEPS", 20)
    monkeypatch.setattr(mapped, "ROWS", 7)
    monkeypatch.setattr(normaliser, "BLOCK_NUMBERS", 15)
    monkeypatch.setattr(columns, "AT_ONCE", 2000)
    monkeypatch.setenv("PBVF_CACHE", str(tmp_path / "cache"))
    assert store_cache("ab" * 32, data)
    stored = load_cache("ab" * 32)
    assert stored is not None
    run(pieces, 300, settings, stored, snapshots=[7])
    assert pieces.read_bytes() == whole.read_bytes()
    assert snapshot_path(pieces, 7).read_bytes() == snapshot_path(whole, 7).read_bytes()


@pytest.mark.parametrize("at", [1, 150, 240])
def test_a_fit_that_goes_on_reports_the_curve_of_an_undisturbed_one(
    at: int, tmp_path: Path
) -> None:
    curve: list[tuple[Any, ...]] = []
    whole = run(tmp_path / "whole.safetensors", 240, on_event=lambda *event: curve.append(event))
    assert [(kind, update) for kind, update, _ in curve] == [
        *(("fit", update) for update in (100, 200, 240)),
        ("validation", 240),
    ]
    assert [(u, v["loss"]) for _, u, v in curve[:2]] == whole.file.fit.record
    out = tmp_path / "c.safetensors"
    with pytest.raises(KeyboardInterrupt):
        run(out, 240, progress=Interrupt(at))
    again: list[tuple[Any, ...]] = []
    run(out, 240, on_event=lambda *event: again.append(event))
    assert again == curve


@pytest.mark.parametrize("at", [1, 2, 50, 99, 100, 101, 119, 120])
def test_interrupted_and_continued(at: int, tmp_path: Path, undisturbed: bytes) -> None:
    out = tmp_path / "c.safetensors"
    with pytest.raises(KeyboardInterrupt):
        run(out, 120, progress=Interrupt(at))
    assert not out.exists()
    assert load_critic(partial_path(out)).fit.updates == at
    assert seed_there(out) == SETTINGS.seed
    result = run(out, 120)
    assert result.updates_done_now == 120 - at
    assert out.read_bytes() == undisturbed
    assert not partial_path(out).exists()


@pytest.mark.parametrize("name", ["relabel", "bound_values", "standardise", "fingerprint"])
@pytest.mark.parametrize("kind", ["psvf", "pavf"])
def test_interrupted_and_continued_with_every_option(name: str, kind: str, tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, kind=kind, **{name: CHANGES[name]})
    whole, broken = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    run(whole, 40, settings, snapshots=(20,))
    with pytest.raises(KeyboardInterrupt):
        run(broken, 40, settings, snapshots=(20,), progress=Interrupt(13))
    run(broken, 40, settings, snapshots=(20,))
    assert broken.read_bytes() == whole.read_bytes()
    assert snapshot_path(broken, 20).read_bytes() == snapshot_path(whole, 20).read_bytes()
    assert load_critic(whole).encode() == whole.read_bytes()


@pytest.mark.parametrize("spec", [box_spec(stochastic=True), discrete_spec(stochastic=True)])
def test_the_pavf_of_stochastic_policies_is_a_fit_like_any_other(
    spec: PolicySpec, tmp_path: Path
) -> None:
    data = make_data(spec, policies=10)
    settings = fit_settings("pavf", validation=0.3)
    whole, broken = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    run(whole, 40, settings, data)
    with pytest.raises(KeyboardInterrupt):
        run(broken, 40, settings, data, progress=Interrupt(13))
    run(broken, 20, settings, data)
    run(broken, 40, settings, data)
    assert broken.read_bytes() == whole.read_bytes()
    file = load_critic(whole)
    assert isinstance(file.critic, StochasticPAVF)
    assert file.encode() == whole.read_bytes()
    assert file.validation is not None


def test_a_damaged_partial_file_is_only_our_own_leftover(
    tmp_path: Path, undisturbed: bytes
) -> None:
    out = tmp_path / "c.safetensors"
    partial_path(out).write_bytes(b"\0" * 50)
    assert seed_there(out) is None
    run(out, 120)
    assert out.read_bytes() == undisturbed
    assert not partial_path(out).exists()


def test_what_a_newer_version_was_interrupted_in_stays(tmp_path: Path, undisturbed: bytes) -> None:
    out, notes = tmp_path / "c.safetensors", []
    partial_path(out).write_bytes(of_newer_version("critic", undisturbed))
    left = partial_path(out).read_bytes()
    words = (
        "it has format version 99; this program reads up to 2; upgrade to a pbvf-offline that "
        "reads version 99 (pip install --upgrade pbvf-offline), or remove this file to drop it"
    )
    with pytest.raises(IncompatibleError) as caught:
        run(out, 120)
    assert str(caught.value) == f"{partial_path(out)}: {words}"
    assert names(tmp_path) == [partial_path(out).name, "undisturbed.safetensors"]
    out.write_bytes(undisturbed)
    assert run(out, 120, note=notes.append).already_complete
    assert notes == [f"note: {partial_path(out)} stays: {words}"]
    with pytest.raises(IncompatibleError):
        run(out, 130)
    assert (out.read_bytes(), partial_path(out).read_bytes()) == (undisturbed, left)
    run(out, 5, overwrite=True)
    assert not partial_path(out).exists()


def test_an_interrupted_model_of_the_same_name_stays(tmp_path: Path) -> None:
    out = tmp_path / "c.safetensors"
    partial_path(out).write_bytes(encode("model", {}, {}))
    with pytest.raises(IncompatibleError, match="is a model file, not a critic file") as caught:
        run(out, 5)
    assert caught.value.where == str(partial_path(out))
    assert names(tmp_path) == [partial_path(out).name]


def test_what_cannot_be_read_of_an_interruption_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, notes = tmp_path / "c.safetensors", []
    run(out, 5)
    partial_path(out).write_bytes(out.read_bytes())

    def refuse(path: Path) -> bytes:
        if path == partial_path(out):
            raise ResourceError("permission denied", where=path, remedy="allow it")
        return read_tensor_file(path)

    monkeypatch.setattr("pbvf_offline.fit.critic_file.read_tensor_file", refuse)
    assert run(out, 5, note=notes.append).already_complete
    assert notes == [f"note: {partial_path(out)} stays: permission denied; allow it"]
    assert partial_path(out).exists()


@pytest.mark.parametrize("first", [1, 60, 100, 119])
def test_extension_equals_an_uninterrupted_fit(
    first: int, tmp_path: Path, undisturbed: bytes
) -> None:
    out = tmp_path / "c.safetensors"
    run(out, first)
    result = run(out, 120)
    assert result.updates_done_now == 120 - first
    assert out.read_bytes() == undisturbed


def test_snapshots_equal_shorter_fits(tmp_path: Path, undisturbed: bytes) -> None:
    out = tmp_path / "c.safetensors"
    result = run(out, 120, snapshots=(100, 30, 120))
    assert [p.name for p in result.snapshots] == [
        "c-000030.safetensors",
        "c-000100.safetensors",
        "c-000120.safetensors",
    ]
    assert out.read_bytes() == undisturbed
    for path, updates in zip(result.snapshots, (30, 100), strict=False):
        short = tmp_path / f"short{updates}.safetensors"
        run(short, updates)
        assert path.read_bytes() == short.read_bytes()
    assert result.snapshots[2].read_bytes() == undisturbed


@pytest.mark.parametrize("at", [20, 30, 31, 110])
def test_snapshots_of_an_interrupted_fit(at: int, tmp_path: Path, undisturbed: bytes) -> None:
    whole, broken = tmp_path / "whole.safetensors", tmp_path / "broken.safetensors"
    run(whole, 120, snapshots=(30, 100))
    with pytest.raises(KeyboardInterrupt):
        run(broken, 120, snapshots=(30, 100), progress=Interrupt(at))
    run(broken, 120, snapshots=(30, 100))
    for update in (30, 100):
        a, b = snapshot_path(whole, update), snapshot_path(broken, update)
        assert a.read_bytes() == b.read_bytes()
    assert broken.read_bytes() == undisturbed


def test_a_snapshot_asked_for_later_goes_over_the_way_again(
    tmp_path: Path, undisturbed: bytes
) -> None:
    out = tmp_path / "c.safetensors"
    run(out, 120)
    result = run(out, 120, snapshots=(30,))
    assert not result.already_complete
    assert out.read_bytes() == undisturbed
    short = tmp_path / "short.safetensors"
    run(short, 30)
    assert result.snapshots[0].read_bytes() == short.read_bytes()
    assert run(out, 120, snapshots=(30,)).already_complete


def test_a_snapshot_of_other_settings_is_a_conflict(tmp_path: Path) -> None:
    out = tmp_path / "c.safetensors"
    run(out, 40, snapshots=(20,))
    out.unlink()
    theirs = snapshot_path(out, 20).read_bytes()
    with pytest.raises(ConflictError, match="seed"):
        run(out, 40, dataclasses.replace(SETTINGS, seed=9), snapshots=(20,))
    assert snapshot_path(out, 20).read_bytes() == theirs


CHANGES: dict[str, Any] = {
    "fingerprint": 3,
    "kind": "pavf",
    "hidden": (9,),
    "gamma": 0.8,
    "lr": 2e-2,
    "batch_size": 5,
    "n_step": 3,
    "validation": 0.2,
    "seed": 5,
    "activation": "tanh",
    "relabel": 0.1,
    "bound_values": True,
    "standardise": True,
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_settings_are_a_conflict_that_names_them(name: str, tmp_path: Path) -> None:
    out = tmp_path / "c.safetensors"
    run(out, 5)
    before = out.read_bytes()
    other = dataclasses.replace(SETTINGS, **{name: CHANGES[name]})
    with pytest.raises(ConflictError, match=name.replace("_", "-")) as caught:
        run(out, 5, other)
    assert caught.value.exit_code == 7
    assert "--overwrite" in str(caught.value)
    assert out.read_bytes() == before
    with pytest.raises(ConflictError, match=name.replace("_", "-")):
        run(out, 50, other)  # nor are they an extension


def test_other_data_are_a_conflict(tmp_path: Path) -> None:
    out = tmp_path / "c.safetensors"
    run(out, 5)
    with pytest.raises(ConflictError, match="dataset"):
        run(out, 5, dataset="e" * 64)


def test_a_partial_fit_with_other_settings_is_a_conflict(tmp_path: Path) -> None:
    out = tmp_path / "c.safetensors"
    with pytest.raises(KeyboardInterrupt):
        run(out, 50, progress=Interrupt(10))
    with pytest.raises(ConflictError, match="seed"):
        run(out, 50, dataclasses.replace(SETTINGS, seed=5))
    assert partial_path(out).exists()
    run(out, 50, dataclasses.replace(SETTINGS, seed=5), overwrite=True)
    assert load_critic(out).fit.settings.seed == 5
    assert not partial_path(out).exists()


def test_fewer_updates_than_there_are_is_a_conflict(tmp_path: Path) -> None:
    out = tmp_path / "c.safetensors"
    run(out, 30)
    before = out.read_bytes()
    with pytest.raises(ConflictError, match="30 updates, 20 were asked for"):
        run(out, 20)
    assert out.read_bytes() == before


@pytest.mark.parametrize("at", [31, 50])
def test_a_complete_fit_leaves_what_was_interrupted_of_a_longer_one(
    at: int, tmp_path: Path, undisturbed: bytes
) -> None:
    out, notes = tmp_path / "c.safetensors", []
    run(out, 30)
    with pytest.raises(KeyboardInterrupt):
        run(out, 120, progress=Interrupt(at))
    before, left = out.read_bytes(), partial_path(out).read_bytes()
    assert run(out, 30, note=notes.append).already_complete
    assert (out.read_bytes(), partial_path(out).read_bytes()) == (before, left)
    assert notes == [
        f"note: {partial_path(out)} has {at} updates of an interrupted fit and stays; "
        f"--updates {at} or more goes on with it"
    ]
    assert run(out, 120, note=notes.append).updates_done_now == 120 - at
    assert out.read_bytes() == undisturbed
    assert len(notes) == 1


@pytest.mark.parametrize("updates", [20, 30])
def test_a_complete_fit_drops_what_goes_no_further(updates: int, tmp_path: Path) -> None:
    out, notes = tmp_path / "c.safetensors", []
    run(out, 30)
    run(tmp_path / "left.safetensors", updates)
    (tmp_path / "left.safetensors").rename(partial_path(out))
    assert run(out, 30, note=notes.append).already_complete
    assert notes == []
    assert names(tmp_path) == ["c.safetensors"]


def test_fewer_updates_than_an_interrupted_fit_has_are_a_conflict(
    tmp_path: Path, undisturbed: bytes
) -> None:
    out = tmp_path / "c.safetensors"
    with pytest.raises(KeyboardInterrupt):
        run(out, 120, progress=Interrupt(50))
    left = partial_path(out).read_bytes()
    words = (
        "it has 50 updates of an interrupted fit, and 49 were asked for; go on with it by "
        "--updates 50 or more, choose another --out, or start over with --overwrite"
    )
    with pytest.raises(ConflictError, match=words) as caught:
        run(out, 49)
    assert caught.value.where == str(partial_path(out))
    assert not out.exists()
    assert partial_path(out).read_bytes() == left
    assert run(out, 50).updates_done_now == 0
    assert run(out, 120).updates_done_now == 70
    assert out.read_bytes() == undisturbed


def test_an_extension_to_fewer_updates_than_one_that_was_interrupted_is_a_conflict(
    tmp_path: Path,
) -> None:
    out = tmp_path / "c.safetensors"
    run(out, 30)
    with pytest.raises(KeyboardInterrupt):
        run(out, 120, progress=Interrupt(50))
    before = {path: path.read_bytes() for path in (out, partial_path(out))}
    words = "--updates 50 or more, or remove this file to drop it"
    for more in ({"updates": 40}, {"updates": 30, "snapshots": (20,)}):
        with pytest.raises(ConflictError, match=words):
            run(out, **more)  # type: ignore[arg-type]
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    partial_path(out).unlink()
    assert run(out, 40).updates_done_now == 10


def test_an_interrupted_replacement_is_not_lost_to_a_shorter_one(tmp_path: Path) -> None:
    out = tmp_path / "c.safetensors"
    run(out, 30)
    with pytest.raises(KeyboardInterrupt):
        run(out, 60, OTHER, overwrite=True, progress=Interrupt(40))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConflictError, match="has 40 updates of an interrupted fit, and 10 were"):
        run(out, 10, OTHER)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert run(out, 10, OTHER, overwrite=True).updates_done_now == 10
    assert names(tmp_path) == ["c.safetensors"]


def test_something_else_at_the_output_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "c.safetensors"
    for content in (b"my notes", b"PK\x03\x04 my archive"):
        out.write_bytes(content)
        with pytest.raises(ConflictError, match="is no critic file, so it is not replaced"):
            run(out, 5)
        assert out.read_bytes() == content


def test_diverging_keeps_the_last_good_file(tmp_path: Path) -> None:
    wild = fit_settings("psvf", hidden=(32, 32), lr=1e6)
    out = tmp_path / "c.safetensors"
    run(out, 1, wild)
    good = out.read_bytes()
    with pytest.raises(DivergedError) as caught:
        run(out, 400, wild)
    assert (caught.value.exit_code, caught.value.where) == (8, str(out))
    assert out.read_bytes() == good
    assert load_critic(out).fit.updates == 1
    with pytest.raises(DivergedError):
        run(tmp_path / "none.safetensors", 400, wild)
    assert not (tmp_path / "none.safetensors").exists()


@pytest.mark.parametrize(
    ("updates", "snapshots", "where"),
    [
        (0, (), "--updates"),
        (-3, (), "--updates"),
        (10, (0,), "--snapshots"),
        (10, (11,), "--snapshots"),
    ],
)
def test_numbers_out_of_range(
    updates: int, snapshots: tuple[int, ...], where: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        run(tmp_path / "c.safetensors", updates, snapshots=snapshots)
    assert caught.value.where == where
    assert names(tmp_path) == []


def test_validation_is_recorded(tmp_path: Path) -> None:
    with_split, without = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    result = run(with_split, 10)
    run(without, 10, dataclasses.replace(SETTINGS, validation=0.0))
    stored = load_critic(with_split).validation
    assert stored is not None
    assert stored == result.file.validation
    assert len(stored["policies"]) == 3
    assert {"rank_correlation", "top_tenth_return", "predicted", "observed"} <= set(stored)
    assert load_critic(without).validation is None


def test_stored_seed(tmp_path: Path) -> None:
    out = tmp_path / "c.safetensors"
    assert seed_there(out) is None
    run(out, 3, dataclasses.replace(SETTINGS, seed=77))
    assert seed_there(out) == 77


OTHER = dataclasses.replace(SETTINGS, lr=3e-3, seed=5)


def test_an_interrupted_replacement_leaves_the_finished_fit_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "c.safetensors"
    run(out, 30)
    with pytest.raises(KeyboardInterrupt):
        run(out, 30, OTHER, overwrite=True, progress=Interrupt(7))
    left = partial_path(out).read_bytes()
    assert seed_there(out, OTHER) == 5
    assert seed_there(out) == SETTINGS.seed
    assert run(out, 30).already_complete
    with pytest.raises(ConflictError, match="seed is 5 there and 0 here; finish it by") as caught:
        run(out, 60)
    assert caught.value.where == str(partial_path(out))
    assert "start over" not in str(caught.value)
    assert partial_path(out).read_bytes() == left
    partial_path(out).unlink()
    assert run(out, 60).updates_done_now == 30


def test_after_a_divergence_a_lower_learning_rate_is_enough(tmp_path: Path) -> None:
    out, wild = tmp_path / "c.safetensors", fit_settings("psvf", hidden=(32, 32), lr=1e6)
    with pytest.raises(KeyboardInterrupt):
        run(out, 400, wild, progress=Interrupt(1))
    assert partial_path(out).exists()
    with pytest.raises(DivergedError, match="lower --lr"):
        run(out, 400, wild)
    assert names(tmp_path) == []
    assert run(out, 30).updates_done_now == 30
