"""The crash-safe writer: what it checks, what survives, what stock Minari sees."""

import functools
import json
import os
import shutil

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces

from faults import Saboteur
from make_episodes import BOX_SPEC, DISCRETE_SPEC, STOCHASTIC_SPEC, make_episode
from pbvf_datasets.format.environment import safe_env_spec, safe_environment, safe_kwargs
from pbvf_datasets.format.identity import stored_settings
from pbvf_datasets.format.schema import FIELDS, parse_episode_blob
from pbvf_datasets.format.statistics import return_stats
from pbvf_datasets.write.writer import DatasetWriter
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    DivergedError,
    IncompatibleError,
    ResourceError,
    UnsafeError,
    UsageError,
)
from pbvf_offline.rollout.episodes import Episode
from writer_tools import ACT, EPISODES, NAME, OBS, content, names, run, writer


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    root = tmp_path_factory.mktemp("reference")
    run(root)
    return content(root)


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


# ------------------------------------------------------------------------- what is written


def test_a_finished_dataset(root):
    w = run(root)
    assert names(root / "lab") == ["toy-v0"]
    manifest = json.loads(content(root)["manifest.json"])
    assert manifest == w.manifest
    provenance = manifest["provenance"]
    returns = [float(e.rewards.sum()) for e in EPISODES]
    stats = provenance["stats"]
    assert stats["return"] == {
        "mean": pytest.approx(np.mean(returns)),
        "min": pytest.approx(min(returns)),
        "max": pytest.approx(max(returns)),
    }
    assert {k: v for k, v in stats.items() if k != "return"} == {
        "episodes": 5,
        "steps": 24,
        "policies": sum(-(-len(e) // 3) for e in EPISODES),
        "normalisers": len(EPISODES),
        "cut": 0,
        "terminated": 0,
        "length": {"mean": 4.8, "min": 1, "max": 9},
    }
    assert provenance["warmup_steps"] == 40
    assert provenance["settings"] == {"sigma": 0.5, "policy": {"arch": "linear"}}
    assert provenance["environment"] == {
        "id": "Toy-v0",
        "module": "toy",
        "kwargs": {"n": 1},
        "withheld": [],
    }


def test_bytes_do_not_depend_on_shards_or_pauses(root, reference):
    for episode in EPISODES[:3]:
        with writer(root) as w:
            if w.state is None:
                w.set_state({"mean": [0.1, 1 / 3], "warmup_steps": 40})
            w.add(episode)
    assert len(list((root / "lab/.toy-v0.collecting").glob("shard-*"))) == 3
    run(root)
    assert content(root) == reference


def test_cut_episodes_count_in_no_return(root):
    with writer(root) as w:
        w.add(EPISODES[0])
        w.add(EPISODES[2].truncate(4))
        assert w.steps_done == 9
        stats = w.finish()["provenance"]["stats"]
    assert stats["cut"] == 1
    assert stats["return"]["max"] == pytest.approx(EPISODES[0].rewards.sum())
    with h5py.File(root / NAME / "data/main_data.hdf5") as file:
        blob = file["episode_1/infos/pbvf"][()].tobytes()
        assert parse_episode_blob(blob, "x") == (BOX_SPEC, "budget")
        assert file["episode_1/truncations"][-1]


def test_return_stats_of_nothing_and_of_huge_numbers():
    assert return_stats([]) is None
    assert return_stats([1.5e308, 1.5e308])["mean"] == 1.5e308


def test_arrays_are_copied(root):
    episode = make_episode(BOX_SPEC, 0)
    kept = episode.observations.copy()
    with writer(root) as w:
        w.add(episode)
        episode.observations[:] = 0
        w.finish()
    with h5py.File(root / NAME / "data/main_data.hdf5") as file:
        assert np.array_equal(file["episode_0/observations"][()], kept)


def test_state_comes_back_exactly(root):
    state = {"std": [0.1, 1e-300, 1 / 3, float(np.nextafter(1, 2))], "warmup_steps": 7}
    with writer(root) as w:
        assert w.state is None
        w.set_state(state)
    with writer(root) as w:
        assert w.state == state
        w.set_state(state)
        with pytest.raises(UsageError, match="only once"):
            w.set_state({"std": []})
        w.add(EPISODES[0])
        assert w.finish()["provenance"]["warmup_steps"] == 7
        with pytest.raises(UsageError, match="complete"):
            w.add(EPISODES[0])


def test_state_must_precede_the_episodes(root):
    with writer(root) as w:
        w.add(EPISODES[0])
        with pytest.raises(UsageError, match="before the first episode"):
            w.set_state({})


def test_a_loop_of_ones_own_needs_only_id_spec_and_env(root):
    env = gym.make("CartPole-v1", max_episode_steps=20)
    theta = np.zeros(DISCRETE_SPEC.size)
    with DatasetWriter("lab/mine-v0", DISCRETE_SPEC, env=env) as w:
        for seed in range(3):
            observations, actions, rewards = [env.reset(seed=seed)[0]], [], []
            done = False
            while not done:
                actions.append(0)
                obs, reward, terminated, truncated, _ = env.step(0)
                observations.append(obs)
                rewards.append(reward)
                done = terminated or truncated
            w.add_arrays(
                observations=observations,
                actions=actions,
                rewards=rewards,
                terminated=terminated,
                theta=theta,
                seed=seed,
            )
        manifest = w.finish()
    env.close()
    assert manifest["provenance"]["environment"] == {
        "id": "CartPole-v1",
        "module": None,
        "kwargs": {"max_episode_steps": 20},
        "withheld": [],
    }
    dataset = minari.load_dataset("lab/mine-v0")
    assert dataset.total_episodes == 3
    assert dataset.env_spec.max_episode_steps == 20
    assert dataset[0].observations.dtype == np.float32
    assert dataset[0].infos["theta"].dtype == np.float32
    with DatasetWriter("lab/mine-v0", DISCRETE_SPEC, env=env) as w:
        assert w.complete


class Point(gym.Env):
    observation_space = OBS
    action_space = ACT


@pytest.mark.parametrize(
    ("point", "module"),
    [
        ("their.place:Env", "their.place"),
        (Point, Point.__module__),
        (functools.partial(Point), Point.__module__),
        ("gymnasium_robotics.envs.fetch.reach:MujocoFetchReachEnv", "gymnasium_robotics"),
        ("gymnasium.envs.mujoco.swimmer_v5:SwimmerEnv", None),
        ("pbvf_offline.envs.lqr:LQREnv", None),
        ("__main__:Env", None),
        (None, None),
    ],
)
def test_the_module_that_registers_an_environment_is_that_of_its_entry_point(root, point, module):
    env = Point()
    env.spec = gym.envs.registration.EnvSpec("Point-v0", entry_point=point)
    with DatasetWriter("lab/mine-v0", BOX_SPEC, env=env) as w:
        w.add(EPISODES[0])
        manifest = w.finish()
    assert manifest["provenance"]["environment"]["module"] == module


def test_a_dataset_from_before_modules_were_recorded_is_still_the_same(root):
    env = Point()
    env.spec = gym.envs.registration.EnvSpec("Point-v0", entry_point=Point)
    before = {"id": "Point-v0", "kwargs": {}}
    with DatasetWriter("lab/mine-v0", BOX_SPEC, env=env, environment=before) as w:
        w.add(EPISODES[0])
    with DatasetWriter("lab/mine-v0", BOX_SPEC, env=env) as w:
        assert w.episodes_done == 1
        w.finish()
    with DatasetWriter("lab/mine-v0", BOX_SPEC, env=env) as w:
        assert w.complete


def test_add_arrays_takes_segments_and_normalisers(root):
    with writer(root) as w:
        w.add_arrays(
            observations=np.zeros((4, 3)),
            actions=[[0.5], [1.0], [-2.0]],
            rewards=[1, 2, 3],
            terminated=True,
            theta=np.zeros((2, 4)),
            segment=[0, 1, 1],
            obs_mean=[1, 2, 3],
            obs_std=[1, 1, 2],
        )
        w.finish()
        with pytest.raises(UsageError, match="complete"):
            w.add_arrays(observations=[], actions=[], rewards=[0], terminated=True, theta=[0])
    with h5py.File(root / NAME / "data/main_data.hdf5") as file:
        assert file["episode_0/infos/segment"][()].tolist() == [0, 1, 1, 1]
        assert file["episode_0/infos/obs_mean"][()].tolist() == [[1, 2, 3]] * 2
        assert file["episode_0/rewards"].dtype == np.float64
        assert file["episode_0/terminations"][()].tolist() == [False, False, True]


# --------------------------------------------------------------------------- what is refused


def changed(episode=None, **changes):
    episode = episode or make_episode(BOX_SPEC, 0)
    values = {name: getattr(episode, name) for name in Episode.__dataclass_fields__}
    return Episode(**{**values, **changes})


GOOD = make_episode(BOX_SPEC, 0)
NAN = GOOD.observations.copy()
NAN[4, 1] = np.nan
OUTSIDE = GOOD.actions.copy()
OUTSIDE[5] = 2.5


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (
            {"observations": NAN},
            DivergedError,
            "observations: it holds NaN or infinite values, first at step 4",
        ),
        ({"theta": GOOD.theta * np.nan}, DivergedError, "theta.*policy 0"),
        ({"actions": OUTSIDE}, UsageError, r"2.5.* of step 5 is outside"),
        ({"theta": GOOD.theta[:0]}, UsageError, "one row a policy is expected"),
        ({"theta": GOOD.theta.astype(np.float64) + 1e-12}, UsageError, "float64.*float32"),
        ({"actions": GOOD.actions.astype(object)}, UsageError, "object"),
        ({"segment": GOOD.segment.astype(float) + 0.5}, UsageError, "segment"),
        (
            {"terminated": ~GOOD.terminated},
            UsageError,
            "terminated: it is set at step 0, before the last",
        ),
        ({"cut": "half"}, UsageError, "half"),
        ({"seed": -1}, UsageError, "seed"),
        ({"rewards": None}, UsageError, "rewards: the array is missing"),
        (
            {"rewards": np.ma.array(GOOD.rewards, mask=GOOD.rewards == GOOD.rewards[2])},
            UsageError,
            "rewards: is a masked array that lacks values",
        ),
        ({"rewards": GOOD.rewards.astype(str)}, UsageError, "rewards: .*<U"),
        ({"rewards": GOOD.rewards + 1j}, UsageError, "rewards: .*complex128"),
    ],
)
def test_bad_episodes(root, changes, error, words):
    with writer(root) as w:
        w.add(GOOD)
        with pytest.raises(error, match=words) as caught:
            w.add(changed(**changes))
        assert "lab/toy-v0 episode 1" in str(caught.value)
        assert w.episodes_done == 1
        w.finish()


