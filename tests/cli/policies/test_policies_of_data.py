"""Policies out of a dataset or a run: ``pbvf evaluate`` and ``pbvf policies export``."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_tools import make, pbvf
from pbvf_datasets import load_dataset
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.io.reading import file_digest
from pbvf_offline.policies import files
from pbvf_offline.policies.files import load_policies

FRAGMENTS, WHOLE = "lab/drift-v0", "lab/whole-v0"
PLAY = ("--episodes", 1, "--seed", 0)
EXPORT = ("policies", "export")


@pytest.fixture(scope="module")
def made(drift: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside what others look at too, a dataset of whole episodes and a run."""
    return make(
        Path(shutil.copytree(drift, tmp_path_factory.mktemp("made") / "all")),
        f"collect toyenv:ToyVaried-v0 --dataset {WHOLE} --steps 90 --seed 0",
        "train-online toyenv:ToyDrift-v0 --critic pssvf --steps 200 --evaluations 1 --run run "
        "--seed 0",
    )


@pytest.fixture(autouse=True)
def _datasets(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made / "datasets"))


def told(*argv: object) -> dict[str, Any]:
    return pbvf(*argv, "-q", "--json").ok().json


# -------------------------------------------------------------------------------- evaluate


def test_the_policies_of_fragments_are_played_for_whole_episodes(made: Path) -> None:
    policies = load_dataset(FRAGMENTS).policies
    result = told("evaluate", FRAGMENTS, *PLAY)
    assert result["index"] == list(range(len(policies)))
    assert (result["env"], result["ranked_by"]) == ("ToyDrift-v0", None)
    told(*EXPORT, FRAGMENTS, "--out", "all")
    same = told("evaluate", "all", *PLAY)
    assert result["returns"] == same["returns"]
    more = ("--top", 999, "--critic", made / "theta")
    for command in (("evaluate", FRAGMENTS, *PLAY), (*EXPORT, FRAGMENTS, "--out", "top"),
                    ("predict", made / "theta", FRAGMENTS, "--out", "best")):  # fmt: skip
        ranked = more[:2] if command[0] == "predict" else more
        ran = pbvf(*command, *ranked).ok()
        assert f"--top 999 asks for more than the {len(policies)} that can be ranked" in ran.err
    one = told("evaluate", FRAGMENTS, *PLAY, "--index", 7)
    assert one["index"] == [7]
    shown = pbvf("evaluate", FRAGMENTS, *PLAY).ok()
    assert f"the best 20 of {len(policies)} policies" in shown.err
    lines = shown.out.split("─\n")[1].splitlines()
    assert [int(line.split()[0]) for line in lines] == np.argsort(
        -np.ravel(result["means"]), kind="stable"
    )[:20].tolist()


def test_the_best_by_the_critic_or_by_their_own_returns(drift: Path) -> None:
    ranked = told("predict", drift / "theta", FRAGMENTS)["policies"]
    result = told("evaluate", FRAGMENTS, *PLAY, "--top", 3, "--critic", drift / "theta")
    assert result["index"] == [entry["index"] for entry in ranked[:3]]
    assert result["predicted"] == pytest.approx([e["predicted"] for e in ranked[:3]], rel=1e-6)
    assert result["ranked_by"] == "predicted"
    data = load_dataset(WHOLE).trajectories
    assert data.cut[-1]  # by the budget, so its policy has no return
    best = np.argsort(-data.whole_returns(), kind="stable")
    result = told("evaluate", WHOLE, *PLAY, "--top", 2)
    assert result["index"] == best[:2].tolist()
    assert result["ranked_by"] == "observed"
    assert told("evaluate", WHOLE, *PLAY, "--top", 999)["index"] == best.tolist()


def test_a_run_has_policies_too(made: Path) -> None:
    result = told("evaluate", made / "run", *PLAY)
    assert result["index"] == list(range(5))  # 200 steps of 40 an episode
    told("evaluate", made / "run", *PLAY, "--top", 1)


# ---------------------------------------------------------------------------------- export


def test_the_best_become_a_policies_file_that_says_where_from(drift: Path, here: Path) -> None:
    argv = (*EXPORT, FRAGMENTS, "--critic", drift / "theta", "--out", "best.safetensors")
    result = told(*argv, "--top", 3)
    data, best = load_dataset(FRAGMENTS), load_policies(here / "best.safetensors")
    rows = [entry["policy"] for entry in result["files"]]
    ranked = told("predict", drift / "theta", FRAGMENTS)["policies"][:3]
    assert rows == [entry["index"] for entry in ranked]
    np.testing.assert_array_equal(best.policies.theta, data.theta[rows])
    np.testing.assert_array_equal(best.policies.obs_std, data.obs_std[rows])
    assert best.environment == EnvReference("ToyDrift-v0", "toyenv")
    assert best.origin["taken_from"] == data.digest
    assert best.origin["critic"] == file_digest(drift / "theta")
    assert best.origin["result"] == {
        "index": rows,
        "predicted": [entry["predicted"] for entry in ranked],
    }
    assert (result["format"], result["ranked_by"]) == ("policies", "predicted")
    assert told(*argv, "--top", 3)["already_complete"] is True
    pbvf(*argv, "--top", 2).refused(7, "top is 3 there and 2 here")
    assert told(*argv, "--top", 2, "--overwrite")["already_complete"] is False
    shown = pbvf(*argv, "--top", 2).ok()
    assert f"policy {rows[0]}" in shown.out
    assert f"predicted is the  {load_critic(drift / 'theta').unit}" in shown.out
    of_file = pbvf("policies", "info", "best.safetensors").ok().out.splitlines()
    header = next(
        k for k, line in enumerate(of_file) if line.split()[:2] == ["policy", "predicted"]
    )
    values = [float(line.split()[1]) for line in of_file[header + 2 :]]
    assert values == pytest.approx([entry["predicted"] for entry in ranked[:2]], rel=1e-5)


