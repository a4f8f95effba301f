"""``pbvf dataset push``, ``pull``, ``pack`` and ``unpack``, and signatures of datasets."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pbvf_cli.shared import options
from pbvf_cli.shared.options import DeviceName
from pbvf_cli.shared.output import Sink, time_taken
from pbvf_cli.shared.progress import Bar
from pbvf_offline.errors import UsageError

if TYPE_CHECKING:
    from pbvf_datasets.share.arrival import Progress
    from pbvf_datasets.share.signing import Signed
    from pbvf_datasets.share.transfer import Arrived

PUSH_EXAMPLES = """Examples:

pbvf dataset push lab/swimmer-v0 /mnt/share/swimmer-v0

pbvf dataset push lab/swimmer-v0 s3://bucket/datasets/swimmer-v0

pbvf dataset push lab/swimmer-v0 hf://datasets/lab/swimmer-v0"""
PULL_EXAMPLES = """Examples:

pbvf dataset pull https://example.org/data/swimmer-v0 lab/swimmer-v0

pbvf dataset pull s3://bucket/datasets/swimmer-v0 lab/swimmer-v0 --public-key lab.pub"""
PACK_EXAMPLE = "Example: pbvf dataset pack lab/swimmer-v0 swimmer.tar"
UNPACK_EXAMPLE = "Example: pbvf dataset unpack swimmer.tar lab/swimmer-v0"
SIGN_EXAMPLES = """Examples:

pbvf dataset keygen lab.key

pbvf dataset sign lab/swimmer-v0 --key lab.key

pbvf dataset check-signature lab/swimmer-v0 --key lab.key.pub"""

Source = Annotated[str, typer.Argument(metavar="DATASET", help="An id or a folder.")]
Replace = Annotated[
    bool, typer.Option("--overwrite", help="Replace what stands at the output, if that differs.")
]
PublicKey = Annotated[
    Path | None,
    typer.Option(
        "--public-key", metavar="FILE", help="Refuse a dataset that this key's owner did not sign."
    ),
]


def register(sub: typer.Typer) -> None:
    """Add the commands to ``pbvf dataset``."""
    sub.command("push", epilog=PUSH_EXAMPLES)(push)
    sub.command("pull", epilog=PULL_EXAMPLES)(pull)
    sub.command("pack", epilog=PACK_EXAMPLE)(pack)
    sub.command("unpack", epilog=UNPACK_EXAMPLE)(unpack)
    sub.command("keygen", epilog=SIGN_EXAMPLES)(keygen)
    sub.command("sign", epilog=SIGN_EXAMPLES)(sign)
    sub.command("check-signature", epilog=SIGN_EXAMPLES)(check_signature)


