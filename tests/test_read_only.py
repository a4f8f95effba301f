"""What is finished stays complete where nothing may be written; nothing else is begun there."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_tools import content, pbvf
from faults import read_only

DATA = "lab/lqr-v0"
COMMANDS: dict[str, tuple[object, ...]] = {
    "collect": ("collect", "LQR-v0", "--dataset", DATA, "--steps", 60),
    "fit-critic": (
        *("fit-critic", DATA, "--critic", "psvf", "--out", "c.safetensors"),
        *("--hidden", "4", "--updates", 6, "--snapshots", "2,4"),
    ),
    "synthesize": (
        *("synthesize", "c.safetensors", "--out", "p.safetensors"),
        *("--from-scratch", 2, "--steps", 2, "--evaluate", "--episodes", 1),
    ),
    "train-online": (
        *("train-online", "LQR-v0", "--critic", "pssvf", "--run", "run", "--steps", 120),
        *("--hidden", "4", "--evaluations", 2, "--snapshots", "60", "--export-dataset", "lab/x-v0"),
    ),
}
OTHERWISE: dict[str, tuple[tuple[object, ...], int]] = {
    "collect": (("--dataset", "lab/other-v0"), 6),
    "fit-critic": (("--updates", 7), 6),
    "synthesize": (("--steps", 3), 7),
    "train-online": (("--run", "other", "--export-dataset", "lab/other-v0"), 6),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which each command has been run to its end."""
    folder = tmp_path_factory.mktemp("disk")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder / "datasets"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.chdir(folder)
        for argv in COMMANDS.values():
            pbvf(*argv, "--seed", 0, "-q").ok()
        yield folder


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("seed", [("--seed", 0), ()])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_finished_output_is_complete(
    command: str, seed: tuple[object, ...], code: int, root: Path
) -> None:
    before = content(root)
    with read_only(root, code):
        ran = pbvf(*COMMANDS[command], *seed, "--json")
    assert ran.code == 0, ran.err
    assert "already complete" in ran.err
    assert ran.json["already_complete"] is True
    assert content(root) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_not_done_is_refused_at_once(command: str, root: Path) -> None:
    before = content(root)
    more, code = OTHERWISE[command]
    with read_only(root):
        ran = pbvf(*COMMANDS[command], *more, "--seed", 0, "-q")
        anew = pbvf(*COMMANDS[command], "--overwrite", "--seed", 0, "-q")
    assert ran.code == code, ran.err
    assert anew.code == 6, anew.err
    for refused in (ran, anew) if code == 6 else (anew,):
        assert "read-only" in refused.error.lower()
    assert content(root) == before
