"""Write the attack corpus: hostile datasets, critics, policies, weights, archives, remotes.

    PYTHONPATH=tests/helpers python tests/attacks/make.py FOLDER

makes all of them, small, and ``index.json``, which says of each what it is and which exit
codes are right. ``tests/test_attacks.py`` runs every command on them. Files that a pickle
would write when it ran lie in ``FOLDER/ran``; files that a link leads to in ``FOLDER/secret``.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import hostile
import libtools
from pbvf_datasets.format.schema import DATA_FILE, MANIFEST_FILE, METADATA_FILE
from pbvf_datasets.share.archive import pack
from pbvf_offline.envs.make import make_env
from pbvf_offline.envs.reference import EnvConfig, EnvReference
from pbvf_offline.io.tensor_file import decode, encode
from pbvf_offline.policies.files import PoliciesFile
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.policies.spec import PolicySpec

UNSAFE, DAMAGED, BAD = (4,), (3,), (3, 4)
REFUSED = (3, 4, 5)
BOMB = 15 * 2**20
"""Bytes of a JSON text that is within the limits of size and not of memory."""


@dataclass(frozen=True)
class Attack:
    """One hostile file or folder.

    Attributes:
        name: What is wrong with it, in words.
        kind: ``dataset``, ``critic``, ``policies``, ``weights``, ``archive`` or ``remote``.
        path: Where it lies.
        codes: The exit codes that are right.
        only: The commands that it is meant for; None: all that take its kind.
    """

    name: str
    kind: str
    path: str
    codes: tuple[int, ...]
    only: tuple[str, ...] | None = None


class Good:
    """Good files, of which hostile ones are made, and what lies outside of them.

    Args:
        out: The corpus' folder.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.ran = out / "ran"
        self.secret = hostile.outside(out / "secret")
        options = {"license": "CC-BY-4.0", "authors": ["A. Nobody"]}
        spec = hostile.BOX_SPEC
        more = [hostile.episode(i) for i in range(10, 12)]
        self.dataset = hostile.make(out / "good", "lab/toy-v0", **options)
        self.second = hostile.make(out / "good", "lab/more-v0", episodes=more, **options)
        env = make_env(EnvConfig("LQR-v0"))
        lqr = spec_for_env(env, ())
        env.close()
        data = libtools.make_data(lqr, policies=4, length=3)
        self.lqr_critic = self._write("critic.safetensors", libtools.make_file(data=data).encode())
        toy = libtools.make_data(spec, policies=4, length=3)
        self.toy_critic = self._write("toy.safetensors", libtools.make_file(data=toy).encode())
        policies = PoliciesFile(libtools.make_policies(lqr, 2), EnvReference("LQR-v0"), {})
        self.policies = self._write("policies.safetensors", policies.encode())
        single = PoliciesFile(libtools.make_policies(lqr, 1), EnvReference("LQR-v0"), {})
        self.single = self._write("single.safetensors", single.encode())
        self.weights = self._write("weights.safetensors", _weights(lqr))
        self.archive = out / "good" / "toy.tar"
        pack(self.dataset, self.archive)

    def _write(self, name: str, data: bytes) -> Path:
        path = self.out / "good" / name
        path.write_bytes(data)
        return path


def _weights(spec: PolicySpec) -> bytes:
    import safetensors.numpy

    outputs, inputs = spec.actions.dim, spec.obs_dim
    arrays = {"0.weight": np.ones((outputs, inputs), np.float32), "0.bias": np.zeros(outputs, "f4")}
    return bytes(safetensors.numpy.save(arrays))


