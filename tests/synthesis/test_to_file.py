from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from libtools import make_file
from pbvf_offline.envs.make import make_env
from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.errors import ConflictError, DamagedError, UsageError
from pbvf_offline.fit.critic_file import CriticFile, load_critic
from pbvf_offline.io.reading import file_digest
from pbvf_offline.policies.files import PoliciesFile, load_policies
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.rollout.evaluation import evaluate_policies
from pbvf_offline.rollout.loop import EpisodeJob, run_episodes
from pbvf_offline.rollout.schedules import PerturbationSchedule
from pbvf_offline.synthesis.ascent import closest_policies
from pbvf_offline.synthesis.model_evaluation import ImaginedReturns
from pbvf_offline.synthesis.settings import EvaluationSettings, SynthesisSettings
from pbvf_offline.synthesis.to_file import SynthesisResult, stored_seed, synthesize_to_file

LQR = EnvConfig("LQR-v0", max_episode_steps=6)
SETTINGS = SynthesisSettings(count=2, steps=12, lr=0.05, seed=3)
MEASURE = EvaluationSettings(LQR, episodes=2, every=5, seed=11)


@pytest.fixture(scope="module")
def critic_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pbvf_offline.rollout.episodes import stack_episodes

    env = make_env(LQR)
    spec = spec_for_env(env, (), squash="none")
    env.close()
    base = Policies(spec, np.array([[-0.5, 0.0]], np.float32), np.zeros((1, 1)), np.ones((1, 1)))
    job = EpisodeJob(LQR, PerturbationSchedule(base, 0.3, None, 0))
    data = stack_episodes(spec, run_episodes(job, range(30)))
    path = tmp_path_factory.mktemp("critic") / "c.safetensors"
    make_file("psvf", 40, data).save(path)
    return path


@pytest.fixture
def critic(critic_path: Path) -> CriticFile:
    return load_critic(critic_path)


def run(
    critic_path: Path, critic: CriticFile, out: Path, settings: Any = SETTINGS, **kwargs: Any
) -> SynthesisResult:
    return synthesize_to_file(critic_path, critic, settings, out, **kwargs)


def test_result_and_again(critic_path: Path, critic: CriticFile, tmp_path: Path) -> None:
    out = tmp_path / "new" / "p.safetensors"
    stages: list[tuple[str, int, int]] = []
    result = run(critic_path, critic, out, progress=lambda *call: stages.append(call))
    assert not result.already_complete
    assert stages == [("synthesize", k, 12) for k in range(13)]
    for values in (result.predicted, result.chosen_step, result.objective, result.distance):
        assert len(values) == 2
    assert (result.returns, result.closest, result.curve) == (None, None, None)
    assert [p.name for p in out.parent.iterdir()] == ["p.safetensors"]
    loaded = load_policies(out)
    assert loaded.origin["critic"] == file_digest(critic_path)
    assert loaded.environment == critic.context.environment
    assert critic.predict(loaded.policies.theta).tolist() == pytest.approx(result.predicted)
    before = out.read_bytes()
    again = run(critic_path, critic, out)
    assert again.already_complete
    assert again.predicted == result.predicted
    assert again.chosen_step == result.chosen_step
    assert out.read_bytes() == before


def test_candidates_chosen_in_another_model_are_a_conflict(
    critic_path: Path, critic: CriticFile, tmp_path: Path
) -> None:
    class Likes:
        """A learned environment in which a smaller gain is worth more."""

        horizon = 6

        def judge(self, policies: Policies, candidates: int) -> NDArray[np.float64]:
            assert candidates == 4
            return self.evaluate(policies).cautious

        def evaluate(self, policies: Policies, **_: Any) -> ImaginedReturns:
            played.append(policies.theta)
            values = -policies.theta[:, :1].astype(np.float64)
            return ImaginedReturns(values, np.full(len(values), 6.0), np.zeros((1, 1)))

    settings = dataclasses.replace(SETTINGS, restarts=4, candidates=4)
    evaluator: Any = Likes()
    played: list[NDArray[np.float32]] = []
    out = tmp_path / "p.safetensors"
    first = run(critic_path, critic, out, settings, evaluator=evaluator, model_digest="a" * 64)
    assert first.cautious == (-first.file.policies.theta[:, 0].astype(np.float64)).tolist()
    assert len(played[0]) == 8  # among which those kept were
    assert np.array_equal(played[1], first.file.policies.theta)  # for their intervals
    assert first.file.origin["chosen_in"] == ["a" * 64, 6]
    again = run(critic_path, critic, out, settings, evaluator=evaluator, model_digest="a" * 64)
    assert again.already_complete
    with pytest.raises(ConflictError, match=r'model is "a+… there and "b+… here'):
        run(critic_path, critic, out, settings, evaluator=evaluator, model_digest="b" * 64)
    evaluator.horizon = 7
    with pytest.raises(ConflictError, match="horizon is 6 there and 7 here"):
        run(critic_path, critic, out, settings, evaluator=evaluator, model_digest="a" * 64)
    alone = run(critic_path, critic, tmp_path / "alone.safetensors")
    assert "chosen_in" not in alone.file.origin
    assert alone.file.policies.theta[:, 0].mean() > first.file.policies.theta[:, 0].mean()