def test_without_a_critic_their_own_whole_episodes_rank_them(here: Path) -> None:
    shown = pbvf(*EXPORT, WHOLE, "--top", 2, "--out", "best").ok()
    assert len(re.findall(r"observed \S+ \(1 episode\)$", shown.out, flags=re.M)) == 2
    assert "note: chosen for the highest return of 1 episode each, so luck is in it" in shown.err
    data = load_dataset(WHOLE).trajectories
    best = np.argsort(-data.whole_returns(), kind="stable")[:2]
    result = load_policies(here / "best").origin["result"]
    assert result == {"index": best.tolist(), "observed": data.returns()[best].tolist()}


def test_one_as_a_base_and_the_best_for_other_programs(drift: Path, here: Path) -> None:
    told(*EXPORT, drift / "grown", "--index", 1, "--format", "policies", "--out", "one")
    collect = ("collect", "toyenv:ToyDrift-v0", "--dataset", "lab/near-v0", "--base", "one")
    told(*collect, "--steps", 40, "--seed", 0)
    best = ("--top", 2, "--critic", drift / "theta")
    result = told(*EXPORT, drift / "grown", *best, "--out", "w")
    order = [
        entry["index"] for entry in told("predict", drift / "theta", drift / "grown")["policies"]
    ]
    assert result["files"] == [{"path": f"w-{k}", "policy": row} for k, row in enumerate(order[:2])]
    told(*EXPORT, drift / "grown", "--index", order[0], "--out", "first")
    assert (here / "w-0").read_bytes() == (here / "first").read_bytes()


@pytest.mark.parametrize(
    ("name", "argv", "code", "words"),
    [
        (FRAGMENTS, ["--top", 3], 5, "acted by several policies, so its return belongs to none"),
        ("grown", ["--top", 3], 2, "holds no returns; give --critic FILE"),
        ("typo.safetensors", [], 2, "typo.safetensors: does not exist"),
        (FRAGMENTS, ["--index", 9999], 2, "--index: 9999 is not in 0"),
        (FRAGMENTS, ["--index", 1, "--top", 2], 2, "either --index or --top"),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_what_cannot_be_chosen(
    command: str, name: str, argv: list[object], code: int, words: str, drift: Path
) -> None:
    source = drift / name if name == "grown" else name
    call = (*EXPORT, source, "--out", "p") if command == "export" else ("evaluate", source)
    ran = pbvf(*call, *argv).refused(code, words)
    assert code == 2 or "give --critic FILE" in ran.err
    assert not Path("p").exists()


def test_options_of_an_export_that_decide_nothing(drift: Path) -> None:
    argv = (*EXPORT, FRAGMENTS, "--out", "p")
    pbvf(*argv, "--critic", drift / "theta").refused(2, "--critic: has no meaning without --top")
    pbvf(*argv, "--dtype", "float32").refused(2, "--dtype: does not go with --format policies")


def test_more_than_one_file_may_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    pbvf(*EXPORT, FRAGMENTS, "--out", "p").refused(2, "over the limit of 1,000", "ask for fewer")
    told(*EXPORT, WHOLE, "--top", 1, "--out", "p")


# --------------------------------------------------------------------------------- predict


def test_predict_shows_the_k_that_it_writes(drift: Path) -> None:
    ran = pbvf("predict", drift / "theta", FRAGMENTS, "--top", 3, "--out", "best").ok()
    assert len(ran.out.split("─\n")[1].splitlines()) == 3
    assert "the best 3 of" in ran.err


def test_policies_of_other_arguments_than_the_critics_are_warned_of(
    drift: Path, here: Path
) -> None:
    reference = EnvReference("ToyDrift-v0", "toyenv", {"max_episode_steps": 9})
    replace(load_policies(drift / "grown"), environment=reference).save(here / "other")
    best = ("--top", 1, "--critic", drift / "theta", "--out", "p")
    climb = ("synthesize", drift / "theta", "--from", "other", "--steps", 1, "--seed", 0)
    for argv in (
        ("predict", drift / "theta", "other"),
        (*EXPORT, "other", *best),
        (*climb, "--out", "q"),
    ):
        ran = pbvf(*argv, "-q", warns=True).ok()
        assert "other comes from ToyDrift-v0 with max_episode_steps=9 and is used in" in ran.err
        assert ran.err.count("\n") == 1


def test_states_of_other_arguments_than_the_critics_are_warned_of(drift: Path, here: Path) -> None:
    collect = "collect toyenv:ToyDrift-v0 --max-episode-steps 9 --dataset lab/short-v0"
    make(here, f"{collect} --steps 50 --seed 0")
    climb = ("synthesize", drift / "theta", "--steps", 1, "--seed", 0, "-q")
    short = "datasets/lab/short-v0"
    ran = pbvf(*climb, "--dataset", short, "--out", "p", warns=True).ok()
    words = f"{short} comes from ToyDrift-v0 with max_episode_steps=9 and is used in"
    assert ran.err.startswith(f"warning: {words}")
    assert ran.err.count("\n") == 1
    pbvf(*climb, "--dataset", drift / "datasets/lab/drift-v0", "--out", "q").ok()