def push(
    dataset: Source,
    remote: Annotated[
        str,
        typer.Argument(
            metavar="REMOTE",
            help="The dataset's folder there: a path, s3://…, gs://…, hf://datasets/…, or what "
            "else fsspec writes to.",
        ),
    ],
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            metavar="TEXT",
            help="A path, user or host name that may go out; may be repeated.",
        ),
    ] = None,
    overwrite: Replace = False,
    device: options.Device = DeviceName.AUTO,
    json_only: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Send a dataset to another place, manifest last; the same command continues.

    It needs a licence, and its texts must not hold absolute paths, user or host names. It is
    verified first, as by 'pbvf dataset verify'; a damaged one is not sent (3, 4, 5).
    """
    del debug, device
    sink = Sink(json_only=json_only, quiet=quiet)

    from pbvf_datasets.share.transfer import push as push_dataset

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
    seconds = time.perf_counter() - start
    sink.result(
        {
            "dataset": pushed.dataset,
            "remote": pushed.remote,
            "digest": pushed.digest,
            "files": pushed.files,
            "bytes": sum(pushed.files.values()),
            "sent": pushed.sent,
            "already_complete": pushed.already_complete,
            "seconds": seconds,
        },
        [
            ("dataset", pushed.dataset),
            ("remote", pushed.remote),
            ("digest", pushed.digest),
            ("files", f"{len(pushed.files)}, {_size(sum(pushed.files.values()))}"),
            ("sent", _moved(pushed.sent, already=pushed.already_complete)),
            ("time", "nothing to do" if pushed.already_complete else f"{seconds:.1f} s"),
        ],
    )


def pull(
    remote: Annotated[
        str,
        typer.Argument(
            metavar="REMOTE",
            help="The dataset's folder there: a path, https://…, s3://…, gs://…, "
            "hf://datasets/…, or what else fsspec reads.",
        ),
    ],
    dataset: Annotated[
        str, typer.Argument(metavar="ID", help="What to call it here, such as lab/swimmer-v0.")
    ],
    public_key: PublicKey = None,
    overwrite: Replace = False,
    device: options.Device = DeviceName.AUTO,
    json_only: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Fetch a dataset from another place; the same command continues.

    The manifest comes first. Nothing stands under the dataset's name before every byte fits it
    and the files were found safe.
    """
    del debug, device
    sink = Sink(json_only=json_only, quiet=quiet)

    from pbvf_datasets.share.transfer import pull as pull_dataset

    start = time.perf_counter()
    with Bar("fetching", "bytes", sink=sink) as bar:
        arrived = pull_dataset(
            remote, dataset, overwrite=overwrite, public_key=public_key, progress=bar.update
        )
    _print_arrived(sink, arrived, time.perf_counter() - start, "remote", "fetched")


