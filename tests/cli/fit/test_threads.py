"""``--threads`` from a user's side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from threadpoolctl import threadpool_info

from cli_tools import pbvf, rows


@pytest.fixture(autouse=True)
def _two_threads(drift: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a machine with two cores has it, and afterwards as the other tests do."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(drift / "datasets"))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("command", ["fit-critic", "fit-model", "synthesize"])
def test_one_thread_computes_unless_more_are_asked_for(here, drift, command):
    argv = {
        "fit-critic": ("lab/drift-v0", "--critic", "psvf", "--hidden", "8", "--updates", 2),
        "fit-model": (
            "lab/drift-v0", "--hidden", "8", "--updates", 2, "--noise", 0, "--angles",
            "--no-mixed",
        ),
        "synthesize": (drift / "theta", "--steps", 2, "--restarts", 1),
    }[command]  # fmt: skip
    shown = rows(pbvf(command, *argv, "--seed", 0, "--out", "one").ok().err)
    assert shown["threads"] == "1 default"
    assert torch.get_num_threads() == 1
    assert {p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"} == {1}
    more = pbvf(command, *argv, "--seed", 0, "--out", "more", "--threads", 2).ok()
    assert rows(more.err)["threads"] == "2 given"
    assert torch.get_num_threads() == 2
    # It is no setting of the output.
    again = pbvf(command, *argv, "--seed", 0, "--out", "more", "--json", "-q").ok()
    assert again.json.get("already_complete")


def test_a_run_of_training_computes_on_the_threads_asked_for(here):
    argv = ["train-online", "LQR-v0", "--critic", "pssvf", "--hidden", 8, "--steps", 100]
    argv += ["--evaluations", 1, "--seed", 0, "--run"]
    assert rows(pbvf(*argv, "one").ok().err)["threads"] == "1 default"
    assert torch.get_num_threads() == 1
    assert rows(pbvf(*argv, "two", "--threads", 2).ok().err)["threads"] == "2 given"
    assert torch.get_num_threads() == 2


def test_no_thread_is_too_few():
    ran = pbvf("fit-critic", "x", "--critic", "psvf", "--out", "c", "--threads", 0)
    ran.refused(2, "--threads: 0 is not")
