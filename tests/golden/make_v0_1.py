"""Make the golden files of version 0.1, and write down what that version says of them.

Run with version 0.1 of pbvf-offline checked out (and this folder in it), in its environment::

    PYTHONPATH=.:datasets:cli:tests:tests/helpers python tests/golden/make_v0_1.py

It makes ``tests/golden/v0.1`` anew. That folder is kept for ever as it is: later versions
must open its files, so making them again with a later one would prove nothing.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pbvf_offline
from golden import commands
from golden.measures import MEASURES, machine, measured, variables

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "v0.1"

# The command with a signal at the N-th step of an environment or of an optimiser.
STOPPED = """
import os, sys
where, count, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if where == "environment":
    from gymnasium.wrappers import TimeLimit as owner
else:
    from torch.optim import Adam as owner
step, done = owner.step, 0
def counted(*args, **kwargs):
    global done
    done += 1
    if done == count:
        os.kill(os.getpid(), number)
    return step(*args, **kwargs)
owner.step = counted
from pbvf_cli.__main__ import main
sys.exit(main(sys.argv[4:]))
"""


def pbvf(command: str, *stop: object) -> None:
    """Run a command in a process of its own, as a user would; or stop it in the middle."""
    place = ["-c", STOPPED, *map(str, stop)] if stop else ["-m", "pbvf_cli"]
    argv = [sys.executable, *place, *shlex.split(command), "-q"]
    code = subprocess.run(argv, check=False, stdout=subprocess.DEVNULL).returncode
    expected = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}
    wanted = expected[signal.Signals(int(str(stop[2])))] if stop else 0
    if code != wanted:
        raise SystemExit(f"{code} from: pbvf {command}")


def make() -> None:
    """Make all files, in the current folder."""
    for name in ("critics", "policies", "runs", "keys"):
        Path(name).mkdir()
    for name, command in commands.COLLECT.items():
        pbvf(f"collect {command} --dataset lab/{name}-v0")
    pbvf(f"dataset merge {commands.MERGE} --dataset lab/merged-v0")
    pbvf(f"collect {commands.KILLED_COLLECT}", "environment", 150, int(signal.SIGINT))
    pbvf(f"collect {commands.KILLED_COLLECT}", "environment", 40, int(signal.SIGKILL))
    for name, command in commands.TRAIN.items():
        export = f" --export-dataset {commands.EXPORTED}" if name == "finished" else ""
        pbvf(f"train-online {command} --steps {commands.STEPS} --run runs/{name}{export}")
    killed = f"train-online {commands.KILLED_RUN} --run runs/killed"
    pbvf(killed, "environment", 250, int(signal.SIGINT))
    pbvf(killed, "environment", 150, int(signal.SIGKILL))
    for name, command in commands.FIT.items():
        pbvf(f"fit-critic {command} --out critics/{name}.safetensors")
    partial = f"fit-critic {commands.PARTIAL} --out critics/partial.safetensors"
    pbvf(partial, "optimiser", 35, int(signal.SIGTERM))
    pbvf(f"synthesize {commands.SYNTHESIZE} --out policies/grown.safetensors")
    pbvf(f"policies export {commands.EXPORT} --out policies/weights.safetensors")
    pbvf(f"policies import {commands.IMPORT} --out policies/imported.safetensors")
    pbvf("dataset keygen lab.key")
    pbvf("dataset sign lab/fragments-v0 --key lab.key")
    Path("lab.key").unlink()  # the private key
    Path("lab.key.pub").rename("keys/lab.key.pub")
    pbvf("dataset pack lab/fragments-v0 archive.tar")
    shutil.rmtree("cache")
    for events in Path("runs").glob("*/tensorboard"):
        shutil.rmtree(events)  # derived, never read back, and named after the host
    for empty in [p for p in Path.cwd().rglob("*") if p.is_dir() and not any(p.iterdir())]:
        empty.rmdir()  # git does not keep it


def main() -> None:
    """Make the files and what is expected of them."""
    if pbvf_offline.__version__ != "0.1.0":
        raise SystemExit(f"this is version {pbvf_offline.__version__}, not 0.1.0")
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir()
    os.environ.update(variables(GOLDEN))
    os.chdir(GOLDEN)
    make()
    expected: dict[str, object] = {"machine": machine()}
    for name in MEASURES:
        with tempfile.TemporaryDirectory() as temporary:
            copy = Path(temporary) / "golden"
            shutil.copytree(GOLDEN, copy)
            os.environ.update(variables(copy))
            os.chdir(copy)
            expected[name] = measured(name)
            os.chdir(HERE)
    lines = [f"{json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in expected.items()]
    (GOLDEN / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
