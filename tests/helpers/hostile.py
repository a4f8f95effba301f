"""Dataset folders as nobody should make them.

:func:`make` writes a good little dataset. Each entry of :data:`UNSAFE`, :data:`DAMAGED`
and :data:`INCOMPATIBLE` spoils one in its own way and says what the refusal must name.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from gymnasium import spaces
from h5py import h5d, h5p, h5s, h5t, h5z

from pbvf_datasets.format.manifest import build_manifest, manifest_bytes, manifest_digest
from pbvf_datasets.format.schema import DATA_FILE, MANIFEST_FILE, METADATA_FILE
from pbvf_datasets.write.writer import DatasetWriter
from pbvf_offline.errors import DamagedError, IncompatibleError, UnsafeError
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


def rewrite_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest and make its own digest fit again."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_bytes())
    change(manifest)
    manifest["digest"] = manifest_digest(manifest)
    path.write_bytes(manifest_bytes(manifest))


def unseal(folder: Path) -> None:
    """Remove the manifest."""
    (folder / "manifest.json").unlink()


def leave(folder: Path) -> None:
    """Leave a manifest that no longer fits."""


SEALS: dict[str, Callable[[Path], None]] = {"resealed": reseal, "bare": unseal, "stale": leave}


# ------------------------------------------------------------------------------ spoiling

Spoil = Callable[[Path, Path], object]
"""Spoils the dataset in a folder; the second folder holds files that nobody may open."""


def outside(folder: Path) -> Path:
    """Make files outside a dataset that nobody may open."""
    folder.mkdir()
    with h5py.File(folder / "secret.h5", "w") as file:
        file["values"] = np.arange(STEPS, dtype=np.float64)
        file.create_group("group")["values"] = np.arange(3.0)
    (folder / "secret.bin").write_bytes(np.arange(STEPS, dtype=np.float64).tobytes())
    return folder


def hdf5(change: Callable[[h5py.File, Path], object]) -> Spoil:
    """Change the HDF5 file."""

    def spoil(folder: Path, secret: Path) -> None:
        with h5py.File(folder / DATA_FILE, "r+", libver=("v110", "v110")) as file:
            change(file, secret)

    return spoil


def json_file(name: str, change: Callable[[dict[str, Any]], object]) -> Spoil:
    """Change a JSON file."""

    def spoil(folder: Path, secret: Path) -> None:
        value = json.loads((folder / name).read_bytes())
        change(value)
        (folder / name).write_text(json.dumps(value))

    return spoil


def manifest(change: Callable[[dict[str, Any]], object]) -> Spoil:
    """Change the manifest, whose digest no longer fits."""
    return json_file(MANIFEST_FILE, change)


def metadata(**changes: Any) -> Spoil:
    """Change entries of the metadata."""
    return json_file(METADATA_FILE, lambda value: value.update(changes))


def raw(name: str, change: Callable[[bytes], bytes]) -> Spoil:
    """Change the bytes of a file."""

    def spoil(folder: Path, secret: Path) -> None:
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return spoil


def put(name: str, values: Any, **options: Any) -> Spoil:
    """Replace one array, or add one."""

    def change(file: h5py.File, secret: Path) -> None:
        if name in file:
            del file[name]
        file.create_dataset(name, data=values, **options)

    return hdf5(change)


def edit(name: str, change: Callable[[np.ndarray], object]) -> Spoil:
    """Change values of one array in place, checksum and all."""

    def spoil(file: h5py.File, secret: Path) -> None:
        values = file[name][()]
        change(values)
        file[name][...] = values

    return hdf5(spoil)


def set_values(name: str, at: Any, value: Any) -> Spoil:
    """Set some values of one array, checksum and all."""
    return edit(name, lambda values: values.__setitem__(at, value))


def link(name: str, target: Callable[[Path], Any]) -> Spoil:
    """Put a link in the place of an object."""

    def change(file: h5py.File, secret: Path) -> None:
        if name in file:
            del file[name]
        file[name] = target(secret)

    return hdf5(change)


def flip(name: str, at: int = 3) -> Spoil:
    """Flip one bit of an array's only chunk on disk."""

    def spoil(folder: Path, secret: Path) -> None:
        with h5py.File(folder / DATA_FILE, "r") as file:
            offset = file[name].id.get_chunk_info(0).byte_offset + at
        data = bytearray((folder / DATA_FILE).read_bytes())
        data[offset] ^= 0x40
        (folder / DATA_FILE).write_bytes(data)

    return spoil