class Code:
    """Runs a command when it is unpickled: makes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.target}'",)


# ------------------------------------------------------------------------------ datasets

Spoil = hostile.Spoil


def _bomb(piece: str) -> Callable[[bytes], bytes]:
    """Put a long list in front of what a JSON object holds."""
    filler = '{"bomb":[' + piece * (BOMB // len(piece)) + "0],"
    return lambda data: filler.encode() + data[1:]


def _key_bomb(data: bytes) -> bytes:
    keys = ",".join(f'"{i:x}":{{}}' for i in range(BOMB // 13))
    return b'{"bomb":{' + keys.encode() + b"}," + data[1:]


def _entry(text: str) -> Callable[[bytes], bytes]:
    return lambda data: b"{" + text.encode("utf-8", "surrogateescape") + b"," + data[1:]


def _env_spec(**changes: Any) -> Spoil:
    spec = json.loads(hostile.EVIL_SPEC) | changes
    return hostile.metadata(env_spec=json.dumps(spec))


def _user_defined_link(folder: Path, secret: Path) -> None:
    """An external link whose type became 77, which a plugin would have to follow."""
    path = folder / DATA_FILE
    with h5py.File(path, "r") as old, h5py.File(folder / "new", "w", libver="earliest") as new:
        for name in old:
            old.copy(name, new)
        new.create_group("odd")["evil_link"] = h5py.ExternalLink(secret / "secret.h5", "values")
    (folder / "new").replace(path)
    data = bytearray(path.read_bytes())
    at = data.index(b"evil_link")
    place = data.rindex(b"\x40", at - 14, at)  # the type of the link, not far in front
    data[place] = 77
    path.write_bytes(data)


def _metadata(change: Callable[[bytes], bytes]) -> Spoil:
    return hostile.raw(METADATA_FILE, change)


def _sparse(name: str, size: int) -> Spoil:
    return lambda folder, secret: os.truncate(folder / name, size)


def _blob(data: bytes) -> Spoil:
    return hostile.put("episode_1/infos/pbvf", np.frombuffer(data, np.uint8))


def _spec(**changes: Any) -> Spoil:
    return hostile.tag(spec=hostile.BOX_SPEC.to_dict() | changes)


def _manifest_file(name: str) -> Spoil:
    entry = {"size": 1, "sha256": "0" * 64}
    return hostile.manifest(lambda manifest: manifest["files"].update({name: entry}))


def _pickled(name: str) -> Spoil:
    def spoil(folder: Path, secret: Path) -> None:
        (folder / name).write_bytes(pickle.dumps(Code(folder.parent.parent / "ran" / name[:4])))

    return spoil


MORE_DATASETS: dict[str, dict[str, tuple[Spoil, tuple[int, ...]]]] = {
    "resealed": {
        "a user-defined link": (_user_defined_link, UNSAFE),
        "total_steps of 800 kB": (
            hostile.attribute("total_steps", np.zeros(100_000, np.int64)),
            DAMAGED,
        ),
        "total_steps of variable length": (hostile.attribute("total_steps", "20"), BAD),
        "a compound type": (
            hostile.put("episode_1/rewards", np.zeros(20, [("a", "f8"), ("b", "i4")])),
            DAMAGED,
        ),
        "an opaque type": (hostile.put("episode_1/infos/x", np.zeros(20, "V8")), DAMAGED),
        "more episodes than there are atoms": (hostile.metadata(total_episodes=2**61), DAMAGED),
        "steps beyond 64 bits": (hostile.metadata(total_steps=10**400), DAMAGED),
        "a space of 10**9 dimensions": (
            hostile.metadata(
                observation_space='{"type":"Box","dtype":"float64","shape":[1000000000],'
                '"low":[],"high":[]}'
            ),
            REFUSED,
        ),
        "a space with Python in its dtype": (
            hostile.metadata(
                action_space='{"type":"Box","dtype":"__import__(\'os\').getcwd()","shape":[2],'
                '"low":[0,0],"high":[1,1]}'
            ),
            REFUSED,
        ),
        "a policy of 10**18 weights": (_spec(hidden=[10**9, 10**9]), DAMAGED),
        "a policy of 10**9 observations": (_spec(obs_dim=10**9), DAMAGED),
        "a policy of 10**400 observations": (_spec(obs_dim=10**400), DAMAGED),
        "a policy tag of lists without end": (_blob(b"[" + b"[]," * (BOMB // 3) + b"0]"), UNSAFE),
        "a policy tag nested deeply": (_blob(b"[" * 10**6), DAMAGED),
        "a policy tag with NaN": (_blob(b'{"cut":"none","spec":NaN,"version":1}'), DAMAGED),
        "a policy tag that is a pickle": (_blob(pickle.dumps({"version": 1})), DAMAGED),
    },
    "bare": {
        "metadata of lists without end": (_metadata(_bomb("[],")), UNSAFE),
        "metadata of keys without end": (_metadata(_key_bomb), UNSAFE),
        "metadata of nested lists": (_metadata(_bomb("[" * 20 + "]" * 20 + ",")), UNSAFE),
        "metadata of 2 GB of holes": (_sparse(METADATA_FILE, 2**31), UNSAFE),
        "metadata with a key twice": (_metadata(_entry('"total_steps":1')), DAMAGED),
        "metadata with NaN": (_metadata(_entry('"x":NaN')), DAMAGED),
        "metadata nested deeply": (
            _metadata(_entry('"x":' + "[" * 100_000 + "]" * 100_000)),
            DAMAGED,
        ),
        "metadata with a number of 5,000 digits": (_metadata(_entry('"x":' + "1" * 5000)), DAMAGED),
        "metadata that are not UTF-8": (_metadata(_entry('"x":"\udcff"')), DAMAGED),
        "metadata that are a pickle": (_pickled(METADATA_FILE), DAMAGED),
        "a data file that is a pickle": (_pickled(DATA_FILE), DAMAGED),
        "a data file of 4 TiB of holes": (_sparse(DATA_FILE, 2**42), UNSAFE),
    },
    "stale": {
        "a manifest of lists without end": (hostile.raw(MANIFEST_FILE, _bomb("[],")), UNSAFE),
        "a manifest of keys without end": (hostile.raw(MANIFEST_FILE, _key_bomb), UNSAFE),
        "a manifest that names a drive": (_manifest_file("C:\\evil"), UNSAFE),
        "a manifest that names a home": (_manifest_file("~root/.bashrc"), UNSAFE),
        "a manifest that leaves by backslash": (_manifest_file("data\\..\\..\\x"), UNSAFE),
    },
}
"""By the manifest that lies beside them; see :data:`hostile.SEALS`."""

# Only what looks at the environment refuses those; the others must leave it alone.
ENVIRONMENTS: dict[str, Spoil] = {
    "an environment of a module": _env_spec(id="evil_environment:Evil-v0"),
    "an environment with an entry point": _env_spec(),
    "an environment with a path": _env_spec(id="Swimmer-v5", kwargs={"xml_file": "/etc/hostname"}),
    "an environment with objects": _env_spec(id="Swimmer-v5", kwargs={"x": {"a": [1]}}),
}

# Safe, and every digest fits; only what compares the data with themselves refuses those.
LIES: dict[str, Spoil] = {
    "actions that its policies never take": hostile.edit(
        "episode_1/actions", lambda actions: np.negative(actions, out=actions)
    ),
    "statistics of other data": hostile.manifest(
        lambda manifest: manifest["provenance"]["stats"].update(policies=5)
    ),
}


def datasets(good: Good) -> Iterator[Attack]:
    """Yield hostile dataset folders, under ``root/evil`` of the corpus."""
    sent = ("verify", "pack", "push")
    rows: list[tuple[str, Spoil, str, tuple[int, ...], tuple[str, ...] | None]] = [
        *((name, case.spoil, case.seals[0], UNSAFE, None) for name, case in hostile.UNSAFE.items()),
        *(
            (name, spoil, seal, codes, None)
            for seal, cases in MORE_DATASETS.items()
            for name, (spoil, codes) in cases.items()
        ),
        *((name, spoil, "bare", (0, *REFUSED), None) for name, spoil in ENVIRONMENTS.items()),
        *((name, spoil, "resealed", DAMAGED, sent) for name, spoil in LIES.items()),
    ]
    for number, (name, spoil, seal, codes, only) in enumerate(rows):
        folder = good.out / "root" / "evil" / f"d{number}-v0"
        shutil.copytree(good.dataset, folder)
        secret = hostile.outside(good.secret / f"of-{number}")
        if seal == "bare":
            hostile.unseal(folder)
        spoil(folder, secret)
        if seal == "resealed":
            hostile.reseal(folder)
        yield Attack(name, "dataset", str(folder), codes, only)


# -------------------------------------------------------------------------- tensor files


def seal(entry: Mapping[str, Any], parts: str, body: bytes) -> bytes:
    """Return the bytes of a tensor file whose digest fits, whatever else is wrong with it.

    Args:
        entry: The ``pbvf`` entry, without its digest.
        parts: The rest of the header, JSON from a comma on.
        body: What follows the header.
    """
    text = json.dumps({**entry, "sha256": "0" * 64}, sort_keys=True, separators=(",", ":"))
    header = '{"__metadata__":{"pbvf":' + json.dumps(text) + "}" + parts + "}"
    raw = header.encode()
    raw += b" " * (-len(raw) % 8)
    image = len(raw).to_bytes(8, "little") + raw + body
    return image.replace(b"0" * 64, hashlib.sha256(image).hexdigest().encode(), 1)


def _parts(**tensors: Any) -> str:
    return "".join(f",{json.dumps(name)}:{json.dumps(entry)}" for name, entry in tensors.items())


def _tensor(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def foreign(good: Good) -> Iterator[tuple[str, bytes, tuple[int, ...]]]:
    """Yield files that are not tensor files at all, or broken ones, of whatever kind."""
    for protocol in range(6):
        target = good.ran / f"pickle-{protocol}"
        yield f"a pickle of protocol {protocol}", pickle.dumps(Code(target), protocol), UNSAFE
    payload = pickle.dumps(Code(good.ran / "zip"))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", payload)
        file.writestr("archive/version", "3\n")
    yield "a torch archive", archive.getvalue(), UNSAFE
    yield (
        "a torch archive of the old form",
        pickle.dumps(0x1950A86A20F9469CFC6C, 2) + payload,
        UNSAFE,
    )
    yield "a header of 2**63 bytes", (2**63).to_bytes(8, "little") + b"{" + bytes(100), DAMAGED
    yield "a header beyond its end", (1000).to_bytes(8, "little") + b"{}" + bytes(10), DAMAGED
    for name, header, codes in (
        ("lists without end", b'{"x":[' + b"[]," * (BOMB // 3) + b"0]}", UNSAFE),
        ("deep nesting", b'{"x":' + b"[" * 10**6, DAMAGED),
        ("a key twice", b'{"a":1,"a":2}', DAMAGED),
        ("NaN", b'{"a":NaN}', DAMAGED),
        ("a long number", b'{"a":' + b"9" * 5000 + b"}", DAMAGED),
        ("no UTF-8", b'{"\xff":1}', DAMAGED),
        ("an offset of 400 digits", _offsets(10**400), DAMAGED),
        ("a negative offset", _offsets(-8), DAMAGED),
    ):
        yield f"a header of {name}", len(header).to_bytes(8, "little") + header, codes
    yield "nothing", b"", DAMAGED
    yield "an HDF5 file", good.dataset.joinpath(DATA_FILE).read_bytes(), (2, 3)


def _offsets(end: int) -> bytes:
    return json.dumps({"a": _tensor([1], 0, end)}).encode()


def shaped(kind: str, content: Mapping[str, Any], image: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield tensor files of a kind with a fitting digest and impossible tensors."""
    entry = {"kind": kind, "version": 1, "content": content}
    _, tensors = decode(kind, image, "good")
    names = list(tensors)
    for name, parts, size in (
        ("overlapping tensors", {n: _tensor([2], 0, 8) for n in names}, 8),
        ("tensors with holes between", {"a": _tensor([1], 0, 4), "b": _tensor([1], 8, 12)}, 12),
        ("reversed offsets", {n: _tensor([2], 8, 0) for n in names} | {"z": _tensor([2], 0, 8)}, 8),
        ("a tensor of 2**80 values", {n: _tensor([2**40, 2**40], 0, 8) for n in names}, 8),
        ("a shape whose product wraps", {n: _tensor([2**32, 2**32], 0, 0) for n in names}, 0),
        ("an empty tensor of 2**62 rows", {n: _tensor([0, 2**62], 0, 0) for n in names}, 0),
        ("tensors of 40 axes", {n: _tensor([0] * 40, 0, 0) for n in names}, 0),
        ("a negative shape", {n: _tensor([-1, -2], 0, 8) for n in names}, 8),
        ("an unknown type", {n: _tensor([2], 0, 8, "F99") for n in names}, 8),
        ("types that are not used here", {n: _tensor([4], 0, 8, "BF16") for n in names}, 8),
        ("no tensors", {}, 0),
        ("20,000 empty tensors", {f"t{i}": _tensor([0], 0, 0) for i in range(20_000)}, 0),
    ):
        yield name, seal(entry, _parts(**parts), bytes(size))


