"""Verify: all that is wrong is found and named, and what is good is called intact."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import shutil
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import safetensors.numpy
import torch

import hostile
import make_episodes
import watching
from libtools import (
    box_spec,
    discrete_spec,
    make_episode,
    make_file,
    make_policies,
    online_settings,
)
from pbvf_datasets import load_dataset
from pbvf_datasets.format.recompute import (
    ACTION_TOLERANCE,
    LOGIT_TOLERANCE,
    expected_action,
    wrong_actions,
)
from pbvf_datasets.format.schema import DATA_FILE, METADATA_FILE
from pbvf_datasets.inspect import findings, verify_dataset
from pbvf_datasets.inspect.verify import verify
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import (
    DamagedError,
    IncompatibleError,
    ResourceError,
    UnsafeError,
    UsageError,
)
from pbvf_offline.io.tensor_file import decode, encode
from pbvf_offline.online.checkpoint import encode_checkpoint
from pbvf_offline.online.training import start_training
from pbvf_offline.policies.families.mlp import MLP
from pbvf_offline.policies.files import PoliciesFile
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories, stack_episodes


def texts(found: findings.Verification) -> list[str]:
    return [str(problem) for problem in found.problems]


def manifest(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
    return value


# ------------------------------------------------------------------------------ datasets


def test_what_does_not_belong_to_a_dataset_is_named(folder: Path) -> None:
    (folder / "data/more.hdf5").touch()
    for n in range(9):
        (folder / f"notes-{n}").mkdir()
    found = verify(folder)
    assert (found.status, len(found.warnings)) == ("intact", 1)
    assert "was not checked: data/more.hdf5, notes-0, " in found.warnings[0]
    assert found.warnings[0].endswith("notes-6 and 2 more")


def test_a_good_dataset_is_intact(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    found = verify(folder, progress=lambda done, total: told.append((done, total)))
    assert found.status == "intact", texts(found)
    assert (found.kind, found.problems, found.warnings, found.error) == ("dataset", (), (), None)
    assert found.digest == manifest(folder)["digest"]
    assert found.counts == {"episodes": 3, "steps": 60, "policies": 6}
    assert found.safe_for_minari is True
    assert told == [(20, 60), (40, 60), (60, 60)]
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    "spec",
    [
        make_episodes.BOX_SPEC,
        make_episodes.DISCRETE_SPEC,
        make_episodes.STOCHASTIC_SPEC,
        dataclasses.replace(make_episodes.DISCRETE_SPEC, stochastic=True),
        box_spec(3, (8, 4), 2, -3.0, 7.0),
        box_spec(3, (), 1, -1.0, 1.0, "float16"),
        box_spec(3, (5,), 2, -1.0, 1.0, "float64"),
        box_spec(3, (), 2, -0.5, 0.5, squash="none"),
        discrete_spec(3, (), 4, start=-1),
    ],
    ids=lambda s: f"{s.arch}-{s.squash}-{s.stochastic}-{s.actions}",
)
def test_every_kind_of_policy_is_intact(spec: PolicySpec, tmp_path: Path) -> None:
    made = [make_episodes.make_episode(spec, i, cut=i == 1, terminated=i == 2) for i in range(4)]
    folder = hostile.make(tmp_path, spec=spec, episodes=made)
    found = verify(folder)
    assert found.status == "intact", texts(found)
    assert found.counts["policies"] == 12


def test_what_is_called_safe_stock_minari_opens_without_a_look_outside(
    folder: Path, tmp_path: Path
) -> None:
    """A flipped value is damage, and opening it does no harm."""
    from minari import MinariDataset

    hostile.DAMAGED["infinite rewards"].spoil(folder, tmp_path)
    found = verify(folder)
    assert (found.status, found.safe_for_minari) == ("damaged", True)
    secret = hostile.outside(tmp_path / "outside")
    with watching.watching(secret) as watch:
        assert len(list(MinariDataset(folder / "data").iterate_episodes())) == 3
    assert watch.touched == []


def test_where_a_check_ends_early_minari_is_not_called_safe(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b"{}")
    found = verify(folder)
    assert (found.status, found.safe_for_minari) == ("damaged", False)
    assert "could not be checked" in found.minari_reason


def test_the_reason_names_what_recover_environment_would_import(folder: Path) -> None:
    path = folder / METADATA_FILE
    metadata = json.loads(path.read_text())
    layers = [{"entry_point": "evil_layer:Layer"}, 1]
    spec = json.dumps(json.loads(hostile.EVIL_SPEC) | {"additional_wrappers": layers})
    path.write_text(json.dumps(metadata | {"env_spec": spec}))
    hostile.reseal(folder)
    found = verify(folder)
    assert found.status == "intact"
    assert found.safe_for_minari is True
    assert "would import evil_environment:Evil, evil_layer:Layer" in found.minari_reason


@pytest.mark.parametrize(
    "value",
    [np.zeros(4_000), np.array(["a", "b"], dtype=object)],
    ids=["large", "variable length"],
)
def test_attributes_that_minari_would_swallow(
    folder: Path, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pbvf_datasets.inspect.minari_safety.MAX_ATTRIBUTE_BYTES", 10_000)
    with h5py.File(folder / DATA_FILE, "r+", libver=("v110", "v110")) as file:
        file["episode_1"].attrs["name"] = "one text is fine"
    hostile.reseal(folder)
    assert verify(folder).safe_for_minari is True
    with h5py.File(folder / DATA_FILE, "r+", libver=("v110", "v110")) as file:
        file["episode_2"].attrs["odd"] = value
    hostile.reseal(folder)
    found = verify(folder)
    assert (found.status, found.safe_for_minari) == ("intact", False)
    assert "episode_2: its attribute odd" in found.minari_reason


def test_all_problems_are_reported(folder: Path, tmp_path: Path) -> None:
    for name in ("episode_0/rewards", "episode_0/infos/theta", "episode_2/observations"):
        hostile.flip(name)(folder, tmp_path)
    hostile.set_values("episode_1/rewards", 3, np.nan)(folder, tmp_path)
    hostile.set_values("episode_1/infos/obs_mean", (0, 0), np.inf)(folder, tmp_path)
    (folder / METADATA_FILE).write_bytes((folder / METADATA_FILE).read_bytes() + b" ")
    found = verify(folder)
    where = [(p.where or "").removeprefix(f"{folder}/") for p in found.problems]
    assert sorted(where[:5]) == [
        f"{DATA_FILE}: episode_0/infos/theta",
        f"{DATA_FILE}: episode_0/rewards",
        f"{DATA_FILE}: episode_1/infos/obs_mean",
        f"{DATA_FILE}: episode_1/rewards",
        f"{DATA_FILE}: episode_2/observations",
    ]
    assert where[5:] == [DATA_FILE, METADATA_FILE]


@pytest.mark.parametrize("long", [1, 10_000], ids=["in a thread", "at once"])
def test_problems_come_in_the_order_of_episodes(
    long: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_dataset, "LONG_EPISODE", long)
    for place in ("episode_0/actions", "episode_2/actions"):
        hostile.set_values(place, (3, 0), 0.123)(folder, tmp_path)
    hostile.set_values("episode_1/rewards", 3, np.nan)(folder, tmp_path)
    hostile.reseal(folder)
    where = [
        (p.where or "").removeprefix(f"{folder}/{DATA_FILE}: ") for p in verify(folder).problems
    ]
    assert where == ["episode_0/actions", "episode_1/rewards", "episode_2/actions"]


def test_a_failure_of_the_thread_is_not_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(verify_dataset, "LONG_EPISODE", 1)
    monkeypatch.setattr(verify_dataset, "action_error", fail)
    with pytest.raises(ResourceError, match="not enough memory"):
        verify(folder)


def test_the_worst_problem_is_the_error(folder: Path, tmp_path: Path) -> None:
    hostile.flip("episode_0/rewards")(folder, tmp_path)
    link = hostile.link("episode_2/infos/x", lambda _: h5py.SoftLink("/nowhere"))
    link(folder, tmp_path)
    found = verify(folder)
    assert found.status == "unsafe"
    assert isinstance(found.error, UnsafeError)
    assert any("episode_0/rewards" in text for text in texts(found))


def test_problems_without_end_are_cut_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "MAX_PROBLEMS", 2)
    with h5py.File(folder / DATA_FILE, "r+", libver=("v110", "v110")) as file:
        for i in range(3):
            file[f"episode_{i}/rewards"][...] = np.nan
    found = verify(folder)
    assert len(found.problems) == 2
    assert any("more than" in text for text in found.warnings)
    assert found.safe_for_minari is False


def test_an_edited_card_only_warns(folder: Path) -> None:
    card = folder / "README.md"
    data = bytearray(card.read_bytes())
    data[len(data) // 2] ^= 1
    card.write_bytes(data)
    found = verify(folder)
    assert found.status == "intact"
    assert len(found.warnings) == 1
    assert "README.md" in found.warnings[0]


def test_without_a_manifest_it_is_unverified(folder: Path) -> None:
    hostile.unseal(folder)
    found = verify(folder)
    assert (found.status, found.problems, found.manifest) == ("unverified", (), False)
    assert "manifest.json" in found.warnings[0]
    assert found.safe_for_minari is True


def test_damage_is_found_without_a_manifest_too(folder: Path) -> None:
    hostile.unseal(folder)
    with h5py.File(folder / DATA_FILE, "r+", libver=("v110", "v110")) as file:
        file.create_dataset(
            "episode_1/infos/mine", data=np.arange(9.0), chunks=(9,), fletcher32=True
        )
    assert verify(folder).status == "unverified"
    hostile.flip("episode_1/infos/mine")(folder, folder)
    found = verify(folder)
    assert found.status == "damaged"
    assert "episode_1/infos/mine" in str(found.error)


# ------------------------------------------------------------- what files say of themselves


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p["stats"].update(episodes=4), "episodes 4; the data have 3"),
        (lambda p: p["stats"].update(steps=61), "steps 61; the data have 60"),
        (lambda p: p["stats"].update(policies=5), "policies 5; the data have 6"),
        (lambda p: p["stats"].update(cut=1), "cut 1; the data have 0"),
        (lambda p: p["stats"].update(terminated=2), "terminated 2; the data have 0"),
        (lambda p: p["stats"].update(length={"mean": 20, "min": 3, "max": 20}), "length"),
        (lambda p: p["stats"].update(length=7), "stats.length is a int"),
        (lambda p: p["stats"]["length"].update(mean=19.5), "length"),
        (lambda p: p["stats"].update(normalisers=2), "normalisers 2; the data have 1"),
        (lambda p: p["stats"].update({"return": None}), "return None"),
        (lambda p: p["stats"]["return"].update(mean=1e6), "return"),
        (lambda p: p["spec"].update(hidden=[3]), "spec"),
    ],
)
def test_a_manifest_that_lies_about_the_data(
    change: Callable[[dict[str, Any]], object], words: str, folder: Path
) -> None:
    hostile.rewrite_manifest(folder, lambda m: change(m["provenance"]))
    found = verify(folder)
    assert found.status == "damaged"
    assert len(found.problems) == 1
    assert f"{folder}/manifest.json" in texts(found)[0]
    assert words in texts(found)[0]


def test_a_whole_episode_less_and_no_return(tmp_path: Path) -> None:
    cut = [dataclasses.replace(hostile.episode(0), cut="budget")]
    found = verify(hostile.make(tmp_path, episodes=cut))
    assert found.status == "intact", texts(found)


@pytest.mark.parametrize(
    ("environment", "word"),
    [
        ({"id": "evil:Env-v0", "module": None, "kwargs": {}, "withheld": []}, "evil:Env-v0"),
        (
            {"id": "A-v0", "module": None, "kwargs": {"xml_file": "/etc/x"}, "withheld": []},
            "xml_file",
        ),
    ],
)
def test_an_environment_that_would_run_or_open_something(
    environment: dict[str, Any], word: str, folder: Path, tmp_path: Path
) -> None:
    hostile.rewrite_manifest(folder, lambda m: m["provenance"].update(environment=environment))
    found = verify(folder)
    assert found.status == "unsafe"
    assert word in str(found.error)
    assert "--env" in str(found.error)

    policies = PoliciesFile(make_policies(box_spec(), 2), EnvReference.from_dict(environment, ""))
    policies.save(tmp_path / "p.safetensors")
    assert verify(tmp_path / "p.safetensors").status == "unsafe"
    file = make_file()
    context = dataclasses.replace(file.context, environment=policies.environment)
    dataclasses.replace(file, context=context).save(tmp_path / "c.safetensors")
    assert verify(tmp_path / "c.safetensors").status == "unsafe"


def test_a_user_s_own_module_beside_the_id_is_fine(folder: Path) -> None:
    own = {"id": "Toy-v0", "module": "toyenv", "kwargs": {"length": 3}, "withheld": ["path"]}
    hostile.rewrite_manifest(folder, lambda m: m["provenance"].update(environment=own))
    assert verify(folder).status == "intact"


# ------------------------------------------------------------------- tags and actions


@pytest.mark.parametrize("seed", [2**63, 2**64 - 1])
def test_a_seed_that_no_reset_takes_is_named(seed: int, folder: Path, tmp_path: Path) -> None:
    hostile.attribute("seed", np.uint64(seed))(folder, tmp_path)
    hostile.reseal(folder)
    for text in (str(verify(folder).error), str(refused(folder))):
        assert f"episode_1: its seed is {seed}" in text


def refused(folder: Path) -> DamagedError:
    with pytest.raises(DamagedError) as caught:
        load_dataset(str(folder))
    return caught.value


def test_tags_of_another_episode_are_noticed(folder: Path, tmp_path: Path) -> None:
    with h5py.File(folder / DATA_FILE, "r+", libver=("v110", "v110")) as file:
        theta = file["episode_0/infos/theta"][()]
        file["episode_1/infos/theta"][...] = theta
    hostile.reseal(folder)
    found = verify(folder)
    assert "episode_1/actions" in texts(found)[0]
    assert "20 of 20 steps" in texts(found)[0]


def test_a_policy_change_one_step_late_is_noticed(folder: Path, tmp_path: Path) -> None:
    hostile.set_values("episode_2/infos/segment", 10, 0)(folder, tmp_path)
    hostile.reseal(folder)
    found = verify(folder)
    assert found.status == "damaged"
    assert "1 of 20 steps" in texts(found)[0]
    assert "at step 10" in texts(found)[0]


@pytest.mark.parametrize("name", ["infos/obs_mean", "infos/obs_std", "observations"])
def test_normaliser_and_observations_count(name: str, folder: Path, tmp_path: Path) -> None:
    hostile.edit(f"episode_0/{name}", lambda values: values.__imul__(1.01))(folder, tmp_path)
    hostile.reseal(folder)
    assert "episode_0/actions" in str(verify(folder).error)


def one(spec: PolicySpec, steps: int = 400, seed: int = 0, policies: int = 5) -> Trajectories:
    """One episode of several policies, in float64 observations."""
    every = make_policies(spec, policies, seed, mean=[0.3, -1.0], std=[2.0, 0.1])
    rng = np.random.default_rng(seed)
    lengths = np.diff([0, *np.sort(rng.choice(np.arange(1, steps), policies - 1, False)), steps])
    episode = make_episode(every, range(policies), lengths.tolist(), rng=rng)
    return stack_episodes(spec, [episode])


SPECS = [
    box_spec(2, (), 3, -2.0, 5.0),
    box_spec(2, (16, 8), 3, -2.0, 5.0),
    box_spec(2, (16, 8), 3, -2.0, 5.0, family="relu-mlp"),
    box_spec(2, (7,), 1, 0.0, 1e-3, "float64"),
    box_spec(2, (7,), 1, 1e6, 1e6 + 1.0),
    box_spec(2, (), 2, -1.0, 1.0, squash="none"),
    discrete_spec(2, (), 5, start=2),
    discrete_spec(2, (9, 9), 4),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.arch} {s.actions}")
@pytest.mark.parametrize("small", [False, True], ids=["one batch", "small batches"])
def test_what_an_actor_did_one_by_one_is_right(
    spec: PolicySpec, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small:  # else batches would need episodes of 100,000 steps
        monkeypatch.setattr("pbvf_datasets.format.recompute._BATCH_VALUES", 100)
        monkeypatch.setattr("pbvf_datasets.format.recompute._BATCH_PARAMETERS", 200)
    assert wrong_actions(one(spec)).size == 0


@pytest.mark.parametrize("spec", SPECS[:4], ids=lambda s: f"{s.arch} {s.actions}")
def test_the_tolerance_is_the_one_promised(spec: PolicySpec) -> None:
    episode = one(spec)
    width = spec.actions.high[0] - spec.actions.low[0]
    middle = np.flatnonzero(
        (np.abs(episode.actions - spec.actions.low[0] - width / 2) < 0.4 * width).all(axis=1)
    )
    exact = np.array([expected_action(episode, int(step)) for step in middle], np.float64)
    for part, found in ((0.7, False), (1.3, True)):
        actions = episode.actions.astype(np.float64)
        actions[middle] = exact
        actions[middle, 0] += part * ACTION_TOLERANCE * width
        changed = dataclasses.replace(episode, actions=actions.astype(episode.actions.dtype))
        np.testing.assert_array_equal(wrong_actions(changed), middle if found else [])


def test_discrete_actions_may_tie_within_the_tolerance() -> None:
    spec = discrete_spec(2, (), 3)
    episode = one(spec, steps=6, policies=1)
    policies = episode.policies
    logits = np.array([policies.actor(0).logits(o) for o in episode.observations[:-1]])
    second = np.argsort(logits, axis=1)[:, -2]
    assert wrong_actions(dataclasses.replace(episode, actions=second)).size == 6
    # Biases that bring the second of step 0 to just within, and just beyond, the best.
    best = int(logits[0].argmax())
    for gap, found in ((0.6, False), (1.5, True)):
        theta = policies.theta.astype(np.float64).copy()
        theta[0, -3 + int(second[0])] += (
            logits[0, best] - logits[0, second[0]] - gap * LOGIT_TOLERANCE
        )
        changed = dataclasses.replace(policies, theta=theta.astype(np.float32))
        actions = np.array([second[0]] * 6)
        wrong = wrong_actions(dataclasses.replace(episode, policies=changed, actions=actions))
        assert (0 in wrong) is found


def test_single_precision_alone_condemns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With weights so large that single precision errs, double precision decides."""
    spec = box_spec(2, (32, 32), 1)
    episode = one(spec, steps=50, policies=1)
    large = dataclasses.replace(episode.policies, theta=episode.policies.theta * 40)
    actor = large.actor(0)
    actions = np.array([actor.act(o)[0] for o in episode.observations[:-1]])
    changed = dataclasses.replace(episode, policies=large, actions=actions)
    assert wrong_actions(changed).size == 0
    actions[7] += np.float32(0.001) if actions[7] < 0 else np.float32(-0.001)
    assert wrong_actions(dataclasses.replace(changed, actions=actions)).tolist() == [7]


