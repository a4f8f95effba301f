"""Training runs as folders: what is in them, and that no interruption shows in the result."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toyenv  # noqa: F401
from libtools import online_settings
from make_episodes import same
from pbvf_datasets import load_dataset
from pbvf_offline.envs.make import make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    DivergedError,
    IncompatibleError,
    UsageError,
)
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.online import loop as online
from pbvf_offline.online.loop import evaluation_seed
from pbvf_offline.online.training import start_training
from pbvf_offline.policies.files import load_policies
from pbvf_offline.rollout.evaluation import evaluate_policies
from pbvf_runs import export as run_export
from pbvf_runs import train
from pbvf_runs.data import run_progress
from pbvf_runs.export import export_dataset, stored_episodes
from pbvf_runs.folder import stored_run_seed
from pbvf_runs.loggers import EVENTS_FOLDER, METRICS_FILE
from pbvf_runs.records import Evaluation, RunConfig, RunResult, snapshot_files
from pbvf_runs.train import train_run
from run_tools import Stop, StopSoon, given_policy, run_config, stop_at

DERIVED = {METRICS_FILE, EVENTS_FOLDER}

CONFIG = run_config()


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a run, apart from what is derived."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not DERIVED & set(path.relative_to(folder).parts)
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, bytes]]:
    """The files of an undisturbed run, made once for each kind of call."""
    made: dict[Any, dict[str, bytes]] = {}

    def make(
        steps: int, config: RunConfig = CONFIG, snapshots: tuple[int, ...] = ()
    ) -> dict[str, bytes]:
        key = (steps, config.stored.digest, snapshots)
        if key not in made:
            folder = tmp_path_factory.mktemp("run") / "undisturbed"
            train_run(config, folder, steps, snapshots=snapshots)
            made[key] = content(folder)
        return made[key]

    return make


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Steps and episodes from which training went on, call by call."""
    seen: list[tuple[int, int]] = []
    train = online.train

    def noting(training: Any, *args: Any) -> Any:
        seen.append((training.steps, training.episodes))
        return train(training, *args)

    monkeypatch.setattr(online, "train", noting)
    return seen


# --- a finished run -------------------------------------------------------------------------