def test_plain_arrays_lose_no_mask(root):
    masked = np.ma.array(GOOD.observations, mask=GOOD.observations == GOOD.observations[1, 1])
    with writer(root) as w, pytest.raises(UsageError, match="observations: is a masked array"):
        w.add_arrays(
            observations=masked,
            actions=GOOD.actions,
            rewards=GOOD.rewards,
            terminated=True,
            theta=GOOD.theta[0],
        )


@pytest.mark.parametrize("seed", [1.5, np.float32(3.7), True, np.True_, "1"])
def test_a_seed_that_is_no_integer_is_refused(root, seed):
    with writer(root) as w:
        w.add(changed(seed=np.int64(3)))
        with pytest.raises(UsageError, match="which is no whole number"):
            w.add(changed(seed=seed))


def test_lossless_casts_are_taken(root):
    with writer(root) as w:
        w.add(
            changed(
                rewards=GOOD.rewards.astype(np.float32),
                segment=GOOD.segment.astype(np.int64),
                theta=GOOD.theta.astype(np.float64),
                truncated=GOOD.truncated.astype(np.int8),
            )
        )
        w.finish()
    with h5py.File(root / NAME / "data/main_data.hdf5") as file:
        group = file["episode_0"]
        assert group["rewards"].dtype == np.float64
        assert group["infos/segment"].dtype == np.int32
        assert group["infos/theta"].dtype == np.float32
        assert group["truncations"].dtype == np.bool_