def test_same_seed_same_bytes(critic_path: Path, critic: CriticFile, tmp_path: Path) -> None:
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    for out in (a, b):
        run(critic_path, critic, out, evaluation=MEASURE)
    assert a.read_bytes() == b.read_bytes()


@pytest.mark.parametrize("trust_region", [True, False])
def test_evaluation_changes_no_policy(
    trust_region: bool, critic_path: Path, critic: CriticFile, tmp_path: Path
) -> None:
    settings = dataclasses.replace(SETTINGS, trust_region=trust_region)
    plain = run(critic_path, critic, tmp_path / "a.safetensors", settings)
    measured = run(critic_path, critic, tmp_path / "b.safetensors", settings, evaluation=MEASURE)
    assert plain.chosen_step == measured.chosen_step
    assert plain.predicted == measured.predicted
    a, b = plain.file.policies.theta, measured.file.policies.theta
    assert a.tobytes() == b.tobytes()


def test_measured_numbers(critic_path: Path, critic: CriticFile, tmp_path: Path) -> None:
    out = tmp_path / "p.safetensors"
    result = run(critic_path, critic, out, evaluation=MEASURE)
    policies = result.file.policies
    returns, _ = evaluate_policies(LQR, policies, episodes=2, seed=11)
    assert result.returns == pytest.approx(returns.mean(axis=1).tolist())
    near, _ = evaluate_policies(LQR, closest_policies(critic, policies), episodes=2, seed=11)
    assert result.closest == pytest.approx(near.mean(axis=1).tolist())
    assert result.curve is not None
    assert [point["step"] for point in result.curve] == [0, 5, 10]
    assert all(len(point["returns"]) == len(point["predicted"]) == 2 for point in result.curve)
    again = run(critic_path, critic, out, evaluation=MEASURE)
    assert again.already_complete
    assert (again.returns, again.curve) == (result.returns, result.curve)


def test_evaluation_can_be_added_later(
    critic_path: Path, critic: CriticFile, tmp_path: Path
) -> None:
    late, at_once = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    run(critic_path, critic, late)
    result = run(critic_path, critic, late, evaluation=MEASURE)
    assert not result.already_complete
    run(critic_path, critic, at_once, evaluation=MEASURE)
    assert late.read_bytes() == at_once.read_bytes()
    without = run(critic_path, critic, late)  # asks for less than there is
    assert without.already_complete
    assert late.read_bytes() == at_once.read_bytes()


@pytest.mark.usefixtures("forking")
def test_workers_change_nothing(critic_path: Path, critic: CriticFile, tmp_path: Path) -> None:
    two_units = dataclasses.replace(SETTINGS, count=11, restarts=32, steps=4)
    told: dict[int, list[Any]] = {1: [], 2: []}
    for workers, seen in told.items():
        run(
            critic_path,
            critic,
            tmp_path / f"{workers}.safetensors",
            two_units,
            evaluation=MEASURE,
            workers=workers,
            on_event=lambda *event, seen=seen: seen.append(event),
            progress=lambda stage, done, total, n=workers: (
                told[n].append((stage, done / total)) if done == total else None
            ),
        )
    assert (tmp_path / "1.safetensors").read_bytes() == (tmp_path / "2.safetensors").read_bytes()
    assert told[1] == told[2]
    assert [event[1] for event in told[1] if event[0] == "ascent"] == [0, 1, 2, 3, 4]
    assert ("synthesize", 1.0) in told[2]