def test_what_a_run_leaves(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    result = train_run(CONFIG, folder, 90)
    files = content(folder)
    shards = [name for name in files if name.startswith("episodes/")]
    assert len(shards) >= 2
    assert set(files) - set(shards) == {
        "checkpoint.safetensors",
        "config.json",
        "critic.safetensors",
        "pending.safetensors",
        "policy.safetensors",
        "result.json",
        "tail.safetensors",
    }
    assert json.loads(files["config.json"]) == CONFIG.to_dict()
    assert (result.steps, result.already_complete) == (90, False)
    assert result.episodes == len(result.training_returns)
    assert sorted(p.name for p in folder.parent.iterdir()) == ["run"]  # no lock stays
    critic, policies = load_critic(result.critic), load_policies(result.policy)
    assert critic.fit.updates == 2 * (90 // 5)
    assert policies.policies.theta.shape == (1, CONFIG.spec.size)
    assert critic.spec == policies.policies.spec == CONFIG.spec
    assert stored_run_seed(folder) == 0
    assert stored_run_seed(tmp_path) is None
    # Nothing in them says where or when they were made.
    assert not any(str(tmp_path).encode() in data for data in files.values())


def test_metrics_say_what_happened(tmp_path: Path) -> None:
    result = train_run(CONFIG, tmp_path / "run", 90)
    text = (tmp_path / "run/metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    first, *others = lines
    assert (first["kind"], first["step"], first["lr_critic"]) == (
        "settings",
        0,
        CONFIG.settings.lr_critic,
    )
    assert all(line["kind"] != "settings" for line in others)
    episodes = [line for line in lines if line["kind"] == "episode"]
    assert [(e["step"], e["return"]) for e in episodes] == list(result.training_returns)
    assert [e["episode"] for e in episodes] == list(range(result.episodes))
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    assert [e["step"] for e in evaluations] == [22, 45, 67, 90]
    assert [e["returns"] for e in evaluations] == [list(e.returns) for e in result.evaluations]
    assert list((tmp_path / "run/tensorboard").iterdir())


def test_metrics_of_what_is_done_again_are_dropped(tmp_path: Path) -> None:
    whole, broken = tmp_path / "a", tmp_path / "b"
    train_run(CONFIG, whole, 90)
    for step in (33, 80):
        with pytest.raises(Stop):
            train_run(CONFIG, broken, 90, tick=stop_at(step))
    train_run(CONFIG, broken, 90)
    assert (broken / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()


def test_the_same_call_again_finds_it_complete(tmp_path: Path) -> None:
    first = train_run(CONFIG, tmp_path / "run", 90, snapshots=(30,))
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")}
    again = train_run(CONFIG, tmp_path / "run", 90, snapshots=(30,))
    assert again.already_complete
    assert again.seconds == 0
    assert again.evaluations == first.evaluations
    assert again.training_returns == first.training_returns
    assert (again.episodes, again.snapshots) == (first.episodes, first.snapshots)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")} == before


def test_equal_calls_make_equal_bytes(tmp_path: Path, finished: Any) -> None:
    train_run(CONFIG, tmp_path / "elsewhere" / "other name", 90)
    assert content(tmp_path / "elsewhere" / "other name") == finished(90)
    other = run_config(seed=1)
    train_run(other, tmp_path / "seed", 90)
    same_names = {"critic.safetensors", "policy.safetensors", "checkpoint.safetensors"}
    theirs = content(tmp_path / "seed")
    assert all(theirs[name] != finished(90)[name] for name in same_names)


def test_looking_on_changes_nothing_but_what_was_looked_at(tmp_path: Path, finished: Any) -> None:
    # Evaluations are part of the configuration; the training itself does not feel them.
    often = run_config(evaluations=45)
    train_run(often, tmp_path / "often", 90, snapshots=(1, 7, 50))
    never = run_config(evaluations=0)
    none = train_run(never, tmp_path / "never", 90)
    assert none.evaluations == ()
    assert none.average_return() is None
    weights = [
        load_critic(tmp_path / name / "critic.safetensors").critic.state_dict()
        for name in ("often", "never")
    ]
    assert all(np.array_equal(w, weights[1][n]) for n, w in weights[0].items())
    episodes = {name for name in finished(90) if name.startswith("episodes/")}
    assert episodes == {n for n in content(tmp_path / "never") if n.startswith("episodes/")}
    assert episodes == {n for n in content(tmp_path / "often") if n.startswith("episodes/")}


# --- evaluations and snapshots --------------------------------------------------------------


@pytest.mark.parametrize("steps", [90, 97, 100])
def test_evaluations_are_of_the_learned_policy_at_equal_distances(
    steps: int, tmp_path: Path
) -> None:
    at = tuple(i * steps // 4 for i in range(1, 5))
    result = train_run(CONFIG, tmp_path / "run", steps, snapshots=at)
    assert tuple(e.step for e in result.evaluations) == at
    for evaluation in result.evaluations:
        _, path = snapshot_files(tmp_path / "run", evaluation.step)
        learned = load_policies(path).policies
        seed = evaluation_seed(0, evaluation.step)
        returns, _ = evaluate_policies(CONFIG.env, learned, episodes=2, seed=seed)
        assert evaluation.returns == tuple(returns[0])
        assert evaluation.returns_without_survival is None
    assert len({e.returns for e in result.evaluations}) == 4


def test_evaluations_with_and_without_the_survival_bonus(tmp_path: Path) -> None:
    config = run_config(env="toyenv:ToySurvive-v0", reward="without-survival")
    result = train_run(config, tmp_path / "run", 40)
    for evaluation in result.evaluations:
        without = evaluation.returns_without_survival
        assert without is not None
        # Five steps with a bonus of 1 each.
        assert evaluation.returns == pytest.approx([r + 5 for r in without])
    stored = train_run(config, tmp_path / "run", 40)
    assert stored.evaluations == result.evaluations
    assert result.average_return() == pytest.approx(
        result.average_return(without_survival=True) + 5  # type: ignore[operator]
    )


def test_average_return_by_hand(tmp_path: Path) -> None:
    means = [1.0, 2.0, 4.0, 8.0, 16.0]
    evaluations = tuple(
        Evaluation(20 * (k + 1), (m - 1, m + 1), (m, m + 2)) for k, m in enumerate(means)
    )
    result = RunResult(tmp_path, CONFIG, 100, 9, evaluations, ())
    assert result.average_return() == pytest.approx(31 / 5)
    assert result.average_return(last=0.2) == pytest.approx(16)
    assert result.average_return(last=0.4) == pytest.approx(12)
    assert result.average_return(without_survival=True) == pytest.approx(31 / 5 + 1)
    hundred = tuple(Evaluation(10_000 * k, (float(k),), None) for k in range(1, 101))
    long = RunResult(tmp_path, CONFIG, 1_000_000, 9, hundred, ())
    assert long.average_return(last=0.2) == pytest.approx(np.mean(range(81, 101)))


@pytest.mark.parametrize("kind", ["pssvf", "psvf"])
def test_snapshots_are_what_a_run_of_that_length_ends_with(kind: str, tmp_path: Path) -> None:
    config = run_config(kind)
    at = (1, 23, 40, 61, 90)
    result = train_run(config, tmp_path / "run", 90, snapshots=at)
    assert result.snapshots == tuple(snapshot_files(tmp_path / "run", step)[0] for step in at)
    for step in at:
        short = train_run(config, tmp_path / f"short{step}", step)
        critic, policy = snapshot_files(tmp_path / "run", step)
        assert critic.read_bytes() == short.critic.read_bytes()
        assert policy.read_bytes() == short.policy.read_bytes()


# --- starting from a given policy -----------------------------------------------------------


def test_a_run_from_a_base_begins_as_the_base_acts(tmp_path: Path) -> None:
    base = given_policy()
    config = run_config(normalization="none", base=base, evaluations=90, sigma=0.0)
    result = train_run(config, tmp_path / "run", 90)
    # Before an update is due at step 4, the policy is the base to the last bit.
    for evaluation in result.evaluations[:3]:
        seed = evaluation_seed(0, evaluation.step)
        returns, _ = evaluate_policies(config.env, base.policies, episodes=2, seed=seed)
        assert evaluation.returns == tuple(returns[0])
    assert [e.step for e in result.evaluations[:3]] == [0, 1, 2]
    kept, given = load_policies(result.policy), base.policies
    first = next(stored_episodes(tmp_path / "run"))
    np.testing.assert_array_equal(first.theta, given.theta)
    np.testing.assert_array_equal(first.obs_std, given.obs_std)
    np.testing.assert_array_equal(kept.policies.obs_mean, given.obs_mean)
    np.testing.assert_array_equal(kept.policies.obs_std, given.obs_std)
    assert not np.array_equal(kept.policies.theta, given.theta)  # it learned
    digest = hashlib.sha256(base.encode()).hexdigest()
    assert kept.origin["base"] == digest
    assert json.loads((tmp_path / "run" / "config.json").read_text())["base"] == digest


def test_the_evaluation_at_the_start_is_in_no_average(tmp_path: Path) -> None:
    evaluations = tuple(Evaluation(step, (float(step),), None) for step in (0, 50, 100))
    assert RunResult(tmp_path, CONFIG, 100, 9, evaluations, ()).average_return() == 75


def test_another_base_is_another_run(tmp_path: Path, finished: Any) -> None:
    config = run_config(normalization="none", base=given_policy())
    with pytest.raises(Stop):
        train_run(config, tmp_path / "run", 90, tick=stop_at(50))
    for other in (given_policy(seed=1), None):
        with pytest.raises(ConflictError, match="base is "):
            train_run(run_config(normalization="none", base=other), tmp_path / "run", 90)
    train_run(config, tmp_path / "run", 90)
    assert content(tmp_path / "run") == finished(90, config)


def test_a_base_that_does_not_fit(tmp_path: Path) -> None:
    base = given_policy()
    with pytest.raises(UsageError, match="2 policies are given"):
        run_config(normalization="none", base=given_policy(rows=2))
    with pytest.raises(UsageError, match="keeps the normaliser"):
        run_config(base=base)
    theta = tuple(map(float, base.policies.theta[0]))
    with pytest.raises(UsageError, match="initial theta"):
        run_config(normalization="none", base=base, initial_theta=theta)
    with pytest.raises(IncompatibleError, match="the run's are"):
        run_config(normalization="none", base=base, stochastic=True)
    elsewhere = RunConfig(
        EnvConfig("LQR-v0"), base.policies.spec, online_settings("psvf", normalization="none"),
        base=base,
    )  # fmt: skip
    with pytest.raises(IncompatibleError, match="LQR-v0: the policies observe"):
        train_run(elsewhere, tmp_path / "run", 30)
    assert list(tmp_path.iterdir()) == []


# --- extension ------------------------------------------------------------------------------

WAYS = {
    "pssvf": {"kind": "pssvf"},
    "psvf": {"kind": "psvf"},
    "psvf per step": {"kind": "psvf", "normalization": "per-step"},
    "psvf, none": {"kind": "psvf", "normalization": "none"},
    "pavf": {"kind": "pavf"},
    "stochastic pavf": {"kind": "pavf", "stochastic": True},
    "discrete pavf": {"kind": "pavf", "stochastic": True, "env": "toyenv:ToyDiscrete-v0"},
    "psvf from a base": {"kind": "psvf", "normalization": "none", "base": given_policy()},
    "pssvf from a base": {"kind": "pssvf", "normalization": "none", "base": given_policy()},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_more_steps_give_the_bytes_of_an_uninterrupted_run(
    way: dict[str, Any], tmp_path: Path, finished: Any
) -> None:
    config = run_config(evaluations=1, **way)
    for steps in (20, 40, 47, 90):  # 45 would be no multiple of an evaluation's distance
        notes: list[str] = []
        result = train_run(config, tmp_path / "run", steps, note=notes.append)
        assert not result.already_complete
        assert content(tmp_path / "run") == finished(steps, config)
        assert not any("from step 0" in note for note in notes)


def test_an_extension_goes_on_from_its_checkpoint(
    tmp_path: Path, finished: Any, starts: list[tuple[int, int]]
) -> None:
    # Evaluations at 15, 30, 45, 60 and then 30, 60, 90, 120: none of the passed ones is new.
    train_run(CONFIG, tmp_path / "run", 60)
    result = train_run(CONFIG, tmp_path / "run", 120)
    assert 40 < starts[1][0] <= 60
    assert content(tmp_path / "run") == finished(120)
    assert [e.step for e in result.evaluations] == [30, 60, 90, 120]


@pytest.mark.parametrize(("snapshots", "steps"), [((), 97), ((10,), 90), ((10, 80), 97)])
def test_evaluations_or_snapshots_that_were_passed_send_it_over_the_way_again(
    snapshots: tuple[int, ...], steps: int, tmp_path: Path, finished: Any
) -> None:
    train_run(CONFIG, tmp_path / "run", 90)
    notes: list[str] = []
    train_run(CONFIG, tmp_path / "run", steps, snapshots=snapshots, note=notes.append)
    assert len(notes) == 1
    assert "again" in notes[0]
    assert content(tmp_path / "run") == finished(steps, CONFIG, snapshots)


def test_snapshots_of_an_extension(tmp_path: Path, finished: Any) -> None:
    train_run(CONFIG, tmp_path / "run", 60, snapshots=(30,))
    train_run(CONFIG, tmp_path / "run", 120, snapshots=(30, 100))
    assert content(tmp_path / "run") == finished(120, CONFIG, (30, 100))


# --- interruptions --------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_interrupted_and_continued(way: dict[str, Any], tmp_path: Path, finished: Any) -> None:
    config = run_config(evaluations=3, **way)
    for step in (1, 30, 31, 55, 60, 89):
        with pytest.raises(Stop):
            train_run(config, tmp_path / "run", 90, tick=stop_at(step))
        assert not (tmp_path / "run/result.json").exists()
    train_run(config, tmp_path / "run", 90)
    assert content(tmp_path / "run") == finished(90, config)


@pytest.mark.parametrize("way", [WAYS["pssvf"], WAYS["psvf per step"], WAYS["stochastic pavf"]])
def test_a_gentle_stop_keeps_every_finished_episode(
    way: dict[str, Any], tmp_path: Path, finished: Any, starts: list[tuple[int, int]]
) -> None:
    config = run_config(evaluations=3, **way)
    for episodes in (1, 1, 2, 1, 3):
        with pytest.raises(Stop):
            train_run(config, tmp_path / "run", 120, stop_soon=StopSoon(episodes))
    train_run(config, tmp_path / "run", 120)
    assert [done for _, done in starts] == [0, 1, 2, 4, 5, 8]
    assert content(tmp_path / "run") == finished(120, config)


def test_a_gentle_stop_in_an_extension(tmp_path: Path, finished: Any) -> None:
    config = run_config(evaluations=1)
    train_run(config, tmp_path / "run", 60)
    for _ in range(3):
        with pytest.raises(Stop):
            train_run(config, tmp_path / "run", 120, stop_soon=StopSoon(1))
    train_run(config, tmp_path / "run", 120)
    assert content(tmp_path / "run") == finished(120, config)


def test_a_kill_costs_a_minute_of_slow_episodes(
    tmp_path: Path, starts: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each episode takes 25 s here, so a checkpoint follows the fourth and every third after it."""
    config, now = run_config(evaluations=3), [0.0]
    monkeypatch.setattr(train, "SHARD_STEPS", 20_000)
    train_run(config, tmp_path / "undisturbed", 120)
    monkeypatch.setattr("pbvf_runs.train.time.monotonic", lambda: now[0])

    def soon() -> None:
        now[0] += 25

    for step in (70, 110):
        with pytest.raises(Stop):
            # As a kill: it asks for no checkpoint.
            train_run(config, tmp_path / "run", 120, tick=stop_at(step), stop_soon=soon)
    train_run(config, tmp_path / "run", 120)
    episodes = [done for _, done in starts]
    assert episodes[0] == episodes[1] == 0
    assert 0 < episodes[2] < episodes[3]
    assert episodes[2] % 3 == (episodes[3] - episodes[2]) % 3 == 1
    assert content(tmp_path / "run") == content(tmp_path / "undisturbed")


def test_leftovers_of_a_kill_do_not_stay(tmp_path: Path, finished: Any) -> None:
    # Names that the same call would not write again.
    folder = tmp_path / "run"
    with pytest.raises(Stop):
        train_run(CONFIG, folder, 60, tick=stop_at(40))
    for name in (".tmp-pending.safetensors", ".tmp-critic-0000009.safetensors"):
        (folder / name).write_bytes(b"half")
    (folder / "episodes/.tmp-shard-000009-0123456789abcdef.safetensors").write_bytes(b"half")
    (tmp_path / ".run.lock").write_bytes(b"")
    train_run(CONFIG, folder, 60)
    assert content(folder) == finished(60)


def test_divergence_leaves_the_last_checkpoint(
    tmp_path: Path,
    finished: Any,
    starts: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = online.gradient_step

    def breaking(fit: Any, batch: Any, index: Any, noise: Any = None) -> None:
        if fit.updates == 2 * 13:
            batch = batch.__class__(**{**vars(batch), "value": batch.value * float("nan")})
        step(fit, batch, index, noise)

    monkeypatch.setattr(online, "gradient_step", breaking)
    with pytest.raises(DivergedError, match="loss is nan"):
        train_run(CONFIG, tmp_path / "run", 90)
    monkeypatch.setattr(online, "gradient_step", step)
    assert (tmp_path / "run/checkpoint.safetensors").exists()
    assert not (tmp_path / "run/result.json").exists()
    train_run(CONFIG, tmp_path / "run", 90)
    assert 25 <= starts[1][0] < 70
    assert content(tmp_path / "run") == finished(90)


# --- damage ---------------------------------------------------------------------------------


def flip(path: Path, at: int = -5) -> None:
    image = bytearray(path.read_bytes())
    image[at] ^= 1
    path.write_bytes(image)


@pytest.fixture
def done(tmp_path: Path) -> tuple[Path, RunResult]:
    return tmp_path / "run", train_run(CONFIG, tmp_path / "run", 90)


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "pending.safetensors"])
def test_a_flipped_byte_is_noticed_when_going_on(name: str, done: tuple[Path, RunResult]) -> None:
    folder, _ = done
    flip(folder / name)
    before = content(folder)
    with pytest.raises(DamagedError) as caught:
        train_run(CONFIG, folder, 180)
    assert name in str(caught.value)
    assert content(folder) == before
    train_run(CONFIG, folder, 30, overwrite=True)


@pytest.mark.parametrize("name", ["checkpoint", "pending", "tail", "shard"])
@pytest.mark.parametrize("at", [-5, 200])
def test_a_flipped_byte_is_noticed_when_exporting(
    name: str, at: int, done: tuple[Path, RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, result = done
    path = folder / f"{name}.safetensors"
    if name == "shard":
        path = sorted((folder / "episodes").iterdir())[0]
    flip(path, at)
    with pytest.raises(DamagedError) as caught:
        list(stored_episodes(folder))
    assert path.name in str(caught.value)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder.parent / "datasets"))
    with pytest.raises(DamagedError):
        export_dataset(result, "lab/damaged-v0")


@pytest.mark.parametrize("name", ["checkpoint", "pending", "tail", "shard"])
def test_a_missing_file_is_damage_and_named(name: str, done: tuple[Path, RunResult]) -> None:
    folder, result = done
    path = folder / f"{name}.safetensors"
    if name == "shard":
        path = sorted((folder / "episodes").iterdir())[0]
    path.unlink()
    calls: list[Callable[[], object]] = [lambda: list(stored_episodes(folder))]
    if name in ("pending", "shard"):  # what a longer run goes on from
        calls.append(lambda: train_run(CONFIG, folder, 180))
    before = content(folder)
    for call in calls:
        with pytest.raises(DamagedError) as caught:
            call()
        assert caught.value.exit_code == 3
        assert caught.value.where == str(path)
        assert "is missing" in caught.value.what
        assert "--overwrite" in str(caught.value)
    assert content(folder) == before
    assert train_run(CONFIG, folder, 90, overwrite=True).evaluations == result.evaluations


@pytest.mark.parametrize("text", ["", "{", "[]", '{"steps": 90}', '{"steps": null}'])
def test_a_malformed_result_is_damage(text: str, done: tuple[Path, RunResult]) -> None:
    folder, _ = done
    (folder / "result.json").write_text(text)
    with pytest.raises(DamagedError) as caught:
        train_run(CONFIG, folder, 90)
    assert "result.json" in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [{"../other.txt": "0" * 64}, {"../run/config.json": "0" * 64}, {"critic.safetensors": None}],
)
def test_a_result_names_the_critic_and_the_policy_alone(
    change: dict[str, Any], done: tuple[Path, RunResult]
) -> None:
    folder, _ = done
    result = json.loads((folder / "result.json").read_text())
    result["files"] |= change
    result["files"] = {name: digest for name, digest in result["files"].items() if digest}
    (folder / "result.json").write_text(json.dumps(result))
    for call in (lambda: train_run(CONFIG, folder, 90), lambda: run_progress(folder)):
        with pytest.raises(DamagedError, match=r"files: these are not critic\.safetensors"):
            call()


@pytest.mark.parametrize(
    ("name", "damaged"),
    [
        ("critic.safetensors", False),
        ("policy.safetensors", False),
        ("result.json", False),
        ("critic.safetensors", True),
        ("policy.safetensors", True),
    ],
)
def test_what_was_deleted_or_damaged_is_made_again(
    name: str, damaged: bool, done: tuple[Path, RunResult], finished: Any
) -> None:
    folder, _ = done
    if damaged:
        flip(folder / name)
    else:
        (folder / name).unlink()
    assert not train_run(CONFIG, folder, 90).already_complete
    assert content(folder) == finished(90)


# --- refusals -------------------------------------------------------------------------------


def test_other_settings_are_a_conflict(done: tuple[Path, RunResult]) -> None:
    folder, _ = done
    before = content(folder)
    for config, words in (
        (run_config(seed=1), "seed is 0 there and 1 here"),
        (run_config(sigma=0.4), "sigma is 0.3 there and 0.4 here"),
        (run_config(evaluations=5), "evaluations is 4 there and 5 here"),
        (
            run_config(env="toyenv:Toy-v0"),
            'environment.id is "ToyVaried-v0" there and "Toy-v0" here',
        ),
        (run_config(stochastic=True), "spec.stochastic is false there and true here"),
    ):
        with pytest.raises(ConflictError) as caught:
            train_run(config, folder, 90)
        assert words in str(caught.value)
        assert "--run" in str(caught.value)
        assert content(folder) == before
    result = train_run(run_config(seed=1), folder, 30, overwrite=True)
    assert result.steps == 30
    assert stored_run_seed(folder) == 1


def test_fewer_steps_than_a_finished_run_has(done: tuple[Path, RunResult]) -> None:
    folder, _ = done
    before = content(folder)
    with pytest.raises(ConflictError, match="90 steps, 60 were asked for"):
        train_run(CONFIG, folder, 60)
    assert content(folder) == before


def test_fewer_steps_than_an_unfinished_run_has(tmp_path: Path, finished: Any) -> None:
    with pytest.raises(Stop):
        train_run(CONFIG, tmp_path / "run", 90, tick=stop_at(85))
    with pytest.raises(ConflictError, match="steps, 40 were asked for"):
        train_run(CONFIG, tmp_path / "run", 40)
    train_run(CONFIG, tmp_path / "run", 90)
    assert content(tmp_path / "run") == finished(90)


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    for name in ("notes.txt", "critic.safetensors"):  # one of them is called as a run's own
        (folder / name).write_text("mine")
    (folder / "episodes").mkdir()
    (folder / "episodes/one.mp4").write_text("mine")
    for overwrite in (False, True):
        if overwrite:
            shutil.rmtree(folder / "episodes")
        with pytest.raises(ConflictError, match="other things"):
            train_run(CONFIG, folder, 30, overwrite=overwrite)
        for name in ("notes.txt", "critic.safetensors"):
            assert (folder / name).read_text() == "mine"
    for name in ("notes.txt", "critic.safetensors"):
        (folder / name).unlink()
    (folder / "episodes").mkdir()
    (folder / "episodes/one.mp4").write_text("mine")
    with pytest.raises(ConflictError, match="other things"):
        train_run(CONFIG, folder, 30)
    assert (folder / "episodes/one.mp4").read_text() == "mine"


@pytest.mark.parametrize(
    "config", ['{"model_type": "bert"}', '{"settings": {"seed": 0}}', "[]", "// mine\n{}"]
)
def test_a_configuration_of_something_else_is_left_alone(config: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "logs/wandb").mkdir(parents=True)
    (folder / "config.json").write_text(config)
    for name in ("result.json", "metrics.jsonl", "policy.safetensors", "logs/wandb/a.txt"):
        (folder / name).write_text("mine")
    before = content(folder)
    with pytest.raises(ConflictError, match="other things"):
        train_run(CONFIG, folder, 30, overwrite=True)
    unreadable = config.startswith("//")  # it may be a run's, but nothing says so
    with pytest.raises(DamagedError if unreadable else ConflictError):
        train_run(CONFIG, folder, 30)
    assert content(folder) == before


@pytest.mark.parametrize(
    ("change", "error"),
    [({"evaluations": "many"}, DamagedError), ({"version": 99}, IncompatibleError)],
)
def test_a_damaged_or_newer_configuration_is_a_runs(
    change: dict[str, Any], error: type[Exception], done: tuple[Path, RunResult], finished: Any
) -> None:
    folder, _ = done
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(error):
        train_run(CONFIG, folder, 90)
    train_run(CONFIG, folder, 60, overwrite=True)
    assert content(folder) == finished(60)


def test_starting_anew_removes_a_run_and_nothing_else(tmp_path: Path, finished: Any) -> None:
    folder = tmp_path / "run"
    train_run(run_config(seed=3), folder, 90, snapshots=(10,))
    train_run(CONFIG, folder, 60, overwrite=True)
    assert content(folder) == finished(60)
    (folder / "notes.txt").write_text("mine")
    assert train_run(CONFIG, folder, 60).already_complete
    train_run(CONFIG, folder, 60, overwrite=True)
    assert (folder / "notes.txt").read_text() == "mine"
    (folder / "notes.txt").unlink()
    assert content(folder) == finished(60)


def test_a_users_files_inside_a_runs_folders_stay(tmp_path: Path, finished: Any) -> None:
    folder = tmp_path / "run"
    train_run(run_config(seed=3), folder, 30)
    mine = [folder / name for name in ("episodes/a.mp4", "tensorboard/a.txt", ".notes.tmp")]
    mine += [folder / name for name in ("logs/a.txt", "logs/mine/a.txt", "logs/metrics/a.txt")]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    train_run(CONFIG, folder, 60, overwrite=True)
    train_run(CONFIG, folder, 90)
    assert [path.read_text() for path in mine] == ["mine"] * 6
    for path in mine:
        path.unlink()
    assert content(folder) == finished(90)


def test_an_environment_that_may_never_end(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no time limit") as caught:
        train_run(run_config(env="toyenv:Endless-v0"), tmp_path / "run", 30)
    assert "--max-episode-steps" in str(caught.value)
    limited = run_config(env="toyenv:Endless-v0", limit=9)
    assert train_run(limited, tmp_path / "limited", 30).episodes == 3


@pytest.mark.parametrize(
    ("steps", "snapshots", "where"),
    [
        (0, (), "--steps"),
        (-5, (), "--steps"),
        (9, (0,), "--snapshots"),
        (9, (3, 10), "--snapshots"),
    ],
)
def test_numbers_out_of_range(
    steps: int, snapshots: tuple[int, ...], where: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        train_run(CONFIG, tmp_path / "run", steps, snapshots=snapshots)
    assert caught.value.where == where
    assert list(tmp_path.iterdir()) == []


def test_refused_configurations() -> None:
    for evaluations, episodes in ((-1, 2), (10**7, 2), (4, 0)):
        with pytest.raises(UsageError):
            RunConfig(CONFIG.env, CONFIG.spec, CONFIG.settings, evaluations, episodes)


# --- episodes -------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [90, 60])
def test_stored_episodes_are_all_that_was_done(steps: int, tmp_path: Path) -> None:
    result = train_run(CONFIG, tmp_path / "run", steps)
    episodes = list(stored_episodes(tmp_path / "run"))
    assert sum(len(e) for e in episodes) == steps
    whole = [e for e in episodes if e.cut == "none"]
    ends = np.cumsum([len(e) for e in whole]).tolist()
    assert [step for step, _ in result.training_returns] == ends
    assert [total for _, total in result.training_returns] == pytest.approx(
        [float(e.rewards.sum()) for e in whole]
    )
    assert [e.cut for e in episodes[: result.episodes]] == ["none"] * result.episodes
    assert len(episodes) == result.episodes + (sum(map(len, whole)) < steps)
    # They are those that the loop ran, bit for bit.
    training = start_training(
        CONFIG.spec, CONFIG.settings, obs_dtype=np.float64, device=__import__("torch").device("cpu")
    )
    ran: list[Any] = []
    hooks = online.Hooks(episode=lambda t, r, e: ran.append(e), keep=True)
    tail = online.train(training, make_env(CONFIG.env), steps, hooks)
    ran += [] if tail is None else [tail]
    assert all(same(a, b) for a, b in zip(episodes, ran, strict=True))


def test_the_per_step_rule_stores_no_episodes(tmp_path: Path) -> None:
    config = run_config(normalization="per-step")
    result = train_run(config, tmp_path / "run", 90)
    assert list((tmp_path / "run/episodes").iterdir()) == []
    assert not (tmp_path / "run/tail.safetensors").exists()
    assert result.episodes > 4
    with pytest.raises(UsageError, match="per-step"):
        export_dataset(result, "lab/none-v0")


@pytest.mark.parametrize(
    "way", [WAYS["pssvf"], WAYS["psvf"], WAYS["stochastic pavf"], WAYS["discrete pavf"]]
)
def test_an_exported_run_is_a_dataset(
    way: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = run_config(**way)
    result = train_run(config, tmp_path / "run", 93)
    folder = export_dataset(result, "lab/run-v0", license="CC0-1.0", authors=["A. Person"])
    data = load_dataset("lab/run-v0")
    assert folder == tmp_path / "datasets/lab/run-v0"
    assert len(data.transitions) == 93
    assert data.spec == config.spec
    trajectories = data.trajectories
    assert trajectories.episodes == result.episodes + 1
    assert trajectories.cut.tolist() == [False] * result.episodes + [True]
    assert trajectories.whole_returns() == pytest.approx([r for _, r in result.training_returns])
    # One policy an episode, and its tag says what it did.
    assert len(trajectories.policies) == trajectories.episodes
    steps = data.transitions
    for k in range(93):
        policies = trajectories.policies
        actor = policies.actor(int(steps.policy[k]))
        if not config.spec.stochastic:
            action, _ = actor.act(steps.obs[k])
            assert np.abs(action - steps.action[k]).max() <= 1e-5 * 2
        elif config.spec.is_continuous:
            pre = trajectories.pre_action[k]  # type: ignore[index]
            assert np.abs(actor.to_action(pre) - steps.action[k]).max() <= 1e-5 * 2
    again = export_dataset(result, "lab/run-v0", license="CC0-1.0", authors=["A. Person"])
    assert again == folder
    with pytest.raises(ConflictError):
        export_dataset(train_run(config, tmp_path / "run", 120), "lab/run-v0", license="CC0-1.0")


def test_an_export_that_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = train_run(CONFIG, tmp_path / "run", 90)
    digests = []
    for name in ("a", "b"):
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / name))
        if name == "b":
            stored = run_export.stored_episodes

            def breaking(folder: Path) -> Iterator[Any]:
                for k, episode in enumerate(stored(folder)):  # noqa: B023
                    if k == 4:
                        raise Stop
                    yield episode

            monkeypatch.setattr(run_export, "stored_episodes", breaking)
            with pytest.raises(Stop):
                export_dataset(result, "lab/run-v0")
            monkeypatch.setattr(run_export, "stored_episodes", stored)
        folder = export_dataset(result, "lab/run-v0")
        data = (folder / "data/main_data.hdf5").read_bytes()
        digests.append(hashlib.sha256(data).hexdigest())
    assert digests[0] == digests[1]
