"""Outputs that are put together beside their place and appear there by one rename.

Every command that writes keeps one rule: an output that is complete with the same settings is
left as it is; a partial one is continued; one with other settings is a conflict; and
``--overwrite`` starts over, while the old output stays until the new one is whole. This module
says what "the same settings" means, which files may be replaced, and how a finished folder takes
its name. Who writes one file needs no work folder: :mod:`pbvf_offline.io.durable` renames it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Final

from pbvf_offline.errors import (
    ConflictError,
    PbvfError,
    ResourceError,
    UnsafeError,
    printable,
    shorten,
)
from pbvf_offline.io.durable import (
    exchange,
    make_folders,
    megabytes,
    path_exists,
    read_error,
    remove_tree,
    sync_folder,
    temporary_for,
)
from pbvf_offline.io.lock import OutputLock, lock_path
from pbvf_offline.io.strict_json import canonical_json
from pbvf_offline.records import Record, later_defaults

PLAN_FILE: Final = "plan.json"
_MOST_NAMED: Final = 5  # differences
_LONGEST: Final = 40  # characters of a value
START_ANEW: Final = "choose another --out, or start over with --overwrite"

# ----------------------------------------------------------------------------- settings


def same_settings(there: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether two outputs are made from the same; see :func:`refuse_difference`."""
    return not any(_differences(there, now, {}))


def refuse_difference(
    there: Mapping[str, Any],
    now: Mapping[str, Any],
    where: Path,
    remedy: str = START_ANEW,
    settings: type[Record] | None = None,
) -> None:
    """Refuse to touch an output that was made with other settings.

    Args:
        there: What the output was made from, as JSON. What is inside an entry ``settings`` is
            named without it. A missing entry counts as null.
        now: The same for what is asked for.
        where: The output.
        remedy: What to do.
        settings: The record of the settings, whose defaults stand for those left out.

    Raises:
        ConflictError: They differ; the first differences are named with both values.
    """
    texts = list(_differences(there, now, {} if settings is None else later_defaults(settings)))
    if texts:
        more = len(texts) - _MOST_NAMED
        shown = [*texts[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])]
        raise ConflictError(
            f"it exists with other settings: {'; '.join(shown)}", where=where, remedy=remedy
        )


def _differences(
    there: Mapping[str, Any], now: Mapping[str, Any], left_out: Mapping[str, Any]
) -> Iterator[str]:
    stored, wanted = _labels(there), _labels(now)
    for label in dict.fromkeys([*stored, *wanted]):
        if stored.get(label) != wanted.get(label):
            values = (_shown({**left_out, **labels}, label) for labels in (stored, wanted))
            # As the option is called: only names of this project have an underscore there.
            name, dot, inner = label.partition(".")
            name = name.replace("_", "-")
            yield "{} is {} there and {} here".format(f"{name}{dot}{inner}", *values)


def _shown(labels: Mapping[str, Any], label: str) -> str:
    if label not in labels:
        return "absent"
    if labels[label] is None:
        return "not given"
    return shorten(printable(canonical_json(labels[label]).decode("ascii")), _LONGEST)


