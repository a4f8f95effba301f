"""Several critics at once: each is what it would be alone."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from libtools import box_spec, fit_settings, make_data
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import ConflictError, DivergedError, UsageError
from pbvf_offline.fit import to_file
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.fit.loop import (
    advance,
    advance_several,
    held_out_policies,
    start_fit,
    training_set,
)
from pbvf_offline.fit.settings import FitSettings
from pbvf_offline.fit.steps import Fit, Group
from pbvf_offline.fit.to_file import FitJob, FitResult, fit_several_to_files, fit_to_file
from pbvf_offline.fit.work import snapshot_path
from pbvf_offline.io.output_file import partial_path
from pbvf_offline.rollout.episodes import Trajectories

CPU = torch.device("cpu")
SEEDS = (0, 1, 7)
# Policies held out, so that entries and bounds differ from seed to seed.
ALL: dict[str, Any] = {
    "hidden": (16, 16),
    "validation": 0.3,
    "average": 0.9,
    "standardise": True,
    "relabel": 0.3,
}
DATA = make_data(policies=12)


def of_seeds(settings: FitSettings) -> list[FitSettings]:
    return [dataclasses.replace(settings, seed=seed) for seed in SEEDS]


def begun(data: Trajectories, settings: FitSettings) -> tuple[list[Fit], list[Any]]:
    fits = [start_fit(data, each, CPU) for each in of_seeds(settings)]
    sets = [training_set(fits[0], data, CPU)]
    sets += [training_set(fit, data, CPU, sets[0]) for fit in fits[1:]]
    return fits, sets


def alone(data: Trajectories, settings: FitSettings, updates: int) -> Fit:
    fit = start_fit(data, settings, CPU)
    advance(fit, training_set(fit, data, CPU), updates)
    return fit


def held_out_by_some(settings: FitSettings) -> int:
    """Return a policy that some seeds hold out and others do not."""
    held = np.sum([held_out_policies(DATA, each) for each in of_seeds(settings)], axis=0)
    return int(np.flatnonzero((held > 0) & (held < len(SEEDS)))[0])


def nothing(group: Group) -> None:
    pass


@pytest.mark.parametrize("fingerprint", [0, 3])
@pytest.mark.parametrize("kind", ["pssvf", "psvf", "pavf"])
def test_each_is_what_it_would_be_alone(kind: str, fingerprint: int) -> None:
    settings = fit_settings(
        kind, fingerprint=fingerprint, bound_values=kind != "pssvf", lr=1e-3, **ALL
    )
    for updates in (1, 100):
        fits, sets = begun(DATA, settings)
        assert len({part.entry[:].numpy().tobytes() for part in sets}) == len(SEEDS)
        assert not advance_several(fits, sets, updates, after_update=nothing)
        for fit, own in zip(fits, of_seeds(settings), strict=True):
            single = alone(DATA, own, updates)
            assert fit.updates == updates
            assert fit.whole
            assert [u for u, _ in fit.record] == [u for u, _ in single.record]
            # At first from the same weights, on the same batch.
            assert fit.loss == pytest.approx(single.loss, rel=1e-6 if updates == 1 else 1e-4)
            for critics in ((fit.online, single.online), (fit.critic, single.critic)):
                ours, theirs = (critic.parameters() for critic in critics)
                for a, b in zip(ours, theirs, strict=True):
                    assert a.shape == b.shape
                    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def test_bounds_are_those_of_each() -> None:
    settings = fit_settings("psvf", bound_values=True, validation=0.5, n_step=1)
    row = held_out_by_some(settings)
    data = dataclasses.replace(DATA, rewards=np.where(DATA.policy == row, 100.0, DATA.rewards))
    fits, sets = begun(data, settings)
    assert len({part.bounds for part in sets}) > 1
    for fit in fits:  # bootstrapped values far above every bound
        with torch.no_grad():
            fit.online.network.biases[-1].fill_(1e4)
    singles = [start_fit(data, each, CPU) for each in of_seeds(settings)]
    for single in singles:
        with torch.no_grad():
            single.online.network.biases[-1].fill_(1e4)
        advance(single, training_set(single, data, CPU), 1)
    advance_several(fits, sets, 1, after_update=nothing)
    assert [fit.loss for fit in fits] == pytest.approx([single.loss for single in singles])


@pytest.mark.parametrize("stop", [1, 37])
def test_those_that_are_behind_catch_up(stop: int) -> None:
    settings = fit_settings("psvf", **ALL)
    whole, sets = begun(DATA, settings)
    advance_several(whole, sets, 60, after_update=nothing)
    fits, sets = begun(DATA, settings)
    advance_several(fits[1:], sets[1:], stop, after_update=nothing)
    told: list[tuple[int, int]] = []
    advance_several(
        fits, sets, 60, after_update=lambda g: told.append((g.fits[0].updates, len(g.fits)))
    )
    assert told == [(k, 1 if k <= stop else 3) for k in range(1, 61)]
    for fit, other in zip(fits, whole, strict=True):
        for a, b in zip(fit.critic.parameters(), other.critic.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


# ------------------------------------------------------------------------------- files

SETTINGS = fit_settings("psvf", **{**ALL, "hidden": (8,)})


def run(
    folder: Path,
    updates: int,
    settings: FitSettings = SETTINGS,
    data: Trajectories = DATA,
    **kwargs: Any,
) -> list[FitResult]:
    jobs = [FitJob(each, folder / f"{each.seed}.safetensors") for each in of_seeds(settings)]
    return fit_several_to_files(data, jobs, updates=updates, **COMMON | kwargs)


COMMON: dict[str, Any] = {"environment": EnvReference("LQR-v0"), "dataset": "d" * 64}


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed")
    run(folder, 120)
    return content(folder)


def test_a_file_says_what_that_of_a_single_fit_says(tmp_path: Path) -> None:
    for result, own in zip(run(tmp_path, 120), of_seeds(SETTINGS), strict=True):
        out = tmp_path / "alone.safetensors"
        single = fit_to_file(DATA, own, out, updates=120, overwrite=True, **COMMON).file
        several = load_critic(tmp_path / f"{own.seed}.safetensors")
        assert several.encode() == result.file.encode()
        assert (result.updates_done_now, result.already_complete) == (120, False)
        assert several.fit.settings == own
        assert several.fit.updates == 120
        assert several.context.environment == single.context.environment
        for name, array in single.context.tensors().items():
            assert np.array_equal(several.context.tensors()[name], array)
        assert several.validation is not None
        assert single.validation is not None
        assert several.validation["policies"] == single.validation["policies"]
        theta = single.context.theta
        assert np.allclose(several.predict(theta), single.predict(theta), atol=1e-4)
        # It goes on as a single fit, and is complete for one.
        assert fit_to_file(
            DATA, own, tmp_path / f"{own.seed}.safetensors", updates=120, **COMMON
        ).already_complete


@pytest.mark.parametrize("at", [1, 64, 119])
def test_interrupted_and_extended_fits_have_the_same_bytes(
    at: int, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    def stop(done: int, total: int, loss: float) -> None:
        assert total == 120
        if done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 120, progress=stop)
    for seed in SEEDS:
        assert load_critic(partial_path(tmp_path / f"{seed}.safetensors")).fit.updates == at
    run(tmp_path, 120)
    assert content(tmp_path) == undisturbed
    assert all(result.already_complete for result in run(tmp_path, 120))
    other = tmp_path / "extended"
    run(other, at)
    assert {result.updates_done_now for result in run(other, 120)} == {120 - at}
    assert content(other) == undisturbed


def test_a_killed_fit_goes_on_from_its_last_checkpoint(
    tmp_path: Path, undisturbed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "left"

    def copied(done: int, total: int, loss: float) -> None:
        if done == 65:  # told before it is kept, so what is there is of the update before
            shutil.copytree(tmp_path / "whole", left)

    monkeypatch.setattr(to_file, "CHECKPOINT_SECONDS", -1.0)
    run(tmp_path / "whole", 120, progress=copied)
    assert content(tmp_path / "whole") == undisturbed
    places = [partial_path(left / f"{seed}.safetensors") for seed in SEEDS]
    assert [load_critic(place).fit.updates for place in places] == [64, 64, 64]
    run(left, 120)
    assert {name: left.joinpath(name).read_bytes() for name in undisturbed} == undisturbed


def test_a_file_that_is_missing_is_made_and_the_others_stay(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    run(tmp_path, 120)
    (tmp_path / "1.safetensors").unlink()
    results = run(tmp_path, 120)
    assert [result.already_complete for result in results] == [True, False, True]
    made = content(tmp_path)
    assert made.keys() == undisturbed.keys()
    assert made["0.safetensors"] == undisturbed["0.safetensors"]
    again = load_critic(tmp_path / "1.safetensors")
    assert again.fit.settings.seed == 1


def test_interrupted_fits_are_not_lost_to_shorter_ones(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    def stop(done: int, total: int, loss: float) -> None:
        if done == 50:
            raise KeyboardInterrupt

    run(tmp_path, 30)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 120, progress=stop)
    before, notes = content(tmp_path), []
    assert all(result.already_complete for result in run(tmp_path, 30, note=notes.append))
    places = [partial_path(tmp_path / f"{seed}.safetensors") for seed in SEEDS]
    assert [note.split()[1] for note in notes] == [str(place) for place in places]
    with pytest.raises(ConflictError, match="has 50 updates of an interrupted fit, and 40 were"):
        run(tmp_path, 40)
    places[1].unlink()  # so that the others alone would be lost
    with pytest.raises(ConflictError, match="has 50 updates of an interrupted fit, and 40 were"):
        run(tmp_path, 40)
    assert content(tmp_path) == {k: v for k, v in before.items() if k != places[1].name}
    places[1].write_bytes(before[places[1].name])
    run(tmp_path, 120)
    assert content(tmp_path) == undisturbed


def test_snapshots_are_the_shorter_fits(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    run(tmp_path / "short", 30)
    results = run(tmp_path / "long", 120, snapshots=(30,))
    for seed, result in zip(SEEDS, results, strict=True):
        out = tmp_path / "long" / f"{seed}.safetensors"
        assert result.snapshots == [snapshot_path(out, 30)]
        short = tmp_path / "short" / out.name
        assert result.snapshots[0].read_bytes() == short.read_bytes()
        assert out.read_bytes() == undisturbed[out.name]


def test_one_file_of_other_settings_stops_all(tmp_path: Path) -> None:
    out = tmp_path / "7.safetensors"
    other = dataclasses.replace(SETTINGS, seed=7, gamma=0.5)
    fit_to_file(DATA, other, out, updates=3, **COMMON)
    before = content(tmp_path)
    with pytest.raises(ConflictError, match=r"gamma is 0\.5 there and 0\.9 here") as caught:
        run(tmp_path, 3)
    assert caught.value.where == str(out)
    assert content(tmp_path) == before


def test_a_seed_that_diverges_stops_no_other(tmp_path: Path) -> None:
    settings = fit_settings("pssvf", validation=0.5)
    # Its return squared is beyond single precision: the loss stays finite where it is held out.
    row = held_out_by_some(settings)
    fine = [each.seed for each in of_seeds(settings) if held_out_policies(DATA, each)[row]]
    rewards = np.where(DATA.policy == row, 1e25, DATA.rewards)
    data = dataclasses.replace(DATA, rewards=rewards)
    failed = [seed for seed in SEEDS if seed not in fine]
    words = rf"seed {failed[0]}: the loss is inf at update \d+ \({len(failed)} of 3 seeds failed, "
    with pytest.raises(DivergedError, match=words + "the others are finished") as caught:
        run(tmp_path, 200, settings, data)
    assert caught.value.where == str(tmp_path / f"{failed[0]}.safetensors")
    assert list(content(tmp_path)) == [f"{seed}.safetensors" for seed in fine]
    for seed in fine:
        ours = load_critic(tmp_path / f"{seed}.safetensors").fit
        single = alone(data, dataclasses.replace(settings, seed=seed), 200)
        for a, b in zip(ours.critic.parameters(), single.critic.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-4)


def test_fits_at_once_differ_in_their_seeds_alone(tmp_path: Path) -> None:
    for other in (dataclasses.replace(SETTINGS, lr=0.5, seed=1), SETTINGS):
        jobs = [FitJob(SETTINGS, tmp_path / "a"), FitJob(other, tmp_path / "a")]
        with pytest.raises(UsageError, match="differ in their seeds"):
            fit_several_to_files(DATA, jobs, updates=1, **COMMON)


def test_policies_of_one_observation() -> None:
    """A weight of one input has the shape of a bias."""
    data = make_data(box_spec(1, (), 1), policies=12)
    settings = fit_settings("psvf", lr=1e-3)
    fits, sets = begun(data, settings)
    advance_several(fits, sets, 20, after_update=nothing)
    for fit, own in zip(fits, of_seeds(settings), strict=True):
        single = alone(data, own, 20)
        for a, b in zip(fit.critic.parameters(), single.critic.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