def test_episodes_share_one_form_across_restarts(root):
    with writer(root) as w:
        w.add(GOOD)
    with writer(root) as w:
        with pytest.raises(UsageError, match="reward_survive"):
            w.add(make_episode(BOX_SPEC, 1, survive=True))
        with pytest.raises(UsageError, match="observations"):
            w.add(make_episode(BOX_SPEC, 1, obs_dtype="float64"))
        w.add(make_episode(BOX_SPEC, 1, obs_dtype="float16"))
        w.finish()


def test_discrete_actions_come_from_the_space(root):
    space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    options = {"observation_space": space, "action_space": spaces.Discrete(2), "root": root}
    with DatasetWriter(NAME, DISCRETE_SPEC, **options) as w:
        w.add(make_episode(DISCRETE_SPEC, 0))
        with pytest.raises(UsageError, match="action 2 of step 0"):
            w.add(changed(make_episode(DISCRETE_SPEC, 0), actions=np.full(7, 2)))
        w.finish()


@pytest.mark.parametrize(
    "options",
    [
        {"observation_space": spaces.Box(-1, 1, (4,), np.float32)},
        {"action_space": spaces.Box(-1.0, 1.0, (1,), np.float32)},
        {"action_space": spaces.Box(-2.0, 2.0, (2,), np.float32)},
        {"action_space": spaces.Box(-2.0, 2.0, (1,), np.float64)},
        {"action_space": spaces.Discrete(2)},
        {"observation_space": spaces.Dict({"a": OBS})},
        {"observation_space": None},
        {"environment": {"id": ""}},
        {"environment": {"id": "x", "module": 3}},
        {"env_spec_json": "{}"},
        {"settings": {"x": float("nan")}},
        {"name": "lab/toy"},
        {"name": "../toy-v0"},
    ],
    ids=str,
)
def test_wrong_usage_leaves_nothing_behind(root, options):
    with pytest.raises(UsageError) as error:
        writer(root, **options)
    assert error.value.exit_code == 2
    assert list(root.rglob("*")) == []


