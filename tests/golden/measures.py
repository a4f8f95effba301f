"""What a version of this project says of golden files.

Each measure takes a folder such as ``v0.1``, which it may change, and returns JSON. What the
version that made the files said is in ``expected.json``; later ones must say the same. Only
the command line and public names are used. Floating-point sums differ between processors and
versions of libraries in their last digits, so what is under a key ``exact`` is compared only
where :func:`machine` is the same, and other numbers with a tolerance.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import shlex
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl
import torch

import pbvf_offline as pbvf
from cli_tools import pbvf as run
from golden import commands
from pbvf_datasets import from_minari, load_dataset

Measure = Callable[[Path], dict[str, Any]]
DERIVED = ("metrics.jsonl", "tensorboard/")


def machine() -> dict[str, Any]:
    """Return what decides the last digits of a sum here."""
    packages = ("gymnasium", "h5py", "minari", "mujoco", "numpy", "torch")
    processor = "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        processor = names[0].partition(":")[2].strip() if names else processor
    libraries = {
        f"{x['internal_api']} {x['version']} {x.get('architecture', '')}"
        for x in threadpoolctl.threadpool_info()
        if x["user_api"] == "blas"
    }
    return {
        "versions": {name: version(name) for name in packages},
        "processor": processor,
        "torch": torch.backends.cpu.get_cpu_capability(),
        "blas": sorted(libraries),
    }


def variables(folder: Path) -> dict[str, str]:
    """Return the environment variables with which commands find the datasets of a folder."""
    return {"MINARI_DATASETS_PATH": str(folder / "datasets"), "PBVF_CACHE": str(folder / "cache")}


def ask(command: str, arguments: str, *more: object) -> dict[str, Any]:
    """Return the JSON object that a command prints."""
    ran = run(*command.split(), *shlex.split(arguments), *more, "--json", "-q")
    assert ran.code == 0, ran.err
    return ran.json


def pick(found: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return some entries of an object."""
    return {name: found[name] for name in names}


def sha256(path: Path) -> str:
    """Return the digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of each file of a run that time does not change."""
    files = {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if p.is_file()}
    return {k: sha256(p) for k, p in files.items() if not k.startswith(DERIVED)}


def verified(path: object) -> dict[str, Any]:
    """Return what ``dataset verify`` says."""
    found = ask("dataset verify", "", path)
    names = ("kind", "status", "problems", "safe_for_minari", "manifest", "digest")
    counts = ("episodes", "steps", "policies")
    return {**pick(found, *names, *counts), "warnings": len(found["warnings"])}