def contents(
    kind: str, image: bytes
) -> tuple[dict[str, Any], dict[str, Any], Callable[..., bytes]]:
    """Return content and tensors of a good file, and how to write it with changes."""
    content, tensors = decode(kind, image, "good")

    def write(arrays: Mapping[str, Any] | None = None, **changes: Any) -> bytes:
        return encode(kind, content | changes, tensors | dict(arrays or {}))

    return content, tensors, write


def critics(good: Good) -> Iterator[Attack]:
    """Yield hostile critic files."""
    image = good.lqr_critic.read_bytes()
    content, tensors, write = contents("critic", image)
    config, settings = content["config"], content["settings"]
    spec = config["spec"]
    weight = next(name for name in tensors if name.startswith("critic/"))
    files = [(name, data, codes, None) for name, data, codes in foreign(good)]
    files += [(name, data, DAMAGED, None) for name, data in shaped("critic", content, image)]
    giant = config | {"hidden": [10**6, 10**6]}
    wide = config | {"hidden": [10**400]}
    for name, data in {
        "a network of 10**12 weights": write(config=giant, settings=settings),
        "a network of 10**400 units": write(config=wide),
        "a policy of 10**18 weights": write(
            config=config | {"spec": spec | {"hidden": [10**9, 10**9]}}
        ),
        "a policy of 10**12 observations": write(
            config=config | {"spec": spec | {"obs_dim": 10**12}}
        ),
        "a configuration that is a list": write(config=[1, 2]),
        "NaN weights": write({weight: np.full_like(tensors[weight], np.nan)}),
        "infinite observations": write({"observations": tensors["observations"] * np.inf}),
        "a normaliser of zeros": write({"obs_std": np.zeros_like(tensors["obs_std"])}),
        "a negative normaliser": write({"obs_std": -tensors["obs_std"]}),
        "no observations": write({"observations": tensors["observations"][:0]}),
        "a region of NaN": write({"region_factor": np.full_like(tensors["region_factor"], np.nan)}),
        "a quantile of 10**400": write(quantile=10**400),
        "a negative number of updates": write(updates=-1),
        "10**400 updates": write(updates=10**400),
        "a batch of -1": write(settings=settings | {"batch_size": -1}),
        "a gamma of 10**300": write(settings=settings | {"gamma": 10**300}),
        "a discount of 10**300 in its network": write(config=config | {"gamma": 10**300}),
        "no discount in its network": write(config={k: config[k] for k in config if k != "gamma"}),
        "a seed of 10**400": write(settings=settings | {"seed": 10**400}),
        "a reward that is a path": write(settings=settings | {"reward": "/etc/passwd"}),
        "a record of objects": write(record=[[{}, []]]),
        "a network of another file": write(config=config | {"hidden": [5]}),
    }.items():
        files.append((name, data, REFUSED, None))
    for name, data, codes in (
        ("an unknown kind of critic", write(kind="os.system"), (5,)),
        (
            "format version 99",
            seal({"kind": "critic", "version": 99, "content": {}}, "", b""),
            (5,),
        ),
        ("a policies file", good.policies.read_bytes(), (5,)),
    ):
        files.append((name, data, codes, ("synthesize", "evaluate --critic")))
    for name, environment in _environments().items():
        only = ("synthesize --evaluate",) if environment["module"] else None
        only = only or ("verify", "synthesize --evaluate")
        files.append((name, write(environment=environment), UNSAFE, only))
    yield from _files(good, "critic", files)
    yield from _odd_files(good, "critic", image)


