"""Dataset folders as nobody should make them, and a watch on who opens what.

:func:`make` writes a good little dataset. Each entry of :data:`UNSAFE`, :data:`DAMAGED`
and :data:`INCOMPATIBLE` spoils one in its own way and says what the refusal must name.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from gymnasium import spaces
from h5py import h5d, h5p, h5s, h5t, h5z

from pbvf_datasets.format.manifest import build_manifest, manifest_bytes
from pbvf_datasets.format.schema import DATA_FILE, METADATA_FILE
from pbvf_datasets.write.writer import DatasetWriter
from pbvf_offline.policies.actions import BoxActions, DiscreteActions
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Episode

BOX_SPEC = PolicySpec(3, (), BoxActions((-1.0, -2.0), (1.0, 2.0)))
DISCRETE_SPEC = PolicySpec(3, (4,), DiscreteActions(4, start=2))
STEPS = 20


def episode(
    i: int, spec: PolicySpec = BOX_SPEC, steps: int = STEPS, policies: int = 2, **changes: Any
) -> Episode:
    """Return a good episode, a function of ``i``; changes do not alter the actions."""
    rng = np.random.default_rng([7, i])
    truncated = np.zeros(steps, np.bool_)
    truncated[-1] = True
    segment = np.minimum(np.arange(steps + 1) * policies // steps, policies - 1).astype(np.int32)
    segment[-1] = segment[-2]
    values: dict[str, Any] = {
        "observations": rng.standard_normal((steps + 1, spec.obs_dim)),
        "rewards": rng.standard_normal(steps),
        "terminated": np.zeros(steps, np.bool_),
        "truncated": truncated,
        "theta": rng.standard_normal((policies, spec.size)).astype(np.float32),
        "segment": segment,
        "obs_mean": np.tile(np.arange(spec.obs_dim, dtype=np.float64), (policies, 1)),
        "obs_std": np.ones((policies, spec.obs_dim)),
        "seed": 100 + i,
    }
    values["actions"] = _actions(spec, values, rng)
    return Episode(**(values | changes))


def _actions(spec: PolicySpec, values: dict[str, Any], rng: np.random.Generator) -> Any:
    """Return what the policies of an episode do."""
    every = Policies(spec, values["theta"], values["obs_mean"], values["obs_std"])
    actors = [every.actor(row) for row in range(len(every))]
    rows = zip(values["segment"], values["observations"][:-1], strict=False)
    return np.stack([actors[row].act(seen, rng)[0] for row, seen in rows])


def spaces_of(spec: PolicySpec) -> tuple[spaces.Box, spaces.Box | spaces.Discrete]:
    """Return spaces that fit a spec; observations are unbounded."""
    observations = spaces.Box(-np.inf, np.inf, (spec.obs_dim,), np.float64)
    if isinstance(spec.actions, DiscreteActions):
        return observations, spaces.Discrete(spec.actions.n, start=spec.actions.start)
    low, high = np.array(spec.actions.low), np.array(spec.actions.high)
    kind = np.dtype(spec.actions.dtype).type
    return observations, spaces.Box(low.astype(kind), high.astype(kind), dtype=kind)


def make(
    root: Path,
    name: str = "lab/toy-v0",
    spec: PolicySpec = BOX_SPEC,
    episodes: list[Episode] | None = None,
    **options: Any,
) -> Path:
    """Write a dataset of three episodes, or of those given, and return its folder."""
    observation_space, action_space = spaces_of(spec)
    with DatasetWriter(
        name,
        spec,
        observation_space=observation_space,
        action_space=action_space,
        root=root,
        seed=0,
        **options,
    ) as writer:
        for one in [episode(i, spec) for i in range(3)] if episodes is None else episodes:
            writer.add(one)
        writer.finish()
    return writer.path


def reseal(folder: Path) -> None:
    """Make the manifest fit the files again, as an attacker would."""
    path = folder / "manifest.json"
    provenance = json.loads(path.read_bytes())["provenance"]
    path.write_bytes(manifest_bytes(build_manifest(folder, provenance)))


def unseal(folder: Path) -> None:
    """Remove the manifest."""
    (folder / "manifest.json").unlink()


def leave(folder: Path) -> None:
    """Leave a manifest that no longer fits."""


SEALS: dict[str, Callable[[Path], None]] = {"resealed": reseal, "bare": unseal, "stale": leave}


# ------------------------------------------------------------------------------ spoiling


@dataclass(frozen=True)
class Case:
    """One way to spoil a dataset.

    ``words`` must be in the message. ``seals`` says which manifests the case is about.
    """

    spoil: Callable[[Path, Path], None]
    words: tuple[str, ...]
    seals: tuple[str, ...] = ("resealed", "bare", "stale")


def outside(folder: Path) -> Path:
    """Make files outside a dataset that nobody may open."""
    folder.mkdir()
    with h5py.File(folder / "secret.h5", "w") as file:
        file["values"] = np.arange(STEPS, dtype=np.float64)
        file.create_group("group")["values"] = np.arange(3.0)
    (folder / "secret.bin").write_bytes(np.arange(STEPS, dtype=np.float64).tobytes())
    return folder


def _hdf5(change: Callable[[h5py.File, Path], None]) -> Callable[[Path, Path], None]:
    def spoil(folder: Path, secret: Path) -> None:
        with h5py.File(folder / DATA_FILE, "r+", libver=("v110", "v110")) as file:
            change(file, secret)

    return spoil


def _metadata(change: Callable[[dict[str, Any]], object]) -> Callable[[Path, Path], None]:
    def spoil(folder: Path, secret: Path) -> None:
        path = folder / METADATA_FILE
        metadata = json.loads(path.read_text())
        change(metadata)
        path.write_text(json.dumps(metadata))

    return spoil


def _raw(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path, Path], None]:
    def spoil(folder: Path, secret: Path) -> None:
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return spoil


def _put(name: str, values: Any, **options: Any) -> Callable[[Path, Path], None]:
    """Replace one array."""

    def change(file: h5py.File, secret: Path) -> None:
        if name in file:
            del file[name]
        file.create_dataset(name, data=values, **options)

    return _hdf5(change)


def _edit(name: str, edit: Callable[[np.ndarray], object]) -> Callable[[Path, Path], None]:
    """Change values of one array in place, checksum and all."""

    def change(file: h5py.File, secret: Path) -> None:
        values = file[name][()]
        edit(values)
        file[name][...] = values

    return _hdf5(change)


def _link(name: str, link: Callable[[Path], Any]) -> Callable[[Path, Path], None]:
    def change(file: h5py.File, secret: Path) -> None:
        if name in file:
            del file[name]
        file[name] = link(secret)

    return _hdf5(change)


def _external(path: str) -> Callable[[Path], Any]:
    return lambda secret: h5py.ExternalLink(str(secret / "secret.h5"), path)


def _external_storage(file: h5py.File, secret: Path) -> None:
    del file["episode_1/rewards"]
    file.create_dataset(
        "episode_1/rewards",
        (STEPS,),
        np.float64,
        external=[(str(secret / "secret.bin"), 0, 8 * STEPS)],
    )


def _virtual(file: h5py.File, secret: Path) -> None:
    layout = h5py.VirtualLayout((STEPS,), np.float64)
    layout[:] = h5py.VirtualSource(str(secret / "secret.h5"), "values", (STEPS,))
    del file["episode_1/rewards"]
    file.create_virtual_dataset("episode_1/rewards", layout)


def _virtual_unlimited(file: h5py.File, secret: Path) -> None:
    # Asking such a dataset for its extent opens the sources.
    plist = h5p.create(h5p.DATASET_CREATE)
    target = h5s.create_simple((STEPS,), (h5s.UNLIMITED,))
    source = h5s.create_simple((STEPS,), (h5s.UNLIMITED,))
    for space in (target, source):
        space.select_hyperslab((0,), (h5s.UNLIMITED,))
    plist.set_virtual(target, os.fsencode(secret / "secret.h5"), b"values", source)
    del file["episode_1/rewards"]
    h5d.create(
        file["episode_1"].id,
        b"rewards",
        h5t.IEEE_F64LE,
        h5s.create_simple((STEPS,), (h5s.UNLIMITED,)),
        plist,
    )


def _unknown_filter(file: h5py.File, secret: Path) -> None:
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_chunk((STEPS,))
    plist.set_filter(32_123, h5z.FLAG_OPTIONAL, (1, 2))
    del file["episode_1/rewards"]
    made = h5d.create(
        file["episode_1"].id, b"rewards", h5t.IEEE_F64LE, h5s.create_simple((STEPS,)), plist
    )
    made.write(h5s.ALL, h5s.ALL, np.zeros(STEPS))


def _huge(name: str, **options: Any) -> Callable[[Path, Path], None]:
    def change(file: h5py.File, secret: Path) -> None:
        if name in file:
            del file[name]
        file.create_dataset(name, (2**50,), np.float64, **options)

    return _hdf5(change)


def _path_as_name(folder: Path, secret: Path) -> None:
    """Name a plain link ``door/in``, where ``door`` is a group with an external ``in``."""
    with h5py.File(folder / DATA_FILE, "w", libver="earliest") as file:
        file.create_group("door")["in"] = h5py.ExternalLink(str(secret / "secret.h5"), "values")
        file["door_in"] = np.arange(3.0)
    path = folder / DATA_FILE
    data = path.read_bytes()
    assert data.count(b"door_in\0") == 1
    path.write_bytes(data.replace(b"door_in\0", b"door/in\0"))


def _loop(file: h5py.File, secret: Path) -> None:
    file["episode_1/infos/loop"] = file["episode_1/infos"]


def _twice(file: h5py.File, secret: Path) -> None:
    del file["episode_2"]
    file["episode_2"] = file["episode_1"]


def _deep(file: h5py.File, secret: Path) -> None:
    file.create_group("episode_1/infos/" + "/".join("d" * 40))


def _many_links(file: h5py.File, secret: Path) -> None:
    file["episode_1/infos/big"] = np.zeros(10_000)
    for i in range(200):
        file[f"episode_1/infos/big{i}"] = file["episode_1/infos/big"]


def _chunk_bomb(file: h5py.File, secret: Path) -> None:
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_chunk((2**28,))
    plist.set_fletcher32()
    space = h5s.create_simple((1,), (h5s.UNLIMITED,))
    made = h5d.create(file["episode_1/infos"].id, b"bomb", h5t.IEEE_F64LE, space, plist)
    made.write_direct_chunk((0,), bytes(32))


def _symlink(name: str) -> Callable[[Path, Path], None]:
    def spoil(folder: Path, secret: Path) -> None:
        target = secret / Path(name).name
        shutil.move(folder / name, target)
        (folder / name).symlink_to(target)

    return spoil


def _fifo(name: str) -> Callable[[Path, Path], None]:
    def spoil(folder: Path, secret: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return spoil


def _manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Path, Path], None]:
    def spoil(folder: Path, secret: Path) -> None:
        path = folder / "manifest.json"
        manifest = json.loads(path.read_bytes())
        change(manifest)
        path.write_bytes(json.dumps(manifest).encode())

    return spoil


_EVIL_SPEC = json.dumps(
    {
        "id": "Evil-v0",
        "entry_point": "evil_environment:Evil",
        "reward_threshold": None,
        "nondeterministic": False,
        "max_episode_steps": None,
        "order_enforce": True,
        "disable_env_checker": True,
        "kwargs": {},
        "additional_wrappers": [],
        "vector_entry_point": None,
    }
)


def _without_space(key: str) -> Callable[[dict[str, Any]], None]:
    def change(metadata: dict[str, Any]) -> None:
        del metadata[key]
        metadata["env_spec"] = _EVIL_SPEC

    return change


def _flip(name: str, at: int = 3) -> Callable[[Path, Path], None]:
    """Flip one byte of an array's only chunk on disk."""

    def spoil(folder: Path, secret: Path) -> None:
        with h5py.File(folder / DATA_FILE, "r") as file:
            offset = file[name].id.get_chunk_info(0).byte_offset + at
        with (folder / DATA_FILE).open("r+b") as raw:
            raw.seek(offset)
            byte = raw.read(1)
            raw.seek(offset)
            raw.write(bytes([byte[0] ^ 0x40]))

    return spoil


