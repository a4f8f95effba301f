from __future__ import annotations

import copy
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pbvf_offline.critics.network as network_module
import pbvf_offline.fit.critic_context as module
import pbvf_offline.fit.critic_file as critic_file
from libtools import box_spec, make_data, make_episode, make_file, make_policies, of_newer_version
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import (
    DamagedError,
    IncompatibleError,
    UnsafeError,
    UsageError,
)
from pbvf_offline.fit.critic_file import KIND, load_critic
from pbvf_offline.fit.rounds import ImaginedFit, Round, RoundSettings
from pbvf_offline.io.tensor_file import decode, encode
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.episodes import stack_episodes
from pbvf_offline.synthesis.prediction import predict


@pytest.mark.parametrize("kind", ["pssvf", "psvf", "pavf"])
@pytest.mark.parametrize("updates", [0, 5, 103])
def test_round_trip(kind: str, updates: int, tmp_path: Path) -> None:
    file = make_file(kind, updates, validation=0.3)
    path = tmp_path / "c.safetensors"
    file.save(path)
    loaded = load_critic(path)
    assert loaded.encode() == path.read_bytes() == file.encode()
    assert loaded.fit.settings == file.fit.settings
    assert loaded.fit.updates == updates
    assert (loaded.fit.record, loaded.fit.pending) == (file.fit.record, file.fit.pending)
    assert loaded.validation == file.validation
    assert loaded.context.environment == EnvReference("LQR-v0")
    theta = file.context.theta[:3]
    assert np.array_equal(loaded.predict(theta), file.predict(theta))
    points = torch.from_numpy(theta)
    assert torch.equal(loaded.context.region.distance(points), file.context.region.distance(points))


def test_context_of_a_dataset() -> None:
    policies = make_policies(box_spec(), 3)
    episodes = [
        make_episode(policies, [0, 1], [2, 1], rewards=[1, 2, 4]),
        make_episode(policies, [0], [2], rewards=[10, 20], end="truncated"),
        make_episode(policies, [2], [1], rewards=[7]),
    ]
    data = stack_episodes(policies.spec, episodes)
    context = make_file(data=data, updates=1).context
    # Mean undiscounted return of each policy's segments: (3 + 30) / 2, 4, 7.
    assert context.returns.tolist() == [16.5, 4.0, 7.0]
    assert np.array_equal(context.theta, policies.theta)
    assert np.array_equal(context.observations, data.transitions.obs)
    assert np.array_equal(context.initial_observations, data.initial_observations)


def test_context_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OBSERVATIONS", 7)
    monkeypatch.setattr(module, "MAX_INITIAL", 3)
    monkeypatch.setattr(module, "MAX_POLICIES", 4)
    data = make_data(policies=10)
    file = make_file(data=data)
    context = file.context
    assert context.observations.shape == (7, 2)
    assert context.initial_observations.shape == (3, 2)
    assert len(context.theta) == len(context.returns) == 4
    stored = {o.tobytes() for o in data.transitions.obs}
    assert all(o.tobytes() in stored for o in context.observations)
    totals = np.add.reduceat(data.rewards, data.start[:-1])
    for theta, value in zip(context.theta, context.returns, strict=True):
        row = np.flatnonzero((data.policies.theta == theta).all(axis=1))[0]
        assert value == pytest.approx(totals[row])
    assert make_file(data=data).encode() == file.encode()
    other = make_file(data=data, seed=1).context
    assert not np.array_equal(other.observations, context.observations)


def test_prediction_is_the_mean_over_initial_observations() -> None:
    file = make_file("psvf")
    theta = file.context.theta[:2]
    states = file.normaliser.apply(file.context.initial_observations).astype(np.float32)
    with torch.no_grad():
        want = [
            file.critic.paired_values(
                torch.from_numpy(t).expand(len(states), -1), torch.from_numpy(states)
            ).mean()
            for t in theta
        ]
    assert file.predict(theta) == pytest.approx(np.array(want), abs=1e-6)


@pytest.mark.parametrize(
    ("change", "unit"),
    [
        ({"gamma": 0.99}, "return discounted by 0.99"),
        ({"gamma": 1.0}, "undiscounted return"),
        (
            {"gamma": 0.9, "reward": "without-survival"},
            "return discounted by 0.9, without the survival bonus",
        ),
    ],
)
def test_the_unit_of_a_prediction(change: dict[str, Any], unit: str) -> None:
    file = make_file("pssvf", 1)
    settings = dataclasses.replace(file.fit.settings, **change)
    file = dataclasses.replace(file, fit=dataclasses.replace(file.fit, settings=settings))
    assert file.unit == unit
    done = Round(0, 1, 0.0, 0.0, 0.0, 0.0)
    rounds = ImaginedFit("1" * 64, 7, RoundSettings(seed=0, lr=0.1), done, (done,))
    imagined = dataclasses.replace(file, imagined=rounds)
    assert imagined.unit == f"cautious imagined {unit}"


