"""``pbvf dataset merge | filter | split`` from a user's side: output, exit codes, interrupts."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from cli_tools import content, digest, make, pbvf, run_process, start
from libtools import box_spec, make_policies
from pbvf_datasets import load_dataset
from pbvf_offline.policies.files import PoliciesFile
from untagged import make_untagged, played

A, B, OUT = "lab/a-v0", "lab/b-v0", "lab/out-v0"


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    collect = "collect toyenv:Toy-v0 --episodes 6 --license MIT --author Ada"
    return make(
        tmp_path_factory.mktemp("collected"),
        f"{collect} --dataset {A} --seed 0",
        f"{collect} --dataset {B} --seed 1",
        "collect toyenv:ToyDiscrete-v0 --dataset lab/discrete-v0 --episodes 2 --seed 0 "
        "--license MIT",
    )


@pytest.fixture
def root(collected: Path, here: Path) -> Path:
    return Path(shutil.copytree(collected / "datasets", here / "datasets"))


def names(root: Path) -> list[str]:
    return sorted(p.name for p in (root / "lab").iterdir())


def test_merge_in_json_and_for_people(root: Path) -> None:
    ran = pbvf("dataset", "merge", A, root / B, "--dataset", OUT, "--json").ok()
    result = ran.json
    assert result["dataset"] == OUT
    assert result["path"] == str(root / OUT)
    assert (result["episodes"], result["steps"], result["policies"]) == (12, 60, 12)
    assert (result["duplicates"], result["license"], result["authors"]) == (0, "MIT", ["Ada"])
    assert [s["digest"] for s in result["sources"]] == [digest(root, A), digest(root, B)]
    assert [s["dataset"] for s in result["sources"]] == [A, B]
    assert result["steps_per_second"] > 0
    assert not result["already_complete"]
    returns = load_dataset(OUT, cache=False).trajectories.returns()
    assert result["return"]["mean"] == pytest.approx(returns.mean())
    again = pbvf("dataset", "merge", A, B, "--dataset", OUT).ok()
    assert "already complete" in again.err
    assert "nothing to do" in again.out
    assert str(root / OUT) in again.out
    card = (root / OUT / "README.md").read_text()
    assert f"pbvf dataset merge {A} {B} --dataset {OUT}" in card
    assert "pbvf collect toyenv:Toy-v0" in card
    assert str(root) not in card


def test_duplicates_are_told(root: Path) -> None:
    assert pbvf("dataset", "merge", A, B, "--dataset", OUT, "-q").code == 0
    ran = pbvf("dataset", "merge", OUT, A, "--dataset", "lab/more-v0").ok()
    assert "note: 6 episodes are in more than one input and were taken once" in ran.err
    assert [line.split() for line in ran.out.splitlines()][3] == ["duplicates", "left", "out", "6"]
    ran = pbvf(
        "dataset", "merge", OUT, A, "--dataset", "lab/all-v0", "--keep-duplicates", "--json", "-q"
    )
    assert (ran.json["episodes"], ran.json["duplicates"], ran.err) == (18, 0, "")


def test_other_licences_ask_for_one(root: Path) -> None:
    pbvf(
        *("collect", "toyenv:Toy-v0", "--dataset", "lab/c-v0", "--episodes", 1, "--seed", 5, "-q")
    ).ok()
    pbvf("dataset", "merge", A, "lab/c-v0", "--dataset", OUT).refused(
        2, "lab/a-v0: MIT, lab/c-v0: none", "--license"
    )
    ran = pbvf("dataset", "merge", A, "lab/c-v0", "--dataset", OUT, "--license", "MIT", "--json")
    assert (ran.code, ran.json["license"]) == (0, "MIT")


def test_filter(root: Path) -> None:
    returns = load_dataset(A, cache=False).trajectories.returns()
    limit = sorted(returns)[3]
    ran = pbvf(
        *("dataset", "filter", A, "--dataset", OUT, "--json"),
        *("--min-return", limit, "--episodes", "0-5"),
    ).ok()
    assert (ran.json["episodes"], ran.json["left_out"]) == (3, 3)
    assert "min-return" in ran.err
    found = load_dataset(OUT, cache=False).trajectories.returns()
    assert sorted(found) == pytest.approx(sorted(returns)[3:])
    for option, code, words in (
        (("--truncated",), 2, "passes, of 6"),
        (("--min-return", "1e9"), 2, "passes, of 6"),
        (("--episodes", "0-6"), 2, "no episode 6"),
        (("--episodes", "x"), 2, "--episodes"),
        (("--seeds", "5-1"), 2, "--seeds"),
        (("--top", "0"), 2, "--top"),
        (("--min-return", "nan"), 2, "--min-return"),
        ((), 2, "nothing to filter by"),
        (("--terminated", "--truncated"), 2, "either --terminated or --truncated"),
        (("--truncated", "--terminated"), 2, "either --terminated or --truncated"),
    ):
        ran = pbvf("dataset", "filter", A, "--dataset", "lab/no-v0", *option)
        assert (ran.code, words in ran.error) == (code, True), ran.err
    pbvf("dataset", "filter", A, "--dataset", OUT, "--terminated", "--no-cut").refused(
        7, "--overwrite"
    )
    pbvf("dataset", "filter", A, "--dataset", OUT, "--terminated", "--no-cut", "--overwrite").ok()
    assert "lab/no-v0" not in names(root)


def test_split_draws_stores_and_prints_its_seed(root: Path) -> None:
    ran = pbvf("dataset", "split", A, "--dataset", A, "--fractions", "0.5,0.5", "--json").ok()
    parts = ran.json["parts"]
    assert [p["dataset"] for p in parts] == ["lab/a-train-v0", "lab/a-test-v0"]
    assert [p["name"] for p in parts] == ["train", "test"]
    assert [p["episodes"] for p in parts] == [3, 3]
    assert "drawn" in ran.err
    first = [digest(root, p["dataset"]) for p in parts]
    again = pbvf("dataset", "split", A, "--dataset", A, "--fractions", "0.5,0.5", "--json")
    assert again.json["seed"] == ran.json["seed"]
    assert again.json["already_complete"]
    assert "stored in the output" in again.err
    for part in parts:
        shutil.rmtree(part["path"])
    seeded = pbvf(
        *("dataset", "split", A, "--dataset", A, "--fractions", "0.5,0.5"),
        *("--seed", ran.json["seed"]),
    ).ok()
    assert [digest(root, p["dataset"]) for p in parts] == first
    assert "lab/a-train-v0" in seeded.out
    pbvf("dataset", "split", A, "--dataset", A, "--fractions", "0.5,0.5", "--by", "policy").refused(
        7, 'by is "episode" there and "policy" here'
    )


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("merge", A), "--dataset"),
        (("merge", A, "--dataset", OUT, "--license", " "), "--license: ' ' is not"),
        (("merge", A, "--dataset", "lab/out"), "not a dataset id"),
        (("merge", "--dataset", OUT), "Missing argument"),
        (("merge", "lab/none-v0", "--dataset", OUT), "no dataset lab/none-v0"),
        (("merge", A, "--dataset", A, "--overwrite"), "replace itself"),
        (("filter", A, "--top", "0.5"), "--dataset"),
        (("split", A, "--dataset", OUT), "--fractions"),
        (("split", A, "--dataset", OUT, "--fractions", "a,b"), "--fractions"),
        (("split", A, "--dataset", OUT, "--fractions", "0.5,0.4"), "add up to 0.9"),
        (("split", A, "--dataset", OUT, "--fractions", ".5,.5", "--names", "x"), "--names"),
        (("split", A, "--dataset", OUT, "--fractions", ".5,.5", "--names", "x,/"), "dataset id"),
        (("split", A, "--dataset", OUT, "--fractions", ".5,.5", "--seed", "-1"), "--seed"),
    ],
)
def test_wrong_usage_is_exit_2_and_leaves_nothing(
    root: Path, argv: tuple[str, ...], words: str
) -> None:
    before = content(root)
    pbvf("dataset", *argv).refused(2, words)
    assert content(root) == before


def test_unverified_inputs(root: Path) -> None:
    (root / A / "manifest.json").unlink()
    ran = pbvf("dataset", "merge", A, "--dataset", OUT, "-q", warns=True).ok()
    assert ran.err.count("warning:") == 1
    assert "unverified" in ran.err
    for command in (
        ("merge", A, "--dataset", "lab/x-v0"),
        ("filter", A, "--dataset", "lab/x-v0", "--top", "1"),
        ("split", A, "--dataset", "lab/x-v0", "--fractions", ".5,.5", "--seed", "0"),
    ):
        pbvf("dataset", *command, "--require-manifest").refused(4, "manifest.json")


SLOW = """
import sys, time
import pbvf_datasets.write.writer as writer
writer.MAX_SHARD_BYTES = 1
real = writer.DatasetWriter.add
def add(self, episode):
    real(self, episode)
    print(self.episodes_safe, flush=True)
    time.sleep(0.2)