def single_precision(policies: Policies, row: int, obs: np.ndarray) -> np.ndarray:
    """What an actor does that computes in single precision throughout."""
    x = obs.astype(np.float32)
    family = policies.spec.network
    assert isinstance(family, MLP)
    for k, (weight, bias) in enumerate(family.layers(policies.spec, policies.params[row])):
        if k:
            family.activation.apply(x, x)
        x = weight @ x + bias
    assert x.dtype == np.float32
    return policies.actor(row).to_action(x.astype(np.float64))


@pytest.mark.parametrize(
    ("deep", "family"), [(False, "tanh-mlp"), (True, "tanh-mlp"), (True, "relu-mlp")]
)
def test_actions_of_an_actor_in_single_precision_are_wrong_where_it_errs(
    deep: bool, family: str
) -> None:
    # Its errors are also those of a check that takes the quick way. Two large parts cancel.
    spec = box_spec(2, (2, 1) if deep else (), 1, family=family)
    episode = one(spec, steps=400, policies=2)
    cancelling = [5000.0, -4999.5, 0.0]
    theta = [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, *cancelling, 0.5, 0.0] if deep else cancelling
    policies = Policies(spec, np.tile(np.float32(theta), (2, 1)), np.zeros((2, 2)), np.ones((2, 2)))
    observations = np.repeat(episode.observations[:, :1], 2, axis=1)
    pairs = list(zip(episode.policy.tolist(), observations[:-1], strict=True))
    exact = np.array([policies.actor(row).act(obs)[0] for row, obs in pairs])
    single = np.array([single_precision(policies, row, obs) for row, obs in pairs])
    off = np.abs(single.astype(np.float64) - exact)[:, 0] > 1.1 * ACTION_TOLERANCE * 2
    assert off.sum() > 10
    changed = dataclasses.replace(
        episode, policies=policies, observations=observations, actions=single
    )
    assert set(np.flatnonzero(off)) <= set(wrong_actions(changed).tolist())
    assert wrong_actions(dataclasses.replace(changed, actions=exact)).size == 0