def test_discrete_spec_needs_its_own_space(root):
    with pytest.raises(UsageError, match="discrete"):
        DatasetWriter(
            NAME,
            DISCRETE_SPEC,
            observation_space=spaces.Box(-1, 1, (4,), np.float32),
            action_space=spaces.Discrete(2, start=1),
        )


def test_a_dataset_does_not_nest_in_another(root):
    run(root)
    with pytest.raises(UsageError, match="inside the dataset"):
        writer(root, name="lab/toy-v0/inner-v0")


def test_no_episode_no_dataset(root):
    with writer(root) as w, pytest.raises(UsageError, match="no episodes"):
        w.finish()
    assert names(root / "lab") == []


def test_discarded_work_is_gone_and_what_it_would_replace_stays(root, reference):
    with writer(root) as w:
        w.add(GOOD)
        w.flush()
        w.discard()
        with pytest.raises(UsageError, match="closed"):
            w.add(GOOD)
    assert names(root / "lab") == []
    run(root)
    with writer(root, overwrite=True) as w:
        w.add(GOOD)
        w.discard()
    assert content(root) == reference
    assert names(root / "lab") == ["toy-v0"]
    with pytest.raises(UsageError, match="complete"):
        writer(root).discard()


def test_the_manifest_holds_command_and_sources_across_restarts(root):
    source = {"id": "a-v0", "digest": "0" * 64, "verified": False, "episodes": 1, "steps": 2}
    sources = [{**source, "from": [], "provenance": None}]
    with writer(root, command="pbvf one", sources=sources) as w:
        w.add(GOOD)
    with writer(root, command="pbvf two", sources=sources) as w:
        provenance = w.finish()["provenance"]
    # As in the card: the command that began it.
    assert (provenance["command"], provenance["sources"]) == ("pbvf one", sources)
    assert "| a-v0 | 0000000000000000 |" in (root / NAME / "README.md").read_text()
    with writer(root, name="lab/other-v0") as w:
        w.add(GOOD)
        provenance = w.finish()["provenance"]
    assert provenance["command"] is None
    assert "sources" not in provenance


