"""What was made from which: ``pbvf info`` and ``pbvf verify`` of several things."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cli_tools import make, pbvf

ENV = "toyenv:ToyDrift-v0"
FIT = "--hidden 8 --updates 20 --seed 0 --critic psvf"
TRAIN = f"train-online {ENV} --critic pssvf --evaluations 0 --seed 0 --steps 200"
GROW = "--from-scratch 2 --steps 2 --restarts 2 --seed 0"


@pytest.fixture(scope="module")
def made(drift: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lineage") / "all"
    shutil.copytree(drift, folder)
    return make(
        folder,
        f"collect {ENV} --dataset lab/other-v0 --steps 300 --perturb-every 10 --seed 1",
        "dataset merge lab/drift-v0 lab/other-v0 --dataset lab/both-v0",
        f"{TRAIN} --snapshots 100 --run one --export-dataset lab/one-v0",
        f"fit-critic one {FIT} --out of-run",
        "fit-critic lab/drift-v0 --critic pssvf --model good --rounds 1 --compare 0 --hidden 8 "
        "--seed 0 --out imagined --force",
        f"synthesize theta {GROW} --dataset lab/drift-v0 --out stated",
        f"synthesize one/critic.safetensors {GROW} --out of-own",
        "synthesize theta --from grown --steps 2 --seed 0 --out further",
        "predict theta grown --top 1 --out best",
        "policies export lab/drift-v0 --critic theta --top 2 --out top",
        f"collect {ENV} --dataset lab/base-v0 --base one/policy.safetensors --episodes 2 "
        "--perturb-every episode --seed 0",
        f"collect {ENV} --dataset lab/rolled-v0 --policies grown --episodes 2 --seed 0",
        "push theta grown bundle --license MIT",
    )


@pytest.fixture
def at(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made / "datasets"))
    monkeypatch.chdir(made)
    return made


LINKS = [
    ("theta", "fitted to", "lab/drift-v0"),
    ("good", "learned from", "lab/drift-v0"),
    ("imagined", "fitted to", "lab/drift-v0"),
    ("imagined", "imagined in", "good"),
    ("grown", "grown through", "theta"),
    ("stated", "states from", "lab/drift-v0"),
    ("further", "climbed on from", "grown"),
    ("best", "chosen from", "grown"),
    ("best", "ranked by", "theta"),
    ("top", "chosen from", "lab/drift-v0"),
    ("top", "ranked by", "theta"),
    ("of-run", "fitted to", "one"),
    ("of-run", "fitted to", "lab/one-v0"),
    ("of-own", "grown through", "one"),
    ("one/critic.safetensors", "fitted to", "one"),
    ("one/policy.safetensors", "trained in", "one"),
    ("one/critic-0000100.safetensors", "fitted to", "one"),
    ("one/policy-0000100.safetensors", "trained in", "one"),
    ("lab/one-v0", "episodes of", "one"),
    ("lab/both-v0", "made from", "lab/drift-v0"),
    ("lab/both-v0", "made from", "lab/other-v0"),
    ("lab/base-v0", "perturbs", "one/policy.safetensors"),
    ("lab/rolled-v0", "rolls out", "grown"),
    ("bundle/grown", "grown through", "bundle"),
]


@pytest.mark.parametrize(("name", "relation", "source"), LINKS)
def test_what_was_made_from_which_is_followed_by_digest(
    name: str, relation: str, source: str, at: Path
) -> None:
    shown = pbvf("info", name, source, "--json", "-q").ok().json
    ties = [t for t in shown["lineage"] if (t["name"], t["relation"]) == (name, relation)]
    found = "bundle/theta" if source == "bundle" else source
    assert found in [tie["found"] for tie in ties]
    alone = pbvf("info", name, "--json", "-q").ok().json
    assert relation in [one["relation"] for one in alone["made_from"]]
    assert pbvf("verify", name, source, "--json", "-q").ok().json["fits"] is True
    digest = next(tie["digest"] for tie in ties)
    text = pbvf("info", name, "-q").ok().out
    assert digest in text.replace("\n", "")
    text = pbvf("info", name, source, "-q").ok().out
    assert digest[:12] in text
    assert digest not in text


def test_what_tells_several_datasets_apart_stands_side_by_side(at: Path) -> None:
    names = ("lab/drift-v0", "lab/other-v0")
    lines = pbvf("info", *names, "theta", "-q").ok().out.splitlines()
    assert lines[0].split() == ["what", "kind", "environment", "holds", "digest"]
    for name in names:
        alone = pbvf("info", name, "--json", "-q").ok().json
        told = next(line.split() for line in lines if line.strip().startswith(name))
        counts = [f"{alone[what]:,}" for what in ("episodes", "steps", "policies")]
        assert (told[0::2][:2], told[-1]) == ([name, alone["env"]], alone["digest"][:12])
        assert [word for word in told if word in counts] == counts
    assert any(line.strip().startswith("theta ") and "20 updates" in line for line in lines)


def test_a_bundle_tells_what_is_in_it_of_what(at: Path) -> None:
    shown = pbvf("info", "bundle", "--json", "-q").ok().json
    by_name = {tie["name"]: tie["found"] for tie in shown["lineage"]}
    assert by_name == {"bundle/theta": None, "bundle/grown": "bundle/theta"}
    text = pbvf("info", "bundle/", "-q").ok().out
    assert "bundle/theta (critic), bundle/grown (policies)" in text
    assert "bundle//" not in text
    found = pbvf("verify", "bundle", "lab/drift-v0", "--json", "-q").ok().json
    assert found["fits"] is True
    assert {tie["found"] for tie in found["lineage"]} == {"bundle/theta", "lab/drift-v0"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("theta", "lab/other-v0"), "theta: it names dataset or run "),
        (("grown", "actions"), "(grown through), and none of those given"),
        (("bundle", "lab/other-v0"), "bundle/theta: it names"),
        (("imagined", "bad"), "(imagined in)"),
        (("one/critic.safetensors", "lab/drift-v0"), "(fitted to)"),
    ],
)
def test_a_chain_that_does_not_fit_is_exit_5(given: tuple[str, ...], words: str, at: Path) -> None:
    ran = pbvf("verify", *given, "--json", "-q")
    assert (ran.code, ran.json["fits"]) == (5, False)
    assert words in ran.err
    assert {one["status"] for one in ran.json["things"]} <= {"intact"}
    assert "it does not fit" in pbvf("verify", *given, "-q").out
    assert pbvf("info", *given, "-q").code == 0  # it only tells


def test_what_was_made_before_a_critic_was_extended_is_told_from_a_mismatch(
    at: Path, tmp_path: Path
) -> None:
    critic, grown = tmp_path / "critic", tmp_path / "grown"
    shutil.copy("theta", critic)
    pbvf("synthesize", critic, "--steps", 1, "--seed", 0, "--out", grown, "-q").ok()
    fit = ("fit-critic", "lab/drift-v0", "--critic", "psvf", "--hidden", 8, "--seed", 0)
    pbvf(*fit, "--updates", 30, "--out", critic, "-q").ok()
    now = pbvf("info", critic, "--json", "-q").ok().json["sha256"]
    words = f"if {critic} was extended since (--updates), its digest changed, now {now}"
    ran = pbvf("verify", critic, grown, "-q")
    assert ran.code == 5
    assert "(grown through), and none of those given" in ran.err
    assert words in ran.err


def test_parts_of_one_bundle_need_not_be_of_each_other(at: Path, tmp_path: Path) -> None:
    pbvf("pack", "theta", "one", tmp_path / "x.tar", "-q").ok()
    pbvf("unpack", tmp_path / "x.tar", "--out", tmp_path / "both", "-q").ok()
    shown = pbvf("info", tmp_path / "both", "-q").ok()
    assert "not among the given" in shown.out
    assert "it does not fit" not in shown.out
    assert pbvf("verify", tmp_path / "both", "grown", "--json", "-q").ok().json["fits"] is True


def test_a_critic_is_named_with_its_kind_whatever_its_file_is_called(
    at: Path, tmp_path: Path
) -> None:
    shutil.copy("theta", tmp_path / "pssvf")
    pbvf("push", tmp_path / "pssvf", "grown", tmp_path / "it", "--license", "MIT", "-q").ok()
    assert "| grown through |" in (card := (tmp_path / "it/README.md").read_text())
    assert "| `pssvf (psvf)` |" in card
    play = ("evaluate", "grown", "--env", ENV, "--episodes", 1, "--critic", tmp_path / "pssvf")
    for argv in (
        ("info", tmp_path / "pssvf", "grown"),
        ("info", tmp_path / "it"),
        ("verify", tmp_path / "pssvf", "grown"),
        ("predict", tmp_path / "pssvf", "grown"),
        ("synthesize", tmp_path / "pssvf", "--steps", 1, "--out", tmp_path / "new"),
        play,
    ):
        ran = pbvf(*argv).ok()
        assert "pssvf (psvf)" in ran.out + ran.err


def test_what_is_not_among_the_given_is_no_error(at: Path) -> None:
    found = pbvf("verify", "theta", "deep", "good", "--json", "-q").json
    assert found["fits"] is False  # deep is of the other critic
    found = pbvf("verify", "theta", "good", "--json", "-q").ok().json
    assert {tie["found"] for tie in found["lineage"]} == {None}
    assert "not among the given" in pbvf("info", "theta", "good", "-q").ok().out


def test_of_several_the_worst_decides_and_all_problems_are_listed(at: Path, here: Path) -> None:
    for name, change in (("damaged", b"x"), ("unsafe", None)):
        data = (at / "theta").read_bytes()
        (at / name).write_bytes(b"\x80\x04\x95\x0b" if change is None else data[:-1] + change)
    ran = pbvf("verify", "damaged", "theta", "unsafe", "--json", "-q")
    assert (ran.code, ran.json["fits"]) == (4, None)
    assert [one["status"] for one in ran.json["things"]] == ["damaged", "intact", "unsafe"]
    assert "and 1 more problem" in ran.err
    assert pbvf("verify", "theta", "damaged", "-q").code == 3
    assert pbvf("info", "theta", "damaged", "-q").code == 3


def test_a_licence_set_later_breaks_no_chain(at: Path, tmp_path: Path) -> None:
    shutil.copytree(at / "datasets/lab/drift-v0", tmp_path / "drift-v0")
    pbvf("dataset", "set", tmp_path / "drift-v0", "--license", "MIT", "-q").ok()
    found = pbvf("verify", "theta", tmp_path / "drift-v0", "--json", "-q").ok().json
    assert found["fits"] is True
    pbvf(
        *("pack", "theta", tmp_path / "x.tar", "--dataset", tmp_path / "drift-v0", "-q"),
    ).ok()


def test_data_made_before_and_between_changes_of_the_licence_stay_linked(here: Path):
    make(here, f"collect {ENV} --dataset lab/drift-v0 --episodes 3 --seed 0")
    made = []
    for k, license in enumerate(("MIT", "ISC", "CC0-1.0")):
        made.append(f"lab/part{k}-v0")
        pbvf("dataset", "filter", "lab/drift-v0", "--min-steps", 1, "--dataset", made[-1]).ok()
        pbvf("dataset", "set", "lab/drift-v0", "--license", license).ok()
    ties = pbvf("verify", "lab/drift-v0", *made, "--json", "-q").ok().json["lineage"]
    ends = [(tie["name"], tie["found"]) for tie in ties if tie["relation"] == "made from"]
    assert ends == [(name, "lab/drift-v0") for name in made]


def test_info_of_one_tells_names_and_digests_apart(at: Path) -> None:
    lines = [line for line in pbvf("info", "lab/both-v0").ok().out.splitlines() if "lab/" in line]
    told = {line.split("  ")[0]: line for line in lines}
    assert "lab/drift-v0 (30 episodes), lab/other-v0" in told["goes back to"]
    made_from = [line for line in lines if line.startswith("made from")]
    for name, line in zip(("lab/drift-v0", "lab/other-v0"), made_from, strict=True):
        assert f"dataset {name}, digest {pbvf('info', name, '--json').json['digest']}" in line
