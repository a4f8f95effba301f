"""Merge, filter and split: nothing lost, nothing counted twice, nothing made of bad inputs."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import shutil
import socket
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium import spaces

import hostile
import watching
from hostile import BOX_SPEC, rewrite_manifest
from make_episodes import same
from pbvf_datasets import load_dataset
from pbvf_datasets.format.schema import DATA_FILE, METADATA_FILE
from pbvf_datasets.read.untrusted import CheckedFolder, UnverifiedWarning
from pbvf_datasets.write.duplicates import redundant_copies
from pbvf_datasets.write.edit import EditResult, filter_dataset, merge, split
from pbvf_datasets.write.edit_settings import FilterSettings, SplitSettings, parse_ranges
from pbvf_datasets.write.writer import DatasetWriter
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    IncompatibleError,
    PbvfError,
    UnsafeError,
    UsageError,
)
from pbvf_offline.policies.actions import BoxActions
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Episode, stack_episodes

A, B, OUT = "lab/a-v0", "lab/b-v0", "lab/out-v0"
ENVIRONMENT = {"id": "Pendulum-v1", "module": None, "kwargs": {"g": 9.8}}
EPISODES = [hostile.episode(i, steps=4 + i) for i in range(6)]


pytestmark = pytest.mark.usefixtures("root")


def make(root: Path, name: str, episodes: Sequence[Episode] = EPISODES, **options: Any) -> Path:
    return hostile.make(root, name, episodes=list(episodes), **options)


def episodes_of(name: str) -> list[Episode]:
    return list(load_dataset(name, cache=False).episodes)


def content(root: Path, name: str = OUT) -> dict[str, bytes]:
    folder = root / name
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def names(root: Path) -> list[str]:
    return sorted(p.name for p in (root / "lab").iterdir())


def provenance(root: Path, name: str = OUT) -> dict[str, Any]:
    value = json.loads((root / name / "manifest.json").read_text())["provenance"]
    assert isinstance(value, dict)
    return value


def equal(found: Sequence[Episode], expected: Sequence[Episode]) -> bool:
    return len(found) == len(expected) and all(map(same, found, expected))


# ---------------------------------------------------------------------------------- merge


def test_merge_keeps_every_array_seed_and_mark(root: Path) -> None:
    spec = PolicySpec(3, (4,), BoxActions((-1.0,), (1.0,)), stochastic=True)

    def one(i: int, **changes: Any) -> Episode:
        pre = np.append(np.random.default_rng(i).standard_normal((5, 1)), [[0.0]], axis=0)
        survive = np.append(0.0, np.ones(5))
        return hostile.episode(i, spec, 5, pre_action=pre, reward_survive=survive, **changes)

    first = [one(0), one(1, seed=None), one(2, cut="budget")]
    ended = np.arange(5) == 4
    second = [one(3, terminated=ended, truncated=~ended & False), one(4)]
    make(root, A, first, spec=spec)
    make(root, B, second, spec=spec)
    result = merge([A, B], OUT)
    assert equal(episodes_of(OUT), first + second)
    data = load_dataset(OUT, cache=False)
    expected = stack_episodes(spec, first + second)
    np.testing.assert_array_equal(data.theta, expected.policies.theta)
    np.testing.assert_array_equal(data.trajectories.policy, expected.policy)
    np.testing.assert_array_equal(data.trajectories.cut, expected.cut)
    assert (result.episodes, result.steps, result.policies, result.cut) == (5, 25, 10, 1)
    whole = expected.whole_returns()
    assert result.returns is not None
    assert result.returns["mean"] == pytest.approx(whole.mean())
    assert provenance(root)["stats"]["terminated"] == 1
    assert (result.path, result.dataset, result.left_out) == (root / OUT, OUT, 0)
    assert not result.already_complete


def test_policies_are_one_when_all_four_parts_agree(root: Path) -> None:
    theta = np.ones((1, BOX_SPEC.size), np.float32)
    means = [np.zeros((1, 3)), np.ones((1, 3))]

    def one(i: int, mean: int) -> Episode:
        return hostile.episode(i, policies=1, theta=theta, obs_mean=means[mean])

    make(root, A, [one(0, 0), one(1, 0)])
    make(root, B, [one(2, 0), one(3, 1)])
    assert merge([A, B], OUT).policies == 2
    data = load_dataset(OUT, cache=False)
    np.testing.assert_array_equal(data.obs_mean, np.concatenate(means))
    returns = data.trajectories.returns()
    for i, row in enumerate((0, 0, 0, 1)):  # each return still with its policy
        assert returns[i] == pytest.approx(one(i, row).rewards.sum())
        assert set(data.trajectories.policy[data.trajectories.episode == i]) == {row}
    assert provenance(root)["stats"]["normalisers"] == 2


WIDE = PolicySpec(3, (), BoxActions((-1.0,) * 3, (1.0,) * 3))
DEEP = PolicySpec(3, (4,), BOX_SPEC.actions)
PLAIN = PolicySpec(3, (), BOX_SPEC.actions, squash="none")
DRAWN = PolicySpec(3, (), BOX_SPEC.actions, stochastic=True)
TIGHT = PolicySpec(3, (), BoxActions((-1.0, -1.0), (1.0, 2.0)))


def environment(**changes: Any) -> dict[str, Any]:
    return {**ENVIRONMENT, **changes}


@pytest.mark.parametrize(
    ("spec", "options", "words"),
    [
        (WIDE, {}, ["action space", "architecture"]),
        (DEEP, {}, ["architecture 4 against linear"]),
        (PLAIN, {}, ["squash none against tanh"]),
        (DRAWN, {}, ["stochastic True against False"]),
        (TIGHT, {}, ["policy's actions"]),
        (hostile.DISCRETE_SPEC, {}, ["Discrete", "Box"]),
        (BOX_SPEC, {"environment": environment(id="Pendulum-v0")}, ["Pendulum-v0", "Pendulum-v1"]),
        (BOX_SPEC, {"environment": environment(kwargs={"g": 1.6})}, ["arguments", "1.6", "9.8"]),
        (BOX_SPEC, {"environment": environment(module="mine")}, ["module mine against none"]),
        (
            BOX_SPEC,
            {"environment": environment(kwargs={"g": 9.8, "xml_file": "/x"})},
            ["withheld arguments xml_file"],
        ),
        (BOX_SPEC, {"environment": None}, ["environment not named against Pendulum-v1"]),
    ],
)
def test_what_does_not_fit_is_named_and_leaves_nothing(
    root: Path, spec: PolicySpec, options: dict[str, Any], words: list[str]
) -> None:
    make(root, A, environment=ENVIRONMENT)
    others = [hostile.episode(i, spec) for i in range(2)]
    if spec is TIGHT:
        for episode in others:
            np.clip(episode.actions, -1, 1, out=episode.actions)
    make(root, B, others, spec=spec, **{"environment": ENVIRONMENT, **options})
    with pytest.raises(IncompatibleError) as caught:
        merge([A, B], OUT)
    message = str(caught.value)
    assert caught.value.exit_code == 5
    assert all(word in message for word in [*words, A, B]), message
    assert names(root) == ["a-v0", "b-v0"]


def test_other_withheld_values_are_told_apart_by_their_digests(root: Path) -> None:
    hidden = environment(kwargs={"xml_file": "/x"})
    for name, digest in ((A, "0" * 64), (B, "1" * 64)):
        make(root, name, environment=hidden, settings={"env_kwargs": digest})
    with pytest.raises(IncompatibleError, match=r"xml_file \(1111"):
        merge([A, B], OUT)
    make(root, "lab/c-v0", environment=hidden, settings={"env_kwargs": "0" * 64}, license="MIT")
    assert merge([A, "lab/c-v0"], OUT, license="MIT").left_out == 6
    # Also where the values are behind an earlier merge.
    with pytest.raises(IncompatibleError, match="xml_file"):
        merge([OUT, B], "lab/more-v0")


def test_spaces_time_limits_dtypes_and_optional_arrays_must_agree(root: Path) -> None:
    make(root, A)
    short = spaces.Box(-1e3, 1e3, (3,), np.float64)
    action = hostile.spaces_of(BOX_SPEC)[1]
    with DatasetWriter(B, BOX_SPEC, observation_space=short, action_space=action, root=root) as w:
        w.add(EPISODES[0])
        w.finish()
    with pytest.raises(IncompatibleError, match=r"observation space.*1000\.0"):
        merge([A, B], OUT)
    single = [hostile.episode(9, observations=np.zeros((21, 3), np.float32))]
    make(root, "lab/c-v0", single)
    with pytest.raises(IncompatibleError, match="observations float32 against float64"):
        merge([A, "lab/c-v0"], OUT)
    make(root, "lab/d-v0", [hostile.episode(9, reward_survive=np.zeros(21))])
    with pytest.raises(IncompatibleError, match="infos/reward_survive present against absent"):
        merge([A, "lab/d-v0"], OUT)
    env = gymnasium.make("Pendulum-v1", max_episode_steps=50)
    text = env.spec.to_json() if env.spec is not None else ""
    make(root, "lab/e-v0", environment=ENVIRONMENT, env_spec_json=text)
    text = text.replace('"max_episode_steps": 50', '"max_episode_steps": 60')
    make(root, "lab/f-v0", environment=ENVIRONMENT, env_spec_json=text)
    with pytest.raises(IncompatibleError, match="time limit 60 against 50"):
        merge(["lab/e-v0", "lab/f-v0"], OUT)
    env.close()


def test_nothing_to_merge_missing_inputs_and_the_output_itself(root: Path) -> None:
    with pytest.raises(UsageError, match="nothing to merge"):
        merge([], OUT)
    make(root, A)
    with pytest.raises(UsageError, match="lab/none-v0"):
        merge([A, "lab/none-v0"], OUT)
    for call in (
        lambda: merge([A], A, overwrite=True),
        lambda: filter_dataset(root / A, A, FilterSettings(top=0.5), overwrite=True),
    ):
        before = content(root, A)
        with pytest.raises(UsageError, match="replace itself"):
            call()
        assert content(root, A) == before
    with pytest.raises(UsageError, match="not a dataset id"):
        merge([A], "lab/out")


def test_paths_and_ids_are_the_same_inputs(root: Path, tmp_path: Path) -> None:
    make(root, A, EPISODES[:3])
    make(root, B, EPISODES[3:])
    merge([A, B], OUT)
    moved = shutil.copytree(root / A, tmp_path / "elsewhere")
    assert merge([moved, str(root / B)], OUT).already_complete


# ----------------------------------------------------------------------------- duplicates


def test_shared_episodes_are_taken_once_and_counted(root: Path) -> None:
    make(root, A, EPISODES[:4])
    make(root, B, EPISODES[2:])
    result = merge([A, B], OUT)
    assert (result.episodes, result.left_out) == (6, 2)
    assert any("2 episodes are in more than one input" in note for note in result.notes)
    assert equal(episodes_of(OUT), EPISODES)
    again = merge([A, B], OUT)
    assert again.already_complete
    assert (again.left_out, again.notes) == (2, result.notes)
    both = merge([A, B], "lab/both-v0", keep_duplicates=True)
    assert (both.episodes, both.left_out, both.policies) == (8, 0, 12)
    # Merged again with an input, it is itself; the same input twice is that input.
    assert merge([OUT, A], "lab/more-v0").episodes == 6
    assert merge([A, A], "lab/once-v0").episodes == 4


def test_an_episode_that_differs_in_one_bit_is_another(root: Path) -> None:
    base = hostile.episode(0)
    make(root, A, [base])
    changed = [
        hostile.episode(0, observations=np.nextafter(base.observations, 9)),
        hostile.episode(0, theta=np.nextafter(base.theta, np.float32(9))),
        hostile.episode(0, obs_mean=base.obs_mean + 1e-9),
        hostile.episode(0, cut="budget"),
        hostile.episode(0, seed=7),
    ]
    make(root, B, changed)
    assert merge([A, B], OUT).left_out == 0


def test_seeds_are_kept_where_one_copy_lost_them(root: Path) -> None:
    make(root, A, [hostile.episode(i, seed=None) for i in range(3)])
    make(root, B, [hostile.episode(i) for i in range(2)])
    assert merge([A, B], OUT).left_out == 2
    assert load_dataset(OUT, cache=False).trajectories.seeds.tolist() == [-1, 100, 101]
    assert merge([B, A], "lab/other-v0").left_out == 2
    seeds = load_dataset("lab/other-v0", cache=False).trajectories.seeds
    assert seeds.tolist() == [100, 101, -1]


def test_equal_episodes_inside_one_input_all_stay(root: Path) -> None:
    make(root, A, [EPISODES[0]] * 3)
    make(root, B, [EPISODES[0]] * 2 + [EPISODES[1]])
    assert merge([A, B], OUT).left_out == 2
    assert equal(episodes_of(OUT), [EPISODES[0]] * 3 + [EPISODES[1]])


def test_rewards_that_are_all_alike_are_no_duplicates(root: Path) -> None:
    """As in CartPole: only the observations tell such episodes of one policy apart."""
    theta = np.ones((1, BOX_SPEC.size), np.float32)
    alike = [
        hostile.episode(i, policies=1, theta=theta, rewards=np.ones(20), seed=None)
        for i in range(6)
    ]
    make(root, A, alike[:4])
    make(root, B, alike[3:])
    assert merge([A, B], OUT).left_out == 1
    assert equal(episodes_of(OUT), alike)


def _match(kept: Sequence[int | None], new: Sequence[int | None]) -> int:
    """The most pairs that fit: equal seeds, or one unknown. By trying all."""
    nobody = -9
    return max(
        sum(
            a != nobody and (a is None or b is None or a == b)
            for a, b in zip(order, new, strict=False)
        )
        for order in itertools.permutations([*kept, *[nobody] * len(new)])
    )


@pytest.mark.parametrize("seed", range(60))
def test_surplus_is_what_two_inputs_can_have_in_common(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 4, 2)
    group: list[tuple[int, int, int | None]] = []
    for source, count in enumerate(counts):
        for i in range(count):
            value = int(rng.integers(-1, 3))
            group.append((source, i, None if value < 0 else value))
    sides = [[g[2] for g in group if g[0] == s] for s in (0, 1)]
    dropped = list(redundant_copies(group))
    assert len(dropped) == len(set(dropped)) == _match(*sides)
    seeds = Counter(g[2] for g in group if (g[0], g[1]) not in dropped and g[2] is not None)
    most = Counter(x for x in sides[0] if x is not None) | Counter(
        x for x in sides[1] if x is not None
    )
    assert seeds == most  # no known seed is lost


# ----------------------------------------------------------------- licences, provenance, card


def test_licences_and_authors(root: Path) -> None:
    make(root, A, EPISODES[:2], license="MIT", authors=["Ada", "Bo"])
    make(root, B, EPISODES[2:4], license="MIT", authors=["Cy", "Ada"])
    make(root, "lab/c-v0", EPISODES[4:], authors=["Di"])
    result = merge([A, B], OUT)
    assert (result.license, result.authors) == ("MIT", ("Ada", "Bo", "Cy"))
    with pytest.raises(UsageError, match=r"lab/a-v0: MIT, lab/c-v0: none") as caught:
        merge([A, "lab/c-v0"], "lab/all-v0")
    assert "--license" in str(caught.value)
    assert names(root) == ["a-v0", "b-v0", "c-v0", "out-v0"]
    result = merge([A, "lab/c-v0"], "lab/all-v0", license="CC0-1.0")
    assert (result.license, result.authors) == ("CC0-1.0", ("Ada", "Bo", "Di"))
    kept = filter_dataset("lab/all-v0", "lab/some-v0", FilterSettings(episodes=((0, 1),)))
    assert (kept.license, kept.authors) == (result.license, result.authors)


def test_the_manifest_tells_of_all_inputs_in_one_flat_list(root: Path) -> None:
    make(root, A, EPISODES[:2], warmup_steps=30, settings={"sigma": 0.5}, command="pbvf collect a")
    make(root, B, EPISODES[2:4], warmup_steps=12, settings={"sigma": 0.1})
    make(root, "lab/c-v0", EPISODES[4:], warmup_steps=1)
    merge([A, B], "lab/ab-v0")
    merge(["lab/ab-v0", "lab/c-v0", A], OUT)
    found = provenance(root)
    digests = {
        name: json.loads((root / name / "manifest.json").read_text())["digest"]
        for name in (A, B, "lab/c-v0", "lab/ab-v0")
    }
    entries = {entry["id"]: entry for entry in found["sources"]}
    assert list(entries) == [A, B, "lab/ab-v0", "lab/c-v0"]
    assert {name: entry["digest"] for name, entry in entries.items()} == digests
    assert entries["lab/ab-v0"]["from"] == [digests[A], digests[B]]
    assert entries[A]["from"] == []
    assert entries[A]["provenance"]["settings"] == {"sigma": 0.5}
    assert entries[A]["provenance"]["warmup_steps"] == 30
    assert "sources" not in entries["lab/ab-v0"]["provenance"]
    assert (entries[B]["episodes"], entries[B]["steps"], entries[B]["verified"]) == (2, 13, True)
    assert found["settings"]["sources"] == [digests["lab/ab-v0"], digests["lab/c-v0"], digests[A]]
    assert found["warmup_steps"] == 43  # each collection once
    load_dataset(OUT, cache=False)  # what was written is accepted
    filter_dataset(OUT, "lab/top-v0", FilterSettings(top=0.5))
    assert [e["id"] for e in provenance(root, "lab/top-v0")["sources"]] == [*entries, OUT]
    assert provenance(root, "lab/top-v0")["warmup_steps"] == 43
    card = (root / "lab/top-v0" / "README.md").read_text()
    for part in (
        "pbvf dataset filter lab/out-v0 --dataset lab/top-v0 --top 0.5",
        "pbvf dataset merge lab/ab-v0 lab/c-v0 lab/a-v0 --dataset lab/out-v0",
        "pbvf collect a",
        f"| lab/ab-v0 | {digests['lab/ab-v0'][:16]} | 4 | 22 | none | none given | merge |",
        f"| lab/a-v0 | {digests[A][:16]} | 2 | 9 | 0 | none given | collected |",
    ):
        assert part in card, part


def test_an_input_cannot_lie_about_another_input(root: Path) -> None:
    make(root, A, EPISODES[:2], license="MIT")
    make(root, B, EPISODES[2:4], license="MIT")
    merge([A], "lab/forged-v0")
    lies = provenance(root, "lab/forged-v0")["sources"]
    lies[0]["provenance"]["license"] = "WTFPL"
    rewrite_manifest(root / "lab/forged-v0", lambda m: m["provenance"].update(sources=lies))
    merge(["lab/forged-v0", A], OUT)
    first = next(e for e in provenance(root)["sources"] if e["id"] == A)
    assert first["provenance"]["license"] == "MIT"


def test_too_many_inputs_for_a_manifest_are_refused_at_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [
        {"id": "x-v0", "digest": f"{k:064x}", "verified": False, "episodes": 1, "steps": 1}
        | {"from": [], "provenance": None}
        for k in range(20_000)
    ]
    rewrite_manifest(make(root, A), lambda m: m["provenance"].update(sources=many))
    load_dataset(A, cache=False)  # near what a manifest may hold
    with pytest.raises(UsageError, match="goes back to 20,001 datasets, too many"):
        merge([A], OUT)
    make(root, B)
    monkeypatch.setattr("pbvf_datasets.write.edit.MAX_MANIFEST_BYTES", 1000)
    with pytest.raises(UsageError, match="goes back to 1 dataset, too many"):
        merge([B], OUT)
    assert names(root) == ["a-v0", "b-v0"]


def test_deep_provenance_is_refused_before_it_becomes_unreadable(root: Path) -> None:
    deep: Any = 0
    for _ in range(27):
        deep = [deep]
    make(root, A, settings={"deep": deep})
    load_dataset(A, cache=False)
    with pytest.raises(DamagedError, match="nested deeper"):
        merge([A], OUT)


def test_other_engine_versions_are_noted(root: Path) -> None:
    folders = [make(root, A, EPISODES[:2]), make(root, B, EPISODES[2:])]
    versions = provenance(root, A)["versions"]
    for folder, version in zip(folders, ("3.1.6", "4.0.0"), strict=True):
        other = {**versions, "mujoco": version}
        rewrite_manifest(folder, lambda m, other=other: m["provenance"].update(versions=other))
    result = merge([A, B], OUT)
    assert any("versions of mujoco: 3.1.6, 4.0.0" in note for note in result.notes)
    # They are remembered behind the merge.
    make(root, "lab/c-v0", [hostile.episode(9)])
    assert any("mujoco" in note for note in merge([OUT, "lab/c-v0"], "lab/d-v0").notes)


def test_nothing_of_this_machine_is_inside(root: Path, tmp_path: Path) -> None:
    make(root, A, EPISODES[:3])
    moved = shutil.move(make(root, B, EPISODES[3:]), tmp_path / "else where")
    merge([A, moved], OUT)
    everything = b"".join(content(root).values())
    for secret in (str(tmp_path), "else where", socket.gethostname(), str(Path.home())):
        assert secret.encode() not in everything, secret


# -------------------------------------------------------------- what stock Minari combined


@pytest.fixture
def combined(root: Path) -> Path:
    minari: Any = importlib.import_module("minari")
    env = gymnasium.make("Pendulum-v1", max_episode_steps=50)
    text = env.spec.to_json() if env.spec is not None else ""
    env.close()
    named = {"id": "Pendulum-v1", "kwargs": {"max_episode_steps": 50}}
    for name, part in ((A, EPISODES[:3]), (B, EPISODES[3:])):
        make(root, name, part, environment=named, env_spec_json=text, authors=["Ada"])
    both = [minari.load_dataset(A), minari.load_dataset(B)]
    minari.combine_datasets(both, "lab/stock-v0")
    return root / "lab/stock-v0"


def test_a_stock_combination_is_taken_with_one_warning(root: Path, combined: Path) -> None:
    with pytest.warns(UnverifiedWarning) as caught:
        result = merge(["lab/stock-v0"], OUT)
    assert len(caught) == 1
    assert [(s.id, s.verified) for s in result.sources] == [("lab/stock-v0", False)]
    found = provenance(root)
    assert found["environment"]["id"] == "Pendulum-v1"
    assert found["environment"]["kwargs"] == {"max_episode_steps": 50}
    (entry,) = found["sources"]
    assert (entry["provenance"], entry["verified"], entry["from"]) == (None, False, [])
    assert "| not known | not known | unverified |" in (root / OUT / "README.md").read_text()
    data = load_dataset(OUT, cache=False)
    assert data.verified
    for found_episode, episode in zip(data.episodes, EPISODES, strict=True):
        np.testing.assert_array_equal(found_episode.theta, episode.theta)
        np.testing.assert_array_equal(found_episode.rewards, episode.rewards)


def test_a_stock_combination_beside_its_parts_counts_nothing_twice(
    root: Path, combined: Path
) -> None:
    with pytest.warns(UnverifiedWarning):
        result = merge(["lab/stock-v0", A, B], OUT, license="MIT")
    assert (result.episodes, result.left_out) == (6, 6)
    assert sorted(load_dataset(OUT, cache=False).trajectories.seeds) == list(range(100, 106))
    assert provenance(root)["environment"] == provenance(root, A)["environment"]


def test_a_manifest_can_be_required(root: Path, combined: Path) -> None:
    for call in (
        lambda: merge([A, "lab/stock-v0"], OUT, require_manifest=True),
        lambda: filter_dataset(combined, OUT, FilterSettings(top=1), require_manifest=True),
        lambda: split(combined, OUT, SplitSettings((0.5, 0.5)), require_manifest=True),
    ):
        with pytest.raises(UnsafeError, match=r"manifest\.json"):
            call()
    assert names(root) == ["a-v0", "b-v0", "stock-v0"]


# ------------------------------------------------------------------------------- bad inputs


@pytest.mark.parametrize("seal", hostile.SEALS)
@pytest.mark.parametrize(
    ("cases", "name", "error"),
    [
        (hostile.UNSAFE, "external link in the root", UnsafeError),
        (hostile.DAMAGED, "infinite rewards", DamagedError),
        (hostile.DAMAGED, "two bad episodes", DamagedError),
        (hostile.DAMAGED, "too few steps promised", DamagedError),
        (hostile.INCOMPATIBLE, "survival bonus in some episodes", IncompatibleError),
    ],
)
def test_bad_inputs_are_refused_as_by_the_reader_and_leave_nothing(
    cases: dict[str, hostile.Case],
    name: str,
    error: type[PbvfError],
    seal: str,
    root: Path,
    tmp_path: Path,
) -> None:
    hostile.make(root, A)
    folder = hostile.make(root, B)
    secret = hostile.outside(tmp_path / "outside")
    cases[name].spoil(folder, secret)
    hostile.SEALS[seal](folder)
    warnings.simplefilter("ignore", UnverifiedWarning)
    with pytest.raises(error) as reader:
        load_dataset(folder)
    for call in (
        lambda: merge([A, B], OUT),
        lambda: merge([A, B], OUT, keep_duplicates=True),
        lambda: filter_dataset(B, OUT, FilterSettings(episodes=((0, 0),))),
        lambda: split(B, OUT, SplitSettings((0.5, 0.5))),
    ):
        with watching.watching(secret) as watch, pytest.raises(error) as caught:
            call()
        assert str(caught.value) == str(reader.value)
        assert watch.touched == []
        assert names(root) == ["a-v0", "b-v0"]


@pytest.mark.parametrize("passes", [1, 2])
def test_an_input_that_changes_meanwhile_is_noticed(
    root: Path, monkeypatch: pytest.MonkeyPatch, passes: int
) -> None:
    make(root, A, EPISODES[:2])
    path = make(root, B, EPISODES[2:]) / DATA_FILE
    real, calls = CheckedFolder.close_data, []

    def close_data(self: CheckedFolder) -> None:
        real(self)
        if self.data_file == path:
            calls.append(self)
            if len(calls) == passes:  # between two passes over the file
                with path.open("r+b") as file:
                    file.seek(-1, 2)
                    file.write(b"x")
                os.utime(path, ns=(1, 1))

    monkeypatch.setattr(CheckedFolder, "close_data", close_data)
    with pytest.raises(DamagedError, match="changed"):
        merge([A, B], OUT)
    assert names(root) == ["a-v0", "b-v0"]


def test_no_descriptor_is_left_open(root: Path) -> None:
    make(root, A, EPISODES[:3])
    make(root, B, [hostile.episode(0, hostile.DISCRETE_SPEC)], spec=hostile.DISCRETE_SPEC)
    before = len(list(Path("/dev/fd").iterdir()))
    merge([A], OUT)
    with pytest.raises(IncompatibleError):
        merge([A, B], "lab/no-v0")
    assert len(list(Path("/dev/fd").iterdir())) == before


# -------------------------------------------------------------------- repeatable, resumable


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pbvf_datasets.write.writer.MAX_SHARD_BYTES", 1500)


def test_complete_conflict_and_overwrite(root: Path) -> None:
    make(root, A, EPISODES[:4])
    make(root, B, EPISODES[3:])
    assert not merge([A, B], OUT).already_complete
    first = content(root)
    assert merge([A, B], OUT).already_complete
    for call, words in (
        (lambda: merge([B, A], OUT), "sources"),
        (lambda: merge([A, B], OUT, keep_duplicates=True), "keep-duplicates is false there"),
        (lambda: merge([A, B], OUT, license="MIT"), "license"),
        (lambda: filter_dataset(A, OUT, FilterSettings(top=0.5)), "operation"),
    ):
        with pytest.raises(ConflictError, match=words) as caught:
            call()
        assert caught.value.exit_code == 7
        assert content(root) == first
    filter_dataset(A, OUT, FilterSettings(top=0.5), overwrite=True)
    with pytest.raises(ConflictError, match=r"top is 0\.5 there and 0\.25 here"):
        filter_dataset(A, OUT, FilterSettings(top=0.25))


@pytest.mark.usefixtures("small_shards")
def test_no_finished_shard_is_copied_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(root, A, EPISODES[:3])
    make(root, B, EPISODES[2:])

    def stop(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge([A, B], OUT, progress=stop)
    added: list[int] = []
    real = DatasetWriter.add

    def add(self: DatasetWriter, episode: Episode) -> None:
        added.append(len(episode))
        real(self, episode)

    monkeypatch.setattr(DatasetWriter, "add", add)
    result = merge([A, B], OUT)
    assert added == [8, 9]
    assert equal(episodes_of(OUT), EPISODES)
    assert result.episodes == 6


def test_memory_holds_a_shard_and_not_the_dataset(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = [hostile.episode(i, steps=2000) for i in range(40)]  # 90 kB each
    make(root, A, long[:20])
    make(root, B, long[20:])
    size = sum((root / name / DATA_FILE).stat().st_size for name in (A, B))
    monkeypatch.setattr("pbvf_datasets.write.writer.MAX_SHARD_BYTES", 200_000)
    merge([A], "lab/warm-v0")  # imports and caches
    tracemalloc.start()
    try:
        merge([A, B], OUT)
        filter_dataset(OUT, "lab/most-v0", FilterSettings(top=0.9))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 3_500_000
    assert peak < 2_000_000


# ---------------------------------------------------------------------------------- filter

LAST = np.arange(5) == 4
SOME = [
    hostile.episode(0, steps=5, rewards=np.full(5, 1.0)),
    hostile.episode(
        1, steps=5, rewards=np.full(5, 4.0), terminated=LAST, truncated=np.zeros(5, bool)
    ),
    hostile.episode(2, steps=7, rewards=np.full(7, -1.0), seed=None),
    hostile.episode(3, steps=5, rewards=np.full(5, 9.0), cut="budget"),
    hostile.episode(4, steps=2, rewards=np.full(2, 10.0)),
]
"""Returns 5, 20, -7, (45, cut) and 20; episode 1 is terminated."""


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        (FilterSettings(min_return=5), [0, 1, 4]),
        (FilterSettings(max_return=5), [0, 2]),
        (FilterSettings(min_return=-7, max_return=19), [0, 2]),
        (FilterSettings(top=0.25), [1]),
        (FilterSettings(top=0.26), [1, 4]),
        (FilterSettings(top=1.0), [0, 1, 2, 4]),
        (FilterSettings(top=0.5, max_steps=5), [1, 4]),
        (FilterSettings(min_steps=5), [0, 1, 2, 3]),
        (FilterSettings(max_steps=2), [4]),
        (FilterSettings(terminated=True), [1]),
        (FilterSettings(terminated=False), [0, 2, 3, 4]),
        (FilterSettings(no_cut=True), [0, 1, 2, 4]),
        (FilterSettings(episodes=((0, 1), (3, 3))), [0, 1, 3]),
        (FilterSettings(seeds=((100, 101), (104, 10**17))), [0, 1, 4]),
        (FilterSettings(seeds=((0, 10**17),), no_cut=True, min_steps=3), [0, 1]),
    ],
)
def test_filter(root: Path, settings: FilterSettings, kept: list[int]) -> None:
    make(root, A, SOME)
    result = filter_dataset(A, OUT, settings)
    assert equal(episodes_of(OUT), [SOME[i] for i in kept])
    assert (result.episodes, result.left_out) == (len(kept), 5 - len(kept))


def test_a_tenth_of_fifty_is_five(root: Path) -> None:
    make(root, A, [hostile.episode(i, steps=2) for i in range(50)])
    assert filter_dataset(A, OUT, FilterSettings(top=0.1)).episodes == 5
    data = load_dataset(OUT, cache=False).trajectories.returns()
    everything = np.sort(load_dataset(A, cache=False).trajectories.returns())
    assert sorted(data) == pytest.approx(everything[-5:])


def test_filter_refuses_what_makes_no_sense(root: Path) -> None:
    make(root, A, SOME)
    for options, words in (
        ({}, "nothing to filter by"),
        ({"top": 0.0}, "--top"),
        ({"top": 1.5}, "--top"),
        ({"top": float("nan")}, "--top"),
        ({"min_return": float("nan")}, "--min-return"),
        ({"max_return": float("inf")}, "--max-return"),
        ({"min_steps": 0}, "--min-steps"),
    ):
        with pytest.raises(UsageError, match=words):
            FilterSettings(**options)
    for settings, words in (
        (FilterSettings(min_return=100), "no episode of lab/a-v0 passes, of 5"),
        (FilterSettings(episodes=((0, 5),)), "no episode 5: lab/a-v0 has 0 to 4"),
    ):
        with pytest.raises(UsageError, match=words):
            filter_dataset(A, OUT, settings)
        assert names(root) == ["a-v0"]


def test_ranges() -> None:
    assert parse_ranges("0-99,200", "--episodes") == ((0, 99), (200, 200))
    assert parse_ranges(" 5 , 1-3,4,2-3", "--episodes") == ((1, 5),)
    for text in ("", "a", "1-", "-1", "3-1", "1,,2", "1.5", "1" * 30, "٣"):
        with pytest.raises(UsageError, match="--seeds"):
            parse_ranges(text, "--seeds")


# ----------------------------------------------------------------------------------- split


def parts(results: Sequence[EditResult]) -> list[list[int | None]]:
    return [[e.seed for e in episodes_of(result.dataset)] for result in results]


def test_split_deals_each_episode_once_and_keeps_their_order(root: Path) -> None:
    many = [hostile.episode(i, steps=2) for i in range(10)]
    make(root, A, many)
    results = split(A, "lab/a-v0", SplitSettings((0.7, 0.3), seed=4))
    assert [r.dataset for r in results] == ["lab/a-train-v0", "lab/a-test-v0"]
    dealt = parts(results)
    assert list(map(len, dealt)) == [7, 3]
    assert all(part == sorted(part, key=str) for part in dealt)
    assert sorted(dealt[0] + dealt[1], key=str) == [100 + i for i in range(10)]
    assert [r.left_out for r in results] == [3, 7]
    assert all(r.already_complete for r in split(A, A, SplitSettings((0.7, 0.3), seed=4)))
    other = parts(split(A, "lab/b-v0", SplitSettings((0.7, 0.3), seed=5)))
    same_seed = parts(split(A, "lab/c-v0", SplitSettings((0.7, 0.3), seed=4)))
    assert same_seed == dealt
    assert other != dealt
    assert provenance(root, "lab/a-test-v0")["seed"] == 4
    assert provenance(root, "lab/a-test-v0")["settings"]["part"] == "test"


def test_part_sizes_are_as_near_as_can_be(root: Path) -> None:
    make(root, A, [hostile.episode(i, steps=1, policies=1) for i in range(7)])
    settings = SplitSettings((0.5, 0.25, 0.25), ("x", "y", "z"))
    results = split(A, "lab/n-v3", settings)
    assert [r.dataset for r in results] == ["lab/n-x-v3", "lab/n-y-v3", "lab/n-z-v3"]
    assert [r.episodes for r in results] == [3, 2, 2]
    assert SplitSettings((0.4, 0.3, 0.3)).names == ("train", "validation", "test")
    assert SplitSettings((0.25,) * 4).names == ("part-1", "part-2", "part-3", "part-4")
    assert SplitSettings((0.5, 0.5)).dataset_ids("x-v1") == ("x-train-v1", "x-test-v1")


@pytest.mark.parametrize("seed", range(5))
def test_by_policy_no_policy_is_in_two_parts(root: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal((12, BOX_SPEC.size)).astype(np.float32)

    def one(i: int) -> Episode:
        # Policies 0 to 5 tie a chain together, the others stand alone.
        rows = np.array([i, i + 1]) if i < 5 else 6 + rng.choice(6, 1)
        return hostile.episode(i, steps=2, policies=len(rows), theta=theta[rows])

    make(root, A, [one(i) for i in range(16)])
    results = split(A, OUT, SplitSettings((0.5, 0.5), by="policy", seed=seed))
    policies = [
        {row.tobytes() for row in load_dataset(r.dataset, cache=False).theta} for r in results
    ]
    assert not policies[0] & policies[1]
    assert sum(r.episodes for r in results) == 16
    chain = {row.tobytes() for row in theta[:6]}
    assert chain <= policies[0] or chain <= policies[1]
    one_policy = [hostile.episode(i, steps=2, policies=1, theta=theta[:1]) for i in range(4)]
    make(root, B, one_policy)
    with pytest.raises(UsageError, match="4 episodes in 1 group that share no policy"):
        split(B, "lab/no-v0", SplitSettings((0.5, 0.5), by="policy"))


def test_by_policy_comes_near_the_fractions(root: Path) -> None:
    theta = np.random.default_rng(0).standard_normal((10, 1, BOX_SPEC.size)).astype(np.float32)
    make(
        root,
        A,
        [hostile.episode(i, steps=1, policies=1, theta=theta[i % 10]) for i in range(40)],
    )
    results = split(A, OUT, SplitSettings((0.8, 0.2), by="policy"))
    assert [(r.episodes, r.policies) for r in results] == [(32, 8), (8, 2)]


def test_split_refuses_what_makes_no_sense(root: Path) -> None:
    make(root, A, EPISODES[:3])
    for options, words in (
        ({"fractions": (1.0,)}, "2 or more"),
        ({"fractions": (0.5, 0.6)}, "add up to 1.1"),
        ({"fractions": (0.5, 0.5, 0.0)}, r"numbers in \(0, 1\)"),
        ({"fractions": (float("nan"), 0.5)}, r"numbers in \(0, 1\)"),
        ({"fractions": (0.5, 0.5), "names": ("a",)}, "2 different names"),
        ({"fractions": (0.5, 0.5), "names": ("a", "a")}, "2 different names"),
        ({"fractions": (0.5, 0.5), "seed": -1}, "--seed"),
    ):
        with pytest.raises(UsageError, match=words):
            SplitSettings(**options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not a dataset id"):
        split(A, OUT, SplitSettings((0.5, 0.5), ("../x", "y")))
    with pytest.raises(UsageError, match="the part test would be empty: lab/a-v0 has 3 episodes"):
        split(A, OUT, SplitSettings((0.9, 0.1)))
    assert names(root) == ["a-v0"]


def test_a_part_in_the_way_is_found_before_anything_is_written(root: Path) -> None:
    make(root, A)
    make(root, "lab/out-test-v0", EPISODES[:1])
    with pytest.raises(ConflictError, match="out-test-v0"):
        split(A, OUT, SplitSettings((0.5, 0.5)))
    assert names(root) == ["a-v0", "out-test-v0"]


# ------------------------------------------------------------- what else strangers may bring


def test_odd_metadata_are_damage_not_a_crash(root: Path) -> None:
    for name, change in (
        (A, {"env_spec": '{"id": "X-v0"}'}),
        (B, {"env_spec": '{"id": 3, "kwargs": {}, "additional_wrappers": []}'}),
    ):
        path = make(root, name) / METADATA_FILE
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        hostile.unseal(root / name)
        with pytest.warns(UnverifiedWarning), pytest.raises(DamagedError, match="metadata"):
            merge([name], OUT)
    assert names(root) == ["a-v0", "b-v0"]


def test_authors_of_unverified_folders_are_taken_from_the_metadata(root: Path) -> None:
    for name, author, expected in ((A, "Ada", ("Ada",)), (B, ["Bo", 3], ("Bo",))):
        path = make(root, name) / METADATA_FILE
        path.write_text(json.dumps({**json.loads(path.read_text()), "author": author}))
        hostile.unseal(root / name)
        with pytest.warns(UnverifiedWarning):
            assert merge([name], f"lab/of-{name[4:]}").authors == expected


def test_other_arrays_in_an_episode_are_checked_and_not_copied(root: Path) -> None:
    folder = make(root, A)
    with h5py.File(folder / DATA_FILE, "r+", libver=("v110", "v110")) as file:
        file["episode_1/infos/extra"] = np.arange(3)
    hostile.reseal(folder)
    merge([A], OUT)
    assert equal(episodes_of(OUT), EPISODES)
