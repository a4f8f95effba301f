"""Several datasets as one training set, from a user's side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_tools import make, pbvf
from pbvf_offline.io.tensor_file import decode, read_tensor_file

CRITIC = ("--hidden", "8", "--updates", 40, "--seed", 0, "--validation-policies", 0.3)
MODEL = ("--members", 2, "--hidden", "8", "--updates", 20, "--trial-updates", 10, "--seed", 0)
SMALL = ("--batch-size", "4", "-q", "--json")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(
        tmp_path_factory.mktemp("made"),
        *(
            f"collect toyenv:{env}-v0 --dataset lab/{name}-v0 --steps 60 {more}"
            for name, env, more in (
                ("a", "Toy", "--seed 0"),
                ("b", "Toy", "--seed 1"),
                ("deep", "Toy", "--seed 2 --policy 3"),
                ("survive", "ToySurvive", "--seed 3"),
                ("choices", "ToyDiscrete", "--seed 4"),
            )
        ),
        "dataset merge lab/a-v0 lab/b-v0 --dataset lab/all-v0",
    )


@pytest.fixture(autouse=True)
def datasets(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made / "datasets"))


def fit(command: str, out: str, *names: str, **kwargs: Any):
    more = CRITIC if command == "fit-critic" else MODEL
    return pbvf(command, *names, "--out", out, *more, *SMALL, **kwargs)


def content(kind: str, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    header, tensors = decode(kind, read_tensor_file(Path(path)), path)
    return header, tensors


@pytest.mark.parametrize("kind", ["pssvf", "psvf", "pavf", "model"])
def test_they_are_what_their_merge_is(kind: str, here: Path) -> None:
    command = "fit-model" if kind == "model" else "fit-critic"
    which = () if kind == "model" else ("--critic", kind)
    apart = fit(command, "apart", "lab/a-v0", "lab/b-v0", *which).ok().json
    merged = fit(command, "merged", "lab/all-v0", *which).ok().json
    for name in ("data_steps", "data_episodes", "loss", "updates"):
        assert apart[name] == merged[name], name
    (one, arrays), (other, others) = (
        content("model" if kind == "model" else "critic", name) for name in ("apart", "merged")
    )
    digests = [pbvf("info", f"lab/{name}-v0", "--json").ok().json["digest"] for name in "ab"]
    assert one.pop("dataset") == "+".join(digests)
    assert other.pop("dataset") not in digests
    assert one == other
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name)


def test_the_file_names_all_of_them(here: Path) -> None:
    both = ("lab/a-v0", "lab/b-v0")
    psvf = ("--critic", "psvf")
    fit("fit-critic", "critic", *both, *psvf).ok()
    assert fit("fit-critic", "critic", *both, *psvf).ok().json["already_complete"]
    ran = fit("fit-critic", "critic", *both[::-1], *psvf)
    assert ran.code == 7
    assert "dataset" in ran.err
    shown = pbvf("info", "critic", *both, "--json").ok().json["lineage"]
    found = [(tie["relation"], tie["found"]) for tie in shown if tie["name"] == "critic"]
    assert found == [("fitted to", name) for name in both]
    # One of them is enough to say that they belong together; any other does not fit.
    pbvf("verify", "critic", "lab/a-v0").ok()
    assert pbvf("verify", "critic", "lab/deep-v0").code == 5


@pytest.mark.parametrize(
    ("other", "code", "words"),
    [
        ("lab/deep-v0", 5, "architecture"),
        ("lab/survive-v0", 5, "environment ToySurvive-v0 against Toy-v0"),
        ("lab/choices-v0", 5, "action space"),
        ("lab/a-v0", 2, "episodes are in lab/a-v0 too"),
        ("lab/all-v0", 2, "dataset merge"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    other: str, code: int, words: str, here: Path
) -> None:
    ran = fit("fit-critic", "critic", "lab/a-v0", other, "--critic", "psvf")
    assert ran.code == code
    assert words in ran.err
    assert ran.err.count("\n") == 1
    assert not (here / "critic").exists()