def test_a_closed_writer_says_so(root):
    w = writer(root)
    w.close()
    for call in (lambda: w.add(GOOD), w.finish, w.discard, lambda: w.set_state({"a": 1})):
        with pytest.raises(UsageError, match="closed"):
            call()


# ------------------------------------------------------------- complete, partial, conflicting


def test_already_complete_changes_nothing(root, reference):
    run(root)
    stamps = {p: p.stat().st_mtime_ns for p in root.rglob("*")}
    w = run(root)
    assert w.complete
    assert w.finish() == w.manifest
    assert {p: p.stat().st_mtime_ns for p in root.rglob("*")} == stamps
    assert content(root) == reference


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"settings": {"sigma": 1.0, "policy": {"arch": "linear"}}}, "sigma is 0.5 there and 1.0"),
        ({"settings": {"sigma": 0.5, "policy": {"arch": "64"}}}, 'policy.arch is "linear"'),
        ({"settings": {"sigma": 0.5}}, "policy.arch.*absent here"),
        ({"seed": 4}, "seed is 3 there and 4 here"),
        ({"license": "mit"}, 'license is not given there and "mit" here'),
        ({"environment": {"id": "Toy-v1"}}, 'environment.id is "Toy-v0"'),
    ],
)
def test_other_settings_conflict(root, complete, options, words):
    with writer(root) as w:
        w.add(GOOD)
        if complete:
            w.finish()
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    with pytest.raises(ConflictError, match=words) as error:
        writer(root, **options)
    assert error.value.exit_code == 7
    assert "--overwrite" in str(error.value)
    assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before


def test_overwrite_forgets_partial_work(root):
    with writer(root) as w:
        w.add(GOOD)
    with writer(root, overwrite=True) as w:
        assert w.episodes_done == 0


def test_another_attempt_survives_a_look_at_the_complete_dataset(root):
    run(root)
    with writer(root, settings={"sigma": 9}, overwrite=True) as w:
        w.add(GOOD)
    assert run(root).complete
    with writer(root, settings={"sigma": 9}) as w:
        assert w.episodes_done == 1


def test_overwrite_replaces_what_is_damaged_or_foreign(root, reference):
    run(root)
    (root / NAME / "manifest.json").unlink()
    with pytest.raises(ConflictError, match="no manifest"):
        writer(root)
    run(root, overwrite=True)
    assert content(root) == reference


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("manifest.json", lambda data: data[:-9], "not valid JSON"),
        ("manifest.json", lambda data: data.replace(b"0.5", b"0.7"), "digest"),
        ("manifest.json", lambda data: b"", "JSON"),
        ("data/main_data.hdf5", lambda data: data[:-1], "bytes"),
        ("data/main_data.hdf5", lambda data: data[:-1] + b"x", "sha256"),
        ("data/metadata.json", lambda data: b"", "0 bytes"),
        ("data/metadata.json", lambda data: None, "missing"),
    ],
)
def test_a_damaged_dataset_is_named(root, name, damage, words):
    run(root)
    path = root / NAME / name
    data = damage(path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(DamagedError, match=words) as error:
        writer(root)
    assert error.value.exit_code == 3
    assert str(path) in str(error.value)
    assert "--overwrite" in str(error.value)
    run(root, overwrite=True)
    assert run(root).complete


def test_a_newer_format_is_not_damage(root):
    run(root)
    path = root / NAME / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"version":1}', b'"version":99}'))
    with pytest.raises(IncompatibleError, match="upgrade"):
        writer(root)


def test_an_edited_card_is_fine(root):
    run(root)
    (root / NAME / "README.md").write_text("mine")
    assert writer(root).complete


def test_a_damaged_plan_is_named(root):
    with writer(root) as w:
        w.add(GOOD)
    plan = root / "lab/.toy-v0.collecting/plan.json"
    for text in ("", "{}", '{"version":1}'):
        plan.write_text(text)
        with pytest.raises(DamagedError, match=r"plan\.json"):
            writer(root)
    with writer(root, overwrite=True) as w:
        assert w.episodes_done == 0


