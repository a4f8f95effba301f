"""Where outputs may be made: refused before any work, with the same exit code by every command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli_tools import content, make, pbvf

FIT = ("--critic", "psvf", "--hidden", "4", "--updates", 2, "--seed", 0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, runs alone and in a folder, a critic, policies and a bundle; read only."""
    train = "train-online toyenv:Toy-v0 --critic pssvf --steps 20 --hidden 4"
    return make(
        tmp_path_factory.mktemp("made"),
        "collect toyenv:Toy-v0 --dataset lab/toy-v0 --steps 60 --perturb-every 5 --seed 0",
        "fit-critic lab/toy-v0 --critic psvf --hidden 4 --updates 2 --out critic --seed 0",
        "synthesize critic --from-scratch 1 --steps 2 --restarts 1 --out policies --seed 0",
        f"{train} --run run --seed 0",
        f"{train} --run runs --seeds 0-1",
        "push critic run bundle --license MIT",
    )


@pytest.fixture(autouse=True)
def _datasets(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made / "datasets"))


def writers(made: Path, place: object) -> dict[str, tuple[object, ...]]:
    """Return commands that write at a place."""
    train = ("train-online", "toyenv:Toy-v0", "--critic", "pssvf", "--steps", 10)
    grown = ("--from-scratch", 1, "--steps", 2, "--out", place)
    return {
        "fit-critic": ("fit-critic", "lab/toy-v0", *FIT, "--out", place),
        "curve": ("fit-critic", "lab/toy-v0", *FIT, "--out", "c", "--log-dir", place),
        "fit-model": ("fit-model", "lab/toy-v0", "--updates", 2, "--out", place),
        "synthesize": ("synthesize", made / "critic", *grown),
        "predict": ("predict", made / "critic", made / "policies", "--top", 1, "--out", place),
        "train-online": (*train, "--run", place, "--seed", 0),
        "seeds": (*train, "--run", place, "--seeds", "0-1"),
        "export": ("policies", "export", made / "policies", "--out", place),
        "pack": ("dataset", "pack", "lab/toy-v0", place),
        "pack a critic": ("pack", made / "critic", place),
        "quickstart": ("quickstart", "--out", place),
        "reproduce": ("reproduce", "fig-lqr", "--out", place),
    }


WRITERS = tuple(writers(Path(), "x"))


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("place", ["/proc/pbvf/x", "/proc/x"])
def test_a_folder_that_takes_no_files_is_exit_6(made: Path, name: str, place: str) -> None:
    ran = pbvf(*writers(made, place)[name], "-q")
    assert ran.code == 6, ran.err
    assert "/proc/" in ran.error


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_in_the_place_of_a_folder_is_named(made: Path, here: Path, name: str) -> None:
    (here / "file").touch()
    for place in ("file/x", "file/y/x"):
        pbvf(*writers(made, place)[name], "-q").refused(6, "error: file: not a directory")


@pytest.mark.parametrize("name", ["fit-critic", "fit-model", "synthesize", "export", "pack"])
@pytest.mark.parametrize("target", ["there", "nothing"])
def test_a_link_in_the_place_of_a_file_is_exit_7(
    made: Path, here: Path, name: str, target: str
) -> None:
    (here / "there").write_text("mine")
    (here / "link").symlink_to(target)
    before = content(here)
    pbvf(*writers(made, "link")[name], "-q").refused(7, "link: this is a link")
    assert content(here) == before
    assert (here / "link").is_symlink()


@pytest.mark.parametrize("name", ["fit-critic", "fit-model", "synthesize", "predict", "export"])
def test_a_pipe_in_the_place_of_a_file_is_exit_2(made: Path, here: Path, name: str) -> None:
    os.mkfifo(here / "out")
    pbvf(*writers(made, "out")[name], "-q").refused(2, "out: is not a regular file")
    assert content(here) == {}


@pytest.mark.parametrize("name", WRITERS)
def test_links_in_a_circle_are_exit_2(made: Path, here: Path, name: str) -> None:
    (here / "loop").symlink_to("loop")
    for place in ("loop", "loop/x"):
        pbvf(*writers(made, place)[name], "-q").refused(2, "symbolic links lead in a circle")
    assert (here / "loop").is_symlink()


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(
    ("inside", "whole"),
    [
        ("datasets/lab/toy-v0/x", "dataset"),
        ("datasets/lab/toy-v0/data/x", "dataset"),
        ("run/x", "run"),
        ("run/episodes/x", "run"),
        ("bundle/x", "bundle"),
        ("bundle/run/x", "bundle"),
    ],
)
def test_nothing_is_made_inside_a_dataset_run_or_bundle(
    made: Path, name: str, inside: str, whole: str
) -> None:
    before = content(made)
    folder = made / ("datasets/lab/toy-v0" if whole == "dataset" else whole)
    place = made / inside
    words = f"{place}: would lie inside the {whole} {folder}, which holds nothing else"
    pbvf(*writers(made, place)[name], "-q").refused(2, words)
    assert content(made) == before