def thetas(spec: pbvf.PolicySpec) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return (3, D) parameters that depend on nothing."""
    size = len(pbvf.init_theta(spec, np.random.default_rng(0)))
    return np.linspace(-1, 1, 3 * size, dtype=np.float32).reshape(3, size)


# ---------------------------------------------------------------------------------- files


def files(folder: Path) -> dict[str, Any]:
    """The golden files themselves are as they were made."""
    paths = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != "expected.json")
    return {str(p.relative_to(folder)): sha256(p) for p in paths}


def datasets(folder: Path) -> dict[str, Any]:
    """What is in each dataset, and the actions that its policies take again."""
    found = {}
    for place in sorted((folder / "datasets/lab").glob("[!.]*-v0")):
        name = f"lab/{place.name}"
        info = ask("dataset info", name)
        data = load_dataset(name)
        t = data.transitions
        first = [int(np.flatnonzero(t.policy == k)[0]) for k in range(min(4, len(data.theta)))]
        actions = []
        for k, i in enumerate(first):
            actor = pbvf.Actor(data.spec, data.theta[k], data.obs_mean[k], data.obs_std[k])
            rng = np.random.default_rng(k) if data.spec.stochastic else None
            actions.append(np.atleast_1d(actor.act(t.obs[i], rng)[0]).tolist())
            if rng is None:
                np.testing.assert_allclose(actions[-1], np.atleast_1d(t.action[i]), atol=1e-5)
        listed = ("verified", "episodes", "steps", "policies", "segments", "ends", "length")
        more = ("return", "histogram", "policy", "normalisers", "obs_mean", "obs_std", "env")
        last = ("environment", "license", "authors", "seed", "settings", "sizes", "sources")
        found[name] = {
            "info": pick(info, *listed, *more, *last, "digest", "tool", "versions"),
            "verify": verified(name),
            "theta": data.theta.astype(np.float64).sum(axis=1).tolist(),
            "means": data.obs_mean.tolist(),
            "stds": data.obs_std.tolist(),
            "recomputed": actions,
            "sums": {
                name: float(np.asarray(getattr(t, name), np.float64).sum())
                for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated")
            },
            "policy": t.policy.tolist(),
            "episode": t.episode.tolist(),
        }
    return found


def stock_minari(folder: Path) -> dict[str, Any]:
    """What Minari itself reads, and what ``from_minari`` makes of it."""
    minari: Any = importlib.import_module("minari")
    found = {}
    for place in sorted((folder / "datasets/lab").glob("[!.]*-v0")):
        dataset = minari.load_dataset(f"lab/{place.name}")
        episodes = list(dataset.iterate_episodes())
        found[f"lab/{place.name}"] = {
            "episodes": int(dataset.total_episodes),
            "steps": int(dataset.total_steps),
            "rewards": [float(episode.rewards.sum()) for episode in episodes],
            "infos": sorted(episodes[0].infos),
            "policies": len(from_minari(dataset).theta),
        }
    return found


def critics(folder: Path) -> dict[str, Any]:
    """What each critic is and predicts, and that its command finds it complete."""
    found = {}
    for path in sorted(folder.glob("critics/*.safetensors*")):
        critic = pbvf.load_critic(path)
        found[path.name.removesuffix(".safetensors")] = {
            "verify": verified(path),
            "mean": critic.normaliser.mean.tolist(),
            "std": critic.normaliser.std.tolist(),
            "given": critic.predict(thetas(critic.spec)).tolist(),
        }
    names = ("critic", "kind", "updates", "loss", "gamma", "reward", "seed", "cut_episodes")
    for name, command in commands.FIT.items():
        ran = ask("fit-critic", command, "--out", f"critics/{name}.safetensors")
        critic = pbvf.load_critic(folder / f"critics/{name}.safetensors")
        acted = load_dataset(command.split()[0]).policies
        theta = acted.in_normaliser(critic.normaliser.mean, critic.normaliser.std)
        found[name]["acted"] = critic.predict(theta).tolist()
        found[name]["fit"] = pick(
            ran, *names, "validation", "snapshots", "dataset", "already_complete"
        )
    return found


def policies(folder: Path) -> dict[str, Any]:
    """What is in each policies file, and what its policies and commands come to."""
    names = ("policies", "distinct", "env", "spec", "parameters", "theta_norms", "obs_mean")
    found: dict[str, Any] = {
        name: {
            "info": pick(
                ask("policies info", f"policies/{name}.safetensors"),
                *names,
                "obs_std",
                "origin",
                "sha256",
            ),
            "verify": verified(f"policies/{name}.safetensors"),
        }
        for name in ("grown", "imported")
    }
    names = ("returns", "discounted_returns", "mean", "predicted", "rank_correlation")
    found["evaluate"] = pick(ask("evaluate", commands.EVALUATE), *names)
    found["evaluate imported"] = pick(
        ask("evaluate", "policies/imported.safetensors --episodes 2 --seed 0"), "returns"
    )
    names = ("predicted", "chosen_step", "objective", "returns", "closest", "already_complete")
    out = "policies/grown.safetensors"
    found["synthesize"] = pick(ask("synthesize", commands.SYNTHESIZE, "--out", out), *names)
    return found


def runs(folder: Path) -> dict[str, Any]:
    """What each finished run came to, and that its files are whole."""
    return {
        name: {
            "run": trained(command, f"runs/{name}", commands.STEPS, "already_complete"),
            "verify": {
                path.name: verified(path)
                for path in sorted((folder / "runs" / name).glob("[cp][!e]*.safetensors"))
            },
            "policy": ask("evaluate", f"runs/{name}/policy.safetensors --episodes 2 --seed 0")[
                "returns"
            ],
        }
        for name, command in commands.TRAIN.items()
    }


def trained(command: str, place: str, steps: int | None, *more: str) -> dict[str, Any]:
    """Return what a training run came to."""
    names = ("steps", "episodes", "evaluations", "average_return", "last20_return", "snapshots")
    asked = ask("train-online", command, "--run", place, *(["--steps", steps] if steps else []))
    return pick(asked, *names, "perturbed_return", "settings", "seed", *more)


def archive(folder: Path) -> dict[str, Any]:
    """An archive unpacks, with the check of its signature, and packs to the same bytes."""
    ran = ask("dataset unpack", "archive.tar lab/unpacked-v0 --public-key keys/lab.key.pub")
    ask("dataset pack", "lab/fragments-v0 again.tar")
    return {
        "unpack": pick(ran, "dataset", "digest", "bytes", "fetched", "signed_by"),
        "verify": verified("lab/unpacked-v0"),
        "packed": sha256(folder / "again.tar"),
        "equal": sha256(folder / "again.tar") == sha256(folder / "archive.tar"),
    }


def signature(folder: Path) -> dict[str, Any]:
    """A signature fits."""
    ran = ask("dataset check-signature", "lab/fragments-v0 --key keys/lab.key.pub")
    return pick(ran, "digest", "fingerprint")


# --------------------------------------------------------------------- the same once more


def collected(folder: Path) -> dict[str, Any]:
    """The same seeds give the same datasets."""
    found = {}
    for name, command in commands.COLLECT.items():
        ran = ask("collect", command, "--dataset", f"again/{name}-v0")
        found[name] = _made(folder, f"again/{name}-v0", ran)
    ran = ask("dataset merge", commands.MERGE, "--dataset", "again/merged-v0")
    found["merged"] = _made(folder, "again/merged-v0", ran)
    ran = ask("collect", commands.KILLED_COLLECT)
    found["killed"] = _made(folder, "lab/killed-v0", ran)
    return found


def _made(folder: Path, name: str, ran: dict[str, Any]) -> dict[str, Any]:
    data = load_dataset(name)
    t = data.transitions
    return {
        **pick(ran, "episodes", "steps", "policies", "return", "already_complete"),
        "steps_now": round(ran["seconds"] * ran["steps_per_second"]),
        "theta": data.theta.astype(np.float64).sum(axis=1).tolist(),
        "obs": [float(np.abs(t.obs).sum()), float(np.abs(t.next_obs).sum())],
        "actions": float(np.abs(t.action).sum()),
        "exact": sha256(folder / f"datasets/{name}/data/main_data.hdf5"),
    }


def refitted(folder: Path) -> dict[str, Any]:
    """The same seeds give the same critics; more updates extend one; a part is completed."""
    found = {}
    jobs: dict[str, tuple[str, str]] = {}
    for name, command in commands.FIT.items():
        jobs[f"{name} again"] = (command, f"again-{name}")
        jobs[f"{name} extended"] = (f"{command} --updates {commands.MORE_UPDATES}", name)
    jobs["partial"] = (commands.PARTIAL, "partial")
    jobs["partial undisturbed"] = (commands.PARTIAL, "undisturbed")
    for what, (command, name) in jobs.items():
        out = folder / f"critics/{name}.safetensors"
        ran = ask("fit-critic", command, "--out", out)
        critic = pbvf.load_critic(out)
        found[what] = {
            **pick(ran, "updates", "loss", "already_complete"),
            "updates_now": round(ran["seconds"] * ran["updates_per_second"]),
            "given": critic.predict(thetas(critic.spec)).tolist(),
            "exact": sha256(out),
        }
    return found


def synthesized(folder: Path) -> dict[str, Any]:
    """The same seeds give the same policies, and exports and imports the same weights."""
    out = folder / "policies/again.safetensors"
    ran = ask("synthesize", commands.SYNTHESIZE, "--out", out)
    weights = folder / "policies/again-weights.safetensors"
    ask("policies export", commands.EXPORT, "--out", weights)
    imported = folder / "policies/again-imported.safetensors"
    ask("policies import", commands.IMPORT, "--out", imported)
    return {
        **pick(ran, "predicted", "chosen_step", "objective", "closest", "already_complete"),
        "exact": {
            "curve": ran["curve"],
            "grown": sha256(out),
            "weights": sha256(weights),
            "imported": sha256(imported),
        },
    }


def retrained(folder: Path) -> dict[str, Any]:
    """The same seeds give the same runs; more steps extend one; a killed one goes on."""
    found = {}
    jobs: dict[str, tuple[str, str, int | None]] = {}
    for name, command in commands.TRAIN.items():
        jobs[f"{name} again"] = (command, f"again-{name}", commands.STEPS)
        jobs[f"{name} extended"] = (command, name, commands.MORE_STEPS)
    jobs["killed"] = (commands.KILLED_RUN, "killed", None)
    jobs["killed undisturbed"] = (commands.KILLED_RUN, "undisturbed", None)
    for what, (command, name, steps) in jobs.items():
        found[what] = trained(command, f"runs/{name}", steps, "already_complete")
        del found[what]["snapshots"]
        found[what]["exact"] = digests(folder / "runs" / name)
    return found


MEASURES: dict[str, Measure] = {
    measure.__name__: measure
    for measure in (
        files,
        datasets,
        stock_minari,
        critics,
        policies,
        runs,
        archive,
        signature,
        collected,
        refitted,
        synthesized,
        retrained,
    )
}


def measured(name: str) -> dict[str, Any]:
    """Return a measure of the current folder, which is a copy of golden files."""
    found: dict[str, Any] = json.loads(json.dumps(MEASURES[name](Path.cwd())))
    return found