def test_a_kill_costs_half_a_minute_of_slow_episodes(root, reference, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("pbvf_datasets.write.writer.time.monotonic", lambda: now[0])
    w = writer(root)
    safe = []
    w.set_state({"mean": [0.1, 1 / 3], "warmup_steps": 40})
    for k, seconds in enumerate([40, 1, 1]):
        now[0] += seconds
        w.add(EPISODES[k])
        safe.append(w.episodes_safe)
    assert safe == [1, 1, 3]  # by time, not yet, and by steps
    now[0] += 29
    w.add(EPISODES[3])
    assert w.episodes_safe == 3
    now[0] += 2
    w.add(EPISODES[4])
    assert w.episodes_safe == 5
    w.finish()
    assert content(root) == reference


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "foreign"])
def test_a_damaged_shard_and_what_follows_are_made_again(root, reference, damage):
    with writer(root) as w:
        w.set_state({"mean": [0.1, 1 / 3], "warmup_steps": 40})
        for episode in EPISODES:
            w.add(episode)
            w.flush()
    shards = sorted((root / "lab/.toy-v0.collecting").glob("shard-*"))
    assert len(shards) == 5
    data = shards[2].read_bytes()
    if damage == "remove":
        shards[2].unlink()
    elif damage == "foreign":
        shards[2].write_bytes(shards[0].read_bytes())
    else:
        shards[2].write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if damage == "flip" else data[:-5])
    with writer(root) as w:
        assert w.episodes_done == w.episodes_safe == 2
        assert w.steps_done == 6
    assert len(list((root / "lab/.toy-v0.collecting").glob("shard-*"))) == 2
    run(root)
    assert content(root) == reference


def test_a_shard_that_rots_before_the_end_is_noticed(root):
    with writer(root) as w:
        w.add(GOOD)
        w.flush()
        (shard,) = (root / "lab/.toy-v0.collecting").glob("shard-*")
        shard.write_bytes(shard.read_bytes()[:-1] + b"x")
        with pytest.raises(DamagedError, match="shard"):
            w.finish()


def test_peek(root):
    assert stored_settings(NAME, root) is None
    with writer(root, seed=11) as w:
        w.add(GOOD)
    found = stored_settings(NAME, root)
    assert (found["complete"], found["seed"], found["settings"]["sigma"]) == (False, 11, 0.5)
    with writer(root, seed=11) as w:
        w.finish()
    assert stored_settings(NAME) == {**found, "complete": True}
    (root / NAME / "manifest.json").write_text("")
    assert stored_settings(NAME, root) is None
    with pytest.raises(UsageError):
        stored_settings("../x-v0", root)


def test_a_pipe_or_link_for_a_manifest_or_plan(root, tmp_path):
    run(root)
    manifest, aside = root / NAME / "manifest.json", tmp_path / "elsewhere"
    shutil.move(manifest, aside)
    for put in (os.mkfifo, lambda path: path.symlink_to(aside)):
        put(manifest)
        assert stored_settings(NAME, root) is None  # and does not wait for a writer
        with pytest.raises(UnsafeError, match=r"manifest\.json"):
            writer(root)
        manifest.unlink()
    work = root / "lab/.other-v0.collecting"
    work.mkdir()
    os.mkfifo(work / "plan.json")
    assert stored_settings("lab/other-v0", root) is None
    with pytest.raises(UnsafeError, match=r"plan\.json"):
        writer(root, "lab/other-v0")


# ------------------------------------------------------------------------------ killed, full


def test_what_is_safe_is_said(root):
    with writer(root) as w:
        w.add(EPISODES[0])
        w.add(EPISODES[2])
        assert w.episodes_safe == 2
        w.add(EPISODES[1])
        with pytest.MonkeyPatch.context() as patch:
            Saboteur(patch, 1, "full")
            with pytest.raises(ResourceError, match="2 finished episodes are safe in") as error:
                w.flush()
        assert error.value.exit_code == 6
        assert "run the same command again" in str(error.value)
        w.flush()
        assert w.episodes_safe == 3
        assert "--overwrite" not in w.where_safe
    with writer(root, overwrite=True) as w:
        w.add(EPISODES[0])
        w.flush()
        assert "1 finished episodes are safe" in w.where_safe
        assert "without --overwrite" in w.where_safe