def _blob(**changes: Any) -> Callable[[Path, Path], None]:
    def change(file: h5py.File, secret: Path) -> None:
        blob = json.loads(file["episode_1/infos/pbvf"][()].tobytes()) | changes
        del file["episode_1/infos/pbvf"]
        file["episode_1/infos/pbvf"] = np.frombuffer(json.dumps(blob).encode(), np.uint8)

    return _hdf5(change)


def _drop(*names: str) -> Callable[[Path, Path], None]:
    def change(file: h5py.File, secret: Path) -> None:
        for name in names:
            del file[name]

    return _hdf5(change)


def _attribute(name: str, value: Any) -> Callable[[Path, Path], None]:
    def change(file: h5py.File, secret: Path) -> None:
        file["episode_1"].attrs[name] = value

    return _hdf5(change)


def _set(at: Any, value: Any) -> Callable[[np.ndarray], None]:
    def edit(values: np.ndarray) -> None:
        values[at] = value

    return edit


def _raw_bool(file: h5py.File, secret: Path) -> None:
    file["episode_1/terminations"].id.write_direct_chunk((0,), bytes([7] * STEPS), 1)


UNSAFE: dict[str, Case] = {
    "external link to an array": Case(
        _link("episode_1/rewards", _external("values")), ("episode_1/rewards", "external link")
    ),
    "external link to an episode": Case(
        _link("episode_2", _external("group")), ("episode_2", "external link")
    ),
    "external link as infos": Case(
        _link("episode_0/infos", _external("group")), ("episode_0/infos", "external link")
    ),
    "external link beside the arrays": Case(
        _link("episode_0/infos/more", _external("values")),
        ("episode_0/infos/more", "external link"),
    ),
    "external link in the root": Case(_link("more", _external("group")), ("more", "external link")),
    "soft link": Case(
        _link("episode_1/rewards", lambda _: h5py.SoftLink("/episode_0/rewards")),
        ("episode_1/rewards", "soft link"),
    ),
    "dangling soft link": Case(
        _link("episode_1/infos/x", lambda _: h5py.SoftLink("/nowhere")),
        ("episode_1/infos/x", "soft link"),
    ),
    "external storage": Case(_hdf5(_external_storage), ("episode_1/rewards", "external file")),
    "virtual dataset": Case(_hdf5(_virtual), ("episode_1/rewards", "virtual")),
    "unlimited virtual dataset": Case(_hdf5(_virtual_unlimited), ("episode_1/rewards", "virtual")),
    "unknown filter": Case(_hdf5(_unknown_filter), ("episode_1/rewards", "filter 32123")),
    "deflate": Case(
        _put("episode_1/rewards", np.zeros(STEPS), compression="gzip"),
        ("episode_1/rewards", "filter 1"),
    ),
    "lzf": Case(
        _put("episode_1/infos/x", np.zeros(STEPS), compression="lzf"),
        ("episode_1/infos/x", "filter 32000"),
    ),
    "variable-length strings": Case(
        _put("episode_1/infos/x", ["a", "b"], dtype=h5py.string_dtype()),
        ("episode_1/infos/x", "variable length"),
    ),
    "variable-length rewards": Case(
        _put("episode_1/rewards", None, shape=(STEPS,), dtype=h5py.vlen_dtype(np.float64)),
        ("episode_1/rewards", "variable length"),
    ),
    "references": Case(
        _put("episode_1/infos/x", [h5py.Reference()] * 2, dtype=h5py.ref_dtype),
        ("episode_1/infos/x", "references"),
    ),
    "8 PiB contiguous": Case(_huge("episode_1/rewards"), ("episode_1/rewards", "declares")),
    "8 PiB chunked": Case(
        _huge("episode_1/rewards", chunks=(1024,)), ("episode_1/rewards", "declares")
    ),
    "8 PiB checksummed": Case(
        _huge("episode_1/infos/theta", chunks=(1024,), fletcher32=True),
        ("episode_1/infos/theta", "declares"),
    ),
    "8 PiB beside the arrays": Case(
        _huge("episode_1/infos/x", chunks=(1024,)), ("episode_1/infos/x", "declares")
    ),
    "8 PiB in the root": Case(_huge("x", chunks=(1024,)), ("x", "declares")),
    "one array under many names": Case(_hdf5(_many_links), ("episode_1/infos/big", "file of")),
    "huge chunk": Case(_hdf5(_chunk_bomb), ("episode_1/infos/bomb", "chunks of")),
    "loop of groups": Case(_hdf5(_loop), ("episode_1/infos/loop", "twice")),
    "one episode under two names": Case(_hdf5(_twice), ("episode_2", "twice")),
    "deep groups": Case(_hdf5(_deep), ("episode_1/infos/d/d", "deeper")),
    "a path as a name": Case(_path_as_name, ("door/in", "path")),
    "no observation space": Case(
        _metadata(_without_space("observation_space")), ("metadata.json", "observation_space")
    ),
    "no action space": Case(
        _metadata(_without_space("action_space")), ("metadata.json", "action_space")
    ),
    "null space": Case(
        _metadata(lambda m: m.update(action_space=None)), ("metadata.json", "action_space")
    ),
    "data file is a symlink": Case(
        _symlink(DATA_FILE), ("main_data.hdf5", "symbolic link"), ("bare", "stale")
    ),
    "metadata is a symlink": Case(
        _symlink(METADATA_FILE), ("metadata.json", "symbolic link"), ("bare", "stale")
    ),
    "manifest is a symlink": Case(
        _symlink("manifest.json"), ("manifest.json", "symbolic link"), ("stale",)
    ),
    "data is a symlink": Case(_symlink("data"), ("data", "symbolic link"), ("bare", "stale")),
    "a symlink beside": Case(
        lambda folder, secret: (folder / "extra").symlink_to(secret / "secret.bin"),
        ("extra", "symbolic link"),
    ),
    "data file is a pipe": Case(
        _fifo(DATA_FILE), ("main_data.hdf5", "regular file"), ("bare", "stale")
    ),
    "metadata is a pipe": Case(
        _fifo(METADATA_FILE), ("metadata.json", "regular file"), ("bare", "stale")
    ),
    "manifest is a pipe": Case(_fifo("manifest.json"), ("manifest.json", "regular"), ("stale",)),
    "manifest leaves the folder": Case(
        _manifest(lambda m: m["files"].update({"../../secret": {"size": 1, "sha256": "0" * 64}})),
        ("manifest.json", "../../secret"),
        ("stale",),
    ),
    "manifest names the root": Case(
        _manifest(lambda m: m["files"].update({"/etc/passwd": {"size": 1, "sha256": "0" * 64}})),
        ("manifest.json", "/etc/passwd"),
        ("stale",),
    ),
}
"""Exit 4."""

