"""``pbvf dataset push``, ``pull``, ``pack`` and ``unpack``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pbvf_cli.shared import options
from pbvf_cli.shared.command import command
from pbvf_cli.shared.options import argument, option
from pbvf_cli.shared.terminal.output import Sink, as_payload, time_taken
from pbvf_cli.shared.terminal.progress import Bar
from pbvf_offline.errors import UsageError, printable

if TYPE_CHECKING:
    from pbvf_datasets.share.receiving import Progress, ReceiveResult

PublicKey = Annotated[
    Path | None,
    option("--public-key", "Refuse a dataset that this key's owner did not sign.", "FILE"),
]


@command(
    "pbvf dataset push lab/swimmer-v0 /mnt/share/swimmer-v0",
    "pbvf dataset push lab/swimmer-v0 s3://bucket/datasets/swimmer-v0",
    "pbvf dataset push lab/swimmer-v0 hf://datasets/lab/swimmer-v0",
    continues=True,
)
def push(
    dataset: options.Dataset,
    remote: Annotated[
        str,
        argument(
            "REMOTE",
            "The dataset's folder there: a path, s3://…, gs://…, hf://datasets/…, or what "
            "else fsspec writes to.",
        ),
    ],
    *,
    allow: Annotated[
        list[str] | None,
        option("--allow", "A path, user or host name that may go out; may be repeated.", "TEXT"),
    ] = None,
    overwrite: options.Replace = False,
    sink: Sink,
) -> None:
    """Send a dataset to another place, manifest last; the same command continues.

    It needs a licence, and its texts must not hold absolute paths, user or host names. It is
    verified first, as by 'pbvf dataset verify'; a damaged one is not sent (3, 4, 5).
    """
    from pbvf_datasets.share.transfer import push as push_dataset

    if remote.lower().startswith("memory:"):
        raise UsageError(
            "is the memory of this command, which ends with it",
            where=printable(remote),
            remedy="name a place that stays",
        )
    start = time.perf_counter()
    with _bars("sending", sink) as (verifying, sending):
        pushed = push_dataset(
            dataset,
            remote,
            overwrite=overwrite,
            allow=allow or (),
            verifying=verifying,
            progress=sending,
        )
    seconds, size = time.perf_counter() - start, sum(pushed.files.values())
    payload = as_payload(pushed) | {"bytes": size, "seconds": seconds}
    rows = [
        *_named(payload, "dataset", "remote", "digest"),
        ("files", f"{len(pushed.files)}, {_size(size)}"),
        ("sent", _moved(pushed.sent, already=pushed.already_complete)),
        ("time", "nothing to do" if pushed.already_complete else f"{seconds:.1f} s"),
    ]
    sink.result(payload, rows)


@command(
    "pbvf dataset pull https://example.org/data/swimmer-v0 lab/swimmer-v0",
    "pbvf dataset pull s3://bucket/datasets/swimmer-v0 lab/swimmer-v0 --public-key lab.pub",
    continues=True,
)
def pull(
    remote: Annotated[
        str,
        argument(
            "REMOTE",
            "The dataset's folder there: a path, https://…, s3://…, gs://…, "
            "hf://datasets/…, or what else fsspec reads.",
        ),
    ],
    dataset: Annotated[str, argument("ID", "What to call it here, such as lab/swimmer-v0.")],
    *,
    public_key: PublicKey = None,
    overwrite: options.Replace = False,
    sink: Sink,
) -> None:
    """Fetch a dataset from another place; the same command continues.

    The manifest comes first. The dataset gets its name when every byte matches the manifest and
    the files were found safe.
    """
    from pbvf_datasets.share.transfer import pull as pull_dataset

    start = time.perf_counter()
    with Bar("fetching", "bytes", sink=sink) as bar:
        received = pull_dataset(
            remote, dataset, overwrite=overwrite, public_key=public_key, progress=bar.update
        )
    _print_received(sink, received, time.perf_counter() - start, "remote", "fetched")


@command("pbvf dataset pack lab/swimmer-v0 swimmer.tar")
def pack(
    dataset: options.Dataset,
    file: Annotated[Path, argument("FILE.tar", "The archive to write.")],
    *,
    overwrite: options.Replace = False,
    sink: Sink,
) -> None:
    """Put a dataset into one tar file, for mail or a USB stick; equal datasets, equal bytes.

    It is verified first, as by 'pbvf dataset verify'; a damaged one is not packed (3, 4, 5).
    """
    from pbvf_datasets.share.archive import pack as pack_dataset

    start = time.perf_counter()
    with _bars("packing", sink) as (verifying, packing):
        packed = pack_dataset(
            dataset, file, overwrite=overwrite, verifying=verifying, progress=packing
        )
    seconds = time.perf_counter() - start
    payload = as_payload(packed, "size") | {"bytes": packed.size, "seconds": seconds}
    rows = [
        *_named(payload, "dataset", "file", "digest"),
        ("size", _moved(packed.size, already=packed.already_complete)),
        ("time", "nothing to do" if packed.already_complete else f"{seconds:.1f} s"),
    ]
    sink.result(payload, rows)


@command("pbvf dataset unpack swimmer.tar lab/swimmer-v0", continues=True)
def unpack(
    file: Annotated[Path, argument("FILE.tar", "An archive made by pack.")],
    dataset: Annotated[
        str | None, argument("[ID]", "What to call it here; as it calls itself when left out.")
    ] = None,
    *,
    public_key: PublicKey = None,
    overwrite: options.Replace = False,
    sink: Sink,
) -> None:
    """Take a dataset out of a tar file made by pack, after a check of every byte."""
    from pbvf_datasets.share.archive import unpack as unpack_dataset

    start = time.perf_counter()
    with Bar("unpacking", "bytes", sink=sink) as bar:
        received = unpack_dataset(
            file, dataset, overwrite=overwrite, public_key=public_key, progress=bar.update
        )
    _print_received(sink, received, time.perf_counter() - start, "file", "read")


@contextlib.contextmanager
def _bars(what: str, sink: Sink) -> Iterator[tuple[Progress, Progress]]:
    """Yield progress functions of the verification and of the bytes; the second ends the first."""
    with contextlib.ExitStack() as first, Bar(what, "bytes", sink=sink) as bar:
        steps = first.enter_context(Bar("verifying", "steps", sink=sink))

        def move(done: int, total: int) -> None:
            first.close()
            bar.update(done, total)

        yield steps.update, move


def _named(payload: dict[str, Any], *names: str) -> list[tuple[str, str]]:
    return [(name, str(payload[name])) for name in names]


def _print_received(
    sink: Sink, received: ReceiveResult, seconds: float, source: str, moved: str
) -> None:
    payload = as_payload(received, "source", "size", "was_there") | {
        "already_complete": received.already_complete,
        source: received.source,
        "bytes": received.size,
        "seconds": seconds,
    }
    rows = _named(payload, "dataset", "path", source, "digest")
    if received.signed_by is not None:
        rows.append(("signed by", received.signed_by))
    rate = received.fetched / 1e6 / seconds if received.fetched and seconds > 0 else None
    rows += [
        ("size", _size(received.size)),
        (moved, _moved(received.fetched, already=received.already_complete)),
        ("time", time_taken(seconds, rate, "MB")),
    ]
    own = _own_id(received.path)
    if own != received.dataset:  # its files stay as they were sent, so that their digests fit
        sink.note(
            f"note: its files call it {own}; stock Minari loads it as {received.dataset}, but its "
            "list leaves it out, with a warning"
        )
    sink.result(payload, rows)


def _own_id(folder: Path) -> str:
    """Return the id that a dataset gives itself."""
    from pbvf_datasets.format.schema import METADATA_FILE
    from pbvf_offline.io.strict_json import parse_json

    path = folder / METADATA_FILE
    own: str = parse_json(path.read_bytes(), path)["dataset_id"]
    return own


def _moved(size: int, *, already: bool) -> str:
    return "already complete" if already else _size(size)


def _size(size: int) -> str:
    return f"{size:,} bytes" if size < 10**6 else f"{size / 1e6:,.1f} MB"