def test_an_hdf5_file_that_finds_no_room_is_exit_6(root, reference):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(ResourceError, match="5 finished episodes are safe") as error:
            run(root)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "main_data.hdf5" in str(error.value)
    assert not (root / "lab/.toy-v0.collecting/build").exists()
    run(root)
    assert content(root) == reference


def test_a_root_that_is_none_is_found_before_the_first_episode(root):
    (root / "file").write_text("")
    with pytest.raises(ResourceError, match=r"[Nn]ot a directory.*MINARI_DATASETS_PATH") as error:
        writer(root / "file")
    assert error.value.exit_code == 6


def test_a_disk_that_is_too_small_is_found_before_the_first_episode(root):
    with pytest.raises(ResourceError, match="MB are needed") as error:
        writer(root, expected_bytes=2**60)
    assert error.value.exit_code == 6
    assert names(root / "lab") == []
    writer(root, expected_bytes=1000).close()


def test_an_interrupt_between_rename_and_memory_doubles_nothing(root, reference, monkeypatch):
    import pbvf_datasets.write.shards as module

    real = module.write_durably
    with writer(root) as w:
        w.set_state({"mean": [0.1, 1 / 3], "warmup_steps": 40})

        def interrupted(path, data):
            real(path, data)
            raise KeyboardInterrupt

        monkeypatch.setattr(module, "write_durably", interrupted)
        w.add(EPISODES[0])
        with pytest.raises(KeyboardInterrupt):
            w.flush()
        monkeypatch.setattr(module, "write_durably", real)
        for episode in EPISODES[1:]:
            w.add(episode)
        w.finish()
    assert content(root) == reference


