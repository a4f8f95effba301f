"""``pbvf dataset keygen``, ``sign`` and ``check-signature``: signatures of datasets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pbvf_cli.shared import options, values
from pbvf_cli.shared.command import command
from pbvf_cli.shared.options import argument, option
from pbvf_cli.shared.terminal.output import Sink, as_payload

if TYPE_CHECKING:
    from pbvf_datasets.share.signing import Signed

_EXAMPLES = (
    "pbvf dataset keygen lab.key",
    "pbvf dataset sign lab/swimmer-v0 --key lab.key",
    "pbvf dataset check-signature lab/swimmer-v0 --key lab.key.pub",
)


@command(*_EXAMPLES)
def keygen(
    file: Annotated[Path, argument("FILE", "The private key; the public one is FILE.pub.")],
    *,
    sink: Sink,
) -> None:
    """Make a pair of Ed25519 keys to sign datasets with; no file is ever overwritten.

    Whoever has the private key can sign in your name: it stays with you, readable by its owner
    alone and without a passphrase. Give the public key to others by a way that they trust.
    """
    from pbvf_datasets.share.signing import make_keys

    values.output_file(file)
    keys = make_keys(file)
    payload = {
        "private_key": keys.private,
        "public_key": keys.public,
        "fingerprint": keys.fingerprint,
    }
    sink.result(payload, [(name.replace("_", " "), str(value)) for name, value in payload.items()])


@command(*_EXAMPLES)
def sign(
    dataset: options.Dataset,
    *,
    key: Annotated[Path, option("--key", "Your private key.", "FILE")],
    overwrite: options.Replace = False,
    sink: Sink,
) -> None:
    """Sign a dataset's manifest: put manifest.json.sig beside it."""
    from pbvf_datasets.share.signing import sign_dataset

    _print(sink, sign_dataset(dataset, key, overwrite=overwrite))


@command(*_EXAMPLES)
def check_signature(
    dataset: options.Dataset,
    *,
    key: Annotated[Path, option("--key", "The author's public key, got from the author.", "FILE")],
    sink: Sink,
) -> None:
    """Check that a dataset is whole and that the owner of a key signed it; 4 when not signed."""
    from pbvf_datasets.share.signing import check_signature as check

    _print(sink, check(dataset, key))


def _print(sink: Sink, signed: Signed) -> None:
    rows = [
        ("path", str(signed.path)),
        ("digest", signed.digest),
        ("signed by", signed.fingerprint),
    ]
    sink.result(as_payload(signed), rows)
