"""What fsspec reaches: S3, Google Cloud Storage, the Hugging Face Hub and more."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

from pbvf_datasets.share.remote import (
    BrokenError,
    Incoming,
    MissingFileError,
    error_text,
    shown_address,
)
from pbvf_offline.errors import NetworkError, PbvfError, UsageError, exception_text

BLOCK: Final = 8 * 2**20
"""Bytes that are fetched at a time."""

_ATOMIC: Final = frozenset(
    ("s3", "s3a", "gs", "gcs", "hf", "abfs", "abfss", "az", "adl", "oss", "oci", "memory")
)
"""Protocols by which a file is there whole or not at all; others get a rename."""
_EXTRAS: Final = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "hf": "hub"}
_LOGGERS: Final = ("fsspec", "s3fs", "aiobotocore", "gcsfs", "google")


def _quiet_logs() -> None:
    """Keep the log of the packages under fsspec off stderr, where nobody asked for a log.

    Logging prints warnings and tracebacks of loggers without any handler; what is wrong is
    raised as well, and told in one line.
    """
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())


class FsspecRemote:
    """A folder that fsspec reaches.

    Args:
        address: Its address, such as ``s3://bucket/name``.

    Raises:
        UsageError: The protocol is unknown, or needs a package that is not installed.
        NetworkError: It cannot be reached.
    """

    schemes: ClassVar[tuple[str, ...]] = ("fsspec",)

    def __init__(self, address: str) -> None:
        self.shown = shown_address(address)
        self.pauses: tuple[float, ...] = ()  # the packages under fsspec try again themselves
        self._address = address
        match = re.match("[A-Za-z0-9+.-]+", address)
        self.protocol = match[0].lower() if match else ""
        _quiet_logs()
        try:
            import fsspec

            with self._errors(""):
                # No instance of an earlier use: it would remember how things were then.
                fs, root = fsspec.core.url_to_fs(address, skip_instance_cache=True)
        except BrokenError as error:  # some connect when they are made
            raise NetworkError(str(error), where=self.shown) from None
        except ImportError as error:
            extra = _EXTRAS.get(self.protocol)
            hint = f"pip install 'pbvf-offline[{extra}]'" if extra else error_text(error, address)
            raise UsageError(
                f"{self.protocol}:// needs a package that is not installed",
                where=self.shown,
                remedy=hint,
            ) from None
        self._fs: Any = fs
        if hasattr(fs, "max_concurrency"):
            # So many parts of a large file, 50 MB each, would be in memory at a time.
            fs.max_concurrency = min(2, fs.max_concurrency)
        self._root = str(root).rstrip("/")
        self._atomic = self.protocol in _ATOMIC and "::" not in address

    @staticmethod
    def local(folder: Path) -> contextlib.AbstractContextManager[str]:
        """Make a place; see :class:`~pbvf_datasets.share.remote.Remote`."""
        return contextlib.nullcontext(f"memory://{folder}")

    def open(self, name: str, start: int = 0) -> Incoming:
        """Return a file's bytes; see :class:`~pbvf_datasets.share.remote.Remote`."""
        with self._errors(name):
            file = self._fs.open(self._path(name), "rb", block_size=BLOCK)
            size = getattr(file, "size", None)
            if start:
                file.seek(start)
        total = size if isinstance(size, int) else None
        return Incoming(file.read, file.close, start, total, lambda: self._errors(name))

    def size(self, name: str) -> int | None:
        """Return how many bytes a file has, or None; see ``WritableRemote``."""
        try:
            with self._errors(name):
                self._fs.invalidate_cache()
                info = self._fs.info(self._path(name))
        except MissingFileError:
            return None
        if info.get("type") == "directory":
            return None
        size = info.get("size")
        if type(size) is not int:
            raise NetworkError("the remote does not tell how large it is", where=self._at(name))
        return size

    def put(self, name: str, file: Path, told: Callable[[int], None]) -> None:
        """Send a file; see ``WritableRemote``."""
        from fsspec.callbacks import Callback

        target = self._path(name)
        folder, _, last = target.rpartition("/")
        callback = Callback(hooks={"told": lambda _, value, **__: told(value)})
        with self._errors(name, writing=True):
            if self._atomic:
                self._fs.put_file(str(file), target, callback=callback)
            else:
                self._fs.makedirs(folder, exist_ok=True)
                part = f"{folder}/.part-{last}"
                self._fs.put_file(str(file), part, callback=callback)
                self._fs.mv(part, target)

    def remove(self, name: str) -> None:
        """Remove a file, if there is one; see ``WritableRemote``."""
        if self.size(name) is None:
            return
        with self._errors(name, writing=True):
            self._fs.rm_file(self._path(name))
            self._fs.invalidate_cache()

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _at(self, name: str) -> str:
        return f"{self.shown}/{name}" if name else self.shown

    @contextlib.contextmanager
    def _errors(self, name: str, *, writing: bool = False) -> Iterator[None]:
        try:
            yield
        except (PbvfError, MemoryError, ImportError):
            raise
        except FileNotFoundError as error:
            if not writing:
                raise MissingFileError(self._at(name)) from None
            raise NetworkError(
                f"it cannot be written there: {error_text(error, self._address)}",
                where=self._at(name),
            ) from None
        except PermissionError as error:
            raise NetworkError(
                f"the remote refuses: {error_text(error, self._address)}",
                where=self._at(name),
                remedy="check the credentials that its package finds, and what they may do",
            ) from None
        except NotImplementedError:
            raise UsageError(
                f"{self.protocol}:// cannot be written to" if writing else "cannot be read from",
                where=self.shown,
            ) from None
        except Exception as error:
            # Each package under fsspec has errors of its own, with no base in common.
            if not name and isinstance(error, ValueError | TypeError):
                raise UsageError(
                    f"is nothing that fsspec knows ({error_text(error, self._address)})",
                    where=self.shown,
                ) from None
            if "credential" in exception_text(error).lower():
                raise NetworkError(
                    f"no credentials: {error_text(error, self._address)}", where=self._at(name)
                ) from None
            raise BrokenError(error_text(error, self._address)) from None
