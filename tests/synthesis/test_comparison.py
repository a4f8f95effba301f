"""The better of two critics stands, and the file says which and why."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import pbvf_offline.synthesis.comparison as comparison_module
from libtools import make_file
from model_tools import SETTINGS, TARGET_HORIZON, held_out, target_data
from pbvf_offline.errors import DivergedError, IncompatibleError
from pbvf_offline.fit.critic_file import CriticFile, load_critic
from pbvf_offline.fit.rounds import Comparison, ImaginedFit, Round, RoundSettings, round_defaults
from pbvf_offline.fit.to_file import fit_to_file
from pbvf_offline.models.choice import train
from pbvf_offline.models.model_file import ModelFile
from pbvf_offline.models.training import start_training
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.synthesis.ascent import Synthesis, synthesize
from pbvf_offline.synthesis.comparison import better_critic, default_recipe
from pbvf_offline.synthesis.model_evaluation import ModelEvaluator
from pbvf_offline.synthesis.rounds_to_file import rounds_to_file
from pbvf_offline.synthesis.settings import default_synthesis_settings

DIGEST = "0" * 64
POOR = RoundSettings(
    seed=0, rounds=1, fresh=4, known=4, starts=1, steps=2, lr=0.1, updates=1, hidden=(4,)
)


@cache
def model() -> ModelFile:
    learned = train(target_data(), held_out(target_data()), SETTINGS, 600)
    return ModelFile(
        start_training(learned, 600), {}, None, "d" * 64, target_data().initial_observations
    )


def fitted(out: Path, settings: RoundSettings, of: Trajectories | None = None) -> CriticFile:
    return rounds_to_file(
        of or target_data(), model(), settings, out, model_digest="1" * 64, environment=None,
        dataset=DIGEST,
    ).file  # fmt: skip


def story(file: CriticFile) -> ImaginedFit:
    assert file.imagined is not None
    return file.imagined


def test_the_default_recipe_stands_where_it_is_better(tmp_path: Path) -> None:
    settings = dataclasses.replace(POOR, compare=60)
    found = fitted(tmp_path / "c", settings)
    said = story(found).comparison
    assert said is not None
    assert said.kind == "pssvf"  # every episode is whole and one policy's
    assert said.recipe > said.imagined
    assert not said.imagined_stands
    assert found.unit == "undiscounted return"
    # What stands is what fit-critic makes without a model.
    plain = fit_to_file(
        target_data(), default_recipe(target_data(), settings, None), tmp_path / "plain",
        updates=60, environment=None, dataset=DIGEST,
    ).file  # fmt: skip
    assert dataclasses.replace(found, imagined=None).encode() == plain.encode()
    assert load_critic(tmp_path / "c").encode() == (tmp_path / "c").read_bytes()
    # The rounds are told of all the same, and the same call finds it complete.
    assert len(story(found).rounds) == 1
    again = rounds_to_file(
        target_data(), model(), settings, tmp_path / "c", model_digest="1" * 64, environment=None,
        dataset=DIGEST,
    )  # fmt: skip
    assert again.already_complete
    assert story(again.file) == story(found)


def test_a_critic_of_imagined_episodes_stands_where_it_is_at_least_as_good(tmp_path: Path) -> None:
    settings = dataclasses.replace(
        POOR, rounds=4, fresh=8, known=16, starts=2, steps=20, updates=100, hidden=(32,)
    )
    alone = fitted(tmp_path / "alone", settings)
    found = fitted(tmp_path / "c", dataclasses.replace(settings, compare=1))
    said = story(found).comparison
    assert said is not None
    assert said.imagined_stands
    assert found.unit == "cautious imagined undiscounted return"
    for name, weight in alone.critic.state_dict().items():
        np.testing.assert_array_equal(weight, found.critic.state_dict()[name])
    assert story(alone).comparison is None
    assert Comparison(1.0, 1.0, "psvf").imagined_stands


def test_what_is_compared_is_what_policies_of_both_come_to(tmp_path: Path) -> None:
    settings = dataclasses.replace(POOR, compare=20, caution=1.5)
    found = fitted(tmp_path / "c", settings)
    alone = fitted(tmp_path / "alone", dataclasses.replace(settings, compare=0))
    said = story(found).comparison
    assert said is not None
    climb = default_synthesis_settings(None, count=5, seed=0, judged=True)
    evaluator = ModelEvaluator.of(model(), TARGET_HORIZON)

    def judge(policies: Policies) -> NDArray[np.float64]:
        members = evaluator.evaluate(policies).members
        return members.mean(axis=1) - 1.5 * members.std(axis=1)

    recipe = found if not said.imagined_stands else None
    for critic, value in ((alone, said.imagined), (recipe, said.recipe)):
        if critic is not None:
            changed = dataclasses.replace(climb, states=256, candidates=8)
            grown = synthesize(critic, changed, judge=judge).policies
            assert value == pytest.approx(float(judge(grown).mean()), rel=1e-6)


def test_the_recipe_is_the_critics_own_kind_where_the_data_can_serve_it() -> None:
    pieces = dataclasses.replace(target_data(), policy=np.repeat(np.arange(60, dtype=np.int32), 30))
    fragments = dataclasses.replace(pieces, policy=(np.arange(1800) // 15 % 60).astype(np.int32))
    for kind, some, expected in (
        ("pssvf", pieces, "pssvf"),
        ("pssvf", fragments, "psvf"),
        ("pavf", fragments, "pavf"),
    ):
        settings = dataclasses.replace(POOR, kind=kind, fingerprint=7)
        recipe = default_recipe(some, settings, "Swimmer-v5")
        assert recipe.kind == expected
        assert recipe.fingerprint == 7
        assert recipe.seed == 0
        assert recipe.gamma == (1.0 if expected == "pssvf" else 0.999)


def test_the_command_compares_and_the_record_does_not() -> None:
    assert round_defaults("psvf", "Swimmer-v5").settings.compare == 3_000
    assert "compare" not in POOR.to_dict()


def test_only_critics_of_imagined_episodes_are_compared() -> None:
    with pytest.raises(ValueError, match="no imagined episodes"):
        better_critic(
            make_file("pssvf", 1, target_data()), target_data(),
            ModelEvaluator.of(model(), TARGET_HORIZON),
            POOR, environment=None, dataset=DIGEST,
        )  # fmt: skip


def test_the_unit_is_of_what_stands() -> None:
    file = make_file("psvf", 1)
    done = Round(0, 1, 0.0, 0.0, 0.0, 0.0)
    for imagined, unit in ((1.0, "cautious imagined return"), (3.0, "return")):
        said = ImaginedFit(
            "1" * 64, 7, POOR, done, (done,), Comparison(4.0 - imagined, 2.0, "psvf")
        )
        assert dataclasses.replace(file, imagined=said).unit == f"{unit} discounted by 0.9"


def test_where_the_default_recipe_diverges_the_imagined_critic_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: object, **__: object) -> None:
        raise DivergedError("the loss is NaN")

    monkeypatch.setattr(comparison_module, "advance", diverge)
    found = fitted(tmp_path / "c", dataclasses.replace(POOR, compare=60))
    assert story(found).comparison is None
    assert story(found).stands
    assert load_critic(tmp_path / "c").encode() == found.encode()


def test_so_it_does_where_no_ascent_of_the_default_recipe_can_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    climbed: list[CriticFile] = []

    def climb(critic: CriticFile, *args: object, **kwargs: object) -> Synthesis:
        climbed.append(critic)
        if len(climbed) == 2:
            raise IncompatibleError("its starts cannot be drawn into the trust region")
        return synthesize(critic, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(comparison_module, "synthesize", climb)
    found = fitted(tmp_path / "c", dataclasses.replace(POOR, compare=60))
    assert len(climbed) == 2
    assert story(found).comparison is None
    assert load_critic(tmp_path / "c").encode() == found.encode()
