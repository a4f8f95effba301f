"""Whether a file is whole: critics, policies, models, checkpoints of runs, exported policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from pbvf_datasets.inspect.findings import FOUND, Findings, Verification, check_environment
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import (
    DamagedError,
    IncompatibleError,
    ResourceError,
    UsageError,
    printable,
)
from pbvf_offline.exchange.exported import (
    is_exported_graph,
    is_exported_weights,
    read_exported_graph,
    read_exported_weights,
)
from pbvf_offline.io.durable import read_error
from pbvf_offline.io.reading import open_regular
from pbvf_offline.io.strict_json import parse_json
from pbvf_offline.io.tensor_file import known_start, read_header, read_tensor_file

WEIGHTS: Final = "weights"
GRAPH: Final = "onnx"
_ENTRIES: Final = frozenset({"kind", "version", "content", "sha256"})


def verify_file(path: Path) -> Verification:
    """Check a critic, policies or model file, a checkpoint or an exported policy.

    See :func:`verify`. What was exported for other programs holds no digest of its own.

    Raises:
        UsageError: It does not exist, is a file of another sort that has a better place, or is a
            graph and onnx is not installed.
        ResourceError: It cannot be read, or memory is short.
    """
    found = Findings()
    kind, digest = "file", ""
    try:
        kind, digest = _peek(path)
        check = _KINDS.get(kind)
        if check is None:
            raise IncompatibleError(
                f"is a file of kind {printable(kind)[:40]!r}, which this program does not know",
                where=path,
                remedy="upgrade pbvf-offline",
            )
        check(path)
    except FOUND as error:
        found.add(error)
    except MemoryError as error:
        raise ResourceError("there is not enough memory to check it", where=path) from error
    return Verification(
        path=path,
        kind=kind if kind in _KINDS else "file",
        status=found.status(verified=bool(digest)),
        problems=tuple(found.problems),
        digest=(digest or None) if not found.problems else None,
    )


def file_kind(path: Path) -> str:
    """Return the kind that a file gives itself; errors are those of :func:`_peek`."""
    return _peek(path)[0]


def is_tar(start: bytes) -> bool:
    """Return whether a file with these first bytes (512 are enough) is a tar archive."""
    return start[257:262] == b"ustar"


def start_of(path: Path) -> bytes:
    """Return the first bytes of a file, 1,024 at most.

    Raises:
        ResourceError: It cannot be read.
    """
    try:
        with open_regular(path) as file:
            return file.read(1024)
    except OSError as error:
        raise read_error(error, path) from error


def _peek(path: Path) -> tuple[str, str]:
    """Return kind and digest as a file names them, reading only its header; "": no digest.

    Whether they are true is for the decoder to say. The size that the header declares is
    compared with the file's, so that a long file of nothing is not read into memory.

    Raises:
        UnsafeError: It is a pickle or an archive of one.
        DamagedError: It is no tensor file.
        IncompatibleError: It is one of somebody else.
        UsageError: It is a part or an archive of a dataset, or a part of a run.
        ResourceError: It cannot be read.
    """
    try:
        with open_regular(path) as file:
            start = file.read(1024)
            if is_exported_graph(start):
                return GRAPH, ""
            if (known := known_start(start)) is not None:
                raise UsageError(f"is {known[0]}", where=path, remedy=known[1])
            file.seek(0)
            header = read_header(file, path)
    except OSError as error:
        raise read_error(error, path) from error
    metadata = header.get("__metadata__")
    text = metadata.get("pbvf") if isinstance(metadata, dict) else None
    if text is None and is_exported_weights(metadata):
        return WEIGHTS, ""
    if not isinstance(text, str):
        raise IncompatibleError(
            "has no pbvf header entry: it is not a file of this project",
            where=path,
            remedy="'pbvf policies import' takes weights of other programs",
        )
    entry = parse_json(text, path)
    if isinstance(entry, dict) and not _ENTRIES & set(entry):
        raise UsageError(
            "holds episodes, as a part of a run or of a dataset that is being made",
            where=path,
            remedy="give the folder of the run or dataset",
        )
    kind = entry.get("kind") if isinstance(entry, dict) else None
    digest = entry.get("sha256") if isinstance(entry, dict) else None
    if not isinstance(kind, str) or not isinstance(digest, str):
        raise DamagedError("its pbvf header entry is malformed", where=path)
    return kind, digest


def _check_policies(path: Path) -> None:
    from pbvf_offline.synthesis.stored_result import check_policies

    _check_reference(check_policies(path).environment, path)


def _check_critic(path: Path) -> None:
    from pbvf_offline.fit.critic_file import load_critic

    _check_reference(load_critic(path).context.environment, path)


def _check_model(path: Path) -> None:
    from pbvf_offline.models.model_file import load_model

    _check_reference(load_model(path).environment, path)


def _check_reference(environment: EnvReference | None, path: Path) -> None:
    if environment is not None:
        check_environment(environment.to_dict(), f"{path}: environment")


def _check_checkpoint(path: Path) -> None:
    """Check the parts of a checkpoint that can be judged without its run's configuration."""
    from pbvf_offline.online.checkpoint import checkpoint_content

    content, tensors = checkpoint_content(read_tensor_file(path), str(path))
    spec = content.spec
    for name, shape in (
        ("theta", (1, spec.size)),
        ("obs_mean", (spec.obs_dim,)),
        ("obs_std", (spec.obs_dim,)),
    ):
        array = tensors.get(name)
        if array is None or array.shape != shape or not np.isfinite(array).all():
            raise DamagedError(f"{name} is missing, misshapen or not finite", where=path)


_KINDS: Final[Mapping[str, Callable[[Path], object]]] = {
    WEIGHTS: read_exported_weights,
    GRAPH: read_exported_graph,
    "policies": _check_policies,
    "critic": _check_critic,
    "model": _check_model,
    "checkpoint": _check_checkpoint,
}
FILE_KINDS: Final = frozenset(_KINDS)
"""What a file may be, as :func:`verify_file` answers."""