def test_nan_counts_as_wrong() -> None:
    spec = box_spec(2)
    episode = one(spec, steps=5, policies=1)
    actions = episode.actions.copy()
    actions[3] = np.nan
    assert wrong_actions(dataclasses.replace(episode, actions=actions)).tolist() == [3]


def test_pre_actions_of_stochastic_policies_are_squashed_again(tmp_path: Path) -> None:
    spec = make_episodes.STOCHASTIC_SPEC
    folder = hostile.make(
        tmp_path, spec=spec, episodes=[make_episodes.make_episode(spec, i) for i in range(2)]
    )
    hostile.set_values("episode_1/infos/pre_action", (4, 0), 3.0)(folder, tmp_path)
    hostile.reseal(folder)
    found = verify(folder)
    assert "episode_1/actions" in str(found.error)
    assert "at step 4" in str(found.error)


def test_stochastic_policies_without_pre_actions_cannot_be_checked(tmp_path: Path) -> None:
    spec = make_episodes.STOCHASTIC_SPEC
    made = make_episodes.make_episode(spec, 0)
    assert verify(hostile.make(tmp_path / "with", spec=spec, episodes=[made])).warnings == ()
    bare = dataclasses.replace(made, pre_action=None)
    found = verify(hostile.make(tmp_path / "without", spec=spec, episodes=[bare]))
    assert found.status == "intact"
    assert "nothing tells whether they took" in found.warnings[0]


