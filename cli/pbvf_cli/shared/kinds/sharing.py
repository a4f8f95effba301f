"""Bundles, archives and signatures: what one holds."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pbvf_cli.shared.terminal.output import Shown, number, size_text
from pbvf_offline.errors import UsageError, counted

if TYPE_CHECKING:
    from pbvf_cli.shared.kinds import Progress
    from pbvf_datasets.share.archive import Inside

_NO_LICENCE: Final = "none given: others may not use it without asking"
_SIGNED: Final = {True: "yes, by a key that is not checked here", False: "no"}


def show_archive(path: Path) -> Shown:
    """Return what an archive holds, by its small files.

    Raises:
        PbvfError: It is no archive that pack made.
    """
    from pbvf_runs.share.bundles import look_inside

    inside = look_inside(path)
    size = path.stat().st_size
    if inside.form.what == "bundle":
        shown = _of_bundle(path, inside.manifest, inside.sizes, signed=inside.signed)
        return Shown({**shown.payload, "size": size}, shown.rows, shown.table)
    return _of_dataset(path, inside, size)


def show_bundle(path: Path) -> Shown:
    """Return what a bundle holds, by its manifest.

    Raises:
        PbvfError: It is not whole.
    """
    from pbvf_datasets.format.schema import SIGNATURE_FILE
    from pbvf_datasets.inspect.bundle import open_bundle

    manifest = open_bundle(path)
    sizes = {name: entry["size"] for name, entry in manifest["files"].items()}
    signed = (path / SIGNATURE_FILE).is_file()
    return _of_bundle(path, manifest, sizes, signed=signed)


def _of_bundle(
    path: Path, manifest: Mapping[str, Any], sizes: Mapping[str, int], *, signed: bool
) -> Shown:
    from pbvf_datasets.format.bundle import parts_of

    provenance, parts = manifest["provenance"], parts_of(manifest)
    folder = path if path.is_dir() else Path()  # parts of an archive have no place yet
    payload = {
        "path": path,
        "parts": [{"name": part.name, "kind": part.kind} for part in parts],
        "digest": manifest["digest"],
        "license": provenance["license"],
        "authors": provenance["authors"],
        "made_by": provenance["tool"],
        "signed": signed,
        "sizes": sizes,
        "size": sum(sizes.values()),
    }
    rows = [
        ("path", str(path)),
        ("holds", ", ".join(f"{folder / part.name} ({part.kind})" for part in parts)),
        ("digest", manifest["digest"]),
        ("licence", provenance["license"] or _NO_LICENCE),
        ("authors", ", ".join(provenance["authors"]) or "none given"),
        ("made by", provenance["tool"]),
        ("signed", _SIGNED[signed]),
        ("size", f"{size_text(payload['size'])} in {counted(len(sizes), 'file')}"),
    ]
    return Shown(payload, rows)


def _of_dataset(path: Path, inside: Inside, size: int) -> Shown:
    from pbvf_datasets.format.statistics import Ends
    from pbvf_datasets.inspect.describe import environment_name

    provenance = inside.manifest["provenance"]
    stats = provenance["stats"]
    ends = Ends.of(stats)
    named = inside.named if isinstance(inside.named, str) else None
    payload = {
        "path": path,
        "dataset": named,
        "digest": inside.manifest["digest"],
        **{name: stats.get(name) for name in ("episodes", "steps", "policies")},
        "ends": ends.to_dict(),
        "env": environment_name(provenance["environment"]),
        "license": provenance["license"],
        "signed": inside.signed,
        "sizes": inside.sizes,
        "size": size,
    }
    files = ", ".join(f"{name} {size_text(size)}" for name, size in inside.sizes.items())
    rows = [
        ("path", str(path)),
        ("dataset", named or "does not say what it is called"),
        ("digest", payload["digest"]),
        ("episodes", str(ends)),
        *((name, number(payload[name])) for name in ("steps", "policies")),
        ("env", payload["env"] or "not named"),
        ("licence", payload["license"] or _NO_LICENCE),
        ("signed", _SIGNED[inside.signed]),
        ("size", f"{size_text(payload['size'])} ({files})"),
    ]
    return Shown(payload, rows)


def show_signature(path: Path) -> Shown:
    """Return what a signature is of."""
    from pbvf_datasets.format.manifest import read_plain
    from pbvf_datasets.format.schema import MANIFEST_FILE
    from pbvf_datasets.share.forms import form_of
    from pbvf_runs.share.bundles import forms

    manifest = path.parent / MANIFEST_FILE
    data = read_plain(manifest)
    digest = form_of(data, forms(), manifest).parse(data, str(manifest))["digest"]
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
    return f"ask with: pbvf dataset check-signature {shlex.quote(str(path.parent))} --key FILE.pub"