def tag(**changes: Any) -> Spoil:
    """Change entries of the policy tag of episode 1."""

    def change(file: h5py.File, secret: Path) -> None:
        value = json.loads(file["episode_1/infos/pbvf"][()].tobytes()) | changes
        del file["episode_1/infos/pbvf"]
        file["episode_1/infos/pbvf"] = np.frombuffer(json.dumps(value).encode(), np.uint8)

    return hdf5(change)


def drop(*names: str) -> Spoil:
    """Remove objects from the HDF5 file."""
    return hdf5(lambda file, _: [file.__delitem__(name) for name in names])


def attribute(name: str, value: Any) -> Spoil:
    """Set an attribute of episode 1."""
    return hdf5(lambda file, _: file["episode_1"].attrs.__setitem__(name, value))


def together(*spoils: Spoil) -> Spoil:
    """Do several things one after another."""
    return lambda folder, secret: [spoil(folder, secret) for spoil in spoils]


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
    target, source = (h5s.create_simple((STEPS,), (h5s.UNLIMITED,)) for _ in range(2))
    for space in (target, source):
        space.select_hyperslab((0,), (h5s.UNLIMITED,))
    plist.set_virtual(target, os.fsencode(secret / "secret.h5"), b"values", source)
    del file["episode_1/rewards"]
    space = h5s.create_simple((STEPS,), (h5s.UNLIMITED,))
    h5d.create(file["episode_1"].id, b"rewards", h5t.IEEE_F64LE, space, plist)


def _unknown_filter(file: h5py.File, secret: Path) -> None:
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_chunk((STEPS,))
    plist.set_filter(32_123, h5z.FLAG_OPTIONAL, (1, 2))
    del file["episode_1/rewards"]
    space = h5s.create_simple((STEPS,))
    made = h5d.create(file["episode_1"].id, b"rewards", h5t.IEEE_F64LE, space, plist)
    made.write(h5s.ALL, h5s.ALL, np.zeros(STEPS))


def _huge(name: str, **options: Any) -> Spoil:
    return put(name, None, shape=(2**50,), dtype=np.float64, **options)


def _path_as_name(folder: Path, secret: Path) -> None:
    """Name a plain link ``door/in``, where ``door`` is a group with an external ``in``."""
    with h5py.File(folder / DATA_FILE, "w", libver="earliest") as file:
        file.create_group("door")["in"] = h5py.ExternalLink(str(secret / "secret.h5"), "values")
        file["door_in"] = np.arange(3.0)
    path = folder / DATA_FILE
    data = path.read_bytes()
    assert data.count(b"door_in\0") == 1
    path.write_bytes(data.replace(b"door_in\0", b"door/in\0"))


def _twice(file: h5py.File, secret: Path) -> None:
    del file["episode_2"]
    file["episode_2"] = file["episode_1"]


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


def _reward_group(file: h5py.File, secret: Path) -> None:
    del file["episode_1/rewards"]
    file.create_group("episode_1/rewards")


def _raw_bool(file: h5py.File, secret: Path) -> None:
    file["episode_1/terminations"].id.write_direct_chunk((0,), bytes([7] * STEPS), 1)


def _symlink(name: str) -> Spoil:
    def spoil(folder: Path, secret: Path) -> None:
        target = secret / Path(name).name
        shutil.move(folder / name, target)
        (folder / name).symlink_to(target)

    return spoil


