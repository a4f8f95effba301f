"""``pbvf push``, ``pull``, ``pack`` and ``unpack``: share whatever this project writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pbvf_cli.shared import options
from pbvf_cli.shared.command import command
from pbvf_cli.shared.options import argument, option
from pbvf_cli.shared.outputs import transfers
from pbvf_cli.shared.terminal.output import Sink

Things = Annotated[
    list[str],
    argument(
        "PATH…",
        "A dataset or bundle; or critics, models, policies files and runs: they become a bundle.",
    ),
]
License = Annotated[
    str | None,
    option(
        "--license", "Licence of the bundle, such as CC-BY-4.0.", "ID", callback=options.licence
    ),
]
Authors = Annotated[
    list[str] | None,
    option(
        "--author",
        "An author of the bundle; may be repeated.",
        "NAME",
        callback=options.authors,
    ),
]
Datasets = Annotated[
    list[str] | None,
    option(
        "--dataset",
        "A dataset that something in it was made from, for the card; may be repeated.",
        "DATASET",
    ),
]


@command(
    "pbvf push critic.safetensors policies.safetensors /mnt/share/swimmer --license CC-BY-4.0",
    "pbvf push runs/pendulum s3://bucket/runs/pendulum --license CC-BY-4.0 --author 'A. Nobody'",
    "pbvf push lab/swimmer-v0 hf://datasets/lab/swimmer-v0",
    continues=True,
)
def push(
    paths: Things,
    remote: transfers.ToRemote,
    *,
    license_id: License = None,
    author: Authors = None,
    dataset: Datasets = None,
    allow: transfers.Allow = None,
    overwrite: options.Replace = False,
    sink: Sink,
) -> None:
    """Send anything that this project writes to another place, manifest last.

    A dataset goes as with 'pbvf dataset push'. Everything else goes as a bundle: a folder with the
    files, a card and a manifest. It needs a licence, and its texts must not hold absolute paths,
    user or host names. All of it is verified first. The same command continues.
    """
    from pbvf_runs.share import bundles

    transfers.send(
        sink,
        bundles.push,
        paths,
        remote,
        what=_what(paths),
        license=license_id,
        authors=author or (),
        datasets=dataset or (),
        overwrite=overwrite,
        allow=allow,
    )


@command(
    "pbvf pull https://example.org/swimmer-critic swimmer-critic",
    "pbvf pull s3://bucket/datasets/swimmer-v0 lab/swimmer-v0 --public-key lab.pub",
    continues=True,
)
def pull(
    remote: transfers.FromRemote,
    name: Annotated[str, argument("NAME", "A dataset's id here, or the folder of a bundle.")],
    *,
    public_key: transfers.PublicKey = None,
    overwrite: options.Replace = False,
    sink: Sink,
) -> None:
    """Fetch what was pushed to another place; the same command continues.

    The manifest comes first, and says whether it is a dataset or a bundle. It gets its name when
    every byte matches the manifest and every file was found to be what it says, and safe.
    """
    from pbvf_runs.share import bundles

    transfers.check_arrival(name)
    transfers.fetch(sink, bundles.pull, remote, name, overwrite=overwrite, public_key=public_key)


@command(
    "pbvf pack critic.safetensors critic.tar --license CC-BY-4.0",
    "pbvf pack runs/pendulum pendulum.tar",
)
def pack(
    paths: Things,
    file: Annotated[Path, argument("FILE.tar", "The archive to write.")],
    *,
    license_id: License = None,
    author: Authors = None,
    dataset: Datasets = None,
    overwrite: options.Replace = False,
    sink: Sink,
) -> None:
    """Put anything that this project writes into one tar file; equal input, equal bytes.

    A dataset goes as with 'pbvf dataset pack', everything else as a bundle, which is verified
    first (3, 4, 5).
    """
    from pbvf_runs.share import bundles

    transfers.write_archive(
        sink,
        bundles.pack,
        paths,
        file,
        what=_what(paths),
        license=license_id,
        authors=author or (),
        datasets=dataset or (),
        overwrite=overwrite,
    )


@command("pbvf unpack critic.tar", "pbvf unpack swimmer.tar --out lab/swimmer-v0", continues=True)
def unpack(
    file: Annotated[Path, argument("FILE.tar", "An archive made by pack.")],
    *,
    out: Annotated[
        str | None,
        option(
            "--out",
            "The folder of a bundle, or a dataset's id here; as it calls itself when left out.",
            "DIR|ID",
        ),
    ] = None,
    public_key: transfers.PublicKey = None,
    overwrite: options.Replace = False,
    sink: Sink,
) -> None:
    """Take what is in a tar file made by pack, after a check of every byte."""
    from pbvf_runs.share import bundles

    if out is None:
        transfers.check_own_place(bundles.look_inside(file), file)
    else:
        transfers.check_arrival(out)
    transfers.read_archive(
        sink, bundles.unpack, file, out, overwrite=overwrite, public_key=public_key
    )


def _what(paths: list[str]) -> str:
    """Return what the result is a name of."""
    from pbvf_runs.share.kinds import kind_of

    return "dataset" if len(paths) == 1 and kind_of(paths[0])[0] == "dataset" else "bundle"