def _labels(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by dotted name; settings come first, under their own names."""
    labels: dict[str, Any] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                walk(f"{prefix}.{key}" if prefix else str(key), inner)
        elif prefix:
            labels[prefix] = value

    plain = json.loads(canonical_json(dict(settings)))
    walk("", plain.pop("settings", {}))
    walk("", plain)
    return labels


# -------------------------------------------------------------------------------- guard


@dataclass(frozen=True)
class Layout:
    """What the folder of an output holds, so that it may be replaced.

    Attributes:
        names: Its files, relative to the folder.
        marks: Those of which at least one is there if this is such an output: a folder with a
            ``README.md`` alone is its user's.
    """

    names: tuple[str, ...]
    marks: tuple[str, ...]

    def foreign(self, folder: Path) -> Path | None:
        """Return a file or folder that is not of such an output, or None.

        Raises:
            OSError: The folder cannot be read.
        """
        marked = any(path_exists(folder / name) for name in self.marks)
        for entry, is_own in self._entries(folder):
            if not is_own or not (marked or entry.is_dir()):
                return entry
        return None

    def unlisted(self, folder: Path) -> list[str]:
        """Return the names of files and folders there that are not of such an output.

        Raises:
            OSError: The folder cannot be read.
        """
        there = self._entries(folder)
        return sorted(entry.relative_to(folder).as_posix() for entry, is_own in there if not is_own)

    def _entries(self, folder: Path) -> Iterator[tuple[Path, bool]]:
        above = {f"{parent}/" for name in self.names for parent in Path(name).parents}
        return entries(folder, re.compile("|".join(map(re.escape, {*self.names, *above}))))


def entries(folder: Path, own: re.Pattern[str]) -> Iterator[tuple[Path, bool]]:
    """Yield what is in a folder, and whether it belongs to the output; inner entries first.

    ``own`` matches the paths of the output's files, relative to the folder; folders end in ``/``.
    Those that do not belong to it are not entered. Temporary files belong to the file that they
    were to become.
    """

    def walk(inside: Path, prefix: str) -> Iterator[tuple[Path, bool]]:
        for path in sorted(inside.iterdir()):
            if stat.S_ISDIR(path.lstat().st_mode):
                is_own = own.fullmatch(f"{prefix}{path.name}/") is not None
                if is_own:
                    yield from walk(path, f"{prefix}{path.name}/")
            else:
                name = temporary_for(path.name) or path.name
                is_own = own.fullmatch(prefix + name) is not None
            yield path, is_own

    yield from walk(folder, "")


def refuse_foreign(path: Path, layout: Layout) -> None:
    """Refuse to replace a folder that holds files which are not of such an output, if any is there.

    Raises:
        ConflictError: It is no folder, or holds such a file, which is named.
        ResourceError: It cannot be read.
    """
    if not path_exists(path):
        return
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise ConflictError(
                "this is a file or a link, so it is not replaced",
                where=path,
                remedy="move it away, or choose another name",
            )
        foreign = layout.foreign(path)
    except OSError as error:
        raise read_error(error, path) from error
    if foreign is not None:
        raise ConflictError(
            f"it holds {printable(str(foreign.relative_to(path)))!r}, which this program did not "
            "write and which would be lost, so the folder is not replaced",
            where=path,
            remedy="move that away, or choose another name",
        )


def refuse_fixed(path: Path) -> None:
    """Refuse to replace or delete a folder from which nothing may be removed, if any is there.

    A rename may be permitted all the same, and the old output would then stay beside the new one.

    Raises:
        ResourceError: It is one, or holds one.
    """
    for folder, _, _ in os.walk(path):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ResourceError(
                "permission denied: nothing may be removed from this folder",
                where=folder,
                remedy=f"allow it with: chmod -R u+w {quote(str(path))}",
            )


# ------------------------------------------------------------------------------- folder


class WorkFolder:
    """A hidden folder beside an output folder, where the output is put together.

    Work is done in ``.NAME.SUFFIX``; its entry ``build`` becomes the output. Where another
    output is replaced, that one is ``.NAME.replaced`` between two renames, and whoever opens
    the work folder next completes or undoes a replacement that was killed there.

    Args:
        path: The output.
        suffix: What the work is called.
        layout: What such an output holds, so that it may be replaced.
        check: Raises a PbvfError or an OSError if ``build`` is not whole.

    Attributes:
        path: The output.
        folder: The work folder.
        build: The output as it will be.
        plan: A file that says what is made there, where the folder's own content does not.
    """

    def __init__(
        self,
        path: Path,
        suffix: str,
        *,
        layout: Layout,
        check: Callable[[Path], object],
    ) -> None:
        self.path = path
        self.folder = path.with_name(f".{path.name}.{suffix}")
        self.build = self.folder / "build"
        self.plan = self.folder / PLAN_FILE
        self._aside = path.with_name(f".{path.name}.replaced")
        self._layout = layout
        self._check = check
        self._lock: OutputLock | None = None

    @property
    def held(self) -> bool:
        """Whether this object may write there."""
        return self._lock is not None

    @property
    def replacing(self) -> bool:
        """Whether a replacement was killed between its first rename and its end."""
        return path_exists(self._aside)

    def hold(self) -> None:
        """Lock the output, make the folder, and settle what a kill left of a replacement.

        Raises:
            ConflictError: Another process writes this output.
            UnsafeError: The folder is a link. Where others may write too, somebody could have put
                it there: what is in the folder is removed when it does not belong there.
            ResourceError: What was replaced may not be removed.
            OSError: The disk or a permission refuses.
        """
        make_folders(self.path.parent)
        self._lock = OutputLock(self.path)
        try:
            if self.folder.is_symlink():
                raise UnsafeError(
                    "this is a symbolic link, and work is done in a folder of this name",
                    where=self.folder,
                    remedy="remove the link",
                )
            self._recover()
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir()
        except BaseException:
            self.close()
            raise

    def _recover(self) -> None:
        # Version 0.1 kept what a transfer replaced inside the work folder.
        for aside in (self._aside, self.folder / "replaced"):
            if not path_exists(aside):
                continue
            if not path_exists(self.path):
                try:
                    self._check(self.build)
                except (PbvfError, OSError):
                    aside.rename(self.path)
                    sync_folder(self.path.parent)
                    continue
                self.build.rename(self.path)
                sync_folder(self.path.parent)
                self.clear()  # it is done: nothing in there is to be continued
            try:
                remove_tree(aside)
            except PermissionError as error:
                raise ResourceError(
                    "it was replaced, and permissions keep it from being removed",
                    where=aside,
                    remedy="remove it with: chmod -R u+w {0} && rm -r {0}".format(
                        quote(str(aside))
                    ),
                ) from error

    def require_space(self, needed: int, *, spare: int = 0) -> None:
        """Check that the disk has room for so many bytes, and so many more to spare.

        Raises:
            ResourceError: It has not.
        """
        free = shutil.disk_usage(self.folder).free
        if free < needed + spare:
            more = f" ({megabytes(spare)} of them to spare)" if spare else ""
            raise ResourceError(
                f"about {megabytes(needed + spare)} are needed{more}, "
                f"{megabytes(needed + spare - free)} more than are free",
                where=self.path.parent,
                remedy="free space or choose another disk",
            )

    def refuse_foreign(self) -> None:
        """Refuse to replace what is at the output's path.

        See :func:`refuse_foreign` and :func:`refuse_fixed`.
        """
        refuse_foreign(self.path, self._layout)
        refuse_fixed(self.path)

    def publish(self, *, replace: bool) -> None:
        """Give ``build`` the output's name by one rename; remove the rest, and let others in.

        With ``replace`` it replaces what has that name, which stays until then.

        Raises:
            ConflictError: Something has that name and is not to be replaced, or it holds files
                that are not of such an output.
            ResourceError: Nothing may be removed from what is to be replaced.
            OSError: The disk or a permission refuses.
        """
        if replace and path_exists(self.path):
            self.refuse_foreign()
            remove_tree(self._aside)
            self.path.rename(self._aside)
            sync_folder(self.path.parent)
        try:
            self.build.rename(self.path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise ConflictError(
                "something else took this name meanwhile",
                where=self.path,
                remedy="move it away and run the same command again",
            ) from error
        sync_folder(self.path.parent)
        # The output has its name; what cannot be removed now is removed the next time.
        try:
            with contextlib.suppress(OSError):
                remove_tree(self._aside)
                self.remove()
        finally:
            self.close()

    def swap(self) -> None:
        """Have ``build`` and the output change places in one step; remove the rest, let others in.

        Where the system cannot, the output is replaced by two renames, as :meth:`publish` does.

        Raises:
            ConflictError: The output holds files that are not of such an output.
            ResourceError: Nothing may be removed from it.
            OSError: The disk or a permission refuses.
        """
        self.refuse_foreign()
        if not exchange(self.build, self.path):
            self.publish(replace=True)
            return
        sync_folder(self.path.parent)
        try:
            with contextlib.suppress(OSError):
                self.remove()
        finally:
            self.close()

    def remove_leftovers(self) -> None:
        """Remove what a kill left beside a finished output; another process may prevent it."""
        if any(map(path_exists, (self.folder, self._aside, lock_path(self.path)))):
            with contextlib.suppress(PbvfError, OSError):
                self.hold()
                self.remove()
            self.close()

    def clear(self) -> None:
        """Remove all that is in the folder, the plan first: the rest is then no work to continue.

        Raises:
            OSError: The disk or a permission refuses.
        """
        self.plan.unlink(missing_ok=True)
        for entry in sorted(self.folder.iterdir()):
            remove_tree(entry)

    def remove(self) -> None:
        """Remove the folder.

        Raises:
            OSError: The disk or a permission refuses.
        """
        self.clear()
        self.folder.rmdir()

    def close(self) -> None:
        """Let others in; what is in the folder stays for the next call."""
        lock, self._lock = self._lock, None
        if lock is not None:
            try:
                with contextlib.suppress(OSError):
                    self.folder.rmdir()  # if it is empty
            finally:
                lock.release()
