"""Files of earlier versions open for ever, and mean what they meant.

``golden/README.md`` says what they are. Only the command line and public names are used.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cli_tools import pbvf
from golden.commands import FIT, KILLED_COLLECT, KILLED_RUN, MORE_STEPS, PARTIAL, TRAIN
from golden.measures import MEASURES, machine, measured, variables

GOLDEN = Path(__file__).parent / "golden/v0.1"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
# Where rounding differs, so do results: by much less than this, but after training.
RELATIVE = {"collected": 1e-6}


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "golden"
    shutil.copytree(GOLDEN, folder)
    for name, value in variables(folder).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    return folder


def differences(
    found: Any, expected: Any, relative: float, where: str, most: float = 0
) -> list[str]:
    """Return where two measures differ; the found one may hold more entries.

    Numbers may differ by ``relative`` of the largest in their list. Where it is 0, what is
    under ``exact`` is compared too.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        return [
            text
            for key, value in expected.items()
            if key != "exact" or not relative
            for text in differences(found.get(key, "nothing"), value, relative, f"{where}.{key}")
        ]
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        most = max((abs(x) for x in expected if isinstance(x, float)), default=0)
        pairs = enumerate(zip(found, expected, strict=True))
        return [
            text
            for i, (one, other) in pairs
            for text in differences(one, other, relative, f"{where}[{i}]", most)
        ]
    same = found == expected
    if relative and isinstance(expected, float) and isinstance(found, float | int):
        same = found == pytest.approx(expected, rel=relative, abs=max(relative * most, 1e-12))
    return [] if same else [f"{where}: {found} is not {expected}"]


@pytest.mark.usefixtures("copy")
@pytest.mark.parametrize("name", MEASURES)
def test_files_of_version_0_1(name: str) -> None:
    relative = 0 if machine() == EXPECTED["machine"] else RELATIVE.get(name, 1e-5)
    assert not differences(measured(name), EXPECTED[name], relative, name)


@pytest.mark.parametrize(
    ("more", "what"), [("--updates 59", "60 updates"), ("--gamma 0.5", "gamma")]
)
def test_a_golden_critic_is_not_replaced_by_another(copy: Path, more: str, what: str) -> None:
    out = copy / "critics/psvf.safetensors"
    before = out.read_bytes()
    command = f"fit-critic {FIT['psvf']} {more} --out {out} -q"
    ran = pbvf(*command.split())
    assert ran.code == 7
    assert what in ran.error
    assert out.read_bytes() == before


@pytest.mark.usefixtures("copy")
@pytest.mark.parametrize(
    "command",
    [
        f"fit-critic {PARTIAL} --out critics/partial.safetensors --lr 0.5",
        f"collect {KILLED_COLLECT} --sigma 0.9",
        f"train-online {KILLED_RUN} --run runs/killed --sigma 0.9",
    ],
)
def test_what_a_stopped_golden_command_left_belongs_to_its_settings(command: str) -> None:
    ran = pbvf(*command.split(), "-q")
    assert ran.code == 7
    assert command.split()[-2].strip("-") in ran.error


@pytest.mark.parametrize(
    "command",
    [
        f"{KILLED_RUN} --run runs/killed",
        f"{TRAIN['finished']} --run runs/finished --steps {MORE_STEPS}",
    ],
)
def test_a_golden_run_goes_on_from_its_checkpoint(copy: Path, command: str) -> None:
    # What the checkpoint names is needed, so the run does not start from its beginning.
    folder = copy / command.partition("--run ")[2].split()[0]
    (folder / "pending.safetensors").unlink()
    ran = pbvf("train-online", *command.split(), "-q")
    assert ran.code == 3
    assert "pending.safetensors" in ran.error


def test_the_signature_is_of_this_key_and_these_bytes(copy: Path) -> None:
    folder = copy / "datasets/lab/fragments-v0"
    check = ("dataset", "check-signature", folder, "--key")
    assert pbvf("dataset", "keygen", "other.key").code == 0
    assert pbvf(*check, "other.key.pub").code == 4
    data = bytearray((folder / "data/main_data.hdf5").read_bytes())
    data[-1] ^= 1
    (folder / "data/main_data.hdf5").write_bytes(data)
    assert pbvf(*check, "keys/lab.key.pub").code == 3
    ran = pbvf("dataset", "verify", folder, "--json")
    assert (ran.code, ran.json["status"]) == (3, "damaged")