def policies(good: Good) -> Iterator[Attack]:
    """Yield hostile policies files."""
    image = good.policies.read_bytes()
    content, tensors, write = contents("policies", image)
    spec = content["spec"]
    files = [(name, data, codes, None) for name, data, codes in foreign(good)]
    files += [(name, data, DAMAGED, None) for name, data in shaped("policies", content, image)]
    theta, std = tensors["theta"], tensors["obs_std"]
    actions = spec["actions"]
    for name, data in {
        "NaN in theta": write({"theta": theta * np.float32("nan")}),
        "infinite theta": write({"theta": theta * np.float32("inf")}),
        "NaN in the standard deviation": write({"obs_std": std * np.nan}),
        "a standard deviation of 0": write({"obs_std": std * 0}),
        "a negative standard deviation": write({"obs_std": -std}),
        "an infinite mean": write({"obs_mean": tensors["obs_mean"] + np.inf}),
        "theta of another length": write({"theta": theta[:, :-1]}),
        "no policies": write({"theta": theta[:0], "obs_mean": std[:0], "obs_std": std[:0]}),
        "normalisers of other policies": write({"obs_std": std[:1]}),
        "a network of 10**18 weights": write(spec=spec | {"hidden": [10**9, 10**9]}),
        "a network of 10**400 units": write(spec=spec | {"hidden": [10**400]}),
        "10**9 layers": write(spec=spec | {"hidden": [1] * 100_000}),
        "10**12 actions": write(
            spec=spec | {"actions": {"type": "discrete", "n": 10**12, "start": 0}}
        ),
        "actions that are text": write(spec=spec | {"actions": "os.system"}),
        "bounds that are swapped": write(
            spec=spec | {"actions": actions | {"low": [1], "high": [-1]}}
        ),
        "a dtype that is code": write(spec=spec | {"actions": actions | {"dtype": "O"}}),
        "a squash that is unknown": write(spec=spec | {"squash": "eval"}),
        "a spec that is a list": write(spec=[1]),
        "an origin that is a list": write(origin=[]),
        "one part more": write(more=1),
    }.items():
        files.append((name, data, REFUSED, None))
    files.append(
        (
            "format version 99",
            seal({"kind": "policies", "version": 99, "content": {}}, "", b""),
            (5,),
            None,
        )
    )
    for name, environment in _environments().items():
        # A module is named for people, and only building the environment would need it.
        only = ("evaluate",) if environment["module"] else ("verify", "evaluate")
        files.append((name, write(environment=environment), UNSAFE, only))
    yield from _files(good, "policies", files)
    yield from _odd_files(good, "policies", image)