@pytest.mark.parametrize("spec", [hostile.BOX_SPEC, make_episodes.DISCRETE_SPEC])
def test_pre_actions_do_not_excuse_a_deterministic_policy(spec: PolicySpec, tmp_path: Path) -> None:
    folder = hostile.make(tmp_path, spec=spec, episodes=[hostile.episode(0, spec)])
    with h5py.File(folder / DATA_FILE, "r+", libver=("v110", "v110")) as file:
        actions = np.zeros_like(file["episode_0/actions"][()])
        file["episode_0/actions"][...] = actions + (0 if spec.is_continuous else 1)
        steps, outputs = len(actions), spec.actions.outputs
        file["episode_0/infos/pre_action"] = np.zeros((steps + 1, outputs))
    hostile.reseal(folder)
    found = verify(folder)
    assert found.status == "damaged"
    assert "infos/pre_action: only stochastic policies" in str(found.error)
    with pytest.raises(DamagedError, match="infos/pre_action: only stochastic policies"):
        load_dataset(str(folder))


def test_memory_is_bounded_by_an_episode(tmp_path: Path) -> None:
    spec, steps = box_spec(40), 5_000
    made = [hostile.episode(i, spec, steps, policies=1) for i in range(12)]
    folder = hostile.make(tmp_path, spec=spec, episodes=made)
    size = (folder / DATA_FILE).stat().st_size / 12

    def opened(done: int, total: int) -> None:
        if done == steps:
            tracemalloc.reset_peak()  # opening is over

    tracemalloc.start()
    try:
        assert verify(folder, progress=opened).status == "intact"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * size


