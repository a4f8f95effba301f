"""Policies files: K policies of one spec, their normalisers and where they came from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import ConflictError, DamagedError, UsageError
from pbvf_offline.io.durable import write_file
from pbvf_offline.io.output_file import writing
from pbvf_offline.io.tensor_file import Tensors, decode, encode, read_tensor_file
from pbvf_offline.io.work_folder import START_ANEW, refuse_difference
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.records import Record

KIND = "policies"
MAX_BYTES = 2 * 2**30
"""Parameters and normalisers in one file at most; writing takes about three times that."""


@dataclass(frozen=True)
class _Content(Record):
    """What the header of a policies file holds."""

    spec: PolicySpec
    environment: EnvReference | None
    origin: dict[str, Any]


@dataclass(frozen=True)
class PoliciesFile:
    """What a policies file holds.

    Attributes:
        policies: K policies.
        environment: The environment they are for, when known.
        origin: Where they came from: the settings that made them and the digests of what
            they were made from, and what was measured of them.
    """

    policies: Policies
    environment: EnvReference | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the file's bytes."""
        content = _Content(self.policies.spec, self.environment, dict(self.origin))
        tensors: Tensors = {
            "theta": self.policies.theta,
            "obs_mean": self.policies.obs_mean,
            "obs_std": self.policies.obs_std,
        }
        return encode(KIND, content, tensors)

    def save(self, path: Path) -> None:
        """Write the file whole or not at all.

        Raises:
            ResourceError: The disk or a permission refuses.
        """
        write_file(path, self.encode())


def load_policies(path: Path) -> PoliciesFile:
    """Read and check a policies file.

    Raises:
        UsageError: It does not exist.
        UnsafeError: It is a pickle.
        DamagedError: It is damaged or contradicts itself.
        IncompatibleError: It is of another kind or a newer version.
    """
    where = str(path)
    header, tensors = decode(KIND, read_tensor_file(path), where)
    content = _Content.from_dict(header, where)
    names = ("theta", "obs_mean", "obs_std")
    if set(tensors) != set(names):
        raise DamagedError(
            f"holds the tensors {sorted(tensors)}, expected {sorted(names)}", where=where
        )
    try:
        policies = Policies(content.spec, *(tensors[name] for name in names))
    except UsageError as error:
        raise DamagedError(error.what, where=where) from error
    if len(policies) == 0:
        raise DamagedError("holds no policies", where=where)
    return PoliciesFile(policies, content.environment, content.origin)


def policies_to_file(
    file: PoliciesFile, out: Path, *, results: Collection[str] = (), overwrite: bool = False
) -> bool:
    """Write a policies file unless it is there, made from the same.

    Args:
        file: The policies; what they were made from is their origin.
        out: The file.
        results: Keys of the origin that follow from the others, and are not compared.
        overwrite: Replace a policies file of other origin.

    Returns:
        Whether it was written.

    Raises:
        UsageError: The policies take more than :data:`MAX_BYTES`.
        ConflictError: It was made from something else, is no policies file, or is being written.
        ResourceError: The disk or a permission refuses.
    """
    held = file.policies
    size = held.theta.nbytes + held.obs_mean.nbytes + held.obs_std.nbytes
    if size > MAX_BYTES:
        raise UsageError(
            f"{len(held):,} policies take {size:,} bytes, over the limit of {MAX_BYTES:,} for one "
            "file",
            where=out,
            remedy="ask for fewer",
        )
    with writing(out, kind=KIND, overwrite=overwrite) as refusal:
        if not overwrite and out.exists():
            there = load_policies(out).origin
            now = {key: value for key, value in file.origin.items() if key not in results}
            refuse_other_policies(there, now, out)
            return False
        if refusal is not None:
            raise refusal
        file.save(out)
    return True


def refuse_other_policies(
    there: Mapping[str, Any],
    now: Mapping[str, Any],
    out: Path,
    settings: type[Record] | None = None,
) -> None:
    """Refuse to touch a policies file of another origin; keys that only it has are not compared.

    ``settings`` is as of :func:`~pbvf_offline.io.work_folder.refuse_difference`.

    Raises:
        ConflictError: It is one.
    """
    if there.get("made_by") != now.get("made_by"):
        raise ConflictError(
            "it holds other policies than those asked for", where=out, remedy=START_ANEW
        )
    refuse_difference({key: there.get(key) for key in now}, now, out, settings=settings)


def single_policy(path: Path) -> PoliciesFile:
    """Read a policies file that must hold exactly one policy.

    Raises:
        UsageError: It holds several.
    """
    loaded = load_policies(path)
    if len(loaded.policies) != 1:
        raise UsageError(
            f"holds {len(loaded.policies)} policies where one is needed",
            where=path,
            remedy="write the one wanted to a file: pbvf policies export "
            f"{path} --index K --format policies --out FILE",
        )
    return loaded


def concatenate(parts: list[Policies]) -> Policies:
    """Return the rows of several sets of policies of one spec as one set."""
    spec = parts[0].spec
    if any(part.spec != spec for part in parts):
        raise UsageError("policies of different specs cannot be put into one set")
    return Policies(
        spec,
        np.concatenate([p.theta for p in parts]),
        np.concatenate([p.obs_mean for p in parts]),
        np.concatenate([p.obs_std for p in parts]),
    )