def _environments() -> dict[str, dict[str, Any]]:
    def made(name: str, module: str | None = None, **kwargs: Any) -> dict[str, Any]:
        reference = EnvReference("LQR-v0").to_dict()
        return reference | {"id": name, "module": module, "kwargs": kwargs}

    return {
        "an environment of a module": made("Evil-v0", "evil_environment"),
        "an environment whose id has a module": made("evil_environment:Evil-v0"),
        "an environment with a path": made("Swimmer-v5", None, xml_file="/etc/hostname"),
        "an environment with a path by another name": made("Swimmer-v5", None, a="../../x"),
    }


def weights(good: Good) -> Iterator[Attack]:
    """Yield hostile weights of modules."""
    import safetensors.numpy

    # A header of that length is none of a module's.
    files = [(n, d, BAD if "without end" in n else c, None) for n, d, c in foreign(good)]
    for name, arrays in {
        "NaN weights": {"0.weight": np.full((1, 1), np.nan, "f4"), "0.bias": np.zeros(1, "f4")},
        "infinite weights": {
            "0.weight": np.full((1, 1), np.inf, "f4"),
            "0.bias": np.zeros(1, "f4"),
        },
    }.items():
        files.append((name, bytes(safetensors.numpy.save(arrays)), (2, *REFUSED), None))
    for name, parts, size in (
        ("overlapping tensors", {"a": _tensor([2], 0, 8), "b": _tensor([2], 0, 8)}, 8),
        ("a tensor of 2**80 values", {"a": _tensor([2**40, 2**40], 0, 8)}, 8),
        ("an empty tensor of 2**62 rows", {"a": _tensor([0, 2**62], 0, 0)}, 0),
        ("a negative shape", {"a": _tensor([-1, -2], 0, 8)}, 8),
    ):
        header = json.dumps(parts).encode()
        data = len(header).to_bytes(8, "little") + header + bytes(size)
        files.append((name, data, (2, *REFUSED), None))
    yield from _files(good, "weights", files)
    yield from _odd_files(good, "weights", good.weights.read_bytes())