@pytest.mark.parametrize(
    ("inside", "whole"),
    [("run/x", "run"), ("datasets/lab/toy-v0/x", "da"), ("bundle/x", "bundle")],
)
def test_nothing_is_sent_into_a_dataset_run_or_bundle(
    made: Path, monkeypatch: pytest.MonkeyPatch, inside: str, whole: str
) -> None:
    pbvf("pack", made / "critic", "critic.tar", "--license", "MIT", "-q").ok()
    before = content(made)
    for argv in (
        ("push", made / "critic", made / inside, "--license", "MIT"),
        ("push", made / "critic", f"file://{made / inside}", "--license", "MIT"),
        ("dataset", "push", "lab/toy-v0", made / inside),
        ("unpack", "critic.tar", "--out", made / inside),
        ("pull", "anywhere", made / inside),
    ):
        pbvf(*argv, "-q").refused(2, f"would lie inside the {whole}")
    archive = Path("critic.tar").resolve()
    monkeypatch.chdir((made / inside).parent)
    pbvf("unpack", archive, "-q").refused(2, f"would lie inside the {whole}")
    assert content(made) == before


def test_a_run_goes_on_outside_of_its_bundle(made: Path) -> None:
    argv = writers(made, made / "bundle/run")["train-online"]
    pbvf(*argv, "-q").refused(2, f"inside the bundle {made / 'bundle'}", "copy the run out")


@pytest.mark.parametrize("whole", ["datasets/lab/toy-v0", "bundle"])
@pytest.mark.parametrize("name", ["curve", "train-online", "seeds", "quickstart", "reproduce"])
def test_a_folder_of_outputs_is_no_datasets_or_bundles(made: Path, name: str, whole: str) -> None:
    words = f"{made / whole}: is the folder of a {'bundle' if whole == 'bundle' else 'dataset'}"
    pbvf(*writers(made, made / whole)[name], "-q").refused(2, words)


def test_a_config_of_something_else_is_no_run(here: Path) -> None:
    (here / "config.json").write_text("{}")
    pbvf("fit-critic", "lab/toy-v0", *FIT, "--out", "c", "-q").ok()


@pytest.mark.parametrize("whole", ["run", "datasets/lab/toy-v0", "bundle"])
def test_no_dataset_is_made_inside_a_run_dataset_or_bundle(
    made: Path, monkeypatch: pytest.MonkeyPatch, whole: str
) -> None:
    data = made / "datasets/lab/toy-v0"
    pbvf("dataset", "pack", data, "toy.tar", "-q").ok()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made / whole / "inner"))
    for argv in (
        ("collect", "toyenv:Toy-v0", "--dataset", "lab/x-v0", "--steps", 10),
        ("dataset", "merge", data, "--dataset", "lab/x-v0"),
        ("dataset", "pull", data, "lab/x-v0"),
        ("pull", data, "lab/x-v0"),
        ("unpack", "toy.tar"),
        ("unpack", "toy.tar", "--out", "lab/x-v0"),
        ("dataset", "unpack", "toy.tar"),
        ("dataset", "unpack", "toy.tar", "lab/x-v0"),
    ):
        pbvf(*argv, "-q").refused(2, "would lie inside the", str(made / whole))


def test_links_in_a_circle_as_inputs_are_exit_2(made: Path, here: Path) -> None:
    (here / "loop").symlink_to("loop")
    for place in ("loop", "loop/x"):
        for argv in (
            ("info", place),
            ("fit-critic", place, *FIT, "--out", "c"),
            ("evaluate", place),
            ("predict", made / "critic", place),
            ("policies", "info", place),
            ("dataset", "unpack", place),
        ):
            pbvf(*argv, "-q").refused(2)


def test_the_runs_in_a_folder_are_named_where_one_is_wanted(made: Path) -> None:
    words = "runs: holds 2 runs (seed-0, seed-1)"
    pbvf("fit-critic", made / "runs", *FIT, "--out", "c").refused(2, words)
    pbvf("predict", made / "critic", made / "runs").refused(2, words)
    train = ("train-online", "toyenv:Toy-v0", "--critic", "pssvf", "--seed", 0, "-q")
    pbvf(*train, "--run", made / "runs").refused(7, words)
    above = f"{made.name}: holds 1 run (run)"
    pbvf("fit-model", made, "--out", "m").refused(2, above)


def test_a_folder_is_no_file(made: Path) -> None:
    own = f"but a run; name {made}/run/policy.safetensors, which"
    pbvf("policies", "info", made / "run").refused(2, own)
    own = f"but a run; name {made}/run/critic.safetensors, which"
    pbvf("predict", made / "run", made / "run").refused(2, own)
    data = made / "datasets/lab/toy-v0"
    for name in (data, "lab/toy-v0"):
        climb = ("synthesize", made / "critic", "--from", name, "--out", "x")
        pbvf(*climb).refused(2, "but a dataset; 'pbvf policies export")
        pbvf("predict", name, data).refused(2, "but a dataset; 'pbvf fit-critic'")
    predict = ("predict", made / "critic", data, "--model")
    pbvf(*predict, made / "run").refused(2, "not a model file but a run")
    pbvf(*predict, made / "datasets").refused(2, "regular file; name the file in this folder")
