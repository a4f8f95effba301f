"""Archives and signatures of datasets: what one holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pbvf_cli.shared.terminal.output import Shown, number, size_text
from pbvf_offline.errors import UsageError

if TYPE_CHECKING:
    from pbvf_cli.shared.kinds import Progress


def show_archive(path: Path) -> Shown:
    """Return what the archive of a dataset holds, by its small files.

    Raises:
        PbvfError: It is no archive of a dataset.
    """
    from pbvf_datasets.inspect.describe import environment_name
    from pbvf_datasets.share.archive import look_inside

    inside = look_inside(path)
    provenance = inside.manifest["provenance"]
    stats = provenance["stats"]
    payload = {
        "path": path,
        "dataset": inside.dataset,
        "digest": inside.manifest["digest"],
        **{name: stats.get(name) for name in ("episodes", "steps", "policies")},
        "env": environment_name(provenance["environment"]),
        "license": provenance["license"],
        "signed": inside.signed,
        "sizes": inside.sizes,
        "size": path.stat().st_size,
    }
    files = ", ".join(f"{name} {size_text(size)}" for name, size in inside.sizes.items())
    rows = [
        ("path", str(path)),
        ("dataset", inside.dataset or "does not say what it is called"),
        ("digest", payload["digest"]),
        *((name, number(payload[name])) for name in ("episodes", "steps", "policies")),
        ("env", payload["env"] or "not named"),
        ("licence", payload["license"] or "none given: others may not use it without asking"),
        ("signed", "yes, by a key that is not checked here" if inside.signed else "no"),
        ("size", f"{size_text(payload['size'])} ({files})"),
    ]
    return Shown(payload, rows)


def show_signature(path: Path) -> Shown:
    """Return what a signature is of."""
    from pbvf_datasets.format.manifest import parse_manifest, read_plain
    from pbvf_datasets.format.schema import MANIFEST_FILE

    manifest = path.parent / MANIFEST_FILE
    digest = parse_manifest(read_plain(manifest), manifest)["digest"]
    payload = {"path": path, "dataset": path.parent, "digest": digest}
    rows = [
        ("path", str(path)),
        ("signature of", str(manifest)),
        ("digest", digest),
        ("signed by", f"not known: {_how(path)}"),
    ]
    return Shown(payload, rows)


def verify_signature(path: Path, progress: Progress) -> NoReturn:
    """Say how to check a signature, which takes a key.

    Raises:
        UsageError: Always.
    """
    del progress
    raise UsageError("only a public key tells who signed", where=path, remedy=_how(path))


def _how(path: Path) -> str:
    return f"ask 'pbvf dataset check-signature {path.parent} --key FILE.pub'"
