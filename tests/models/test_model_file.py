"""Model files: whole, safe to open, resumable, extendable."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from libtools import box_spec, make_policies, of_newer_version
from model_tools import played
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    DivergedError,
    IncompatibleError,
    ResourceError,
    UnsafeError,
    UsageError,
)
from pbvf_offline.io.output_file import partial_path
from pbvf_offline.io.tensor_file import decode, encode
from pbvf_offline.models import choice, to_file, training
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.imagine import imagine
from pbvf_offline.models.model_file import ModelFile, load_model
from pbvf_offline.models.settings import ModelRequest
from pbvf_offline.models.to_file import Hooks, fit_model_to_file, stored_model_seed
from pbvf_offline.rollout.episodes import Trajectories

REQUEST = ModelRequest(
    seed=3, members=2, hidden=(12, 12), batch_size=32, validation=0.2, trial_updates=30
)
FIXED = dataclasses.replace(REQUEST, noise=0.1, angles=False, unroll=2, mixed=False)


@cache
def data() -> Trajectories:
    def step(obs, action, rng):  # type: ignore[no-untyped-def]
        ahead = 0.9 * obs + 0.1 * action
        return ahead, float(ahead[0]), bool(ahead[0] > 0.8)

    starts = np.random.default_rng(0).uniform(-1, 1, (40, 2))
    return played(make_policies(box_spec(2), 40), step, starts, 25)


def make(out: Path, request: ModelRequest = FIXED, updates: int = 100, **kwargs):  # type: ignore[no-untyped-def]
    return fit_model_to_file(
        data(),
        request,
        out,
        updates=updates,
        environment=EnvReference("Toy-v0"),
        dataset="ab" * 32,
        **kwargs,
    )


def seed_there(out: Path, request: ModelRequest = FIXED) -> int | None:
    """What ``--seed`` is where it is not given."""
    return stored_model_seed(out, dataclasses.replace(request, seed=0), "ab" * 32)


def interrupt(out: Path, request: ModelRequest = FIXED, at: int = 7, **kwargs: Any) -> None:
    """Begin a training, and interrupt it after some updates."""

    def stop(done: int, wanted: int, loss: float) -> None:
        if done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(out, request, hooks=Hooks(update=stop), **kwargs)


def test_a_model_comes_back_as_it_was_and_imagines_the_same(tmp_path: Path) -> None:
    made = make(tmp_path / "m.safetensors", REQUEST)
    read = load_model(tmp_path / "m.safetensors")
    assert read.encode() == made.file.encode() == (tmp_path / "m.safetensors").read_bytes()
    assert read.check == made.file.check
    assert read.check is not None
    assert read.trials == made.file.trials
    assert len(read.trials) == 5
    assert read.environment == EnvReference("Toy-v0")
    assert read.dataset == "ab" * 32
    assert read.initial_observations.shape == (40, 2)
    theta = make_policies(box_spec(2), 3).theta
    starts = read.initial_observations[:2]
    both = [imagine(file.ensemble, box_spec(2), theta, starts, 20) for file in (read, made.file)]
    assert both[0].returns.tobytes() == both[1].returns.tobytes()


def test_a_model_made_before_ends_had_rewards_of_their_own_imagines_as_it_did(
    tmp_path: Path,
) -> None:
    """Its networks have one output less, and what they say of rewards is of all steps."""
    path = tmp_path / "m.safetensors"
    make(path)
    content, tensors = decode("model", path.read_bytes(), str(path))
    content = json.loads(json.dumps(content))
    del content["progress"]["end_reward"], content["progress"]["limits"]
    of_outputs = ("weights.2", "biases.2", "skip")
    earlier = {
        name: values[..., :4].copy() if name.endswith(of_outputs) else values
        for name, values in tensors.items()
    }
    path.write_bytes(encode("model", content, earlier))
    ensemble, spec = load_model(path).ensemble, box_spec(2)
    assert ensemble.scales.end_reward is None
    assert not ensemble.scales.low_is_limit.any()
    obs, action = torch.randn(2, 200, 2), torch.randn(2, 200, 1)
    with torch.no_grad():
        step = ensemble.step(obs, action)
        out = ensemble.outputs(obs, action)
    assert 0 < step.ended.sum() < step.ended.numel()
    scale = ensemble.scales.reward
    told = (out[..., 2].double() * scale.std + scale.mean).clamp(scale.low, scale.high)
    torch.testing.assert_close(step.reward, told)
    more = make(path, updates=120)
    assert more.updates_done_now > 0
    played_again = imagine(
        more.file.ensemble, spec, make_policies(spec, 3).theta, np.zeros((2, 2)), 20
    )
    assert np.isfinite(played_again.returns).all()


def test_the_same_call_finds_it_complete_and_another_is_a_conflict(tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    make(out)
    before = out.read_bytes()
    again = make(out)
    assert again.already_complete
    assert (again.seconds, again.updates_done_now) == (0.0, 0)
    with pytest.raises(ConflictError, match=r"noise is 0.1 there and 0.2 here"):
        make(out, dataclasses.replace(FIXED, noise=0.2))
    with pytest.raises(ConflictError, match="exists with 100 updates, 99 were asked for"):
        make(out, updates=99)
    assert out.read_bytes() == before
    other = make(out, dataclasses.replace(FIXED, noise=0.2), overwrite=True)
    assert other.file.ensemble.settings.noise == 0.2
    assert seed_there(out) == 3
    assert seed_there(tmp_path / "none") is None


@pytest.mark.parametrize("request_", [FIXED, REQUEST], ids=["given", "chosen"])
@pytest.mark.parametrize("at", [1, 70])
def test_an_interrupted_training_continues_to_the_same_bytes(
    tmp_path: Path, request_: ModelRequest, at: int
) -> None:
    curve: list[tuple[object, ...]] = []
    make(tmp_path / "whole.safetensors", request_, hooks=Hooks(on_event=lambda *e: curve.append(e)))

    def stop(done: int, wanted: int, loss: float) -> None:
        assert (wanted, loss > 0) == (100, True)
        if done == at:
            raise KeyboardInterrupt

    out = tmp_path / "m.safetensors"
    with pytest.raises(KeyboardInterrupt):
        make(out, request_, hooks=Hooks(update=stop))
    assert not out.exists()
    assert seed_there(out, request_) == 3
    trials, again = [], []
    hooks = Hooks(trial=trials.append, on_event=lambda *event: again.append(event))
    rest = make(out, request_, hooks=hooks)
    assert rest.updates_done_now == 100 - at
    assert trials == []
    assert again == curve  # trials and check too, from the first event on
    assert out.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "m.safetensors",
        "whole.safetensors",
    ]


OTHER = dataclasses.replace(FIXED, lr=1e-3, seed=5)


def test_an_interrupted_replacement_goes_on_without_overwrite(tmp_path: Path) -> None:
    out, whole = tmp_path / "m.safetensors", tmp_path / "whole.safetensors"
    make(whole, OTHER)
    make(out)
    before = out.read_bytes()
    interrupt(out, OTHER, overwrite=True)
    interrupt(out, OTHER, at=30)
    assert out.read_bytes() == before
    assert seed_there(out, OTHER) == 5
    assert make(out, OTHER).updates_done_now == 100 - 30
    assert out.read_bytes() == whole.read_bytes()
    assert not partial_path(out).exists()


def test_an_interrupted_replacement_leaves_the_finished_model_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    make(out)
    interrupt(out, OTHER, overwrite=True)
    left = partial_path(out).read_bytes()
    assert seed_there(out) == 3
    assert make(out).already_complete
    words = r"lr is 0\.001 there and 0\.004 here; seed is 5 there and 3 here; finish it by its own"
    with pytest.raises(ConflictError, match=words) as caught:
        make(out, updates=130)
    assert caught.value.where == str(partial_path(out))
    assert "start over" not in str(caught.value)
    assert partial_path(out).read_bytes() == left
    partial_path(out).unlink()
    assert make(out, updates=130).file.fit.updates == 130


def test_of_another_interrupted_replacement_the_seed_is_that_of_the_model(tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    make(out)
    interrupt(out, OTHER, overwrite=True)
    assert seed_there(out, dataclasses.replace(FIXED, noise=0.2)) == 3
    out.unlink()
    assert seed_there(out) == 5


def test_fewer_updates_than_an_interrupted_training_is_to_have_are_a_conflict(
    tmp_path: Path,
) -> None:
    out, whole = tmp_path / "m.safetensors", tmp_path / "whole.safetensors"
    interrupt(out)
    left = partial_path(out).read_bytes()
    words = (
        "it has 7 of 100 updates of an interrupted fit, and 90 were asked for; go on with it by "
        "--updates 100 or more, choose another --out, or start over with --overwrite"
    )
    with pytest.raises(ConflictError, match=words) as caught:
        make(out, updates=90)
    assert caught.value.where == str(partial_path(out))
    assert not out.exists()
    assert partial_path(out).read_bytes() == left
    assert make(out).updates_done_now == 93
    make(whole)
    assert out.read_bytes() == whole.read_bytes()
    interrupt(out, updates=200, at=110)
    before = out.read_bytes(), partial_path(out).read_bytes()
    with pytest.raises(ConflictError, match="200 or more, or remove this file to drop it"):
        make(out, updates=150)
    assert (out.read_bytes(), partial_path(out).read_bytes()) == before
    assert make(out, updates=90, overwrite=True).updates_done_now == 90
    assert not partial_path(out).exists()


def test_a_complete_model_leaves_what_was_interrupted_of_a_longer_training(tmp_path: Path) -> None:
    out, notes = tmp_path / "m.safetensors", []
    make(tmp_path / "whole.safetensors", updates=200)
    make(out)
    interrupt(out, updates=200, at=61)  # where the learning rate falls for the shorter one
    before = out.read_bytes(), partial_path(out).read_bytes()
    hooks = Hooks(note=notes.append)
    assert make(out, hooks=hooks).already_complete
    assert (out.read_bytes(), partial_path(out).read_bytes()) == before
    assert notes == [
        f"note: {partial_path(out)} has 61 of 200 updates of an interrupted fit and stays; "
        "--updates 200 or more goes on with it"
    ]
    assert make(out, updates=200, hooks=hooks).updates_done_now == 200 - 61
    assert out.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert len(notes) == 1


def test_what_a_newer_version_was_interrupted_in_stays(tmp_path: Path) -> None:
    out, notes = tmp_path / "m.safetensors", []
    make(out)
    partial_path(out).write_bytes(of_newer_version("model", out.read_bytes()))
    before = out.read_bytes(), partial_path(out).read_bytes()
    assert make(out, hooks=Hooks(note=notes.append)).already_complete
    assert [note.split(" (")[0] for note in notes] == [
        f"note: {partial_path(out)} stays: it has format version 99; this program reads up to 2; "
        "upgrade to a pbvf-offline that reads version 99"
    ]
    with pytest.raises(IncompatibleError, match="or remove this file to drop it"):
        make(out, updates=200)
    assert (out.read_bytes(), partial_path(out).read_bytes()) == before


def test_a_complete_model_drops_what_goes_no_further(tmp_path: Path) -> None:
    out, notes = tmp_path / "m.safetensors", []
    make(out)
    interrupt(out, overwrite=True)
    assert make(out, hooks=Hooks(note=notes.append)).already_complete
    assert notes == []
    assert not partial_path(out).exists()


def test_short_trainings_say_which_of_how_many_they_are(tmp_path: Path) -> None:
    for angles, count in ((None, 5), (False, 4)):
        seen: list[tuple[int, ...]] = []
        request = dataclasses.replace(REQUEST, trial_updates=2, angles=angles)
        hooks = Hooks(trying=lambda *told, seen=seen: seen.append(told))
        made = make(tmp_path / f"{count}", request, updates=1, hooks=hooks)
        assert len(made.file.trials) == count
        assert seen == [(k, 2 * count, (k + 1) // 2, count) for k in range(1, 2 * count + 1)]


def test_more_updates_extend_to_the_bytes_of_an_uninterrupted_training(tmp_path: Path) -> None:
    make(tmp_path / "whole.safetensors", updates=130)
    make(tmp_path / "m.safetensors", updates=60)
    longer = make(tmp_path / "m.safetensors", updates=130)
    assert longer.updates_done_now == 130 - 36  # the learning rate fell from update 36 on
    whole = (tmp_path / "whole.safetensors").read_bytes()
    assert (tmp_path / "m.safetensors").read_bytes() == whole


def test_a_training_that_diverges_keeps_the_last_good_file(tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    with pytest.raises(DivergedError) as caught:
        make(out, dataclasses.replace(FIXED, lr=1e30), updates=3_000)
    assert caught.value.where == str(out)
    assert not out.exists()
    make(out, updates=1)
    good = out.read_bytes()
    with pytest.raises(DivergedError):
        make(out, dataclasses.replace(FIXED, lr=1e30), updates=3_000, overwrite=True)
    assert out.read_bytes() == good
    with pytest.raises(UsageError, match="--updates"):
        make(out, updates=0)


def test_a_name_without_room_for_those_of_hidden_files_is_refused_as_it_was_given(
    tmp_path: Path,
) -> None:
    out = tmp_path / ("m" * 243)
    with pytest.raises(ResourceError, match="file name too long; choose a shorter name") as caught:
        make(out)
    assert caught.value.where == str(out)
    assert list(tmp_path.iterdir()) == []
    assert make(tmp_path / ("m" * 230), updates=1).file.fit.updates == 1


def test_after_a_divergence_a_lower_learning_rate_is_enough(tmp_path: Path) -> None:
    out, wild = tmp_path / "m.safetensors", dataclasses.replace(FIXED, lr=1e30)
    interrupt(out, wild, at=1, updates=3_000)
    assert partial_path(out).exists()
    with pytest.raises(DivergedError, match="lower --lr"):
        make(out, wild, updates=3_000)
    assert list(tmp_path.iterdir()) == []
    assert make(out).updates_done_now == 100


def test_mixed_networks_that_diverge_after_their_choice_become_networks_of_one_objective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = training.model_loss

    def exploding(ensemble: Ensemble, *args: Any) -> torch.Tensor:
        whole = ensemble.settings.members == 3  # short trainings have two networks
        loss = known(ensemble, *args)
        return loss * 1e13 if ensemble.settings.mixed and whole else loss

    monkeypatch.setattr(training, "model_loss", exploding)
    monkeypatch.setattr(choice, "_NOT_MIXED", 1e9)  # so that mixed networks are chosen
    request = dataclasses.replace(REQUEST, members=3, noise=0.1, angles=False)
    notes: list[str] = []
    left = make(tmp_path / "left.st", request, hooks=Hooks(note=notes.append))
    assert [trial.mixed for trial in left.file.trials] == [False, True]
    assert not left.file.ensemble.settings.mixed
    assert left.updates_done_now == 100
    (note,) = notes
    assert "learn ten steps in a row diverge on these data (the model's loss is" in note
    alone = make(tmp_path / "alone.st", dataclasses.replace(request, mixed=False))
    for ours, theirs in zip(
        left.file.fit.snapshot().weights, alone.file.fit.snapshot().weights, strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)

    out = tmp_path / "stopped.st"
    interrupt(out, request, at=40)  # of the networks of one objective
    assert make(out, request, hooks=Hooks(note=notes.append)).updates_done_now == 60
    assert out.read_bytes() == (tmp_path / "left.st").read_bytes()
    assert notes == [note]

    with pytest.raises(DivergedError, match="use --no-mixed"):
        make(tmp_path / "asked.st", dataclasses.replace(request, mixed=True))


@pytest.mark.parametrize("lr", [1e30, 1e308])
def test_an_explosion_of_few_updates_leaves_nothing(lr: float, tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="lower --lr"):
        make(tmp_path / "m.safetensors", dataclasses.replace(FIXED, lr=lr), updates=5)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_checked_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of two objectives give way to those of one, which leave nothing either."""
    known, seen = to_file.check_model, []

    def check(ensemble: Ensemble, *args: Any) -> Any:
        seen.append(ensemble.settings.mixed)
        if ensemble.settings.mixed or len(seen) > 2:
            raise DivergedError("what the model foretells is not finite")
        return known(ensemble, *args)

    monkeypatch.setattr(to_file, "check_model", check)
    monkeypatch.setattr(choice, "_NOT_MIXED", 1e9)  # so that mixed networks are chosen
    monkeypatch.setattr(to_file, "CHECKPOINT_SECONDS", -1.0)  # so that each update is kept
    request = dataclasses.replace(REQUEST, noise=0.1, angles=False)
    notes: list[str] = []
    out = tmp_path / "m.safetensors"
    made = make(out, request, updates=12, hooks=Hooks(note=notes.append))
    assert seen == [True, False]
    assert not made.file.ensemble.settings.mixed
    assert made.file.check is not None
    assert "what the model foretells is not finite" in notes[0]
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]
    with pytest.raises(DivergedError, match="what the model foretells"):
        make(tmp_path / "n.safetensors", updates=12)
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_model_knows_its_file(tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    interrupt(out)
    assert make(out).file.where == make(out).file.where == str(out)


def test_something_else_in_its_place_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    out.write_bytes(encode("critic", {}, {}))
    with pytest.raises(ConflictError, match="is no model file"):
        make(out)
    with pytest.raises(IncompatibleError, match="is a critic file"):
        load_model(out)
    out.write_bytes(b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00K\x01.")
    with pytest.raises(UnsafeError):
        load_model(out)


@cache
def a_file() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return make(Path(folder) / "m.safetensors").file.encode()


def with_calibration(content: dict[str, Any], factor: float, floor: float) -> None:
    content["check"]["calibration"] = {"factor": factor, "floor": floor, "pieces": 20}


DAMAGES = {
    "a missing part": lambda c, t: c.pop("check"),
    "settings": lambda c, t: c["settings"].update(members=0),
    "an unknown setting": lambda c, t: c["settings"].update(other=1),
    "a size": lambda c, t: c["settings"].update(hidden=[8000, 8000]),
    "progress": lambda c, t: c["progress"].update(updates=-1),
    "reward scale": lambda c, t: c["progress"].update(reward=[0.0, 0.0, 0.0, 1.0]),
    "more updates than wanted": lambda c, t: c["progress"].update(updates=2**40),
    "a fall in the future": lambda c, t: c["progress"].update(fall=c["progress"]["updates"] + 1),
    "a factor": lambda c, t: with_calibration(c, 1e308, 1.0),
    "a floor": lambda c, t: with_calibration(c, 2.0, 1e308),
    "an update of the fall": lambda c, t: c["progress"].update(fall=-1),
    "a loss": lambda c, t: c["progress"].update(pending=["x"]),
    "check": lambda c, t: c["check"].update(horizons=7),
    "no pieces": lambda c, t: c["check"]["horizons"][0].update(pieces=0),
    "a horizon": lambda c, t: c["check"]["horizons"][0].update(steps=0),
    "pieces that are not there": lambda c, t: c["check"]["horizons"][0].update(reached=10**6),
    "a correlation": lambda c, t: c["check"]["horizons"][0].update(correlation=7.0),
    "an error": lambda c, t: c["check"]["horizons"][0].update(error=-1.0),
    "a coverage": lambda c, t: c["check"]["horizons"][0].update(coverage=1.5),
    "lengths": lambda c, t: c["check"].update(episode_steps=0),
    "trials": lambda c, t: c.update(trials={}),
    "asked": lambda c, t: c.update(asked=[]),
    "environment": lambda c, t: c.update(environment={"id": 1}),
    "spec": lambda c, t: c["progress"]["spec"].update(squash="other"),
    "a weight": lambda c, t: t.pop("weight/network.weights.0"),
    "a shape": lambda c, t: t.update({"weight/network.skip": np.zeros((1, 2), np.float32)}),
    "not finite": lambda c, t: t["weight/network.skip"].fill(np.nan),
    "a moment": lambda c, t: t["exp_avg_sq/network.skip"].fill(-1.0),
    "the fall": lambda c, t: t.pop("fall/weight/network.skip"),
    "a scale": lambda c, t: t["obs_std"].fill(0.0),
    "the box": lambda c, t: t["low"].fill(1e6),
    "no starts": lambda c, t: t.update(initial_observations=t["initial_observations"][:0]),
    "rewards": lambda c, t: c["progress"].update(reward=[0.0, 1.0, 2.0, 1.0]),
    "rewards of ends": lambda c, t: c["progress"].update(end_reward=[0.0, 0.0, 1.0, 1.0]),
    "no ends": lambda c, t: c["progress"].update(ends=False),
    "limits": lambda c, t: c["progress"].update(limits=[[True], [False]]),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_file_that_contradicts_itself_is_damaged(tmp_path: Path, name: str) -> None:
    content, tensors = decode("model", a_file(), "here")
    content = json.loads(json.dumps(content))
    tensors = {key: value.copy() for key, value in tensors.items()}
    DAMAGES[name](content, tensors)
    path = tmp_path / "m.safetensors"
    path.write_bytes(encode("model", content, tensors))
    with pytest.raises(DamagedError):
        load_model(path)


def test_a_finished_training_without_its_check_is_no_finished_one(tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    dataclasses.replace(make(out).file, check=None).save(out)
    with pytest.raises(DamagedError, match=r"has no check, .* start over with --overwrite"):
        make(out)


def test_one_network_learns_in_one_way(tmp_path: Path) -> None:
    alone = dataclasses.replace(FIXED, members=1, mixed=None)
    file = make(tmp_path / "m.safetensors", alone).file
    assert (file.ensemble.settings.mixed, file.trials) == (False, ())
    with pytest.raises(UsageError, match="one network learns by one objective"):
        dataclasses.replace(alone, mixed=True)


def test_a_flipped_byte_is_noticed(tmp_path: Path) -> None:
    image = bytearray(a_file())
    image[-5] ^= 1
    path = tmp_path / "m.safetensors"
    path.write_bytes(bytes(image))
    with pytest.raises(DamagedError, match="digest"):
        load_model(path)


def test_a_file_holds_no_check_before_the_end(tmp_path: Path) -> None:
    kept: list[ModelFile] = []

    def stop(done: int, wanted: int, loss: float) -> None:
        if done == 10:
            raise KeyboardInterrupt

    out = tmp_path / "m.safetensors"
    with pytest.raises(KeyboardInterrupt):
        make(out, hooks=Hooks(update=stop))
    kept.append(load_model(partial_path(out)))
    assert kept[0].check is None
    assert kept[0].fit.updates == 10


def test_a_precision_that_is_no_truth_value_is_shown_as_it_is() -> None:
    with pytest.raises(UsageError, match="--precision: 'float32' is not true or false"):
        ModelRequest(seed=0, bfloat16="float32")  # type: ignore[arg-type]


def test_exploded_updates_in_a_row_are_counted_across_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten in a row, updates 36 to 45, the fifth is the last one before an interruption."""
    known, calls = training.model_loss, 0

    def exploding(*args: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return known(*args) * (1e13 if 36 <= calls <= 46 else 1.0)

    monkeypatch.setattr(training, "model_loss", exploding)
    with pytest.raises(DivergedError, match="at update 45, and was as large for 10 updates"):
        make(tmp_path / "whole")
    calls = 0
    interrupt(tmp_path / "parts", at=40)
    assert load_model(partial_path(tmp_path / "parts")).fit.exploded == 5
    with pytest.raises(DivergedError, match="at update 45, and was as large for 10 updates"):
        make(tmp_path / "parts")
