"""Peak memory of each stage at 1, 10 and 50 million transitions, as one table.

Writes datasets of 2,000 [64,64] policies, fits and synthesizes in processes of their own, and
samples the resident memory of each with all its children, file pages included. Figures that the
result file has are not measured again; a stage that needs a critic or policies finds them in
--folder, where an earlier call measured the stage that makes them. 50 million transitions need
25 GB of disk in --folder.

Run: python benchmarks/memory.py [--sizes 1,10,50] [--stages "write;fit-critic"] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tools.synthetic import write_dataset

POLICIES, PER_EPISODE = 2_000, 5
WANTED = 3.0  # GB
RESULTS = Path(__file__).parent / "results" / "memory.json"
NAME = "bench/steps{size}m-v0"
OPEN = f"from pbvf_datasets import load_dataset; load_dataset('{NAME}')"
FIT = "--updates 300 --seed 0 --overwrite --out"
STAGES = {
    "write": "import memory; memory.write({size})",
    "first opening": OPEN,
    "later opening": OPEN,
    "fit-critic": f"fit-critic {NAME} --critic psvf --gamma 0.99 {FIT} critic",
    "fit-critic, a tenth held out": f"fit-critic {NAME} --critic pavf --gamma 0.99 "
    f"--validation-policies 0.1 {FIT} other",
    "fit-model": f"fit-model {NAME} --noise 0 --no-angles --no-mixed {FIT} model",
    "synthesize": f"synthesize critic --from-scratch 4 --steps 50 --seed 0 --dataset {NAME} "
    "--overwrite --out grown",
    "evaluate": "evaluate grown --env Swimmer-v5 --episodes 1 --seed 0",
    "predict": f"predict critic {NAME}",
    "dataset merge": f"dataset merge {NAME} --dataset bench/merged{{size}}m-v0 --overwrite",
    "collect": "collect LQR-v0 --dataset bench/collected{size}m-v0 --steps {steps} --policy 64,64 "
    "--perturb-every episode --seed 0 --overwrite",
    "verify": "verify bench/collected{size}m-v0",
}
"""What is run, by its name: a command, or Python code."""


def resident(session: int) -> int:
    """Return the bytes of resident memory of all processes of a session."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            total += int(fields[21]) * os.sysconf("SC_PAGESIZE")
    return total


def peak_of(command: list[str], folder: Path) -> float:
    """Return the peak memory of a command in GB."""
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "MINARI_DATASETS_PATH": str(folder),
        "PBVF_CACHE": str(folder / "cache"),
    }
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    peak = 0
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        peak = max(peak, resident(process.pid))
        time.sleep(0.02)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}")
    # A short peak of the process itself is known to the system.
    return max(peak, usage.ru_maxrss * 1024) / 1e9


def write(size: int) -> None:
    """Write the dataset of so many million transitions."""
    write_dataset(
        Path.cwd(),
        NAME.format(size=size),
        hidden=(64, 64),
        episodes=POLICIES // PER_EPISODE,
        fragments=PER_EPISODE,
        fragment_steps=size * 10**6 // POLICIES,
    )


def measure(stage: str, size: int, folder: Path) -> float:
    """Return the peak memory of a stage in GB."""
    text = STAGES[stage].format(size=size, steps=size * 10**6)
    if stage == "first opening":
        shutil.rmtree(folder / "cache", ignore_errors=True)
    if text.startswith(("import", "from")):
        return peak_of([sys.executable, "-c", text], folder)
    return peak_of([sys.executable, "-m", "pbvf_cli", *text.split(), "-q"], folder)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the figures as a table: a stage a line, a size a column."""
    sizes = sorted({row["million"] for row in rows})
    lines = ["| GB | " + " | ".join(f"{size} million" for size in sizes) + " |"]
    lines.append("| -- |" + " --: |" * len(sizes))
    for stage in STAGES:
        found = {row["million"]: row["GB"] for row in rows if row["stage"] == stage}
        cells = [f"{found[size]:.2f}" if size in found else "" for size in sizes]
        if found:
            lines.append(f"| {stage} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="1,10,50", help="millions of transitions (1,10,50)")
    parser.add_argument("--stages", default=";".join(STAGES), help="which; separated by ;")
    parser.add_argument("--folder", type=Path, help="where the data are kept (a temporary folder)")
    parser.add_argument("--json", type=Path, default=RESULTS, help="the figures")
    parser.add_argument("--again", action="store_true", help="measure what is known, too")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if arguments.json.exists() and not arguments.again:
        rows = json.loads(arguments.json.read_text())["results"]
    known = {(row["stage"], row["million"]) for row in rows}
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        for size in map(int, arguments.sizes.split(",")):
            for stage in arguments.stages.split(";"):
                if (stage, size) in known:
                    continue
                if stage != "write" and not (folder / NAME.format(size=size)).exists():
                    measure("write", size, folder)  # known, and its data are gone
                gigabytes = measure(stage, size, folder)
                reached = "reached" if gigabytes < WANTED else "MISSED"
                print(f"{stage}, {size} million: {gigabytes:.2f} GB, wanted < {WANTED}: {reached}")
                sys.stdout.flush()
                rows.append({"stage": stage, "million": size, "GB": round(gigabytes, 3)})
                content = {"command": "python benchmarks/memory.py", "results": rows}
                arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