def pack(
    dataset: Source,
    file: Annotated[Path, typer.Argument(metavar="FILE.tar", help="The archive to write.")],
    overwrite: Replace = False,
    device: options.Device = DeviceName.AUTO,
    json_only: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Put a dataset into one tar file, for mail or a USB stick; equal datasets, equal bytes.

    It is verified first, as by 'pbvf dataset verify'; a damaged one is not packed (3, 4, 5).
    """
    del debug, device
    sink = Sink(json_only=json_only, quiet=quiet)

    from pbvf_datasets.share.archive import pack as pack_dataset

    start = time.perf_counter()
    with _bars("packing", sink) as (verifying, packing):
        packed = pack_dataset(
            dataset, file, overwrite=overwrite, verifying=verifying, progress=packing
        )
    seconds = time.perf_counter() - start
    sink.result(
        {
            "dataset": packed.dataset,
            "file": packed.file,
            "digest": packed.digest,
            "bytes": packed.size,
            "already_complete": packed.already_complete,
            "seconds": seconds,
        },
        [
            ("dataset", packed.dataset),
            ("file", str(packed.file)),
            ("digest", packed.digest),
            ("size", _moved(packed.size, already=packed.already_complete)),
            ("time", "nothing to do" if packed.already_complete else f"{seconds:.1f} s"),
        ],
    )


def unpack(
    file: Annotated[Path, typer.Argument(metavar="FILE.tar", help="An archive made by pack.")],
    dataset: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]", help="What to call it here; as it calls itself when left out."
        ),
    ] = None,
    public_key: PublicKey = None,
    overwrite: Replace = False,
    device: options.Device = DeviceName.AUTO,
    json_only: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Take a dataset out of a tar file made by pack, after a check of every byte."""
    del debug, device
    sink = Sink(json_only=json_only, quiet=quiet)

    from pbvf_datasets.share.archive import unpack as unpack_dataset

    start = time.perf_counter()
    with Bar("unpacking", "bytes", sink=sink) as bar:
        arrived = unpack_dataset(
            file, dataset, overwrite=overwrite, public_key=public_key, progress=bar.update
        )
    _print_arrived(sink, arrived, time.perf_counter() - start, "file", "read")


def keygen(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The private key; the public one is FILE.pub.")
    ],
    device: options.Device = DeviceName.AUTO,
    json_only: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Make a pair of Ed25519 keys to sign datasets with; no file is ever overwritten.

    Whoever has the private key can sign in your name: it stays with you, readable by its owner
    alone and without a passphrase. Give the public key to others by a way that they trust.
    """
    del debug, device
    sink = Sink(json_only=json_only, quiet=quiet)

    from pbvf_datasets.share.signing import make_keys

    keys = make_keys(file)
    sink.result(
        {"private_key": keys.private, "public_key": keys.public, "fingerprint": keys.fingerprint},
        [
            ("private key", str(keys.private)),
            ("public key", str(keys.public)),
            ("fingerprint", keys.fingerprint),
        ],
    )


def sign(
    dataset: Source,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="Your private key.")
    ] = None,
    overwrite: Replace = False,
    device: options.Device = DeviceName.AUTO,
    json_only: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Sign a dataset's manifest: put manifest.json.sig beside it."""
    del debug, device
    sink = Sink(json_only=json_only, quiet=quiet)

    from pbvf_datasets.share.signing import sign_dataset

    _print_signed(sink, sign_dataset(dataset, _given(key), overwrite=overwrite), "signed by")


def check_signature(
    dataset: Source,
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="FILE", help="The author's public key, got from the author."),
    ] = None,
    device: options.Device = DeviceName.AUTO,
    json_only: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Check that a dataset is whole and that the owner of a key signed it; 4 when not signed."""
    del debug, device
    sink = Sink(json_only=json_only, quiet=quiet)

    from pbvf_datasets.share.signing import check_signature as check

    _print_signed(sink, check(dataset, _given(key)), "signed by")


@contextlib.contextmanager
def _bars(what: str, sink: Sink) -> Iterator[tuple[Progress, Progress]]:
    """Yield whom to tell of the verification and of the bytes: the second bar ends the first."""
    with contextlib.ExitStack() as first, Bar(what, "bytes", sink=sink) as bar:
        steps = first.enter_context(Bar("verifying", "steps", sink=sink))

        def move(done: int, total: int) -> None:
            first.close()
            bar.update(done, total)

        yield steps.update, move


def _given(key: Path | None) -> Path:
    if key is None:
        raise UsageError("is missing", where="--key", remedy="give the file of the key")
    return key


def _print_signed(sink: Sink, signed: Signed, label: str) -> None:
    payload: dict[str, Any] = {
        "path": signed.path,
        "digest": signed.digest,
        "fingerprint": signed.fingerprint,
        "already_complete": signed.already_complete,
    }
    rows = [("path", str(signed.path)), ("digest", signed.digest), (label, signed.fingerprint)]
    sink.result(payload, rows)


def _print_arrived(sink: Sink, arrived: Arrived, seconds: float, source: str, moved: str) -> None:
    payload: dict[str, Any] = {
        "dataset": arrived.dataset,
        "path": arrived.path,
        source: arrived.source,
        "digest": arrived.digest,
        "bytes": arrived.size,
        "fetched": arrived.fetched,
        "signed_by": arrived.signed_by,
        "already_complete": arrived.already_complete,
        "seconds": seconds,
    }
    rows = [
        ("dataset", arrived.dataset),
        ("path", str(arrived.path)),
        (source, arrived.source),
        ("digest", arrived.digest),
        ("size", _size(arrived.size)),
        (moved, _moved(arrived.fetched, already=arrived.already_complete)),
        ("time", _time(seconds, arrived.fetched)),
    ]
    if arrived.signed_by is not None:
        rows.insert(4, ("signed by", arrived.signed_by))
    own = _own_id(arrived.path)
    if own != arrived.dataset:  # its files stay as they were sent, so that their digests fit
        sink.note(
            f"note: its files call it {own}; stock Minari loads it as {arrived.dataset}, but lists "
            "it only under its own id"
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


def _time(seconds: float, size: int) -> str:
    return time_taken(seconds, size / 1e6 / seconds if size and seconds > 0 else None, "MB")


def _size(size: int) -> str:
    return f"{size:,} bytes" if size < 10**6 else f"{size / 1e6:,.1f} MB"
