"""Every command on every hostile file: refused in one line, nothing run, nothing else opened."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from attacks.make import Attack, make_all
from cli_tools import ROOT, SOURCES, start
from share_tools import serving

MEMORY = 300 * 10**6
CONFLICT = 7
SMALL = ["--hidden", "4", "--batch-size", "4", "--updates", "1", "--seed", "0"]
ASCENT = ["--from-scratch", "1", "--steps", "1", "--seed", "0"]


@dataclass(frozen=True)
class Place:
    """Where the corpus lies and where commands may write."""

    folder: Path
    out: Path
    url: str = ""

    def good(self, name: str) -> str:
        return str(self.folder / "good" / name)

    def commands(self, kind: str, path: str) -> dict[str, list[str]]:
        """Return every command that takes such a file, by name."""
        out = str(self.out / "out.safetensors")
        measured = ["--env", "LQR-v0", "--episodes", "1", "--seed", "0"]
        collected = ["collect", "LQR-v0", "--episodes", "1", "--seed", "0"]
        if kind == "dataset":
            name = "/".join(Path(path).parts[-2:])
            critic, more = self.good("toy.safetensors"), self.good("lab/more-v0")
            halves = ["--fractions", "0.5,0.5"]
            return {
                "verify": ["dataset", "verify", path],
                "info": ["dataset", "info", path],
                "fit-critic": ["fit-critic", path, "--critic", "psvf", "--out", out, *SMALL],
                "synthesize": ["synthesize", critic, "--dataset", path, "--out", out, *ASCENT],
                "merge": ["dataset", "merge", more, path, "--dataset", "lab/m-v0"],
                "filter": ["dataset", "filter", path, "--min-steps", "1", "--dataset", "lab/f-v0"],
                "split": ["dataset", "split", path, *halves, "--dataset", "lab/s-v0"],
                "pack": ["dataset", "pack", path, str(self.out / "out.tar")],
                "push": ["dataset", "push", path, str(self.out / "pushed")],
                "collect": [*collected, "--dataset", name],
            }
        if kind == "critic":
            policies = self.good("policies.safetensors")
            fit = ["fit-critic", self.good("lab/toy-v0"), "--critic", "psvf", *SMALL]
            return {
                "verify": ["dataset", "verify", path],
                "synthesize": ["synthesize", path, "--out", out, *ASCENT],
                "synthesize --evaluate": [
                    *("synthesize", path, "--out", out, *ASCENT, "--evaluate", "--episodes", "1"),
                ],
                "evaluate --critic": ["evaluate", policies, "--critic", path, *measured],
                "fit-critic --out": [*fit, "--out", str(self.out / "there.safetensors")],
            }
        if kind == "policies":
            ascent = ["synthesize", self.good("critic.safetensors"), *ASCENT]
            return {
                "verify": ["dataset", "verify", path],
                "info": ["policies", "info", path],
                "export": ["policies", "export", path, "--out", out],
                "evaluate": ["evaluate", path, "--episodes", "1", "--seed", "0"],
                "collect --policies": [*collected, "--dataset", "lab/c-v0", "--policies", path],
                "collect --base": [
                    *(*collected, "--dataset", "lab/c-v0", "--base", path, "--sigma", "0.1"),
                ],
                "synthesize --out": [*ascent, "--out", str(self.out / "there.safetensors")],
            }
        if kind == "weights":
            return {"import": ["policies", "import", path, "--env", "LQR-v0", "--out", out]}
        if kind == "archive":
            return {"unpack": ["dataset", "unpack", path, "lab/u-v0"]}
        name = Path(path).name
        return {
            "pull": ["dataset", "pull", path, "lab/p-v0"],
            "pull over HTTP": ["dataset", "pull", f"{self.url}/{name}", "lab/p-v0"],
        }


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Attack]]:
    folder = tmp_path_factory.mktemp("attacks") / "corpus"
    return folder, make_all(folder)


def test_the_corpus_is_large_and_small(corpus: tuple[Path, list[Attack]]) -> None:
    folder, attacks = corpus
    kinds = Counter(attack.kind for attack in attacks)
    assert set(kinds) == {"dataset", "critic", "policies", "weights", "archive", "remote"}
    assert len(attacks) > 300
    assert all(count >= 20 for count in kinds.values())
    assert len({(a.kind, a.name) for a in attacks}) == len(attacks)
    assert json.loads((folder / "index.json").read_text())[0]["name"] == attacks[0].name


Job = dict[str, Any]


def _jobs(place: Place, attacks: list[Attack], *, everything: bool) -> list[Job]:
    """Return what is run: every command on every attack, if everything is.

    Otherwise every attack meets ``verify`` and some commands in turn, and every command
    many attacks: all of them read files through the same functions.
    """
    jobs: list[Job] = []
    for number, attack in enumerate(attacks):
        commands = place.commands(attack.kind, attack.path)
        if attack.only is not None:
            commands = {name: commands[name] for name in attack.only}
        elif "synthesize --evaluate" in commands:
            del commands["synthesize --evaluate"]  # reads the critic as synthesize does
        if not everything and attack.only is None:
            others = [name for name in commands if name != "verify"]
            turn = [others[(2 * number + i) % len(others)] for i in range(2)]
            commands = {n: argv for n, argv in commands.items() if n == "verify" or n in turn}
        for name, argv in commands.items():
            copy = None
            codes = attack.codes
            if name.endswith("--out"):
                if not Path(attack.path).is_file():
                    continue
                copy = [attack.path, str(place.out / "there.safetensors")]
                codes = (*codes, CONFLICT)
            if name == "collect":
                # Something stands there: what it says is compared, and its digests.
                codes = (*codes, 3, CONFLICT)
            if name in ("pack", "push") and not Path(attack.path, "manifest.json").is_file():
                codes = (*codes, 2)  # only what has one is sent
            jobs.append(
                {
                    "attack": attack.name,
                    "kind": attack.kind,
                    "command": name,
                    "codes": codes,
                    "argv": [*argv, "-q"],
                    "copy": copy,
                }
            )
    return jobs


def _warm(place: Place, corpus: Path) -> list[list[str]]:
    """Return every command on good files: they work, and all modules are loaded by then."""
    good = {
        "dataset": corpus / "good/lab/toy-v0",
        "critic": corpus / "good/critic.safetensors",
        "policies": corpus / "good/single.safetensors",
        "weights": corpus / "good/weights.safetensors",
        "archive": corpus / "good/toy.tar",
        "remote": corpus / "remote/good",
    }
    return [
        [*argv, "-q"]
        for kind, path in good.items()
        for name, argv in place.commands(kind, str(path)).items()
        if name != "collect"
    ]


def test_the_readme_says_what_a_full_pass_covers(corpus: tuple[Path, list[Attack]]) -> None:
    folder, attacks = corpus
    jobs = _jobs(Place(folder, folder), attacks, everything=True)
    text = " ".join((ROOT / "tests/attacks/README.md").read_text().split())
    kinds = Counter(attack.kind for attack in attacks)
    commands = {(job["kind"], job["command"]) for job in jobs}
    assert f"{len(attacks)} hostile files and folders" in text
    assert f"{len(jobs):,} commands, of {len(commands)} forms" in text
    for kind, count in kinds.items():
        assert f"| {kind} | {count} |" in text


@pytest.mark.slow
def test_nothing_hostile_gets_in(
    corpus: tuple[Path, list[Attack]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, attacks = corpus
    everything = os.environ.get("ATTACKS") == "all"
    out = tmp_path_factory.mktemp("out")
    cache = tmp_path_factory.mktemp("cache")
    (folder / "root/lab").mkdir(exist_ok=True)
    (folder / "remote/good").symlink_to(folder / "good/lab/toy-v0")
    with serving(folder / "remote") as web:
        place = Place(folder, out, web.url)
        jobs = _jobs(place, attacks, everything=everything)
        plan = {
            "allowed": [str(folder)],
            "writable": [str(out), str(cache), str(folder / "root")],
            "clean": [str(out), str(folder / "root/lab")],
            "secret": str(folder / "secret"),
            "warm": _warm(place, folder),
            "jobs": jobs,
        }
        process = start(
            code=f"import runpy; runpy.run_path({str(ROOT / 'tests/attacks/watch.py')!r}, "
            "run_name='__main__')",
            env={
                "MINARI_DATASETS_PATH": str(folder / "root"),
                "PBVF_CACHE": str(cache),
                "PYTHONPATH": os.pathsep.join(map(str, SOURCES)),
            },
            stdin=-1,
            cwd=out,
        )
        limit = None if everything else 600
        stdout, stderr = process.communicate(json.dumps(plan), timeout=limit)
    assert process.returncode == 0, stderr
    results = [json.loads(line) for line in stdout.splitlines()]
    assert len(results) == len(jobs)
    wrong: list[str] = []
    for job, result in zip(jobs, results, strict=True):
        problems = list(_problems(job, result))
        if problems:
            place_of = f"{job['kind']} '{job['attack']}', {job['command']}"
            wrong.append(f"{place_of}: {'; '.join(problems)}: {result['err'][-300:].strip()}")
    Path(os.environ.get("ATTACKS_REPORT", os.devnull)).write_text(
        json.dumps([j | r for j, r in zip(jobs, results, strict=True)], indent=1)
    )
    assert not wrong, f"{len(wrong)} of {len(jobs)}:\n" + "\n".join(wrong)
    assert not any((folder / "ran").iterdir())


def _problems(job: Job, result: dict[str, Any]) -> list[str]:
    problems: list[str] = []

    def expect(fine: bool, problem: Callable[[], str]) -> None:
        if not fine:
            problems.append(problem())

    code = result["code"]
    expect(code in job["codes"], lambda: f"ends with {code}, not one of {job['codes']}")
    lines = result["err"].splitlines()
    if code != 0:
        errors = [line for line in lines if line.startswith("error: ")]
        others = [line for line in lines if not line.startswith(("error: ", "warning: "))]
        expect(len(errors) == 1 and not others, lambda: f"says {lines[:4]}")
        expect(not result["left"], lambda: f"leaves {result['left']}")
    expect(result["memory"] < MEMORY, lambda: f"takes {result['memory'] / 1e6:.0f} MB")
    expect(not result["found"], lambda: f"does {result['found'][:4]}")
    return problems