def _fifo(name: str) -> Spoil:
    def spoil(folder: Path, secret: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return spoil


EVIL_SPEC = json.dumps(
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


# --------------------------------------------------------------------------------- cases

_ALL = ("resealed", "bare", "stale")
_NO_RESEAL = ("bare", "stale")  # no manifest can be made for such a folder


@dataclass(frozen=True)
class Case:
    """One way to spoil a dataset.

    ``words`` must be in the message. ``seals`` says which manifests the case is about.
    """

    spoil: Spoil
    words: tuple[str, ...]
    seals: tuple[str, ...] = _ALL


def _at(place: str, spoil: Spoil, *words: str) -> Case:
    """A case in which a place in the HDF5 file must be named."""
    return Case(spoil, (place, *words))


def _array(place: str, values: Any, *words: str, **options: Any) -> Case:
    return _at(place, put(place, values, **options), *words)


def _values(place: str, at: Any, value: Any, *words: str) -> Case:
    return _at(place, set_values(place, at, value), *words)


def _metadata(spoil: Spoil, *words: str) -> Case:
    return Case(spoil, ("metadata.json", *words))


def _raw_metadata(change: Callable[[bytes], bytes], *words: str) -> Case:
    return _metadata(raw(METADATA_FILE, change), *words)


def _manifest(change: Callable[[dict[str, Any]], object], *words: str) -> Case:
    return Case(manifest(change), ("manifest.json", *words), ("stale",))


def _space(**entries: Any) -> str:
    return json.dumps(entries)


_E1, _REWARDS, _X = "episode_1", "episode_1/rewards", "episode_1/infos/x"
_ENTRY = {"size": 1, "sha256": "0" * 64}
_BOX4 = _space(type="Box", dtype="float64", shape=[4], low=[0] * 4, high=[1] * 4)
_DISCRETE3 = _space(type="Discrete", dtype="int64", start=0, n=3)

UNSAFE: dict[str, Case] = {
    "external link to an array": _at(
        _REWARDS, link(_REWARDS, _external("values")), "external link"
    ),
    "external link to an episode": _at(
        "episode_2", link("episode_2", _external("group")), "external link"
    ),
    "external link as infos": _at(
        "episode_0/infos", link("episode_0/infos", _external("group")), "external link"
    ),
    "external link beside the arrays": _at(_X, link(_X, _external("values")), "external link"),
    "external link in the root": _at("more", link("more", _external("group")), "external link"),
    "soft link": _at(
        _REWARDS, link(_REWARDS, lambda _: h5py.SoftLink("/episode_0/rewards")), "soft link"
    ),
    "dangling soft link": _at(_X, link(_X, lambda _: h5py.SoftLink("/nowhere")), "soft link"),
    "external storage": _at(_REWARDS, hdf5(_external_storage), "external file"),
    "virtual dataset": _at(_REWARDS, hdf5(_virtual), "virtual"),
    "unlimited virtual dataset": _at(_REWARDS, hdf5(_virtual_unlimited), "virtual"),
    "unknown filter": _at(_REWARDS, hdf5(_unknown_filter), "filter 32123"),
    "deflate": _array(_REWARDS, np.zeros(STEPS), "filter 1", compression="gzip"),
    "lzf": _array(_X, np.zeros(STEPS), "filter 32000", compression="lzf"),
    "variable-length strings": _array(_X, ["a"], "variable length", dtype=h5py.string_dtype()),
    "variable-length rewards": _array(
        _REWARDS, None, "variable length", shape=(STEPS,), dtype=h5py.vlen_dtype(np.float64)
    ),
    "references": _array(_X, [h5py.Reference()] * 2, "references", dtype=h5py.ref_dtype),
    "8 PiB contiguous": _at(_REWARDS, _huge(_REWARDS), "declares"),
    "8 PiB chunked": _at(_REWARDS, _huge(_REWARDS, chunks=(1024,)), "declares"),
    "8 PiB checksummed": _at(
        "episode_1/infos/theta",
        _huge("episode_1/infos/theta", chunks=(1024,), fletcher32=True),
        "declares",
    ),
    "8 PiB beside the arrays": _at(_X, _huge(_X, chunks=(1024,)), "declares"),
    "8 PiB in the root": _at("x", _huge("x", chunks=(1024,)), "declares"),
    "one array under many names": _at("episode_1/infos/big", hdf5(_many_links), "file of"),
    "huge chunk": _at("episode_1/infos/bomb", hdf5(_chunk_bomb), "chunks of"),
    "loop of groups": _at(
        "episode_1/infos/loop",
        hdf5(lambda file, _: file.__setitem__("episode_1/infos/loop", file["episode_1/infos"])),
        "twice",
    ),
    "one episode under two names": _at("episode_2", hdf5(_twice), "twice"),
    "deep groups": _at(
        "episode_1/infos/d/d",
        hdf5(lambda file, _: file.create_group("episode_1/infos/" + "/".join("d" * 40))),
        "deeper",
    ),
    "a path as a name": _at("door/in", _path_as_name, "path"),
    **{
        f"no {key.replace('_', ' ')}": _metadata(
            json_file(METADATA_FILE, lambda m, key=key: (m.pop(key), m.update(env_spec=EVIL_SPEC))),
            key,
        )
        for key in ("observation_space", "action_space")
    },
    "null space": _metadata(metadata(action_space=None), "action_space"),
    "data file is a symlink": Case(
        _symlink(DATA_FILE), ("main_data.hdf5", "symbolic link"), _NO_RESEAL
    ),
    "metadata is a symlink": Case(
        _symlink(METADATA_FILE), ("metadata.json", "symbolic link"), _NO_RESEAL
    ),
    "manifest is a symlink": Case(
        _symlink(MANIFEST_FILE), ("manifest.json", "symbolic link"), ("stale",)
    ),
    "data is a symlink": Case(_symlink("data"), ("data", "symbolic link"), _NO_RESEAL),
    "a symlink beside": _at(
        "extra",
        lambda folder, secret: (folder / "extra").symlink_to(secret / "secret.bin"),
        "symbolic link",
    ),
    "data file is a pipe": Case(_fifo(DATA_FILE), ("main_data.hdf5", "regular file"), _NO_RESEAL),
    "metadata is a pipe": Case(_fifo(METADATA_FILE), ("metadata.json", "regular file"), _NO_RESEAL),
    "manifest is a pipe": Case(_fifo(MANIFEST_FILE), ("manifest.json", "regular"), ("stale",)),
    "manifest leaves the folder": _manifest(
        lambda m: m["files"].update({"../../secret": _ENTRY}), "../../secret"
    ),
    "manifest names the root": _manifest(
        lambda m: m["files"].update({"/etc/passwd": _ENTRY}), "/etc/passwd"
    ),
}
"""Exit 4."""

DAMAGED: dict[str, Case] = {
    "data file cut in half": Case(
        raw(DATA_FILE, lambda data: data[: len(data) // 2]), ("main_data.hdf5",)
    ),
    "data file of 0 bytes": Case(raw(DATA_FILE, lambda _: b""), ("main_data.hdf5", "empty")),
    "data file of zeros": Case(raw(DATA_FILE, lambda _: bytes(4096)), ("main_data.hdf5",)),
    "no data file": Case(
        lambda folder, _: (folder / DATA_FILE).unlink(), ("main_data.hdf5", "missing"), _NO_RESEAL
    ),
    "no metadata": Case(
        lambda folder, _: (folder / METADATA_FILE).unlink(),
        ("metadata.json", "missing"),
        _NO_RESEAL,
    ),
    "no data folder": Case(  # without a manifest too it is no dataset's folder at all
        lambda folder, _: shutil.rmtree(folder / "data"), ("'data'",), ("stale",)
    ),
    "a flipped byte in rewards": _at(_REWARDS, flip(_REWARDS)),
    "a flipped byte in the policy tag": _at("episode_0/infos/pbvf", flip("episode_0/infos/pbvf")),
    "metadata of 0 bytes": _raw_metadata(lambda _: b"", "empty"),
    "metadata not JSON": _raw_metadata(lambda data: data[:-9], "JSON"),
    "metadata a list": _raw_metadata(lambda _: b"[]", "object"),
    "env_spec not JSON": _metadata(metadata(env_spec="{"), "env_spec"),
    "env_spec a number": _metadata(metadata(env_spec=3), "env_spec"),
    "env_spec a list": _metadata(metadata(env_spec="[]"), "env_spec"),
    "malformed space": _metadata(metadata(action_space='{"type": "Box"}'), "action_space"),
    "too many episodes promised": _at("episode_3", metadata(total_episodes=5), "missing", "5"),
    "absurdly many episodes promised": _at("episode_3", metadata(total_episodes=2**61), "missing"),
    "too few episodes promised": _at(_E1, metadata(total_episodes=1), "not counted"),
    "no episodes promised": _at("episode_0", metadata(total_episodes=0), "not counted"),
    "total_episodes a text": _metadata(metadata(total_episodes="3"), "total_episodes"),
    "too many steps promised": _metadata(metadata(total_steps=10**17), "total_steps"),
    "too few steps promised": _metadata(metadata(total_steps=59), "59", "60"),
    "an episode missing in the middle": _at(_E1, drop(_E1), "missing"),
    "no episode at all": Case(
        together(
            drop("episode_0", "episode_1", "episode_2"), metadata(total_episodes=0, total_steps=0)
        ),
        ("no episode",),
    ),
    "a stray group": _at(
        "stray\\x1b[31m", hdf5(lambda file, _: file.create_group("stray\x1b[31m"))
    ),
    "an episode with a leading zero": _at(
        "episode_01", hdf5(lambda file, _: file.create_group("episode_01"))
    ),
    "an episode that is an array": _array(_E1, np.zeros(3)),
    "infos that is an array": _array("episode_1/infos", np.zeros(3)),
    "rewards that is a group": _at(_REWARDS, hdf5(_reward_group)),
    "a type among the arrays": _at(_X, hdf5(lambda file, _: file.__setitem__(_X, np.dtype("f8")))),
    "3 actions beside 20 rewards": _array(
        "episode_1/actions", np.zeros((3, 2), np.float32), "(3, 2)", "(20, 2)"
    ),
    "one observation too few": _array("episode_1/observations", np.zeros((20, 3)), "(21, 3)"),
    "observations too wide": _array("episode_1/observations", np.zeros((21, 4)), "(21, 4)"),
    "observations not as declared": _at(
        "episode_0", metadata(observation_space=_BOX4), "3 observations", "4"
    ),
    "actions not as declared": _at("episode_0", metadata(action_space=_DISCRETE3), "Discrete(3)"),
    "rewards of two dimensions": _array(_REWARDS, np.zeros((20, 1)), "(20, 1)"),
    "no rewards": _array(_REWARDS, np.zeros(0), "(0,)"),
    "no rewards in 2**62 columns": _array(
        _REWARDS, None, "no array can have its shape", shape=(0, 2**62), dtype=np.float64
    ),
    "rewards without values": _array(_REWARDS, h5py.Empty("f8"), "no values"),
    "theta too short": _array(
        "episode_1/infos/theta", np.zeros((2, 7), np.float32), "(2, 7)", "(2, 8)"
    ),
    "theta of one dimension": _array("episode_1/infos/theta", np.zeros(8, np.float32), "(8,)"),
    "theta of float64": _array("episode_1/infos/theta", np.zeros((2, 8)), "float64"),
    "rewards of complex numbers": _array(_REWARDS, np.zeros(20, np.complex128), "numbers"),
    "rewards of fixed strings": _array(_REWARDS, np.array([b"abc"] * 20), "numbers"),
    "an enumeration that is no boolean": _array(
        _X, [0, 1], "numbers", dtype=h5py.enum_dtype({"a": 0, "b": 1}, "i1")
    ),
    "terminations of integers": _array("episode_1/terminations", np.zeros(20, np.int8), "int8"),
    "observations of another dtype": _array(
        "episode_1/observations", np.zeros((21, 3), np.float32), "float32", "float64"
    ),
    "actions of another dtype": _array(
        "episode_1/actions", np.zeros((20, 2)), "float64", "float32"
    ),
    "a missing array": _at("episode_1/truncations", drop("episode_1/truncations"), "missing"),
    "a missing tag": _at("episode_1/infos/segment", drop("episode_1/infos/segment"), "missing"),
    "total_steps wrong": _at(_E1, attribute("total_steps", 19), "19", "20"),
    "total_steps a text": _at(_E1, attribute("total_steps", np.bytes_(b"20")), "numbers"),
    "total_steps an array": _at(_E1, attribute("total_steps", [20, 20]), "total_steps"),
    "total_steps missing": _at(
        _E1, hdf5(lambda file, _: file[_E1].attrs.__delitem__("total_steps")), "total_steps"
    ),
    "seed negative": _at(_E1, attribute("seed", -4), "-4"),
    "segment out of range": _values("episode_1/infos/segment", 5, 2, "2 policies"),
    "segment negative": _values("episode_1/infos/segment", 5, -1, "-1"),
    "segment's last entry": _values("episode_1/infos/segment", -1, 0, "repeat"),
    "a policy that never acted": _at(
        "episode_1/infos/theta",
        set_values("episode_1/infos/segment", slice(None), 0),
        "never acts",
    ),
    "NaN observations": _values("episode_1/observations", (20, 0), np.nan, "NaN", "step 20"),
    "infinite rewards": _values("episode_2/rewards", 0, np.inf, "infinite", "step 0"),
    "NaN actions": _values("episode_1/actions", (0, 1), np.nan, "NaN"),
    "actions out of bounds": _values("episode_1/actions", (3, 1), 2.5, "step 3", "outside"),
    "NaN theta": _values("episode_2/infos/theta", (1, 0), np.nan, "NaN", "policy 1"),
    "infinite mean": _values("episode_1/infos/obs_mean", (1, 0), np.inf, "NaN"),
    "standard deviation of 0": _values("episode_1/infos/obs_std", (0, 0), 0.0, "not positive"),
    "standard deviation that nothing can be divided by": _values(
        "episode_1/infos/obs_std", (0, 0), 5e-324, "below 2.2e-308"
    ),
    "terminated in the middle": _values("episode_1/terminations", 4, True, "step 4", "before the"),
    "truncated in the middle": _values("episode_1/truncations", 4, True, "step 4", "before the"),
    "an episode without an end": _values("episode_1/truncations", -1, False, "neither"),
    "a boolean of 7": _at("episode_1/terminations", hdf5(_raw_bool), "neither 0 nor 1"),
    "cut, but not truncated": _at(
        "episode_1/truncations",
        together(tag(cut="budget"), set_values("episode_1/terminations", -1, True)),
        "budget",
    ),
    "an unknown cut": _at("episode_1/infos/pbvf", tag(cut="maybe"), "maybe"),
    "a policy tag without version": _at("episode_1/infos/pbvf", tag(version=None), "version"),
    "a policy tag of text": _array("episode_1/infos/pbvf", np.zeros((2, 2), np.uint8), "(2, 2)"),
    "two bad episodes": _at(
        _REWARDS,
        together(
            set_values(_REWARDS, 0, np.nan), put("episode_2/actions", np.zeros((3, 2), np.float32))
        ),
        "NaN",
    ),
    "manifest of 0 bytes": Case(
        raw(MANIFEST_FILE, lambda _: b""), ("manifest.json", "empty"), ("stale",)
    ),
    "manifest of another kind": _manifest(lambda m: m.update(format="x")),
    "manifest with another digest": _manifest(lambda m: m.update(digest="0" * 64), "digest"),
    "manifest changed": _manifest(lambda m: m["provenance"].update(license="CC0-1.0"), "digest"),
}
"""Exit 3."""

INCOMPATIBLE: dict[str, Case] = {
    "a manifest of version 99": _manifest(lambda m: m.update(version=99), "99", "upgrade"),
    "a policy tag of version 99": _at("episode_1/infos/pbvf", tag(version=99), "99", "upgrade"),
    "Dict observations": _metadata(metadata(observation_space=_space(type="Dict")), "Dict"),
    "Text actions": _metadata(metadata(action_space=_space(type="Text")), "Text"),
    "images": _metadata(
        metadata(
            observation_space=_space(type="Box", dtype="uint8", shape=[64, 64, 3], low=[], high=[])
        ),
        "[64, 64, 3]",
    ),
    "Discrete observations": _metadata(metadata(observation_space=_DISCRETE3), "Discrete(3)"),
    "Arrow storage": _metadata(metadata(data_format="arrow"), "arrow"),
    "no policy tags": _at(
        "episode_0", drop(*(f"episode_{i}/infos" for i in range(3))), "infos/theta"
    ),
    "two architectures": _at(
        "episode_1/infos/pbvf",
        tag(spec=PolicySpec(3, (5,), BOX_SPEC.actions).to_dict()),
        "architecture",
        "[5] against []",
    ),
    "survival bonus in some episodes": _array(
        "episode_1/infos/reward_survive", np.zeros(21), "some"
    ),
}
"""Exit 5."""

TABLE = [
    (error, name, seal, case)
    for error, cases in (
        (UnsafeError, UNSAFE),
        (DamagedError, DAMAGED),
        (IncompatibleError, INCOMPATIBLE),
    )
    for name, case in cases.items()
    for seal in case.seals
]
"""Every case with each of its manifests, and the error that it is."""
