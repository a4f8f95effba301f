"""A small dataset and its writer, for the tests of writing, sharing and the manifest."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from make_episodes import BOX_SPEC, make_episode
from pbvf_datasets.write.writer import DatasetWriter

NAME = "lab/toy-v0"
OBS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACT = spaces.Box(-2.0, 2.0, (1,), np.float32)
EPISODES = [make_episode(BOX_SPEC, i, n) for i, n in enumerate([5, 1, 9, 7, 2])]
FILES = [
    "README.md",
    "croissant.json",
    "data/main_data.hdf5",
    "data/metadata.json",
    "manifest.json",
]


def writer(root, name=NAME, **options):
    options = {"observation_space": OBS, "action_space": ACT, "seed": 3, **options}
    options.setdefault("settings", {"sigma": 0.5, "policy": {"arch": "linear"}})
    options.setdefault("environment", {"id": "Toy-v0", "module": "toy", "kwargs": {"n": 1}})
    return DatasetWriter(name, BOX_SPEC, root=root, shard_steps=10, **options)


def run(root, episodes=EPISODES, **options):
    """What a caller does: go on where an earlier process stopped."""
    with writer(root, **options) as w:
        if w.complete:
            return w
        if w.state is None and w.episodes_done == 0:
            w.set_state({"mean": [0.1, 1 / 3], "warmup_steps": 40})
        for episode in episodes[w.episodes_done :]:
            w.add(episode)
        w.finish()
    return w


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def content(root, name=NAME):
    folder = root / name
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    assert files == FILES
    return {f: (folder / f).read_bytes() for f in files}


PROVENANCE = {
    "tool": "pbvf-offline 0.1.0",
    "settings": {"sigma": 0.5},
    "environment": {"id": "Toy-v0", "module": None, "kwargs": {}, "withheld": []},
    "spec": BOX_SPEC.to_dict(),
    "versions": {"python": "3.11"},
    "seed": 0,
    "license": None,
    "authors": ["A"],
    "warmup_steps": 0,
    "stats": {
        "episodes": 1,
        "steps": 2,
        "policies": 1,
        "cut": 0,
        "return": {"mean": 1.0, "min": 1.0, "max": 1.0},
    },
}
