"""``--overwrite`` never deletes a file that is not the output's own, whichever command it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cli_tools import content, make, pbvf

A, OUT = "lab/a-v0", "lab/out-v0"
COLLECT = ("collect", "toyenv:Toy-v0", *("--episodes", 3, "--seed", 0), "--license", "MIT")
COLLECT += ("--dataset",)


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    collect = " ".join(map(str, COLLECT))
    folder = tmp_path_factory.mktemp("collected")
    return make(folder, f"{collect} {A}", f"dataset pack {A} datasets/a.tar")


@pytest.fixture
def root(collected: Path, here: Path) -> Path:
    return Path(shutil.copytree(collected / "datasets", here / "datasets"))


COMMANDS = {
    "collect": (*COLLECT, OUT),
    "merge": ("dataset", "merge", A, "--dataset", OUT),
    "filter": ("dataset", "filter", A, "--dataset", OUT, "--top", 1),
    "pull": ("dataset", "pull", "{root}/lab/a-v0", OUT),
    "unpack": ("dataset", "unpack", "{root}/a.tar", OUT),
    "push": ("dataset", "push", A, "{root}/lab/out-v0"),
    "train-online": (
        *("train-online", "toyenv:Toy-v0", "--critic", "pssvf", "--steps", 20, "--seed", 0),
        *("--run", "{root}/run", "--export-dataset", OUT),
    ),
}


@pytest.mark.parametrize(
    "name", ["thesis.txt", "README.md", "data/thesis.txt", "lab/inner-v0/manifest.json"]
)
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_users_file_in_the_outputs_folder_is_exit_7_and_stays(
    command: tuple[object, ...], overwrite: bool, name: str, root: Path
) -> None:
    mine = root / OUT / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    before = content(root)
    argv = [str(word).format(root=root) for word in command]
    ran = pbvf(*argv, "-q", *["--overwrite"] * overwrite).refused(
        7, (name if name.endswith((".txt", ".md")) else name.split("/", maxsplit=1)[0])
    )
    assert "--overwrite" not in ran.error
    assert content(root) == before


@pytest.mark.parametrize("name", ["thesis.txt", "data/thesis.txt"])
def test_a_users_file_in_a_dataset_is_named_before_the_dataset_is_replaced(
    name: str, root: Path
) -> None:
    assert pbvf(*COLLECT, OUT, "-q").code == 0
    (root / OUT / name).write_text("mine")
    before = content(root)
    for command in COMMANDS.values():
        argv = [str(word).format(root=root) for word in command]
        pbvf(*argv, "-q", "--overwrite").refused(7, name)
        assert content(root) == before


def test_neither_part_of_a_split_is_made_when_one_cannot_be(root: Path) -> None:
    argv = ("dataset", "split", A, "--dataset", OUT, "--fractions", ".5,.5", "--seed", 0, "-q")
    assert pbvf(*argv).code == 0
    parts = sorted(path for path in (root / "lab").iterdir() if "out" in path.name)
    (parts[-1] / "thesis.txt").write_text("mine")
    before = content(root)
    pbvf(*argv, "--overwrite").refused(7, "thesis.txt")
    assert content(root) == before