Row = tuple[str, bytes, tuple[int, ...], tuple[str, ...] | None]


def _files(good: Good, kind: str, files: list[Row]) -> Iterator[Attack]:
    folder = good.out / kind
    folder.mkdir(exist_ok=True)
    for number, (name, data, codes, only) in enumerate(files):
        path = folder / f"{number}.safetensors"
        path.write_bytes(data)
        yield Attack(name, kind, str(path), codes, only)


def _odd_files(good: Good, kind: str, image: bytes) -> Iterator[Attack]:
    """Yield what is not a plain file, or a long one of nothing."""
    folder = good.out / kind
    pipe = folder / "pipe.safetensors"
    os.mkfifo(pipe)
    yield Attack("a pipe", kind, str(pipe), (2, 4))
    tail = folder / "tail.safetensors"
    tail.write_bytes(image + bytes(1000))
    yield Attack("bytes after its end", kind, str(tail), (2, 3))
    holes = folder / "holes.safetensors"
    holes.touch()
    os.truncate(holes, 2**40)
    yield Attack("1 TiB of holes", kind, str(holes), UNSAFE)
    long = folder / "long.safetensors"
    size = 4 * 2**30
    header = json.dumps({"a": _tensor([size], 0, size, "U8")}).encode()
    long.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(long, 8 + len(header) + size)
    yield Attack("4 GiB of holes, as its header says", kind, str(long), UNSAFE)


