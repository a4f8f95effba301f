"""Shell completion, by the protocol that the shells' scripts speak."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_tools import pbvf, run_process

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def root(root: Path, here: Path) -> Path:
    """Datasets by name alone, an unfinished one, a loop of links, and files of ours and others."""
    for name in ("lab/toy-v0", "lab/deep/toy-v1", "lab/.begun-v0.collecting", "other-v0"):
        (root / name / "data").mkdir(parents=True)
    (root / "lab/loop").symlink_to(root)
    (root / "lab/manifest.json").write_bytes(b"\0")
    (here / "runs").mkdir()
    for name in ("grown.safetensors", "notes.txt", "runs/critic.safetensors", "toy.tar"):
        (here / name).write_bytes(b"damaged")
    return root


def environment(shell: str, line: str, **more: str) -> dict[str, str]:
    words = line.split(" ")
    return {
        "_PBVF_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        **more,
    }


def complete(monkeypatch: pytest.MonkeyPatch, shell: str, line: str, **more: str) -> str:
    for name, value in environment(shell, line, **more).items():
        monkeypatch.setenv(name, value)
    ran = pbvf()
    assert ran.err == ""
    return f"{ran.out.strip()}" if ran.code == 0 else f"exit {ran.code}"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("dataset info ", ["lab/deep/toy-v1", "lab/toy-v0", "other-v0"]),
        ("dataset merge lab/toy-v0 o", ["other-v0"]),
        ("fit-model lab/t", ["lab/toy-v0"]),
        ("info g", ["grown.safetensors"]),
        ("info lab/d", ["lab/deep/toy-v1"]),
        ("evaluate runs/", ["runs/critic.safetensors"]),
        ("synthesize ", ["grown.safetensors"]),
        ("evaluate x --critic ", ["grown.safetensors"]),
        ("evaluate n", []),  # the shell then offers any file
        ("evaluate none/", []),
        ("dataset unpack t", ["toy.tar"]),
        ("collect LQ", ["LQR-v0"]),
        ("collect x --base g", ["grown.safetensors"]),
        ("evaluate x --env Swimmer-", ["Swimmer-v4", "Swimmer-v5"]),
        ("dataset inf", ["info"]),
        ("fit-critic x --critic ps", ["pssvf", "psvf"]),
    ],
)
def test_what_is_offered(
    root: Path, line: str, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert complete(monkeypatch, "bash", f"pbvf {line}").split() == found


def test_the_other_shells(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "pbvf dataset info lab/t"
    assert complete(monkeypatch, "zsh", line) == "_arguments '*: :((\"lab/toy-v0\"))'"
    assert complete(monkeypatch, "fish", line) == "lab/toy-v0"
    action = {"_TYPER_COMPLETE_FISH_ACTION": "is-args"}
    assert complete(monkeypatch, "fish", line, **action) == ""
    assert complete(monkeypatch, "fish", "pbvf dataset info no", **action) == "exit 1"


@pytest.mark.parametrize("path", ["/nowhere", "~/datasets", "notes.txt"])
def test_a_folder_of_datasets_that_is_none(
    root: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", path)
    assert complete(monkeypatch, "bash", "pbvf dataset info lab") == ""


@pytest.mark.parametrize("line", ["pbvf fit-critic lab/", "pbvf evaluate x --env S"])
def test_nothing_heavy_is_imported(root: Path, line: str) -> None:
    code = (
        "import sys\nfrom pbvf_cli.__main__ import main\nmain([])\n"
        "heavy = {'torch', 'mujoco', 'minari', 'h5py', 'scipy'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    ran = run_process(code=code, env=environment("bash", line))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.split()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_scripts(shell: str, here: Path) -> None:
    detect = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(here)}
    shown = run_process("--show-completion", shell, env=detect).ok().out
    assert f"_PBVF_COMPLETE=complete_{shell}" in shown
    run_process("--install-completion", shell, env=detect).ok()
    written = [p.read_text() for p in here.rglob("*") if p.is_file()]
    assert any(f"_PBVF_COMPLETE=complete_{shell}" in text for text in written)