DAMAGED: dict[str, Case] = {
    "data file cut in half": Case(
        _raw(DATA_FILE, lambda data: data[: len(data) // 2]), ("main_data.hdf5",)
    ),
    "data file of 0 bytes": Case(_raw(DATA_FILE, lambda _: b""), ("main_data.hdf5", "empty")),
    "data file of zeros": Case(_raw(DATA_FILE, lambda _: bytes(4096)), ("main_data.hdf5",)),
    "no data file": Case(
        lambda folder, _: (folder / DATA_FILE).unlink(),
        ("main_data.hdf5", "missing"),
        ("bare", "stale"),
    ),
    "no metadata": Case(
        lambda folder, _: (folder / METADATA_FILE).unlink(),
        ("metadata.json", "missing"),
        ("bare", "stale"),
    ),
    "no data folder": Case(
        lambda folder, _: shutil.rmtree(folder / "data"), ("'data'",), ("bare", "stale")
    ),
    "a flipped byte in rewards": Case(_flip("episode_1/rewards"), ("episode_1/rewards",)),
    "a flipped byte in theta": Case(_flip("episode_2/infos/theta"), ("episode_2/infos/theta",)),
    "a flipped byte in the policy tag": Case(
        _flip("episode_0/infos/pbvf"), ("episode_0/infos/pbvf",)
    ),
    "metadata of 0 bytes": Case(_raw(METADATA_FILE, lambda _: b""), ("metadata.json", "empty")),
    "metadata not JSON": Case(
        _raw(METADATA_FILE, lambda data: data[:-9]), ("metadata.json", "JSON")
    ),
    "metadata a list": Case(_raw(METADATA_FILE, lambda _: b"[]"), ("metadata.json", "object")),
    "metadata not UTF-8": Case(_raw(METADATA_FILE, lambda _: b'{"a":"\xff"}'), ("metadata.json",)),
    "metadata with Infinity": Case(
        _raw(METADATA_FILE, lambda data: b'{"x":Infinity,' + data[1:]),
        ("metadata.json", "Infinity"),
    ),
    "metadata with a key twice": Case(
        _raw(METADATA_FILE, lambda data: b'{"total_steps":1,' + data[1:]),
        ("metadata.json", "total_steps", "twice"),
    ),
    "metadata nested deeply": Case(
        _raw(METADATA_FILE, lambda _: b"[" * 100_000), ("metadata.json", "JSON")
    ),
    "env_spec not JSON": Case(
        _metadata(lambda m: m.update(env_spec="{")), ("metadata.json", "env_spec")
    ),
    "env_spec a number": Case(
        _metadata(lambda m: m.update(env_spec=3)), ("metadata.json", "env_spec")
    ),
    "env_spec a list": Case(
        _metadata(lambda m: m.update(env_spec="[]")), ("metadata.json", "env_spec")
    ),
    "malformed space": Case(
        _metadata(lambda m: m.update(action_space='{"type": "Box"}')),
        ("metadata.json", "action_space"),
    ),
    "too many episodes promised": Case(
        _metadata(lambda m: m.update(total_episodes=5)), ("episode_3", "missing", "5")
    ),
    "absurdly many episodes promised": Case(
        _metadata(lambda m: m.update(total_episodes=2**61)), ("episode_3", "missing")
    ),
    "too few episodes promised": Case(
        _metadata(lambda m: m.update(total_episodes=1)), ("episode_1", "not counted")
    ),
    "no episodes promised": Case(
        _metadata(lambda m: m.update(total_episodes=0)), ("episode_0", "not counted")
    ),
    "total_episodes a text": Case(
        _metadata(lambda m: m.update(total_episodes="3")), ("metadata.json", "total_episodes")
    ),
    "too many steps promised": Case(
        _metadata(lambda m: m.update(total_steps=10**17)), ("metadata.json", "total_steps")
    ),
    "too few steps promised": Case(
        _metadata(lambda m: m.update(total_steps=59)), ("metadata.json", "59", "60")
    ),
    "an episode missing in the middle": Case(_drop("episode_1"), ("episode_1", "missing")),
    "no episode at all": Case(
        lambda folder, secret: (
            _drop("episode_0", "episode_1", "episode_2")(folder, secret),
            _metadata(lambda m: m.update(total_episodes=0, total_steps=0))(folder, secret),
        )[0],
        ("no episode",),
    ),
    "a stray group": Case(
        _hdf5(lambda file, _: file.create_group("stray\x1b[31m")), ("stray\\x1b[31m",)
    ),
    "an episode with a leading zero": Case(
        _hdf5(lambda file, _: file.create_group("episode_01")), ("episode_01",)
    ),
    "an episode that is an array": Case(_put("episode_1", np.zeros(3)), ("episode_1",)),
    "infos that is an array": Case(_put("episode_1/infos", np.zeros(3)), ("episode_1/infos",)),
    "rewards that is a group": Case(
        _hdf5(
            lambda file, _: (
                file.__delitem__("episode_1/rewards"),
                file.create_group("episode_1/rewards"),
            )[0]
        ),
        ("episode_1/rewards",),
    ),
    "a type among the arrays": Case(
        _hdf5(lambda file, _: file.__setitem__("episode_1/infos/x", np.dtype("f8"))),
        ("episode_1/infos/x",),
    ),
    "3 actions beside 20 rewards": Case(
        _put("episode_1/actions", np.zeros((3, 2), np.float32)),
        ("episode_1/actions", "(3, 2)", "(20, 2)"),
    ),
    "one observation too few": Case(
        _put("episode_1/observations", np.zeros((20, 3))), ("episode_1/observations", "(21, 3)")
    ),
    "observations too wide": Case(
        _put("episode_1/observations", np.zeros((21, 4))), ("episode_1/observations", "(21, 4)")
    ),
    "observations not as declared": Case(
        _metadata(
            lambda m: m.update(
                observation_space=json.dumps(
                    {
                        "type": "Box",
                        "dtype": "float64",
                        "shape": [4],
                        "low": [0] * 4,
                        "high": [1] * 4,
                    }
                )
            )
        ),
        ("episode_0", "3 observations", "4"),
    ),
    "actions not as declared": Case(
        _metadata(
            lambda m: m.update(
                action_space=json.dumps({"type": "Discrete", "dtype": "int64", "start": 0, "n": 3})
            )
        ),
        ("episode_0", "Discrete(3)"),
    ),
    "rewards of two dimensions": Case(
        _put("episode_1/rewards", np.zeros((20, 1))), ("episode_1/rewards", "(20, 1)")
    ),
    "no rewards": Case(_put("episode_1/rewards", np.zeros(0)), ("episode_1/rewards", "(0,)")),
    "rewards without values": Case(
        _put("episode_1/rewards", h5py.Empty("f8")), ("episode_1/rewards", "no values")
    ),
    "theta too short": Case(
        _put("episode_1/infos/theta", np.zeros((2, 7), np.float32)),
        ("episode_1/infos/theta", "(2, 7)", "(2, 8)"),
    ),
    "theta of one dimension": Case(
        _put("episode_1/infos/theta", np.zeros(8, np.float32)), ("episode_1/infos/theta", "(8,)")
    ),
    "theta of float64": Case(
        _put("episode_1/infos/theta", np.zeros((2, 8))), ("episode_1/infos/theta", "float64")
    ),
    "rewards of complex numbers": Case(
        _put("episode_1/rewards", np.zeros(20, np.complex128)), ("episode_1/rewards", "numbers")
    ),
    "rewards of fixed strings": Case(
        _put("episode_1/rewards", np.array([b"abc"] * 20)), ("episode_1/rewards", "numbers")
    ),
    "an enumeration that is no boolean": Case(
        _put("episode_1/infos/x", [0, 1], dtype=h5py.enum_dtype({"a": 0, "b": 1}, "i1")),
        ("episode_1/infos/x", "numbers"),
    ),
    "terminations of integers": Case(
        _put("episode_1/terminations", np.zeros(20, np.int8)), ("episode_1/terminations", "int8")
    ),
    "observations of another dtype": Case(
        _put("episode_1/observations", np.zeros((21, 3), np.float32)),
        ("episode_1/observations", "float32", "float64"),
    ),
    "actions of another dtype": Case(
        _put("episode_1/actions", np.zeros((20, 2))), ("episode_1/actions", "float64", "float32")
    ),
    "a missing array": Case(_drop("episode_1/truncations"), ("episode_1/truncations", "missing")),
    "a missing tag": Case(_drop("episode_1/infos/segment"), ("episode_1/infos/segment", "missing")),
    "total_steps wrong": Case(_attribute("total_steps", 19), ("episode_1", "19", "20")),
    "total_steps a text": Case(
        _attribute("total_steps", np.bytes_(b"20")), ("episode_1", "numbers")
    ),
    "total_steps an array": Case(_attribute("total_steps", [20, 20]), ("episode_1", "total_steps")),
    "total_steps missing": Case(
        _hdf5(lambda file, _: file["episode_1"].attrs.__delitem__("total_steps")),
        ("episode_1", "total_steps"),
    ),
    "seed negative": Case(_attribute("seed", -4), ("episode_1", "-4")),
    "segment out of range": Case(
        _edit("episode_1/infos/segment", _set(5, 2)), ("episode_1/infos/segment", "2 policies")
    ),
    "segment negative": Case(
        _edit("episode_1/infos/segment", _set(5, -1)), ("episode_1/infos/segment", "-1")
    ),
    "segment's last entry": Case(
        _edit("episode_1/infos/segment", _set(-1, 0)), ("episode_1/infos/segment", "repeat")
    ),
    "a policy that never acted": Case(
        _edit("episode_1/infos/segment", _set(slice(None), 0)),
        ("episode_1/infos/theta", "never acts"),
    ),
    "NaN observations": Case(
        _edit("episode_1/observations", _set((20, 0), np.nan)), ("episode_1/observations", "NaN")
    ),
    "infinite rewards": Case(
        _edit("episode_2/rewards", _set(0, np.inf)), ("episode_2/rewards", "infinite")
    ),
    "NaN actions": Case(
        _edit("episode_1/actions", _set((0, 1), np.nan)), ("episode_1/actions", "NaN")
    ),
    "actions out of bounds": Case(
        _edit("episode_1/actions", _set((0, 1), 2.5)), ("episode_1/actions", "outside")
    ),
    "NaN theta": Case(
        _edit("episode_2/infos/theta", _set((1, 0), np.nan)), ("episode_2/infos/theta", "NaN")
    ),
    "infinite mean": Case(
        _edit("episode_1/infos/obs_mean", _set((1, 0), np.inf)), ("episode_1/infos/obs_mean", "NaN")
    ),
    "standard deviation of 0": Case(
        _edit("episode_1/infos/obs_std", _set((0, 0), 0.0)),
        ("episode_1/infos/obs_std", "not positive"),
    ),
    "terminated in the middle": Case(
        _edit("episode_1/terminations", _set(4, True)),
        ("episode_1/terminations", "before the last"),
    ),
    "truncated in the middle": Case(
        _edit("episode_1/truncations", _set(4, True)), ("episode_1/truncations", "before the last")
    ),
    "an episode without an end": Case(
        _edit("episode_1/truncations", _set(-1, False)), ("episode_1/truncations", "neither")
    ),
    "a boolean of 7": Case(_hdf5(_raw_bool), ("episode_1/terminations", "neither 0 nor 1")),
    "cut, but not truncated": Case(
        lambda folder, secret: (
            _blob(cut="budget")(folder, secret),
            _edit("episode_1/terminations", _set(-1, True))(folder, secret),
        )[0],
        ("episode_1/truncations", "budget"),
    ),
    "an unknown cut": Case(_blob(cut="maybe"), ("episode_1/infos/pbvf", "maybe")),
    "a policy tag without version": Case(_blob(version=None), ("episode_1/infos/pbvf", "version")),
    "a policy tag of text": Case(
        _put("episode_1/infos/pbvf", np.zeros((2, 2), np.uint8)), ("episode_1/infos/pbvf", "(2, 2)")
    ),
    "two bad episodes": Case(
        lambda folder, secret: (
            _edit("episode_1/rewards", _set(0, np.nan))(folder, secret),
            _put("episode_2/actions", np.zeros((3, 2), np.float32))(folder, secret),
        )[0],
        ("episode_1/rewards", "NaN"),
    ),
    "manifest of 0 bytes": Case(
        _raw("manifest.json", lambda _: b""), ("manifest.json", "empty"), ("stale",)
    ),
    "manifest of another kind": Case(
        _manifest(lambda m: m.update(format="x")), ("manifest.json",), ("stale",)
    ),
    "manifest with another digest": Case(
        _manifest(lambda m: m.update(digest="0" * 64)), ("manifest.json", "digest"), ("stale",)
    ),
    "manifest changed": Case(
        _manifest(lambda m: m["provenance"].update(license="CC0-1.0")),
        ("manifest.json", "digest"),
        ("stale",),
    ),
}
"""Exit 3."""

INCOMPATIBLE: dict[str, Case] = {
    "a manifest of version 99": Case(
        _manifest(lambda m: m.update(version=99)), ("manifest.json", "99", "upgrade"), ("stale",)
    ),
    "a policy tag of version 99": Case(
        _blob(version=99), ("episode_1/infos/pbvf", "99", "upgrade")
    ),
    "Dict observations": Case(
        _metadata(lambda m: m.update(observation_space='{"type": "Dict", "subspaces": {}}')),
        ("metadata.json", "Dict"),
    ),
    "Text actions": Case(
        _metadata(lambda m: m.update(action_space='{"type": "Text"}')), ("metadata.json", "Text")
    ),
    "images": Case(
        _metadata(
            lambda m: m.update(
                observation_space='{"type": "Box", "dtype": "uint8", "shape": [64, 64, 3], '
                '"low": [], "high": []}'
            )
        ),
        ("metadata.json", "[64, 64, 3]"),
    ),
    "Discrete observations": Case(
        _metadata(
            lambda m: m.update(
                observation_space='{"type": "Discrete", "dtype": "int64", "start": 0, "n": 3}'
            )
        ),
        ("metadata.json", "Discrete(3)"),
    ),
    "Arrow storage": Case(
        _metadata(lambda m: m.update(data_format="arrow")), ("metadata.json", "arrow")
    ),
    "no policy tags": Case(
        _drop(*(f"episode_{i}/infos" for i in range(3))), ("episode_0", "infos/theta")
    ),
    "two architectures": Case(
        _blob(spec=PolicySpec(3, (5,), BOX_SPEC.actions).to_dict()),
        ("episode_1/infos/pbvf", "architecture"),
    ),
    "survival bonus in some episodes": Case(
        _put("episode_1/infos/reward_survive", np.zeros(21)),
        ("episode_1/infos/reward_survive", "some"),
    ),
}
"""Exit 5."""


# ------------------------------------------------------------------------------ watching


class Watch:
    """What was opened, by Python (an audit hook) or anybody (inotify)."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.imported: list[str] = []
        self.touched: list[str] = []


_active: list[Watch] = []
_hooked = False


def _audit(event: str, args: tuple[Any, ...]) -> None:
    for watch in _active:
        if event == "open" and isinstance(args[0], str | bytes):
            watch.opened.append(os.fsdecode(args[0]))
        elif event == "import":
            watch.imported.append(args[0])


@contextlib.contextmanager
def watching(folder: Path) -> Iterator[Watch]:
    """Record what Python opens and imports, and what anybody opens in ``folder``.

    HDF5 opens files behind Python's back; inotify (Linux) sees that too.
    """
    global _hooked  # noqa: PLW0603
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked = True
    watch = Watch()
    descriptor = _inotify(folder)
    _active.append(watch)
    try:
        yield watch
    finally:
        _active.remove(watch)
        if descriptor is not None:
            watch.touched = _events(descriptor)
            os.close(descriptor)


def _inotify(folder: Path) -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    opened = 0x20
    assert descriptor >= 0
    assert libc.inotify_add_watch(descriptor, os.fsencode(folder), opened) >= 0
    return int(descriptor)


def _events(descriptor: int) -> list[str]:
    names = []
    with contextlib.suppress(BlockingIOError):
        while True:
            data = os.read(descriptor, 65_536)
            at = 0
            while at < len(data):
                length = struct.unpack_from("iIII", data, at)[3]
                name = data[at + 16 : at + 16 + length].rstrip(b"\0")
                names.append(os.fsdecode(name))
                at += 16 + length
    return names