# ------------------------------------------------------------------------------ archives


def _member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> Any:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), kind, link
    return info, data


MEMBERS: dict[str, Any] = {
    "a symbolic link": _member("toy-v0/data/link", kind=tarfile.SYMTYPE, link="/etc/passwd"),
    "a hard link": _member("toy-v0/data/link", kind=tarfile.LNKTYPE, link="/etc/passwd"),
    "a character device": _member("toy-v0/tty", kind=tarfile.CHRTYPE),
    "a block device": _member("toy-v0/sda", kind=tarfile.BLKTYPE),
    "a pipe": _member("toy-v0/pipe", kind=tarfile.FIFOTYPE),
    "a sparse file": _member("toy-v0/README.md", kind=tarfile.GNUTYPE_SPARSE),
    "a long name": _member("toy-v0/x", b"../../../x\0", kind=tarfile.GNUTYPE_LONGNAME),
    "a pax header with a path": _member("x", b"17 path=../../xy\n", kind=tarfile.XHDTYPE),
    "a pax header with a size": _member("x", b"20 size=99999999999\n", kind=tarfile.XHDTYPE),
    "a global pax header": _member("x", b"17 path=../../xy\n", kind=tarfile.XGLTYPE),
    "an absolute name": _member("/tmp/pbvf-evil", b"x"),
    "a name that leads out": _member("toy-v0/../../evil", b"x"),
    "a name that leads out at once": _member("../evil", b"x"),
    "a name with backslashes": _member("toy-v0\\..\\..\\evil", b"x"),
    "a name with escape codes": _member("toy-v0/\x1b[31m", b"x"),
    "a file that nobody listed": _member("toy-v0/evil.py", b"x"),
    "a folder that leads out": _member("toy-v0/../..", kind=tarfile.DIRTYPE),
    "the manifest twice": _member("toy-v0/manifest.json", b"{}"),
}


