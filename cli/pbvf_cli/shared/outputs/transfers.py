"""What the commands that push, pull, pack and unpack have in common: bars, and what they print."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pbvf_cli.shared.options import argument, option
from pbvf_cli.shared.terminal.output import Sink, as_payload, size_text, time_taken
from pbvf_cli.shared.terminal.progress import Bar
from pbvf_cli.shared.values import check_place, output_file
from pbvf_offline.errors import UsageError, printable

if TYPE_CHECKING:
    from pbvf_datasets.share.archive import Inside, Packed
    from pbvf_datasets.share.forms import Progress
    from pbvf_datasets.share.receiving import ReceiveResult
    from pbvf_datasets.share.transfer import Pushed

PublicKey = Annotated[
    Path | None,
    option("--public-key", "Refuse what this key's owner did not sign.", "FILE"),
]
Allow = Annotated[
    list[str] | None,
    option("--allow", "A path, user or host name that may go out; may be repeated.", "TEXT"),
]
ToRemote = Annotated[
    str,
    argument(
        "REMOTE",
        "Its folder there: a path, s3://…, gs://…, hf://datasets/…, or what else fsspec writes to.",
    ),
]
FromRemote = Annotated[
    str,
    argument(
        "REMOTE",
        "Its folder there: a path, https://…, s3://…, gs://…, hf://datasets/…, or what else "
        "fsspec reads.",
    ),
]


def send(
    sink: Sink,
    push: Callable[..., Pushed],
    given: str | list[str],
    remote: str,
    *,
    allow: list[str] | None,
    what: str = "dataset",
    **options: Any,
) -> None:
    """Push something, with bars, and print what became of it.

    Args:
        sink: Where to.
        push: Pushes it, such as :func:`pbvf_datasets.share.transfer.push`.
        given: What to push.
        remote: The address.
        allow: Texts that may go out.
        what: What to call it.
        options: What else the function takes.

    Raises:
        UsageError: The address is of a place that ends with this process, or of one inside a
            dataset, run or bundle.
    """
    from pbvf_datasets.share.remotes.folder import FolderRemote

    if remote.lower().startswith("memory:"):
        raise UsageError(
            "is in the memory of this command, so what is sent would be lost when it ends",
            where=printable(remote),
            remedy="name a folder or a server",
        )
    scheme, separator, _ = remote.partition("://")
    if not separator or scheme.lower() in FolderRemote.schemes:
        check_place(FolderRemote(remote).folder)
    start = time.perf_counter()
    with _bars("sending", sink) as bars:
        pushed = push(given, remote, allow=allow or (), **bars, **options)
    seconds, size = time.perf_counter() - start, sum(pushed.files.values())
    payload = _payload(pushed, what) | {"bytes": size, "seconds": seconds}
    rows = [
        *_named(payload, what, "remote", "digest"),
        ("files", f"{len(pushed.files)}, {size_text(size)}"),
        ("sent", _moved(pushed.sent, already=pushed.already_complete)),
        ("time", "nothing to do" if pushed.already_complete else f"{seconds:.1f} s"),
    ]
    sink.result(payload, rows)


def check_arrival(name: str) -> None:
    """Check where something may arrive that is called so here: a folder, or a dataset by its id.

    Raises:
        UsageError: As of :func:`check_place`.
        ResourceError: The same.
    """
    from pbvf_datasets.format.names import dataset_path

    check_place(Path(name))
    place = None
    with contextlib.suppress(UsageError):  # it is no id
        place = dataset_path(name)
    if place is not None:
        check_place(place)


def check_own_place(inside: Inside, file: Path) -> None:
    """Check where what is in an archive goes by its own name; errors as of :func:`check_place`."""
    check_place(inside.form.place(None, inside.named, file)[1])


def write_archive(
    sink: Sink,
    pack: Callable[..., Packed],
    given: str | list[str],
    file: Path,
    *,
    what: str = "dataset",
    **options: Any,
) -> None:
    """Pack something, with bars, and print what became of it; arguments as of :func:`send`."""
    output_file(file)
    start = time.perf_counter()
    with _bars("packing", sink) as bars:
        packed = pack(given, file, **bars, **options)
    seconds = time.perf_counter() - start
    payload = _payload(packed, what, "size") | {"bytes": packed.size, "seconds": seconds}
    rows = [
        *_named(payload, what, "file", "digest"),
        ("size", _moved(packed.size, already=packed.already_complete)),
        ("time", "nothing to do" if packed.already_complete else f"{seconds:.1f} s"),
    ]
    sink.result(payload, rows)


def fetch(
    sink: Sink, pull: Callable[..., ReceiveResult], remote: str, name: str, **options: Any
) -> None:
    """Pull something, with a bar, and print what became of it."""
    _take(sink, pull, remote, name, ("fetching", "remote", "fetched"), options)


def read_archive(
    sink: Sink, unpack: Callable[..., ReceiveResult], file: Path, name: str | None, **options: Any
) -> None:
    """Unpack something, with a bar, and print what became of it."""
    _take(sink, unpack, file, name, ("unpacking", "file", "read"), options)


def _take(
    sink: Sink,
    take: Callable[..., ReceiveResult],
    source: str | Path,
    name: str | None,
    words: tuple[str, str, str],
    options: dict[str, Any],
) -> None:
    start = time.perf_counter()
    with Bar(words[0], "bytes", sink=sink) as bar:
        received = take(source, name, progress=bar.update, **options)
    _print_received(sink, received, time.perf_counter() - start, *words[1:])


def _payload(result: Pushed | Packed | ReceiveResult, what: str, *left_out: str) -> dict[str, Any]:
    """Return the fields of a result; its name stands under what it is the name of."""
    fields = as_payload(result, *left_out)
    return {what if key == "dataset" else key: value for key, value in fields.items()}


@contextlib.contextmanager
def _bars(what: str, sink: Sink) -> Iterator[dict[str, Progress]]:
    """Yield progress functions of the verification and of the bytes; the second ends the first."""
    with contextlib.ExitStack() as first, Bar(what, "bytes", sink=sink) as bar:
        steps = first.enter_context(Bar("verifying", "steps", sink=sink))

        def move(done: int, total: int) -> None:
            first.close()
            bar.update(done, total)

        yield {"verifying": steps.update, "progress": move}


def _named(payload: dict[str, Any], *names: str) -> list[tuple[str, str]]:
    return [(name, str(payload[name])) for name in names]


def _print_received(
    sink: Sink, received: ReceiveResult, seconds: float, source: str, moved: str
) -> None:
    from pbvf_datasets.format.bundle import bundle_name, is_bundle, parse_bundle
    from pbvf_datasets.format.manifest import read_plain
    from pbvf_datasets.format.schema import MANIFEST_FILE

    what = "bundle" if is_bundle(received.path) else "dataset"
    payload = _payload(received, what, "source", "size", "was_there")
    if what == "bundle":  # by its own name, as push calls it; its folder is the path
        where = received.path / MANIFEST_FILE
        payload[what] = bundle_name(parse_bundle(read_plain(where), where))
    payload |= {
        "already_complete": received.already_complete,
        source: received.source,
        "bytes": received.size,
        "seconds": seconds,
    }
    rows = _named(payload, what, "path", source, "digest")
    if received.signed_by is not None:
        rows.append(("signed by", received.signed_by))
    rate = received.fetched / 1e6 / seconds if received.fetched and seconds > 0 else None
    rows += [
        ("size", size_text(received.size)),
        (moved, _moved(received.fetched, already=received.already_complete)),
        ("time", time_taken(seconds, rate, "MB")),
    ]
    own = _own_id(received.path) if what == "dataset" else None
    if own and own != received.dataset:  # its files stay as they were sent, so that digests fit
        sink.note(
            f"note: its files call it {own}; stock Minari loads it as {received.dataset}, but its "
            "list leaves it out, with a warning"
        )
    sink.result(payload, rows)


def _own_id(folder: Path) -> str | None:
    """Return the id that a dataset gives itself, if it gives one."""
    from pbvf_datasets.format.schema import METADATA_FILE
    from pbvf_offline.io.strict_json import parse_json

    path = folder / METADATA_FILE
    own = parse_json(path.read_bytes(), path).get("dataset_id")
    return own if isinstance(own, str) else None


def _moved(size: int, *, already: bool) -> str:
    return "already complete" if already else size_text(size)
