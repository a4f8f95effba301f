"""A dataset of another program is tagged with the policies that made it, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from libtools import box_spec, discrete_spec, make_policies
from pbvf_datasets import load_dataset, tag_dataset
from pbvf_datasets.format.recompute import ACTION_TOLERANCE
from pbvf_datasets.inspect.verify import verify
from pbvf_datasets.read.untrusted import UnverifiedWarning
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import IncompatibleError, UsageError
from pbvf_offline.policies.files import PoliciesFile
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec
from untagged import make_untagged, played

pytestmark = pytest.mark.filterwarnings(f"ignore::{UnverifiedWarning.__module__}.UnverifiedWarning")
SOURCE, OUT = "theirs/toy-v0", "lab/toy-v0"
ROWS = [2, 0, 2, 1]


def policies_of(spec: PolicySpec, count: int = 3) -> Policies:
    return make_policies(spec, count, mean=np.arange(spec.obs_dim), std=np.full(spec.obs_dim, 2.0))


def tag(root: Path, policies: Policies, **options: Any) -> Any:
    path = root.parent / "policies.safetensors"
    PoliciesFile(policies).save(path)
    return tag_dataset(SOURCE, OUT, path, **options)


@pytest.mark.parametrize(
    "spec",
    [box_spec(3, (), 2, -1.0, 3.0), box_spec(3, (8,), 1, squash="none"), discrete_spec(3, (8,), 4)],
    ids=lambda spec: f"{spec.arch} {spec.actions}",
)
def test_each_episode_gets_the_policy_that_acted(root: Path, spec: PolicySpec) -> None:
    policies = policies_of(spec)
    episodes = played(policies, ROWS, steps=40)
    make_untagged(SOURCE, episodes, policies)
    result = tag(root, policies, license="MIT")
    assert (result.episodes, result.steps, result.policies) == (4, 160, 3)
    assert (result.license, result.authors) == ("MIT", ("Ada",))
    assert [(s.id, s.verified) for s in result.sources] == [(SOURCE, False)]
    assert verify(result.path).status == "intact"
    for found, wanted in zip(load_dataset(OUT).episodes, episodes, strict=True):
        for name in ("observations", "actions", "rewards", "theta", "obs_mean", "obs_std"):
            np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
        assert (found.seed, found.cut) == (wanted.seed, "none")
    assert tag(root, policies, license="MIT").already_complete


def test_the_module_of_the_environment_is_that_of_the_policies(root: Path) -> None:
    policies = policies_of(box_spec(3, (), 1, -1.0, 3.0))
    folder = make_untagged(SOURCE, played(policies, ROWS), policies)
    metadata = json.loads((folder / "data" / "metadata.json").read_text())
    spec = EnvSpec("Theirs-v0", entry_point="theirs:Env")
    (folder / "data" / "metadata.json").write_text(
        json.dumps({**metadata, "env_spec": spec.to_json()})
    )
    path = root.parent / "policies.safetensors"
    for name, module in (("Other-v0", None), ("Theirs-v0", "theirs")):
        PoliciesFile(policies, EnvReference(name, "theirs")).save(path)
        tag_dataset(SOURCE, OUT, path, overwrite=True)
        assert load_dataset(OUT).environment["module"] == module


def test_a_policy_that_did_not_act_is_refused_with_the_step_and_the_difference(root: Path) -> None:
    spec = box_spec(3, (), 1, -1.0, 3.0)
    policies = policies_of(spec)
    episodes = played(policies, ROWS)
    episodes[2].actions[5] -= np.float32(0.5) * np.sign(episodes[2].actions[5] - 1)
    make_untagged(SOURCE, episodes, policies)
    with pytest.raises(IncompatibleError, match=r"episode_2: policy 2 .* step 5 .* 0\.125 of the"):
        tag(root, policies)
    with pytest.raises(IncompatibleError, match=r"episode_1: the policy given .* step 0 "):
        tag(root, policies.select([2]))
    assert not list((root / "lab").iterdir())


@pytest.mark.parametrize(("part", "fits"), [(0.7, True), (1.3, False)])
def test_the_tolerance_is_that_of_verify(root: Path, part: float, fits: bool) -> None:
    policies = policies_of(box_spec(3, (), 1, -1.0, 3.0, "float64"), 1)
    policies.theta[:] = 0  # does 1 everywhere
    (episode,) = played(policies, [0])
    episode.actions[4] += part * ACTION_TOLERANCE * 4.0
    make_untagged(SOURCE, [episode], policies)
    if fits:
        assert verify(tag(root, policies).path).status == "intact"
    else:
        with pytest.raises(IncompatibleError, match=r"did not act there: at step 4 "):
            tag(root, policies)


def test_where_two_policies_act_alike_the_order_decides(root: Path) -> None:
    policies = policies_of(discrete_spec(3, (), 2), 2)
    policies.theta[1] = 2 * policies.theta[0]  # other logits, the same choices
    make_untagged(SOURCE, played(policies, [1, 0]), policies)
    with pytest.raises(IncompatibleError, match=r"episode_0: the policies 0, 1 .*--order"):
        tag(root, policies)
    tag(root, policies, order=[1, 0])
    np.testing.assert_array_equal(load_dataset(OUT).theta, policies.theta[[1, 0]])


@pytest.mark.parametrize(("telling", "fits"), [(4, True), (3, False)])
def test_a_policy_that_could_have_done_anything_is_refused(
    root: Path, telling: int, fits: bool
) -> None:
    policies = policies_of(discrete_spec(1, (), 3), 1)
    policies.theta[:] = 0
    policies.theta[0, 0] = 1e-6  # the logit of the first choice by the observation
    (episode,) = played(policies, [0], steps=40)
    episode.observations[:] = 1
    episode.observations[:telling] = 1e6
    episode.actions[:] = np.arange(40) % 3
    episode.actions[:telling] = 0
    make_untagged(SOURCE, [episode], policies)
    if fits:
        assert verify(tag(root, policies).path).status == "intact"
        return
    for order in (None, [0]):
        with pytest.raises(IncompatibleError, match="at 37 of 40 steps any action would fit"):
            tag(root, policies, order=order)
    assert not list((root / "lab").iterdir())


def test_an_order_is_checked_too(root: Path) -> None:
    policies = policies_of(box_spec(3))
    make_untagged(SOURCE, played(policies, ROWS), policies)
    with pytest.raises(IncompatibleError, match=r"episode_3: policy 0 of the file did not act"):
        tag(root, policies, order=[2, 0, 2, 0])
    for order, text in (([0], "1 row, and the dataset 4 episodes"), ([0, 0, 3, 0], "row 3 of")):
        with pytest.raises(UsageError, match=text):
            tag(root, policies, order=order)


def test_equal_rows_are_one_policy(root: Path) -> None:
    policies = policies_of(box_spec(3)).select([1, 1])
    make_untagged(SOURCE, played(policies, [0]), policies)
    assert tag(root, policies).policies == 1


def test_stochastic_policies_are_believed_only_when_asked_to(root: Path) -> None:
    policies = policies_of(box_spec(3, stochastic=True))
    make_untagged(SOURCE, played(policies, ROWS), policies)
    with pytest.raises(IncompatibleError, match="--unchecked"):
        tag(root, policies)
    with pytest.raises(UsageError, match="which of the 3"):
        tag(root, policies, unchecked=True)
    result = tag(root, policies, unchecked=True, order=ROWS)
    data = load_dataset(OUT)
    np.testing.assert_array_equal(data.theta[data.transitions.policy[::8]], policies.theta[ROWS])
    assert data.manifest is not None
    assert data.manifest["provenance"]["settings"]["checked"] is False
    assert "| checked | false |" in (result.path / "README.md").read_text()
    with pytest.raises(UsageError, match="is for stochastic policies"):
        tag(root, policies_of(box_spec(3)), unchecked=True)


def test_what_cannot_be_tagged_with_these_policies(root: Path) -> None:
    policies = policies_of(box_spec(3))
    make_untagged(SOURCE, played(policies, ROWS), policies)
    with pytest.raises(IncompatibleError, match="takes 2 observations"):
        tag(root, policies_of(box_spec(2)))
    tag(root, policies)
    path = root.parent / "policies.safetensors"
    with pytest.raises(UsageError, match="says already which policies acted"):
        tag_dataset(OUT, "lab/again-v0", path)