def test_an_exception_in_the_loop_keeps_what_is_done(root):
    def loop():
        with writer(root) as w:
            w.add(EPISODES[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()
    with writer(root) as w:
        assert w.episodes_done == w.episodes_safe == 1


# --------------------------------------------------------------------------- other processes

# ------------------------------------------------------------------------------ stock Minari


@pytest.fixture
def pair(root):
    env = gym.make("Pendulum-v1")
    for name, first in (("lab/a-v0", 0), ("lab/b-v0", 4)):
        with DatasetWriter(name, BOX_SPEC, env=env, authors=["Ada", "Bo"]) as w:
            for i in range(first, first + 4):
                w.add(make_episode(BOX_SPEC, i, 3 + i, survive=True))
            w.finish()
    env.close()
    with writer(root, name="lab/unfinished-v0") as w:
        w.add(GOOD)
    return [make_episode(BOX_SPEC, i, 3 + i, survive=True) for i in range(8)]


def test_minari_loads_equal_arrays(pair):
    dataset = minari.load_dataset("lab/a-v0")
    assert (dataset.total_episodes, dataset.total_steps, len(dataset)) == (4, 18, 4)
    assert dataset.env_spec.id == "Pendulum-v1"
    assert dataset.action_space == spaces.Box(-2.0, 2.0, (1,), np.float32)
    seeds = [m["seed"] for m in dataset.storage.get_episode_metadata(range(4))]
    assert seeds == [given.seed for given in pair[:4]]
    for data, given in zip(dataset, pair[:4], strict=True):
        for field in FIELDS:
            inside, _, name = field.name.rpartition("/")
            found = data.infos.get(name) if inside else getattr(data, name)
            np.testing.assert_array_equal(found, getattr(given, field.attribute))
        assert parse_episode_blob(data.infos["pbvf"].tobytes(), "x") == (BOX_SPEC, given.cut)
    dataset.recover_environment().close()
    assert len(dataset.filter_episodes(lambda e: len(e) > 4)) == 2
    assert dataset.storage.metadata["author"] == {"Ada", "Bo"}
    assert len(list(dataset.sample_episodes(2))) == 2


def test_minari_commands(pair, capsys):
    from minari import cli

    assert list(minari.list_local_datasets()) == ["lab/a-v0", "lab/b-v0"]  # the finished ones
    cli.list_cmd("local", all=False, prefix=None)
    cli.show("lab/a-v0")
    cli.combine(["lab/a-v0", "lab/b-v0"], dataset_id="lab/c-v0")
    out = capsys.readouterr().out
    assert "lab/a-v0" in out
    assert "Pendulum-v1" in out
    assert "Total Episodes" in out
    assert "successfully combined" in out
    assert minari.load_dataset("lab/c-v0").total_episodes == 8


def test_stochastic_and_discrete_datasets_load_in_minari(root):
    for name, spec, action in (
        ("lab/s-v0", STOCHASTIC_SPEC, ACT),
        ("lab/d-v0", DISCRETE_SPEC, spaces.Discrete(2)),
    ):
        space = spaces.Box(-np.inf, np.inf, (spec.obs_dim,), np.float32)
        given = make_episode(spec, 0)
        with DatasetWriter(name, spec, observation_space=space, action_space=action) as w:
            w.add(given)
            w.finish()
        data = minari.load_dataset(name)[0]
        assert np.array_equal(data.actions, given.actions)
        assert ("pre_action" in data.infos) == (given.pre_action is not None)
        assert minari.load_dataset(name).env_spec is None


# ------------------------------------------------------------- references to environments


def test_arguments_that_look_like_paths_are_withheld():
    kwargs = {
        "xml_file": "swimmer.xml",
        "data": "/etc/hostname",
        "other": "a\\b",
        "home": "~me",
        "up": "..",
        "name": "model.xml",
        "log_dir": "here",
        "bad": float("inf"),
        "range": (0.1, 1.0),
        "scalar": np.float64(1.0),
        "fine": "velocity",
        "x": 0.1,
        "n": 3,
        "flag": True,
        "none": None,
        "render_mode": "rgb_array",
    }
    kept, withheld = safe_kwargs(kwargs)
    assert kept == {"fine": "velocity", "x": 0.1, "n": 3, "flag": True, "none": None}
    assert withheld == sorted(set(kwargs) - set(kept) - {"render_mode"})
    reference = safe_environment({"id": "S-v5", "kwargs": kwargs, "withheld": ["more"]})
    assert reference["withheld"] == sorted([*withheld, "more"])


def test_a_path_in_the_env_spec_never_reaches_the_files(root):
    env = gym.make("Pendulum-v1", g=9.0, render_mode="rgb_array")
    env.spec.kwargs["xml_file"] = "/home/me/secret.xml"
    env.spec.kwargs["nested"] = {"paths": ["/home/me"]}
    with DatasetWriter(NAME, BOX_SPEC, env=env) as w:
        w.add(GOOD)
        manifest = w.finish()
    env.close()
    assert manifest["provenance"]["environment"]["withheld"] == ["nested", "xml_file"]
    assert b"/home/me" not in b"".join(content(root).values())
    assert minari.load_dataset(NAME).env_spec.kwargs == {"g": 9.0}


def test_a_wrapper_with_a_path_is_left_out():
    wrapper = {"name": "W", "entry_point": "m:W", "kwargs": {"n": 1}}
    video = {"name": "V", "entry_point": "m:V", "kwargs": {"video_folder": "/home/me"}}
    plain = {"name": "P", "entry_point": "m:P", "kwargs": None}
    text = json.dumps({"id": "x", "kwargs": {}, "additional_wrappers": [wrapper, video, plain]})
    assert json.loads(safe_env_spec(text))["additional_wrappers"] == [wrapper, plain]


def test_an_env_spec_that_no_file_can_hold_is_omitted(root):
    env = gym.make("Pendulum-v1")
    env.spec.kwargs["call"] = object()
    with DatasetWriter(NAME, BOX_SPEC, env=env) as w:
        w.add(GOOD)
        w.finish()
    env.close()
    assert "env_spec" not in json.loads(content(root)["data/metadata.json"])
    assert minari.load_dataset(NAME).env_spec is None


# ------------------------------------------------------------------------------------- speed