# ------------------------------------------------------------------- made by other tools


def test_what_minari_combined_is_unverified_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    for k, name in enumerate(("lab/one-v0", "lab/two-v0")):
        hostile.make(tmp_path, name, episodes=[hostile.episode(2 * k), hostile.episode(2 * k + 1)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = [minari.load_dataset(name) for name in ("lab/one-v0", "lab/two-v0")]
        minari.combine_datasets(parts, "lab/both-v0")
    found = verify("lab/both-v0")
    assert (found.status, found.problems) == ("unverified", ()), texts(found)
    assert found.counts == {"episodes": 4, "steps": 80, "policies": 8}
    assert found.safe_for_minari is True


def test_an_untagged_dataset_can_still_be_called_safe(folder: Path, tmp_path: Path) -> None:
    hostile.INCOMPATIBLE["no policy tags"].spoil(folder, tmp_path)
    hostile.unseal(folder)
    found = verify(folder)
    assert (found.status, len(found.problems)) == ("unverified", 1)
    assert isinstance(found.error, IncompatibleError)
    assert found.safe_for_minari is True
    hostile.set_values("episode_2/rewards", 0, np.nan)(folder, tmp_path)
    assert "episode_2/rewards" in str(verify(folder).error)


# ------------------------------------------------------------------------- tensor files


def checkpoint() -> bytes:
    settings = online_settings("pssvf", hidden=(8,))
    device = torch.device("cpu")
    training = start_training(box_spec(), settings, obs_dtype=np.float64, device=device)
    return encode_checkpoint(training, {})


@pytest.fixture(scope="module")
def images() -> dict[str, bytes]:
    return {
        "critic": make_file("psvf").encode(),
        "policies": PoliciesFile(make_policies(box_spec(), 3), EnvReference("LQR-v0")).encode(),
        "checkpoint": checkpoint(),
    }


KINDS = ["critic", "policies", "checkpoint"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_is_told_by_content(kind: str, images: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "file.hdf5"
    path.write_bytes(images[kind])
    found = verify(path)
    assert (found.kind, found.status, found.problems) == (kind, "intact", ())
    assert found.safe_for_minari is None
    assert found.digest is not None
    assert found.digest.encode() in images[kind]
    path.write_bytes(images[kind][:-1] + bytes([images[kind][-1] ^ 1]))
    found = verify(path)
    assert (found.kind, found.status, found.digest) == (kind, "damaged", None)


def test_files_of_others(tmp_path: Path, images: dict[str, bytes]) -> None:
    path = tmp_path / "other.safetensors"
    path.write_bytes(safetensors.numpy.save({"weight": np.zeros(3, np.float32)}))
    found = verify(path)
    assert (found.status, type(found.error)) == ("unverified", IncompatibleError)
    path.write_bytes(encode("painting", {}, {"a": np.zeros(2)}))
    assert isinstance(verify(path).error, IncompatibleError)
    assert "'painting'" in str(verify(path).error)
    path.write_bytes(b"hello world, this is no tensor file")
    assert verify(path).status == "damaged"
    path.write_bytes(pickle.dumps({"a": np.zeros(3)}))
    assert verify(path).status == "unsafe"


def test_parts_and_archives_of_datasets_are_wrong_usage(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="folder"):
        verify(folder / DATA_FILE)
    archive = shutil.make_archive(str(tmp_path / "a"), "tar", folder)
    with pytest.raises(UsageError, match="unpack"):
        verify(archive)


def test_what_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "nothing", tmp_path / "pipe", "lab/none-v0", ""):
        with pytest.raises(UsageError):
            verify(path)


def test_a_checkpoint_with_nan_is_damaged(tmp_path: Path, images: dict[str, bytes]) -> None:
    content, tensors = decode("checkpoint", images["checkpoint"], "")
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(encode("checkpoint", content, tensors | {"theta": tensors["theta"] * np.nan}))
    assert "theta" in str(verify(path).error)
