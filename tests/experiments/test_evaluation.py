from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from pbvf_datasets.read.dataset import Dataset, load_dataset
from pbvf_experiments.metrics import coverage, estimate_metrics
from pbvf_experiments.offline import evaluation
from pbvf_experiments.offline.evaluation import (
    ESTIMATES,
    SETS,
    around_dataset,
    evaluate_unseen,
    summary_of_evaluation,
    unseen_policies,
)
from pbvf_experiments.offline.settings import OpeSettings
from pbvf_offline.envs.reference import EnvConfig, EnvReference
from pbvf_offline.errors import IncompatibleError
from pbvf_offline.fit.critic_file import CriticFile, load_critic
from pbvf_offline.fit.rounds import RoundSettings
from pbvf_offline.io.reading import file_digest
from pbvf_offline.models.model_file import ModelFile, load_model
from pbvf_offline.models.settings import ModelRequest
from pbvf_offline.models.to_file import fit_model_to_file
from pbvf_offline.rollout.evaluation import evaluate_policies
from pbvf_offline.synthesis.rounds_to_file import rounds_to_file
from pbvf_runs.collection import collect
from pbvf_runs.settings import CollectSettings

ENV = "InvertedPendulum-v5"
SMALL = OpeSettings(policies=6, climbing=2, every=50, episodes=2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, ModelFile, CriticFile]:
    """Return a dataset of fragments, a model of it and a critic of imagined returns, all tiny."""
    folder = tmp_path_factory.mktemp("evaluation")
    settings = CollectSettings(
        EnvConfig(ENV), "lab/fragments-v0", steps=300, perturb_every=20, sigma=0.7, seed=3
    )
    data = load_dataset(collect(settings, root=folder).path, cache=False)
    source = {
        "environment": EnvReference.from_dict(data.environment, "here"),
        "dataset": data.digest,
    }
    model, critic = folder / "model.safetensors", folder / "critic.safetensors"
    request = ModelRequest(seed=3, members=2, hidden=(8,), batch_size=8, trial_updates=2)
    learned = fit_model_to_file(data.trajectories, request, model, updates=20, **source)
    rounds = RoundSettings(seed=3, rounds=2, fresh=4, known=2, steps=2, updates=3)
    rounds_to_file(
        data.trajectories, learned.file, rounds, critic, model_digest=file_digest(model), **source
    )
    return data, load_model(model), load_critic(critic)


def test_the_collection_would_have_gone_on_with_these_policies(
    made: tuple[Dataset, ModelFile, CriticFile], tmp_path: Path
) -> None:
    data = made[0]
    more = around_dataset(data, 2)
    assert not (data.theta[:, None] == more.theta).all(axis=2).any()
    longer = CollectSettings(
        EnvConfig(ENV), "lab/more-v0", episodes=len(data) + 2, perturb_every=20, sigma=0.7, seed=3
    )
    found = load_dataset(collect(longer, root=tmp_path).path, cache=False)
    trajectories = found.trajectories
    rows = trajectories.policy[trajectories.start[len(data) : len(data) + 2]]
    np.testing.assert_array_equal(found.theta[rows], more.theta)
    np.testing.assert_array_equal(found.obs_std[rows], more.obs_std)


def test_a_dataset_must_say_what_was_perturbed(
    made: tuple[Dataset, ModelFile, CriticFile],
) -> None:
    data = made[0]
    with pytest.raises(IncompatibleError, match="which fresh policy was perturbed"):
        around_dataset(dataclasses.replace(data, manifest=None), 2)
    assert data.manifest is not None
    provenance = data.manifest["provenance"]
    given = {**provenance, "settings": {**provenance["settings"], "policy": None}}
    of_a_file = dataclasses.replace(data, manifest={**data.manifest, "provenance": given})
    with pytest.raises(IncompatibleError, match="which fresh policy was perturbed"):
        around_dataset(of_a_file, 2)


def test_policies_along_ascents_are_points_of_ways(
    made: tuple[Dataset, ModelFile, CriticFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, _, critic = made
    climb, ways = evaluation.synthesize, []

    def watched(*args: object, **kwargs: object) -> object:
        ways.append(climb(*args, **kwargs))  # type: ignore[arg-type]
        return ways[-1]

    monkeypatch.setattr(evaluation, "synthesize", watched)
    one, again, other = (
        unseen_policies(data, critic, SMALL, env=ENV, seed=seed)["ascents"] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one.theta, again.theta)
    assert not np.array_equal(one.theta, other.theta)
    assert [point.step for point in ways[0].path] == [0, 50, 100, 150, 200]
    points = np.concatenate([point.theta for point in ways[0].path])
    assert (one.theta[:, None] == points).all(axis=2).sum() == len(one) == 6  # each once
    with pytest.raises(IncompatibleError, match="10 points, and 11 are wanted"):
        unseen_policies(data, critic, dataclasses.replace(SMALL, policies=11), env=ENV, seed=1)


def test_what_is_said_stands_beside_the_truth(
    made: tuple[Dataset, ModelFile, CriticFile],
) -> None:
    data, model, critic = made
    notes: list[str] = []
    result = evaluate_unseen(
        data, model, critic, SMALL, env=EnvConfig(ENV), seed=1, note=notes.append
    )
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert len(notes) == 2
    policies = unseen_policies(data, critic, SMALL, env=ENV, seed=1)
    for name in SETS:
        found = result[name]
        true, _ = evaluate_policies(EnvConfig(ENV), policies[name], episodes=2, seed=1)
        assert found["true"] == true.mean(axis=1).tolist()
        assert found["range"] == [min(found["true"]), max(found["true"])]
        for estimate in ESTIMATES:
            values = np.array(found[estimate])
            expected = estimate_metrics(np.array(found["true"]), values).to_dict()
            assert found["metrics"][estimate] == expected
        # Of policies that are imagined to last for longer than the check saw it is None.
        low, high = (np.array(end, dtype=float) for end in found["interval"])
        known = ~np.isnan(low)
        assert (low < found["imagined"])[known].all()
        assert (np.array(found["cautious"]) <= found["imagined"]).all()
        assert found["coverage"] == coverage(np.array(found["true"]), low, high)
    assert result["ascents"]["inside"] == 1.0
    assert result["unit"] == "cautious imagined undiscounted return"
    row = summary_of_evaluation(result)
    assert row["error around"] == result["around"]["metrics"]["imagined"]["absolute_error"]
    assert row["regret@5 ascents"] == result["ascents"]["metrics"]["imagined"]["regret_at_5"]
    assert row.get("in interval around") == result["around"]["coverage"]


def test_a_row_leaves_out_what_does_not_exist() -> None:
    nothing = {"rank_correlation": None, "regret_at_5": None, "absolute_error": None}
    some = {"rank_correlation": 0.5, "regret_at_5": 0.1, "absolute_error": 0.2}
    result = {
        "around": {"metrics": {"imagined": nothing, "predicted": nothing}, "coverage": None},
        "ascents": {"metrics": {"imagined": some, "predicted": nothing}, "coverage": 0.9},
    }
    assert summary_of_evaluation(result) == {
        "rank ascents": 0.5,
        "error ascents": 0.2,
        "regret@5 ascents": 0.1,
        "in interval ascents": 0.9,
    }
