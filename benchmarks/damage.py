"""Flipped bytes and truncations: how many of each kind of file go unnoticed, or crash a reader.

Each kind of file that pbvf writes is damaged many times, one byte (any byte, headers and
padding included, to any other value) or one cut at a time, and read as a user would. A
damage is *noticed* when reading ends in an error for users, *unnoticed* when it ends well,
and *crashed* when it ends in anything else, the death of the process included. A damaged
card must warn and nothing more.

Run: python benchmarks/damage.py
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import io
import json
import multiprocessing
import os
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pbvf_cli.__main__ import main as pbvf
from pbvf_datasets.inspect.verify import verify
from pbvf_datasets.read.dataset import load_dataset
from pbvf_datasets.read.untrusted import CardWarning
from pbvf_datasets.share.archive import unpack
from pbvf_offline.errors import PbvfError
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.policies.files import load_policies

FLIPS, CUTS = 1000, 200
DATASET = "lab/damage-v0"
Reader = Callable[[Path], object]
Row = dict[str, Any]


def make_files(folder: Path) -> None:
    """Write a dataset, its archive, a critic, policies and a training run with ``pbvf``."""
    os.environ["MINARI_DATASETS_PATH"] = str(folder / "datasets")
    os.environ["PBVF_CACHE"] = str(folder / "cache")
    critic, small = folder / "critic.safetensors", "--hidden 8 --seed 0 -q"
    for line in (
        f"collect LQR-v0 --dataset {DATASET} --episodes 4 --perturb-every 10 --sigma 0.5 "
        "--license CC-BY-4.0 --author Nobody --seed 0 -q",
        f"dataset pack {DATASET} {folder}/dataset.tar -q",
        f"fit-critic {DATASET} --critic psvf --updates 20 --out {critic} {small}",
        f"synthesize {critic} --from-scratch 3 --steps 5 --seed 0 -q "
        f"--out {folder}/policies.safetensors",
        "train-online LQR-v0 --critic pssvf --policy linear --steps 200 "
        f"--run {folder}/run {small}",
    ):
        with contextlib.redirect_stdout(io.StringIO()):
            if pbvf(line.split()) != 0:
                raise SystemExit(f"pbvf {line} failed")


def _check_dataset(path: Path) -> None:
    """Read a dataset of which one file was damaged: both ways in must notice."""
    folder = path.parent.parent if path.parent.name == "data" else path.parent
    error = verify(folder).error
    load_dataset(folder, cache=False)
    if error is not None:
        raise error


def _check_loading(path: Path) -> None:
    folder = path.parent.parent if path.parent.name == "data" else path.parent
    load_dataset(folder, cache=False)


def _check_verified(path: Path) -> None:
    error = verify(path).error
    if error is not None:
        raise error


def _check_card(path: Path) -> None:
    """Warn about a card; the data must be read all the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", CardWarning)
        load_dataset(path.parent, cache=False)


def _unpack(path: Path) -> None:
    unpack(path, "lab/unpacked-v0", root=path.parent / "unpacked", overwrite=True)


KINDS: dict[str, tuple[str, Reader]] = {
    "dataset: data file, verify": (
        f"datasets/{DATASET}/data/main_data.hdf5",
        lambda path: _check_verified(path.parent.parent),
    ),
    "dataset: data file, load": (f"datasets/{DATASET}/data/main_data.hdf5", _check_loading),
    "dataset: metadata": (f"datasets/{DATASET}/data/metadata.json", _check_dataset),
    "dataset: manifest": (f"datasets/{DATASET}/manifest.json", _check_dataset),
    "dataset: croissant": (f"datasets/{DATASET}/croissant.json", _check_dataset),
    "dataset: card (warns)": (f"datasets/{DATASET}/README.md", _check_card),
    "critic": ("critic.safetensors", load_critic),
    "policies": ("policies.safetensors", load_policies),
    "run checkpoint": ("run/checkpoint.safetensors", _check_verified),
    "run: critic": ("run/critic.safetensors", load_critic),
    "archive": ("dataset.tar", _unpack),
}
"""For each kind the file that is damaged and how it is read."""


