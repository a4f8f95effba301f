"""Commands and options that are printed can be pasted into a shell, of an own environment too."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

from cli_tools import SOURCES, digest, pbvf
from pbvf_cli.shared.terminal.layout import CommandText, wrap

ENV = "toyenv:Toy-v0"


def pasted(lines: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run lines in bash, in a folder whose datasets are in it."""
    (folder / "datasets").mkdir(parents=True, exist_ok=True)
    script = f'pbvf() {{ {shlex.quote(sys.executable)} -m pbvf_cli "$@"; }}\n{lines}'
    env = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": ":".join(map(str, SOURCES)),
        "MINARI_DATASETS_PATH": str(folder / "datasets"),
        "PBVF_CACHE": str(folder / "cache"),
    }
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, cwd=folder, env=env, check=False
    )


def test_the_command_of_a_dataset_makes_it_again(here: Path, root: Path) -> None:
    own = ("--env-kwargs", '{"obs_dim": 4, "length": 6}', "--author", "It's me", "-q", "--seed", 0)
    wrapped = ("--wrapper", 'rescale-action:{"min_action": -2, "max_action": 2}')
    pbvf("collect", ENV, "--dataset", "lab/a-v0", "--episodes", 2, *own, *wrapped).ok()
    run = ("--run", "one", "--critic", "pssvf", "--steps", 12, "--evaluations", 1)
    pbvf("train-online", ENV, *run, "--export-dataset", "lab/b-v0", *own).ok()
    told = [pbvf("info", f"lab/{name}-v0", "--json").json["command"] for name in "ab"]
    lines = [line for command in told for line in wrap(CommandText(command), 40)]
    ran = pasted("\n".join(lines), here / "again")
    assert ran.returncode == 0, ran.stderr
    for name in ("lab/a-v0", "lab/b-v0"):
        assert digest(here / "again" / "datasets", name) == digest(root, name)


def test_the_options_that_a_refusal_asks_for_are_enough(here: Path) -> None:
    kwargs = json.dumps({"length": 6, "log": str(here / "a log")})
    given = ("--dataset", "lab/a-v0", "--episodes", 1, "--seed", 0, "--env-kwargs", kwargs, "-q")
    pbvf("collect", ENV, *given).ok()
    pbvf("policies", "export", "lab/a-v0", "--index", 0, "--out", "p.safetensors", "-q").ok()
    evaluate = "pbvf evaluate p.safetensors --episodes 1 --seed 0 --json"
    refused = pasted(evaluate, here)
    assert refused.returncode == 4
    found = re.search("if you trust that module, add (.*), with values in place of", refused.stderr)
    assert found is not None, refused.stderr
    ran = pasted(f"{evaluate} {found[1].replace('...', 'other')}", here)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["env_kwargs"] == {"length": 6, "log": "other"}