CHANGES: dict[str, Any] = {
    "count": 3,
    "steps": 13,
    "lr": 0.06,
    "seed": 4,
    "trust_region": False,
    "radius": 0.9,
    "states": 500,
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_settings_are_a_conflict_that_names_them(
    name: str, critic_path: Path, critic: CriticFile, tmp_path: Path
) -> None:
    out = tmp_path / "p.safetensors"
    run(critic_path, critic, out)
    before = out.read_bytes()
    other = dataclasses.replace(SETTINGS, **{name: CHANGES[name]})
    with pytest.raises(ConflictError, match=name.replace("_", "-")) as caught:
        run(critic_path, critic, out, other)
    assert caught.value.exit_code == 7
    assert out.read_bytes() == before
    assert not run(critic_path, critic, out, other, overwrite=True).already_complete
    assert out.read_bytes() != before


def test_a_conflict_names_a_default_that_no_file_holds(
    critic_path: Path, critic: CriticFile, tmp_path: Path
) -> None:
    out = tmp_path / "p.safetensors"
    run(critic_path, critic, out)
    other = dataclasses.replace(SETTINGS, precision="bfloat16")
    with pytest.raises(ConflictError, match='precision is "float32" there and "bfloat16" here'):
        run(critic_path, critic, out, other)


def test_another_critic_or_other_states_are_a_conflict(
    critic_path: Path, critic: CriticFile, tmp_path: Path
) -> None:
    out, other = tmp_path / "p.safetensors", tmp_path / "c.safetensors"
    run(critic_path, critic, out)
    dataclasses.replace(critic, validation={"changed": True}).save(other)
    with pytest.raises(ConflictError, match="critic"):
        run(other, critic, out)
    with pytest.raises(ConflictError, match="states"):
        run(
            critic_path,
            critic,
            out,
            observations=critic.context.observations,
            states_digest="e" * 64,
        )


def test_somebody_elses_policies_are_not_overwritten(
    critic_path: Path, critic: CriticFile, tmp_path: Path
) -> None:
    out = tmp_path / "p.safetensors"
    grown = run(critic_path, critic, tmp_path / "other.safetensors").file
    PoliciesFile(grown.policies, None, {"made_by": "hand"}).save(out)
    before = out.read_bytes()
    with pytest.raises(ConflictError):
        run(critic_path, critic, out)
    assert out.read_bytes() == before
    out.write_bytes(b"notes")
    with pytest.raises(ConflictError, match="no policies file"):
        run(critic_path, critic, out)
    assert out.read_bytes() == b"notes"


def test_interrupted_and_run_again(critic_path: Path, critic: CriticFile, tmp_path: Path) -> None:
    out, undisturbed = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    run(critic_path, critic, undisturbed, evaluation=MEASURE)

    def stop(stage: str, done: int, total: int) -> None:
        if (stage, done) == ("evaluate", 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(critic_path, critic, out, evaluation=MEASURE, progress=stop)
    assert not out.exists()
    run(critic_path, critic, out, evaluation=MEASURE)
    assert out.read_bytes() == undisturbed.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors"]


def test_what_a_kill_left_goes_even_when_nothing_is_to_do(
    critic_path: Path, critic: CriticFile, tmp_path: Path
) -> None:
    out = tmp_path / "p.safetensors"
    run(critic_path, critic, out)
    (tmp_path / ".p.safetensors.tmp").write_bytes(b"half")
    assert run(critic_path, critic, out).already_complete
    assert [p.name for p in tmp_path.iterdir()] == ["p.safetensors"]


def test_stored_seed(critic_path: Path, critic: CriticFile, tmp_path: Path) -> None:
    out = tmp_path / "p.safetensors"
    assert stored_seed(out) is None
    run(critic_path, critic, out)
    assert stored_seed(out) == 3


@pytest.mark.parametrize(
    ("change", "where"), [({"episodes": 0}, "--episodes"), ({"every": 0}, "--evaluate-every")]
)
def test_refused_evaluation_settings(change: dict[str, int], where: str) -> None:
    with pytest.raises(UsageError) as caught:
        dataclasses.replace(MEASURE, **change)
    assert caught.value.where == where


@pytest.mark.parametrize("result", [None, {}, {"predicted": [1.0]}, {"predicted": "many"}])
def test_a_file_without_its_record_is_grown_again(
    critic_path: Path, critic: CriticFile, tmp_path: Path, result: object
) -> None:
    out = tmp_path / "p.safetensors"
    run(critic_path, critic, out)
    whole, stored = out.read_bytes(), load_policies(out)
    dataclasses.replace(stored, origin={**stored.origin, "result": result}).save(out)
    again = run(critic_path, critic, out)
    assert not again.already_complete
    assert out.read_bytes() == whole


def test_a_record_of_other_policies_is_damage(
    critic_path: Path, critic: CriticFile, tmp_path: Path
) -> None:
    out = tmp_path / "p.safetensors"
    run(critic_path, critic, out)
    stored = load_policies(out)
    result = {**stored.origin["result"], "chosen_step": []}
    dataclasses.replace(stored, origin={**stored.origin, "result": result}).save(out)
    with pytest.raises(DamagedError, match="its result has 0 values of chosen_step"):
        run(critic_path, critic, out)