def test_every_flipped_byte_and_truncation_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    image = make_file("pssvf", 1).encode()
    given = {"image": b""}
    monkeypatch.setattr(critic_file, "read_tensor_file", lambda path: given["image"])
    load_path = Path("c.safetensors")
    for at in range(len(image)):
        bad = bytearray(image)
        bad[at] ^= (at % 255) + 1
        for given["image"] in (bytes(bad), image[:at]):
            with pytest.raises((DamagedError, IncompatibleError, UnsafeError)):
                load_critic(load_path)
    given["image"] = image
    load_critic(load_path)


def test_nothing_of_this_machine_is_inside() -> None:
    import getpass
    import socket

    image = make_file().encode()
    for secret in (str(Path.home()), str(Path.cwd()), socket.gethostname()):
        assert len(secret) < 3 or secret.encode() not in image
    assert f'"{getpass.getuser()}"'.encode() not in image


NASTY: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    2**31,
    2**63,
    10**400,
    1e300,
    "",
    "x",
    [],
    [[]],
    [[1, 1e300], [2, 3]],
    ["a"],
    {},
    {"a": 1},
]


@pytest.mark.parametrize("fingerprint", [0, 3])
def test_nasty_content_is_refused_or_harmless(fingerprint: int, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    content, tensors = decode(KIND, make_file(fingerprint=fingerprint).encode(), "x")
    places = [(key,) for key in content]
    places += [("config", key) for key in content["config"]]
    places += [("settings", key) for key in content["settings"]]
    places += [("config", "spec", key) for key in content["config"]["spec"]]
    for place in places:
        for value in NASTY:
            bad = copy.deepcopy(content)
            target: Any = bad
            for key in place[:-1]:
                target = target[key]
            target[place[-1]] = value
            path.write_bytes(encode(KIND, bad, tensors))
            try:
                loaded = load_critic(path)
            except (DamagedError, UnsafeError, IncompatibleError):
                continue
            loaded.encode()
            loaded.predict(loaded.context.theta[:1])


@pytest.mark.parametrize("fingerprint", [0, 3])
def test_missing_misshapen_and_infinite_tensors(fingerprint: int, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    content, tensors = decode(KIND, make_file(fingerprint=fingerprint).encode(), "x")

    def refused(changed: dict[str, Any], note: str) -> None:
        path.write_bytes(encode(KIND, content, changed))
        with pytest.raises(DamagedError) as caught:
            load_critic(path)
        assert caught.value.where == str(path), note

    for name, array in tensors.items():
        refused({k: v for k, v in tensors.items() if k != name}, name)
        refused({**tensors, name: np.stack([array, array])}, name)
        if array.dtype.kind == "f":
            bad = array.copy()
            bad.flat[0] = np.nan
            refused({**tensors, name: bad}, name)
            other = np.float32 if array.dtype == np.float64 else np.float64
            refused({**tensors, name: array.astype(other)}, name)
    refused({**tensors, "critic/network.more": np.zeros(3, np.float32)}, "extra")
    refused({**tensors, "obs_std": -tensors["obs_std"]}, "std")
    refused({**tensors, "obs_std": np.full_like(tensors["obs_std"], 1e-310)}, "tiny std")
    scale = tensors["critic/theta_scale"]
    for number in (0.0, -1.0, 1e-40):
        refused({**tensors, "critic/theta_scale": np.full_like(scale, number)}, "scale")
    refused({**tensors, "observations": tensors["observations"][:0]}, "no states")
    refused({**tensors, "dataset_returns": tensors["dataset_returns"][:-1]}, "returns")


@pytest.mark.parametrize(
    "change",
    [
        {"hidden": [65_536] * 3},
        {"hidden": [1000] * 40},
        {"hidden": [65_536]},
        {"spec": box_spec(2, (65_536,)).to_dict()},
        {"spec": box_spec(2, (9_000, 9_000)).to_dict()},
        {"fingerprint": 4_096},
    ],
)
def test_a_bomb_is_refused_before_it_is_built(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.safetensors"
    content, tensors = decode(KIND, make_file().encode(), "x")
    content["config"] |= change
    path.write_bytes(encode(KIND, content, tensors))
    # Private: the one place that allocates weights, to see that nothing large is allocated.
    uniform = network_module._uniform

    def small(rng: Any, fan_in: int, shape: tuple[int, ...]) -> Any:
        if np.prod(shape) > 100_000:
            pytest.fail(f"allocates {shape}")
        return uniform(rng, fan_in, shape)

    monkeypatch.setattr(network_module, "_uniform", small)
    with pytest.raises((DamagedError, UnsafeError)):
        load_critic(path)


def test_refused_files(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    with pytest.raises(UsageError, match="does not exist"):
        load_critic(path)
    path.write_bytes(pickle.dumps({"weights": 1}))
    with pytest.raises(UnsafeError) as caught:
        load_critic(path)
    assert caught.value.exit_code == 4
    torch.save({"w": torch.zeros(2)}, path)
    with pytest.raises(UnsafeError):
        load_critic(path)
    path.write_bytes(encode("policies", {}, {}))
    with pytest.raises(IncompatibleError, match="is a policies file"):
        load_critic(path)


def test_a_kind_of_the_future(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    content, tensors = decode(KIND, make_file().encode(), "x")
    path.write_bytes(encode(KIND, {**content, "kind": "quantile"}, tensors))
    with pytest.raises(IncompatibleError, match="upgrade") as caught:
        load_critic(path)
    assert caught.value.exit_code == 5


def test_a_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    path.write_bytes(of_newer_version(KIND, make_file().encode()))
    with pytest.raises(IncompatibleError, match="upgrade"):
        load_critic(path)


def test_a_malformed_environment(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    content, tensors = decode(KIND, make_file().encode(), "x")
    for environment in ({"id": "x"}, "LQR-v0", []):
        path.write_bytes(encode(KIND, {**content, "environment": environment}, tensors))
        with pytest.raises(DamagedError, match="environment"):
            load_critic(path)


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("config", {"gamma": 0.5}),
        ("config", {"reward": "without-survival"}),
        ("settings", {"kind": "pssvf"}),
        (None, {"quantile": 1e-320}),
    ],
)
def test_a_critic_that_contradicts_how_it_was_fitted(
    tmp_path: Path, part: str | None, changes: dict[str, Any]
) -> None:
    path = tmp_path / "c.safetensors"
    content, tensors = decode(KIND, make_file("psvf").encode(), "x")
    (content if part is None else content[part]).update(changes)
    path.write_bytes(encode(KIND, content, tensors))
    with pytest.raises(DamagedError):
        load_critic(path)


@pytest.mark.parametrize(
    ("horizon", "kept"), [(0, {}), (10**12, {}), (7, {"number": 2}), (7, {"cautious": 1e6})]
)
def test_rounds_that_contradict_themselves(
    tmp_path: Path, horizon: int, kept: dict[str, Any]
) -> None:
    done = Round(0, 1, 0.0, 0.0, 0.0, 0.0)
    rounds = ImaginedFit("1" * 64, 7, RoundSettings(seed=0), done, (done,))
    path = tmp_path / "c.safetensors"
    file = dataclasses.replace(make_file("pssvf", 1), imagined=rounds)
    path.write_bytes(file.encode())
    load_critic(path)
    content, tensors = decode(KIND, file.encode(), "x")
    content["imagined"]["horizon"] = horizon
    content["imagined"]["kept"] |= kept
    path.write_bytes(encode(KIND, content, tensors))
    with pytest.raises(DamagedError, match=r"c\.safetensors"):
        load_critic(path)


@pytest.mark.parametrize("part", ["no policies", "no region"])
def test_a_critic_without_policies_or_with_a_flat_trust_region(tmp_path: Path, part: str) -> None:
    path = tmp_path / "c.safetensors"
    content, tensors = decode(KIND, make_file("pssvf", 1).encode(), "x")
    tensors = dict(tensors)
    if part == "no region":
        tensors["region_factor"] = np.zeros_like(tensors["region_factor"])
    else:
        for name in ("dataset_theta", "dataset_returns"):
            tensors[name] = tensors[name][:0]
    path.write_bytes(encode(KIND, content, tensors))
    with pytest.raises(DamagedError, match="its parts contradict each other"):
        load_critic(path)


@pytest.mark.parametrize(
    "changes",
    [{"gamma": 10**300}, {"gamma": -0.5}, {"reward": "/etc/passwd"}, {"n_step": 0}],
    ids=["gamma", "negative gamma", "reward", "n_step"],
)
def test_fit_settings_out_of_range(tmp_path: Path, changes: dict[str, Any]) -> None:
    content, tensors = decode("critic", make_file("psvf").encode(), "x")
    content["settings"] |= changes
    path = tmp_path / "critic.safetensors"
    path.write_bytes(encode("critic", content, tensors))
    with pytest.raises(DamagedError, match=r"critic\.safetensors: settings: "):
        load_critic(path)


def test_policies_are_judged_in_the_critics_normaliser_and_bare_thetas_as_they_are() -> None:
    file = make_file("pssvf")
    own = file.policies(file.context.theta)
    moved = own.obs_mean + 1.0, own.obs_std * 2
    theta = own.in_normaliser(moved[0][0], moved[1][0])
    other = Policies(own.spec, theta, *moved)
    assert file.predict(other) == pytest.approx(file.predict(own), abs=1e-5)
    assert np.array_equal(file.predict(own), file.predict(own.theta))


def test_policies_of_other_observations_are_refused_as_such() -> None:
    file, other = make_file(), make_policies(box_spec(5), 2)
    for refused in (lambda: file.predict(other), lambda: predict(file, other)):
        with pytest.raises(IncompatibleError, match=r"policies from 2 observations to .* 5"):
            refused()
    with pytest.raises(IncompatibleError, match=r"shape \(2, 6\), and \(K, 3\) is needed"):
        file.predict(other.theta)
    with pytest.raises(IncompatibleError, match="observe 5 numbers, and the normaliser is of 2"):
        other.in_normaliser(file.normaliser.mean, file.normaliser.std)
