"""Untrusted HDF5 files: no object is used before it was checked.

HDF5 links, external storage and virtual datasets read any file of the machine, filters
load plugins, and a file of a kilobyte can declare an array of a petabyte. So the kind
of each link is known before the link is followed, and the layout, filters, type and
size of each array before the array is read. The low-level interface of h5py is used
because the cost of a dataset is per object: 11 arrays an episode, 10,000 episodes.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import DamagedError, UnsafeError, printable

MAX_HDF5_DEPTH: Final = 16

METADATA_CACHE_BYTES: Final = 4 * 2**20

SMALL_CHUNK_BYTES: Final = 16 * 2**20
"""Chunks up to this size are fine however small their array is."""


HDF5_ERRORS: Final = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError)
"""What h5py raises for a file that it cannot make sense of."""

P = ParamSpec("P")
R = TypeVar("R")


def _guarded(
    method: Callable[Concatenate[GuardedFile, P], R],
) -> Callable[Concatenate[GuardedFile, P], R]:
    """Turn any complaint of the HDF5 library into a DamagedError that names the object."""

    def call(self: GuardedFile, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except HDF5_ERRORS as error:
            raise self.damaged(error) from error

    functools.update_wrapper(call, method)
    return call


class GuardedArray:
    """One array of an HDF5 file, checked and not read yet.

    Attributes:
        shape: As declared, and allocated in the file.
        dtype: A number or bool, in native byte order.
    """

    __slots__ = ("_dataset", "_file", "dtype", "place", "shape")

    def __init__(
        self,
        file: GuardedFile,
        dataset: Any,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        place: str,
    ) -> None:
        self._file = file
        self._dataset = dataset
        self.shape = shape
        self.dtype = dtype
        self.place = place

    def read_into(self, out: NDArray[Any]) -> None:
        """Read into a contiguous array of the same shape, converting to its dtype.

        Raises:
            DamagedError: The checksum does not fit or the file is cut off.
        """
        self._file.read(self._dataset, out, self.place)

    def read(self) -> NDArray[Any]:
        """Return the array."""
        out = np.empty(self.shape, self.dtype)
        self.read_into(out)
        return out


class GuardedGroup:
    """One group of an HDF5 file, whose links are all plain ones to other objects."""

    __slots__ = ("_file", "id", "members", "place")

    def __init__(
        self, file: GuardedFile, group: Any, members: dict[bytes, int], place: str
    ) -> None:
        self._file = file
        self.id = group
        self.members = members
        self.place = place

    def group(self, name: bytes) -> GuardedGroup:
        """Return a member that is a group."""
        place = self._at(name)
        self._file.visit(self.members.get(name), place)
        return self._file.open_group(self.id, name, place)

    def array(self, name: bytes) -> GuardedArray:
        """Return a member that is an array."""
        return self._file.open_array(self.id, name, self._at(name))

    def check(self, name: bytes, depth: int = 1, *, read: bool = False) -> None:
        """Check a member whatever it is, and all below it; see :meth:`GuardedFile.walk`."""
        place = self._at(name)
        if self._file.is_group(self.id, name, place):
            if depth >= MAX_HDF5_DEPTH:
                raise UnsafeError(
                    f"groups are nested deeper than {MAX_HDF5_DEPTH}", where=self._file.where(place)
                )
            group = self.group(name)
            for member in group.members:
                group.check(member, depth + 1, read=read)
        else:
            array = self.array(name)
            if read:
                array.read()

    def integer(self, name: bytes) -> int | None:
        """Return an integer attribute, or None when there is none."""
        return self._file.integer(self.id, name, self.place)

    def _at(self, name: bytes) -> str:
        text = _text(name)
        return f"{self.place}/{text}" if self.place else text


@functools.lru_cache(maxsize=1024)
def _text(name: bytes) -> str:
    """Return the name of an object in a form that is safe to print."""
    return printable(name.decode("utf-8", "surrogateescape"))


class GuardedFile:
    """An untrusted HDF5 file: no object is used before it was checked.

    Args:
        path: The file.
        descriptor: An open descriptor of the very file that was checked so far.
        before: Its :func:`identity_of` then.

    Raises:
        DamagedError: It is not an HDF5 file, or somebody wrote to it since.
        UnsafeError: ``path`` is another file by now.
    """

    def __init__(self, path: Path, descriptor: int, before: tuple[int, ...]) -> None:
        import h5py
        from h5py import h5a, h5d, h5g, h5p, h5s, h5t, h5z

        self._h5a, self._h5d, self._h5g, self._h5t = h5a, h5d, h5g, h5t
        self._all = h5s.ALL
        # Deflate is left out although HDF5 brings it along: it inflates a chunk to its end,
        # whatever size was declared, so ten megabytes may ask for ten gigabytes.
        self._filters = (h5z.FILTER_FLETCHER32, h5z.FILTER_SHUFFLE)
        # No chunk cache: each chunk is read once. No folder in which HDF5 may search for files.
        self._access = h5p.create(h5p.DATASET_ACCESS)
        self._access.set_chunk_cache(1, 0, 1.0)
        for set_prefix in (self._access.set_virtual_prefix, self._access.set_efile_prefix):
            set_prefix(b"/dev/null/nowhere")
        self.path = path
        self.place = ""
        self._descriptor = descriptor
        self._before = before
        self.size = os.fstat(descriptor).st_size
        self._stored = 0
        # Each group has one name: otherwise a loop of hard links has no end.
        self._groups: set[int] = set()
        self._dtypes: dict[bytes, np.dtype[Any]] = {}
        self._memory: dict[np.dtype[Any], Any] = {}
        self.check_unchanged()
        try:
            self.file: Any = h5py.File(path, "r", locking=False, rdcc_nslots=1, rdcc_nbytes=0)
        except HDF5_ERRORS as error:
            raise self.damaged(error) from error
        # Each object is read once; the library would keep all of them in memory.
        config = self.file.id.get_mdc_config()
        config.set_initial_size = True
        config.initial_size = config.min_size = config.max_size = METADATA_CACHE_BYTES
        self.file.id.set_mdc_config(config)
        if identity_of(self.file.id.get_vfd_handle()) != self._before:
            self.file.close()
            raise UnsafeError("the file was replaced while it was being opened", where=path)

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def check_unchanged(self) -> None:
        """Check that nobody wrote to the file.

        Raises:
            DamagedError: Somebody did.
        """
        if identity_of(self._descriptor) != self._before:
            raise DamagedError("the file changed while it was being read", where=self.path)

    def where(self, place: str | None = None) -> str:
        """Return file and object for a message."""
        place = self.place if place is None else place
        return f"{self.path}: {place}" if place else str(self.path)

    def begin(self) -> GuardedGroup:
        """Start a pass over the file and return its root."""
        self.forget()
        return self.open_group(self.file.id, b"/", "")

    def walk(self, *, read: bool = False) -> None:
        """Check every object of the file.

        Args:
            read: Also read each array, which checks its checksum.

        Raises:
            UnsafeError: An object could read other files, load code or exhaust the machine.
            DamagedError: An object cannot be read.
        """
        root = self.begin()
        for name in root.members:
            root.check(name, read=read)
        self.forget()

    def forget(self) -> None:
        """Let objects be visited once more: forget what was added up so far."""
        self._stored = 0
        self._groups.clear()

    def damaged(self, error: Exception) -> DamagedError:
        """Return a complaint of the HDF5 library as an error that names the object."""
        return DamagedError(f"HDF5 cannot read it ({printable(str(error))})", where=self.where())

    @_guarded
    def open_group(self, parent: Any, name: bytes, place: str) -> GuardedGroup:
        """Return a group all of whose links were checked; see :class:`GuardedGroup`."""
        self.place = place
        group = self._h5g.open(parent, name)
        members: dict[bytes, int] = {}
        odd: list[tuple[bytes, int]] = []

        def note(member: bytes, info: Any) -> None:
            if info.type == 0 and b"/" not in member and member not in (b"", b"."):
                members[member] = info.u  # a hard link, to an object at this address
            else:
                odd.append((member, info.type))

        group.links.iterate(note, info=True)
        if odd:
            member, kind = odd[0]
            text = _text(member)
            kinds = {
                # HDF5 would take such a name for a path and follow links on its way.
                0: "a link whose name is a path",
                1: "a soft link",
                64: "an external link, which reads another file",
            }
            raise UnsafeError(
                f"this is {kinds.get(kind, 'a user-defined link, which runs a plugin')}",
                where=self.where(f"{place}/{text}" if place else text),
                remedy="datasets hold plain groups and arrays only",
            )
        return GuardedGroup(self, group, members, place)

    def visit(self, address: int | None, place: str) -> None:
        """Note that the group at this address is opened, which may happen once.

        Raises:
            DamagedError: There is no such group.
            UnsafeError: It happened before.
        """
        if address is None:
            raise DamagedError("the group is missing", where=self.where(place))
        if address in self._groups:
            raise UnsafeError(
                "this group is reached twice through hard links, perhaps without end",
                where=self.where(place),
            )
        self._groups.add(address)

    @_guarded
    def open_array(self, parent: Any, name: bytes, place: str) -> GuardedArray:
        """Return an array whose layout, filters, type and size were checked."""
        self.place = place
        dataset = self._h5d.open(parent, name, self._access)
        plist = dataset.get_create_plist()
        layout = self._layout(plist)
        dtype = self._dtype(dataset.get_type())
        shape = dataset.get_space().get_simple_extent_dims()
        if shape is None:
            raise DamagedError("it holds no values", where=self.where())
        if 0 in shape and dtype.itemsize * math.prod(n or 1 for n in shape) >= 2**63:
            raise DamagedError(f"no array can have its shape, {shape}", where=self.where())
        logical = dtype.itemsize * math.prod(shape)
        stored = dataset.get_storage_size()
        self._stored += stored
        if logical > stored:
            raise UnsafeError(
                f"it declares {logical:,} bytes, but the file holds {stored:,} for it",
                where=self.where(),
            )
        if self._stored > self.size:
            raise UnsafeError(
                f"with it the arrays take {self._stored:,} bytes in a file of {self.size:,}",
                where=self.where(),
            )
        if layout == self._h5d.CHUNKED:
            chunk = dtype.itemsize * math.prod(plist.get_chunk())
            if chunk > max(SMALL_CHUNK_BYTES, logical):
                raise UnsafeError(
                    f"it has chunks of {chunk:,} bytes for {logical:,} bytes of values",
                    where=self.where(),
                )
        return GuardedArray(self, dataset, shape, dtype, place)

    def _layout(self, plist: Any) -> int:
        """Return the layout of an array, which reads no other file and needs no plugin.

        Raises:
            UnsafeError: It does.
        """
        layout, h5d = plist.get_layout(), self._h5d
        # Before anything else: asking a virtual dataset for its extent opens its sources.
        if layout == h5d.VIRTUAL:
            raise UnsafeError(
                "this is a virtual dataset, which reads other files", where=self.where()
            )
        if layout == h5d.CONTIGUOUS and plist.get_external_count() != 0:
            raise UnsafeError("its values are stored in an external file", where=self.where())
        for i in range(plist.get_nfilters()):
            code = plist.get_filter(i)[0]
            if code not in self._filters:
                raise UnsafeError(
                    f"it needs the HDF5 filter {code}; filters load plugins or expand "
                    "without limit",
                    where=self.where(),
                    remedy="use no filter but shuffle and fletcher32, for example with "
                    "'h5repack -f NONE'",
                )
        return int(layout)

    def _dtype(self, kind: Any) -> np.dtype[Any]:
        key = kind.encode()
        known = self._dtypes.get(key)
        if known is not None:
            return known
        h5t = self._h5t
        code = kind.get_class()
        if code in (h5t.VLEN, h5t.REFERENCE) or (code == h5t.STRING and kind.is_variable_str()):
            raise UnsafeError(
                "its values are references or of variable length, whose size is unbounded",
                where=self.where(),
                remedy="datasets hold arrays of numbers and booleans only",
            )
        dtype = kind.dtype if code in (h5t.INTEGER, h5t.FLOAT, h5t.ENUM) else None
        if dtype is None or dtype.kind not in "iufb" or (code == h5t.ENUM and dtype.kind != "b"):
            raise DamagedError("its values are neither numbers nor booleans", where=self.where())
        native: np.dtype[Any] = np.dtype(dtype.newbyteorder("="))
        self._dtypes[key] = native
        return native

    @_guarded
    def read(self, dataset: Any, out: NDArray[Any], place: str) -> None:
        """Read an array that was checked into ``out``, converting to its dtype."""
        self.place = place
        dataset.read(self._all, self._all, out, self._memory_type(out.dtype))

    def _memory_type(self, dtype: np.dtype[Any]) -> Any:
        kind = self._memory.get(dtype)
        if kind is None:
            kind = self._memory[dtype] = self._h5t.py_create(dtype)
        return kind

    @_guarded
    def is_group(self, parent: Any, name: bytes, place: str) -> bool:
        """Return whether a member is a group; else it is an array.

        Raises:
            DamagedError: It is neither.
        """
        self.place = place
        kind = self._h5g.get_objinfo(parent, name).type
        if kind not in (self._h5g.GROUP, self._h5g.DATASET):
            raise DamagedError("this is neither a group nor an array", where=self.where())
        return bool(kind == self._h5g.GROUP)

    @_guarded
    def integer(self, group: Any, name: bytes, place: str) -> int | None:
        """Return an integer attribute of a group, or None when there is none."""
        self.place = place
        if not self._h5a.exists(group, name):
            return None
        attribute = self._h5a.open(group, name)
        dtype = self._dtype(attribute.get_type())
        shape = attribute.get_space().get_simple_extent_dims()
        if dtype.kind not in "iu" or shape is None or math.prod(shape) != 1:
            raise DamagedError(f"its attribute {name.decode()} is no integer", where=self.where())
        out = np.empty(shape, dtype)
        attribute.read(out, self._memory_type(dtype))
        return int(out.item())


def identity_of(descriptor: int) -> tuple[int, ...]:
    """Return what changes when an open file is written to."""
    info = os.fstat(descriptor)
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns
