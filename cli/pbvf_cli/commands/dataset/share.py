"""``pbvf dataset push``, ``pull``, ``pack`` and ``unpack``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pbvf_cli.shared import options, values
from pbvf_cli.shared.command import command
from pbvf_cli.shared.options import argument
from pbvf_cli.shared.outputs import transfers
from pbvf_cli.shared.terminal.output import Sink


@command(
    "pbvf dataset push lab/swimmer-v0 /mnt/share/swimmer-v0",
    "pbvf dataset push lab/swimmer-v0 s3://bucket/datasets/swimmer-v0",
    "pbvf dataset push lab/swimmer-v0 hf://datasets/lab/swimmer-v0",
    continues=True,
)
def push(
    dataset: options.Dataset,
    remote: transfers.ToRemote,
    *,
    allow: transfers.Allow = None,
    overwrite: options.Replace = False,
    sink: Sink,
) -> None:
    """Send a dataset to another place, manifest last; the same command continues.

    It needs a licence, and its texts must not hold absolute paths, user or host names. It is
    verified first, as by 'pbvf dataset verify'; a damaged one is not sent (3, 4, 5).
    """
    from pbvf_datasets.share.transfer import push as push_dataset

    transfers.send(sink, push_dataset, dataset, remote, overwrite=overwrite, allow=allow)


@command(
    "pbvf dataset pull https://example.org/data/swimmer-v0 lab/swimmer-v0",
    "pbvf dataset pull s3://bucket/datasets/swimmer-v0 lab/swimmer-v0 --public-key lab.pub",
    continues=True,
)
def pull(
    remote: transfers.FromRemote,
    dataset: Annotated[str, argument("ID", "What to call it here, such as lab/swimmer-v0.")],
    *,
    public_key: transfers.PublicKey = None,
    overwrite: options.Replace = False,
    sink: Sink,
) -> None:
    """Fetch a dataset from another place; the same command continues.

    The manifest comes first. The dataset gets its name when every byte matches the manifest and
    the files were found safe.
    """
    from pbvf_datasets.share.transfer import pull as pull_dataset

    values.check_dataset(dataset)
    transfers.fetch(sink, pull_dataset, remote, dataset, overwrite=overwrite, public_key=public_key)


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

    transfers.write_archive(sink, pack_dataset, dataset, file, overwrite=overwrite)


@command("pbvf dataset unpack swimmer.tar lab/swimmer-v0", continues=True)
def unpack(
    file: Annotated[Path, argument("FILE.tar", "An archive made by pack.")],
    dataset: Annotated[
        str | None, argument("[ID]", "What to call it here; as it calls itself when left out.")
    ] = None,
    *,
    public_key: transfers.PublicKey = None,
    overwrite: options.Replace = False,
    sink: Sink,
) -> None:
    """Take a dataset out of a tar file made by pack, after a check of every byte."""
    from pbvf_datasets.share.archive import look_inside
    from pbvf_datasets.share.archive import unpack as unpack_dataset

    if dataset is None:
        transfers.check_own_place(look_inside(file), file)
    else:
        values.check_dataset(dataset)
    transfers.read_archive(
        sink, unpack_dataset, file, dataset, overwrite=overwrite, public_key=public_key
    )
