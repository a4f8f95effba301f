"""``pbvf dataset list``, ``info`` and ``verify`` as users run them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import hostile
from cli_tools import pbvf, run_process
from make_episodes import BOX_SPEC, make_episode
from pbvf_cli.shared.terminal.output import size_text
from pbvf_datasets.format.schema import DATA_FILE, METADATA_FILE


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile.make(
        tmp_path_factory.mktemp("good"),
        spec=BOX_SPEC,
        episodes=[make_episode(BOX_SPEC, i, cut=i == 2, terminated=i == 1) for i in range(4)],
        environment={"id": "Toy-v0", "module": "toyenv", "kwargs": {"n": 7}, "withheld": ["path"]},
        settings={"sigma": 0.5},
    )


@pytest.fixture
def folder(good: Path, root: Path) -> Path:
    shutil.copytree(good, root / "lab" / "toy-v0")
    return root / "lab" / "toy-v0"


# --------------------------------------------------------------------------------- info


def test_fits_go_on_with_a_dataset_whose_licence_was_set(here: Path) -> None:
    collect = ("collect", "toyenv:Toy-v0", "--dataset", "lab/a-v0", "--episodes", 4, "--seed", 0)
    pbvf(*collect, "-q").ok()
    fit = ("fit-critic", "lab/a-v0", "--critic", "psvf", "--hidden", 4, "--seed", 0, "--out", "c")
    pbvf(*fit, "--updates", 3, "-q").ok()
    ran = pbvf("dataset", "set", "lab/a-v0", "--license", "MIT", "--author", "Ada", "--json").ok()
    assert (ran.json["license"], ran.json["authors"]) == ("MIT", ["Ada"])
    assert pbvf(*fit, "--updates", 3, "--json", "-q").ok().json["already_complete"]
    assert pbvf(*fit, "--updates", 5, "--json", "-q").ok().json["updates"] == 5
    info = pbvf("info", "lab/a-v0", "--json").ok().json
    assert (
        info["provenance"]["known_as"][0]["digest"]
        == pbvf("info", "c", "--json").ok().json["dataset"]
    )
    assert pbvf(*collect, "--license", "MIT", "--author", "Ada", "--json", "-q").json[
        "already_complete"
    ]
    pbvf("dataset", "set", "lab/a-v0").refused(2, "--license or --author")
    pbvf("dataset", "push", "lab/a-v0", here / "there", "-q").ok()


def test_info_for_people(folder: Path) -> None:
    ran = pbvf("dataset", "info", "lab/toy-v0")
    assert (ran.code, ran.err) == (0, "")
    for words in (
        "4: 3 whole (1 terminated, 2 truncated), 1 cut by the step budget",
        "12 (3 an episode)",
        "4 different ones",
        "toyenv:Toy-v0",
        "n=7",
        "sigma 0.5",
        "licence",
        "none given",
        "its manifest fits",
        "linear, 4 parameters",
        "########",
        "numpy",
    ):
        assert words in ran.out, words


def test_info_as_json(folder: Path) -> None:
    ran = pbvf("dataset", "info", folder, "--json")
    assert (ran.code, ran.err) == (0, "")
    found = ran.json
    assert (found["episodes"], found["steps"], found["policies"]) == (4, 28, 12)
    assert (found["env"], found["license"], found["verified"]) == ("toyenv:Toy-v0", None, True)
    assert sum(found["histogram"]["counts"]) == 3
    assert found["ends"] == {"terminated": 1, "truncated": 2, "cut": 1}


def test_info_imports_neither_torch_nor_the_environment(folder: Path) -> None:
    code = (
        "import sys\nfrom pbvf_cli.__main__ import main\n"
        "assert main(['dataset', 'info', sys.argv[1], '--json']) == 0\n"
        "assert not {'torch', 'minari', 'mujoco', 'toyenv'} & set(sys.modules)\n"
    )
    ran = run_process(folder, code=code)
    assert (ran.code, ran.err) == (0, "")
    assert ran.json["episodes"] == 4


def test_info_of_an_unverified_dataset(folder: Path) -> None:
    hostile.unseal(folder)
    ran = pbvf("dataset", "info", folder, "--json", warns=True).ok()
    assert ran.err.count("\n") == 1
    assert "unverified" in ran.err
    assert ran.json["verified"] is False
    assert pbvf("dataset", "info", folder, warns=True).code == 0
    pbvf("dataset", "info", folder, "--require-manifest").refused(4, "manifest.json")


def test_info_of_cut_episodes_alone_has_no_returns(root: Path) -> None:
    hostile.make(root, spec=BOX_SPEC, episodes=[make_episode(BOX_SPEC, 0, cut=True)])
    ran = pbvf("dataset", "info", "lab/toy-v0", "--json")
    assert (ran.json["return"], ran.json["histogram"]) == (None, None)
    assert "return of whole episodes  -" in pbvf("dataset", "info", "lab/toy-v0").out


def test_info_of_nothing_is_wrong_usage() -> None:
    assert pbvf("dataset", "info", "lab/none-v0").code == 2
    assert pbvf("dataset", "info").code == 2


# --------------------------------------------------------------------------------- list


def test_list(folder: Path, root: Path) -> None:
    hostile.unseal(hostile.make(root, "lab/plain-v0"))
    (hostile.make(root, "lab/bad-v0") / METADATA_FILE).write_bytes(b"\x1b[31m")
    ran = pbvf("dataset", "list", "--json")
    assert (ran.code, ran.err) == (0, "")
    states = {found["dataset"]: found["state"] for found in ran.json["datasets"]}
    assert states == {"lab/toy-v0": "ours", "lab/plain-v0": "foreign", "lab/bad-v0": "damaged"}
    assert ran.json["root"] == str(root)
    ran = pbvf("dataset", "list").ok()
    for words in ("lab/plain-v0", "foreign", "toyenv:Toy-v0", "metadata.json: not valid JSON"):
        assert words in ran.out
    assert "\x1b" not in ran.out


@pytest.mark.parametrize(
    "stats",
    [{"policies": 10**400}, {"return": {"mean": 10**400, "min": 0.0, "max": 0.0}}, {"length": 5}],
)
def test_odd_numbers_of_one_dataset_are_its_damage_and_no_others(
    folder: Path, root: Path, stats: dict[str, object]
) -> None:
    shutil.copytree(folder, root / "lab/odd-v0")
    hostile.rewrite_manifest(root / "lab/odd-v0", lambda m: m["provenance"]["stats"].update(stats))
    listed = pbvf("dataset", "list", "--json").ok().json["datasets"]
    states = {entry["dataset"]: entry["state"] for entry in listed}
    assert states == {"lab/toy-v0": "ours", "lab/odd-v0": "damaged"}
    assert "lab/odd-v0" in pbvf("dataset", "list").ok().out
    for command in (("info",), ("verify",), ("dataset", "set", "--license", "MIT")):
        ran = pbvf(*command, "lab/odd-v0")
        assert (ran.code, len(ran.err.splitlines())) == (3, 1)
        assert f"manifest.json: provenance.stats.{next(iter(stats))} is " in ran.err


def test_an_empty_list(root: Path) -> None:
    assert pbvf("dataset", "list", "--json").json["datasets"] == []
    assert "0" in pbvf("dataset", "list").out


# ------------------------------------------------------------------------------- verify


def test_verify_an_intact_dataset(folder: Path) -> None:
    ran = pbvf("dataset", "verify", "lab/toy-v0", "--json")
    assert (ran.code, ran.err) == (0, "")
    found = ran.json
    assert (found["status"], found["problems"], found["kind"]) == ("intact", [], "dataset")
    assert (found["safe_for_minari"], found["episodes"], found["policies"]) == (True, 4, 12)
    ran = pbvf("dataset", "verify", folder).ok()
    assert "intact" in ran.out
    assert "safe for Minari" in ran.out


def test_verify_a_damaged_dataset(folder: Path, tmp_path: Path) -> None:
    for name in ("episode_1/rewards", "episode_3/actions"):
        hostile.flip(name)(folder, tmp_path)
    ran = pbvf("dataset", "verify", folder, "--json")
    assert ran.code == 3
    assert ran.err.count("\n") == 1
    assert ran.err.startswith(f"error: {folder}/{DATA_FILE}: episode_1/rewards:")
    assert "2 more problems" in ran.err
    found = ran.json
    assert (found["status"], len(found["problems"])) == ("damaged", 3)
    assert found["problems"][1]["where"].endswith("episode_3/actions")
    assert found["problems"][1]["kind"] == "damaged"
    ran = pbvf("dataset", "verify", folder)
    assert ran.code == 3
    assert "episode_3/actions" in ran.out


def test_verify_without_a_manifest(folder: Path) -> None:
    hostile.unseal(folder)
    ran = pbvf("dataset", "verify", folder, "--json").ok()
    assert ran.err.count("\n") == 1
    assert "warning" in ran.err
    assert (ran.json["status"], ran.json["safe_for_minari"]) == ("unverified", True)
    assert pbvf("dataset", "verify", folder, "--quiet").err == ""
    ran = pbvf("dataset", "verify", folder, "--require-manifest", "--quiet", "--json")
    assert ran.code == 4
    assert "manifest.json" in ran.err
    assert ran.json["status"] == "unverified"


def test_verify_warns_of_an_edited_card(folder: Path) -> None:
    (folder / "README.md").write_text("mine")
    ran = pbvf("dataset", "verify", folder, "--json").ok()
    assert "README.md" in ran.err
    assert ran.json["status"] == "intact"
    assert len(ran.json["warnings"]) == 1


def test_names_from_files_cannot_reach_the_terminal(folder: Path, tmp_path: Path) -> None:
    hostile.DAMAGED["a stray group"].spoil(folder, tmp_path)
    hostile.reseal(folder)
    ran = pbvf("dataset", "verify", folder)
    assert ran.code == 3
    assert "stray" in ran.out
    assert "\x1b" not in ran.out + ran.err


def test_sizes_for_people() -> None:
    assert [size_text(n) for n in (0, 999, 1000, 999_999, 10**16)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.0 MB",
        "10000.0 TB",
    ]