writer.DatasetWriter.add = add
from pbvf_cli.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.slow
def test_interrupted_it_goes_on_to_the_same_bytes(root: Path, number: signal.Signals) -> None:
    argv = ("dataset", "merge", A, B, "--dataset", OUT)
    assert pbvf(*argv, "-q").code == 0
    expected = content(root / OUT)
    shutil.rmtree(root / OUT)
    process = start(*argv, code=SLOW)
    assert process.stdout is not None
    # What is printed once stdout is claimed for data goes to stderr.
    assert process.stderr is not None
    while process.stderr.readline().strip() != "3":
        assert process.poll() is None
    pbvf(*argv).refused(7, "another process")
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -9)
    if number == signal.SIGINT:
        assert err.splitlines()[-1].startswith("interrupted; what was finished is safe")
    assert not (root / OUT).exists()
    ran = run_process(*argv, "--json")
    assert (ran.code, ran.json["episodes"]) == (0, 12)
    assert content(root / OUT) == expected
    assert ".out-v0.collecting" not in names(root)


def test_tag_another_programs_dataset(root: Path) -> None:
    policies = make_policies(box_spec(3), 2)
    PoliciesFile(policies).save(root.parent / "policies")
    make_untagged("theirs/toy-v0", played(policies, [1, 0]), policies)
    command = ("dataset", "tag", "theirs/toy-v0", "--policies", "policies", "--dataset", OUT)
    (root.parent / "rows.json").write_text("[1, 0]")
    ran = pbvf(*command, "--order", "rows.json", "--json", warns=True).ok()
    assert (ran.json["policies"], ran.json["checked"], ran.json["dataset"]) == (2, True, OUT)
    assert pbvf(*command, "-q", warns=True).code == 7  # without --order it is another dataset
    for text in ("[1, -1]", "[true]", "{}", "[", "1"):
        (root.parent / "rows.json").write_text(text)
        ran = pbvf(*command, "--order", "rows.json", "-q")
        ran.refused(2, "--order rows.json")


@pytest.mark.parametrize("command", ["merge", "filter --top 1", "split --fractions 0.5,0.5"])
def test_a_dataset_without_policies_is_sent_to_tag(root: Path, command: str) -> None:
    policies = make_policies(box_spec(3), 1)
    make_untagged("theirs/toy-v0", played(policies, [0]), policies)
    name, *options = command.split()
    ran = pbvf("dataset", name, "theirs/toy-v0", "--dataset", OUT, *options, "-q", warns=True)
    assert ran.code == 5
    assert "'pbvf dataset tag' adds the policies that made it" in ran.err
