"""A run that goes on from a checkpoint's bytes, and critics that leave a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toyenv
from libtools import box_spec, online_settings
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import DamagedError, IncompatibleError
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.io.tensor_file import decode, encode
from pbvf_offline.online import checkpoint as checkpoints
from pbvf_offline.online.checkpoint import critic_file, decode_checkpoint, encode_checkpoint
from pbvf_offline.online.loop import Hooks, train
from pbvf_offline.online.settings import OnlineSettings
from pbvf_offline.online.training import Training, start_training
from pbvf_offline.policies.actions import BoxActions, DiscreteActions
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.synthesis.ascent import synthesize
from pbvf_offline.synthesis.settings import SynthesisSettings

CPU = torch.device("cpu")
BOX = BoxActions((-1.0,), (1.0,))
POLICIES = {
    "pssvf": ("pssvf", PolicySpec(3, (), BOX)),
    "psvf": ("psvf", PolicySpec(3, (4,), BOX)),
    "pavf": ("pavf", PolicySpec(3, (), BOX)),
    "stochastic pavf": ("pavf", PolicySpec(3, (4,), BOX, stochastic=True)),
    "discrete pavf": ("pavf", PolicySpec(3, (), DiscreteActions(4, 2), stochastic=True)),
}
policies = pytest.mark.parametrize(("kind", "spec"), POLICIES.values(), ids=POLICIES.keys())
normalizations = pytest.mark.parametrize("normalization", ["episode", "per-step", "none"])
SOURCE = "a" * 64


def settings(kind: str = "psvf", **kwargs: Any) -> OnlineSettings:
    return online_settings(kind, **{"critic_updates": 3, "actor_updates": 2, **kwargs})


def make_toy(spec: PolicySpec) -> toyenv.ToyEnv:
    """Episodes of 1 to 9 steps, as their seeds have it."""
    discrete = None if spec.is_continuous else (4, 2)
    return toyenv.ToyEnv(length=9, varied=True, discrete=discrete)


def fresh(chosen: OnlineSettings, spec: PolicySpec) -> Training:
    return start_training(spec, chosen, obs_dtype=np.float64, device=CPU)


def images(training: Training, until: int, extra: Any = None) -> dict[int, bytes]:
    """Train on, and return the checkpoint at the end of every episode by step."""
    found: dict[int, bytes] = {}

    def note(training: Training, record: Any, episode: Any) -> None:
        found[training.steps] = encode_checkpoint(training, extra or {})

    train(training, make_toy(training.spec), until, Hooks(episode=note))
    return found


def decoded(image: bytes, chosen: OnlineSettings, spec: PolicySpec) -> tuple[Training, Any]:
    return decode_checkpoint(image, chosen, spec, obs_dtype=np.float64, device=CPU, where="file")


def critic_image(training: Training) -> bytes:
    return critic_file(training, EnvReference("LQR-v0"), SOURCE).encode()


@normalizations
@policies
@pytest.mark.slow
def test_a_decoded_run_goes_on_like_the_original(
    kind: str, spec: PolicySpec, normalization: Any
) -> None:
    chosen = settings(kind, normalization=normalization)
    whole = fresh(chosen, spec)
    want = images(whole, 90)
    assert len(want) > 9
    steps = sorted(want)
    for step in (steps[0], steps[-4]):  # before and after the buffer is full
        again, extra = decoded(want[step], chosen, spec)
        assert extra == {}
        assert encode_checkpoint(again, {}) == want[step]
        rest = images(again, 90)
        assert rest == {s: image for s, image in want.items() if s > step}
        assert critic_image(again) == critic_image(whole)
        assert torch.equal(again.theta, whole.theta)
        assert (again.steps, again.episodes, again.rounds) == (90, whole.episodes, whole.rounds)


@pytest.mark.parametrize("when", ["at the start", "after an episode without updates"])
def test_a_run_that_has_not_updated_yet(when: str) -> None:
    spec, chosen = box_spec(3), settings(update_every=30)
    training = fresh(chosen, spec)
    image = encode_checkpoint(training, {})
    if when != "at the start":
        found = images(training, 20)
        image = found[min(found)]
        training = decoded(image, chosen, spec)[0]
    else:
        training = fresh(chosen, spec)
    again, _ = decoded(image, chosen, spec)
    assert again.fit.updates == 0
    assert images(again, 90) == images(training, 90)


def test_the_callers_json_comes_back() -> None:
    spec, extra = box_spec(3), {"list": [1, 2.5, None, "x"], "inner": {"a": True}}
    found = images(fresh(settings(), spec), 30, extra)
    for image in found.values():
        assert decoded(image, settings(), spec)[1] == extra


def test_a_checkpoint_of_another_run_is_refused() -> None:
    spec = box_spec(3)
    image = encode_checkpoint(fresh(settings(), spec), {})
    decoded(image, settings(), spec)
    for other in (settings(seed=1), settings(sigma=0.31), settings("pavf")):
        with pytest.raises(DamagedError, match="another run") as caught:
            decoded(image, other, spec)
        assert caught.value.where == "file"
    with pytest.raises(DamagedError, match="another run"):
        decoded(image, settings(), box_spec(3, low=-2.0))
    with pytest.raises(IncompatibleError, match="policies"):
        decoded(encode("policies", {}, {}), settings(), spec)


def test_what_is_missing_is_named() -> None:
    # A whole file, with a digest that fits, that is not a whole checkpoint.
    spec, chosen = box_spec(3), settings()
    found = images(fresh(chosen, spec), 40)
    content, tensors = decode("checkpoint", found[max(found)], "file")
    for name in ("theta", "mean", "replay/obs", "replay/policy", "actor/exp_avg", "obs_std"):
        left = {key: array for key, array in tensors.items() if key != name}
        with pytest.raises(DamagedError) as caught:
            decoded(encode("checkpoint", content, left), chosen, spec)
        assert "file" in str(caught.value)
    for name in ("steps", "replay", "record", "observed", "extra"):
        left = {key: value for key, value in content.items() if key != name}
        with pytest.raises(DamagedError):
            decoded(encode("checkpoint", left, tensors), chosen, spec)


@pytest.mark.parametrize("kind", ["pssvf", "psvf"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"settings": {"hidden": [9, 9]}}, "declares a network"),
        ({"replay": {"rows": 10**12}}, "declares a replay buffer"),
        (
            {"settings": {"buffer_size": 10**8}, "replay": {"size": 10**8}},
            "declares a replay buffer",
        ),
        ({"replay": {"seen": 10**8, "initials": 10**8}}, "declares a replay buffer"),
        ({"replay": {"size": -1}}, "replay"),
        ({"replay": {"at": 40}}, "of 40 entries cannot hold"),
        ({"settings": {"buffer_size": 1}}, "of 1 entries cannot hold"),
        ({"tensors": {"theta": np.zeros((1, 1), np.float32)}}, "theta is"),
    ],
)
def test_nothing_is_made_that_the_file_does_not_hold(
    kind: str, change: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = box_spec(3)
    found = images(fresh(settings(kind), spec), 90)
    content, tensors = decode("checkpoint", found[max(found)], "file")
    for name, part in change.items():
        (tensors if name == "tensors" else content[name]).update(part)
    chosen = OnlineSettings.from_dict(content["settings"], "file")
    monkeypatch.setattr(checkpoints, "start_training", None)  # which makes it
    with pytest.raises(DamagedError, match=words):
        decoded(encode("checkpoint", content, tensors), chosen, spec)


def test_to_look_at_it_takes_no_more_room_than_what_is_stored() -> None:
    spec, chosen = box_spec(3), settings(buffer_size=10**6)
    found = images(fresh(chosen, spec), 30)
    step = max(found)
    whole = {"obs_dtype": np.float64, "device": CPU, "where": "file"}
    training, _ = decode_checkpoint(found[step], chosen, spec, look=True, **whole)
    assert training.replay.capacity == len(training.replay) == step
    assert training.settings == chosen
    assert encode_checkpoint(training, {}) == found[step]


@policies
@normalizations
def test_a_runs_critic_is_a_critic_file_like_any_other(
    kind: str, spec: PolicySpec, normalization: Any, tmp_path: Path
) -> None:
    chosen = settings(kind, normalization=normalization)
    training = fresh(chosen, spec)
    images(training, 100)
    path = tmp_path / "critic.safetensors"
    file = critic_file(training, EnvReference("LQR-v0"), SOURCE)
    file.save(path)
    loaded = load_critic(path)
    assert loaded.encode() == path.read_bytes()
    assert loaded.context.dataset == SOURCE
    assert loaded.fit.settings == chosen.fit_settings()
    assert np.array_equal(loaded.normaliser.mean, training.normaliser.mean)
    weights = training.fit.critic.state_dict()
    assert all(torch.equal(w, weights[n]) for n, w in loaded.critic.state_dict().items())
    theta = training.theta.detach().numpy()
    assert np.array_equal(loaded.predict(theta), file.predict(theta))
    assert np.isfinite(loaded.predict(theta)).all()
    # It grows policies without the run.
    grown = synthesize(loaded, SynthesisSettings(2, 3, 0.01, 0, states=5))
    assert grown.policies.theta.shape == (2, spec.size)
    # What it keeps: the observations acted on, and policies with the returns they had.
    observations, first = loaded.context.observations, loaded.context.initial_observations
    assert len(observations) == (len(training.replay.observations))
    assert {tuple(o) for o in observations} <= {tuple(o) for o in training.replay.observations}
    assert np.array_equal(np.unique(first, axis=0), np.unique(
        training.replay.initial_observations, axis=0))  # fmt: skip
    kept, returns = training.replay.policies()
    assert np.array_equal(loaded.context.returns, returns)
    shown = kept.in_normaliser(training.normaliser.mean, training.normaliser.std)
    assert np.array_equal(loaded.context.theta, shown)


@policies
def test_a_critic_can_be_taken_at_the_very_first_step(kind: str, spec: PolicySpec) -> None:
    taken: list[bytes] = []
    training = fresh(settings(kind), spec)
    hooks = Hooks(watch=lambda t: taken.append(critic_image(t)), at=(1,))
    train(training, make_toy(spec), 3, hooks)
    content, tensors = decode("critic", taken[0], "file")
    assert content["updates"] == training.fit.updates  # its first episode has one step
    assert len(tensors["dataset_theta"]) == 1


def test_taking_a_critic_changes_nothing() -> None:
    spec, chosen = box_spec(3), settings()
    plain = fresh(chosen, spec)
    want = images(plain, 100)
    taking = fresh(chosen, spec)
    found: dict[int, bytes] = {}

    def note(training: Training, record: Any, episode: Any) -> None:
        critic_image(training)
        found[training.steps] = encode_checkpoint(training, {})

    hooks = Hooks(watch=critic_image, at=tuple(range(1, 100, 3)), episode=note)  # type: ignore[arg-type]
    train(taking, make_toy(spec), 100, hooks)
    assert found == want
    assert critic_image(taking) == critic_image(plain)