def archives(good: Good) -> Iterator[Attack]:
    """Yield hostile archives."""
    folder = good.out / "archive"
    folder.mkdir()
    whole = good.archive.read_bytes()
    with tarfile.open(good.archive, "r:") as archive:
        members = [(m, archive.extractfile(m).read()) for m in archive]  # type: ignore[union-attr]
    number = 0

    def put(name: str, data: bytes, codes: tuple[int, ...]) -> Attack:
        nonlocal number
        number += 1
        path = folder / f"{number}.tar"
        path.write_bytes(data)
        return Attack(name, "archive", str(path), codes)

    def rebuilt(found: list[Any]) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:", format=tarfile.USTAR_FORMAT) as archive:
            for info, data in found:
                archive.addfile(info, io.BytesIO(data))
        return out.getvalue()

    for name, member in MEMBERS.items():
        yield put(f"{name} in the middle", rebuilt([*members[:2], member, *members[2:]]), UNSAFE)
        yield put(f"{name} at the end", rebuilt([*members, member]), UNSAFE)
        yield put(f"{name} in front", rebuilt([member, *members]), BAD)
    yield put("bytes after the end", whole + b"x" * 512, BAD)
    yield put("another archive after the end", whole + whole, BAD)
    yield put("its second half missing", whole[: len(whole) // 2], DAMAGED)
    yield put("nothing", b"", DAMAGED)
    yield put("zeros", bytes(10_240), DAMAGED)
    import gzip

    yield put("compressed", gzip.compress(whole), DAMAGED)
    yield put("a pickle", pickle.dumps(Code(good.ran / "tar")), BAD)
    for name, field in (
        ("a size of 8 EiB", b"\x80" + (2**63).to_bytes(11, "big")),
        ("a negative size", b"\xff" * 12),
        ("a size that is no number", b"-0000000010\0"),
    ):
        head = bytearray(whole[:512])
        head[124:136] = field
        head[148:156] = b" " * 8
        head[148:156] = b"%06o\0 " % sum(head)
        yield put(name, bytes(head) + whole[512:], BAD)
    listed = json.loads(members[0][1])
    listed["files"]["../../evil"] = {"size": 1, "sha256": "0" * 64}
    text = json.dumps(listed).encode()
    yield put(
        "a manifest that leads out",
        rebuilt([_member(members[0][0].name, text), *members[1:]]),
        UNSAFE,
    )
    bomb = _bomb("[],")(members[0][1])
    yield put(
        "a manifest without end", rebuilt([_member(members[0][0].name, bomb), *members[1:]]), UNSAFE
    )


# ------------------------------------------------------------------------------- remotes


def remotes(good: Good) -> Iterator[Attack]:
    """Yield hostile folders to pull from."""
    number = 0

    def put(
        name: str, spoil: Spoil, codes: tuple[int, ...], only: tuple[str, ...] | None
    ) -> Attack:
        nonlocal number
        number += 1
        folder = good.out / "remote" / f"r{number}"
        shutil.copytree(good.dataset, folder)
        hostile.outside(good.secret / f"remote-{number}")
        spoil(folder, good.secret / f"remote-{number}")
        return Attack(name, "remote", str(folder), codes, only)

    for name in ("../../evil", "/tmp/pbvf-evil", "data/../../x", "C:\\evil", "~/x", "a\0b"):
        yield put(f"a manifest that names {name!r}", _manifest_file(name), UNSAFE, None)
    yield put("a manifest without end", hostile.raw(MANIFEST_FILE, _bomb("[],")), UNSAFE, None)
    yield put("a manifest that is a pickle", _pickled(MANIFEST_FILE), DAMAGED, None)
    yield put("no manifest", hostile.raw(MANIFEST_FILE, lambda _: b""), DAMAGED, None)

    huge = {"size": 2**60, "sha256": "0" * 64}

    def sized(folder: Path, secret: Path) -> None:
        hostile.rewrite_manifest(
            folder, lambda manifest: manifest["files"].update({DATA_FILE: huge})
        )

    yield put("a data file of an exbibyte", sized, (3, 4, 6), None)
    yield put(
        "other bytes than listed", hostile.raw(DATA_FILE, lambda d: d[:-1] + b"?"), DAMAGED, None
    )
    yield put("metadata other than listed", _metadata(lambda d: d + b" "), DAMAGED, None)
    for name in (
        "external link to an array",
        "unlimited virtual dataset",
        "8 PiB chunked",
        "no observation space",
        "deflate",
        "loop of groups",
    ):
        case = hostile.UNSAFE[name]

        def spoil(folder: Path, secret: Path, case: Any = case) -> None:
            case.spoil(folder, secret)
            hostile.reseal(folder)

        yield put(name, spoil, UNSAFE, None)
    for name in (
        "data file is a symlink",
        "manifest is a symlink",
        "data is a symlink",
        "data file is a pipe",
        "manifest is a pipe",
    ):
        yield put(name, hostile.UNSAFE[name].spoil, (3, 4), ("pull",))


def make_all(out: Path) -> list[Attack]:
    """Write the corpus into an empty folder and return what is in it."""
    out.mkdir(parents=True, exist_ok=True)
    good = Good(out)
    attacks = [
        attack
        for group in (datasets, critics, policies, weights, archives, remotes)
        for attack in group(good)
    ]
    good.ran.mkdir()
    rows = [vars(attack) for attack in attacks]
    (out / "index.json").write_text(json.dumps(rows, indent=1))
    return attacks


if __name__ == "__main__":
    made = make_all(Path(sys.argv[1]).resolve())
    print(f"{len(made)} hostile files and folders")