def damages(size: int, flips: int, cuts: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return ``(place, xor)`` of flips, and ``(length, 0)`` of truncations."""
    places = rng.integers(0, size, flips).tolist()
    masks = rng.integers(1, 256, flips).tolist()
    lengths = rng.integers(0, size, cuts).tolist()
    return list(zip(places, masks, strict=True)) + [(length, 0) for length in lengths]


def outcome(read: Reader, path: Path) -> str:
    """Read a file and say what came of it."""
    try:
        read(path)
    except PbvfError as error:
        return f"exit {error.exit_code}"
    except CardWarning:
        return "warned"
    except BaseException as error:
        return f"crashed: {type(error).__name__}: {error}"
    return "unnoticed"


def damage_file(kind: str, folder: Path, found: list[tuple[int, int]]) -> list[str]:
    """Damage a file in each way, one after the other, and say what became of it."""
    warnings.simplefilter("ignore")
    name, read = KINDS[kind]
    path = folder / name
    image = path.read_bytes()
    outcomes = []
    try:
        for place, mask in found:
            if mask:
                # In place, as a disk would do it: much less is written.
                with path.open("r+b") as file:
                    file.seek(place)
                    file.write(bytes([image[place] ^ mask]))
                outcomes.append(outcome(read, path))
                with path.open("r+b") as file:
                    file.seek(place)
                    file.write(image[place : place + 1])
            else:
                path.write_bytes(image[:place])
                outcomes.append(outcome(read, path))
                path.write_bytes(image)
    finally:
        path.write_bytes(image)
    if outcome(read, path) != "unnoticed":
        raise SystemExit(f"{path} is not whole again: {outcome(read, path)}")
    return outcomes


def measure(kind: str, folder: Path, flips: int, cuts: int, seed: int = 0) -> Row:
    """Return what became of the damages of one kind of file, read in a process of its own."""
    name, read = KINDS[kind]
    size = (folder / name).stat().st_size
    if outcome(read, folder / name) != "unnoticed":
        raise SystemExit(f"{folder / name}: {outcome(read, folder / name)}, and nothing was done")
    found = damages(size, flips, cuts, np.random.default_rng([seed, *kind.encode()]))
    started = time.perf_counter()
    # A damaged HDF5 file may kill the process that reads it; the rest is then not known.
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            outcomes = pool.submit(damage_file, kind, folder, found).result()
        except concurrent.futures.process.BrokenProcessPool:
            outcomes = ["crashed: the process died"]
    counts = Counter(o if not o.startswith("crashed") else "crashed" for o in outcomes)
    unnoticed, crashed = counts.pop("unnoticed", 0), counts.pop("crashed", 0)
    return {
        "name": kind,
        "bytes": size,
        "flips": flips,
        "truncations": cuts,
        "noticed": sum(counts.values()),
        "unnoticed": unnoticed,
        "crashed": crashed,
        "outcomes": dict(sorted(counts.items())),
        "crashes": sorted({o for o in outcomes if o.startswith("crashed")})[:10],
        "seconds": round(time.perf_counter() - started, 1),
    }


def run(flips: int = FLIPS, cuts: int = CUTS) -> list[Row]:
    """Damage every kind of file, print a line for each, and return them."""
    rows = []
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        make_files(folder)
        for kind in KINDS:
            row = measure(kind, folder, flips, cuts)
            rows.append(row)
            print(
                f"{kind}: {row['bytes']:,} bytes, {flips:,} flips and {cuts:,} truncations: "
                f"{row['noticed']:,} noticed, {row['unnoticed']} unnoticed, {row['crashed']} "
                f"crashed ({', '.join(f'{n} {what}' for what, n in row['outcomes'].items())})",
                flush=True,
            )
            for crash in row["crashes"]:
                print(f"  {crash}", flush=True)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=FLIPS, help="flipped bytes a file (1,000)")
    parser.add_argument("--cuts", type=int, default=CUTS, help="truncations a file (200)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    arguments = parser.parse_args()
    results = run(arguments.flips, arguments.cuts)
    if arguments.json is not None:
        text = json.dumps({"command": "python benchmarks/damage.py", "results": results}, indent=1)
        Path(arguments.json).write_text(text + "\n")
    if any(row["unnoticed"] or row["crashed"] for row in results):
        raise SystemExit("some damage went unnoticed or crashed a reader")
