"""Settings and other records, each declared once.

A record is a frozen dataclass that inherits from :class:`Record`. A field that a user can set
is ``Annotated[type, setting(...)]``, or ``Annotated[type, setting(...)] | None``. Type, range,
help text and the paper's symbol stand in that one place; the check at construction, the JSON
form, the reader of stored JSON, the option of the command line and the row in the table of
settings are made from it.

A field that comes with a later format version says so (``since``) and has a default, which is
what a stored record without the field means: files written before the field existed keep their
meaning. What a new fit or run should use is decided by the presets.

>>> from dataclasses import dataclass
>>> from typing import Annotated
>>> @dataclass(frozen=True)
... class Example(Record):
...     gamma: Annotated[float, setting("Discount factor.", ge=0, le=1, symbol="γ")]
>>> Example(gamma=0.99).to_dict()
{'gamma': 0.99}
>>> Example(gamma=1.5)
Traceback (most recent call last):
...
pbvf_offline.errors.UsageError: --gamma: 1.5 is not a number in [0, 1]
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from pbvf_offline.errors import DamagedError, IncompatibleError, UsageError, printable

if TYPE_CHECKING:
    from pbvf_offline.registry import Registry

_ABOUT, _SINCE = "about", "since"
R = TypeVar("R", bound="Record")


@dataclass(frozen=True)
class About:
    """What people read about a setting.

    Attributes:
        help: One sentence for the option's help.
        symbol: How the paper writes it, if it does.
        paper: Where in the paper it stands, and as what.
        option: The option on the command line, with dashes. A boolean is the pair
            ``--name/--no-name``, or ``--name`` alone where only true can be asked for.
        metavar: What stands for the value in the help.
        default: The default in words, where it depends on the environment or the algorithm.
        panel: The heading of the help under which the option stands.
        blank: What a user writes for None or for an empty tuple, such as ``episode``.
        choices: The registry whose names a value is one of.
        read: Turns what a user writes, and the option's name for messages, into the value, where
            the type does not say how.
        write: Turns the value into what ``read`` takes.
    """

    help: str
    symbol: str | None = None
    paper: str | None = None
    option: str | None = None
    metavar: str | None = None
    default: str | None = None
    panel: str | None = None
    blank: str | None = None
    choices: Registry[Any] | None = None
    read: Callable[[str, str], Any] | None = None
    write: Callable[[Any], str] | None = None


def _typed(kind: Any, text: str) -> Any:
    """Return the value of a type that a text stands for; a number has ASCII digits alone."""
    if kind in (int, float) and ("_" in text or not text.isascii()):
        raise ValueError(text)
    return kind(text)


@dataclass(frozen=True)
class Field:
    """One declared field of a record.

    Attributes:
        name: Its name in the record and in JSON.
        type: Its annotation with the range, as msgspec reads it.
        about: What people read about it; None for a field that is not a setting.
        default: What a stored record without the field means; ``dataclasses.MISSING`` if every
            version has the field.
    """

    name: str
    type: Any
    about: About | None
    default: Any

    @functools.cached_property
    def _unwrapped(self) -> tuple[Any, list[msgspec.Meta], bool]:
        return _unwrapped(self.type)

    @functools.cached_property
    def since(self) -> int:
        """The format version that it came with."""
        return max(((meta.extra or {}).get(_SINCE, 1) for meta in self._unwrapped[1]), default=1)

    @property
    def option(self) -> str:
        """The option on the command line, with dashes; of a pair the first."""
        given = None if self.about is None else self.about.option
        return (given or "--" + self.name.replace("_", "-")).partition("/")[0]

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        text = _expected(self.type)
        blank = None if self.about is None else self.about.blank
        return text if blank is None else f"{text} or {blank}"

    @property
    def base(self) -> Any:
        """The type of a value, without range and without None."""
        return self._unwrapped[0]

    @property
    def is_switch(self) -> bool:
        """Whether its option takes no value."""
        return self.base is bool and (self.about is None or self.about.read is None)

    @property
    def _is_tuple(self) -> bool:
        return get_origin(self.base) is tuple

    def text(self, value: Any) -> str:
        """Return a value as a user writes it on the command line."""
        if value is None or value == ():
            # A tuple that may be None too has the word for its empty value alone.
            blank = None if self.about is None else self.about.blank
            return blank if blank and (value == ()) == self._is_tuple else ""
        if self.about is not None and self.about.write is not None:
            return self.about.write(value)
        if self.base is float and type(value) is int and abs(value) < 2**53:
            value = float(value)
        return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)

    def parse(self, text: str) -> Any:
        """Return the value that a user wrote on the command line.

        Raises:
            UsageError: It has another form or is out of range; the message names the option.
        """
        kind = self.base
        try:
            if self.about is not None and text == self.about.blank:
                value: Any = () if self._is_tuple else None
            elif self.about is not None and self.about.read is not None:
                value = self.about.read(text, self.option)
            elif self._is_tuple:
                entry = _unwrapped(get_args(kind)[0])[0]
                value = tuple(_typed(entry, part.strip()) for part in text.split(","))
            else:
                value = text if get_origin(kind) is Literal else _typed(kind, text)
        except ValueError:
            raise UsageError(f"{text[:40]!r} is not {self.expected}", where=self.option) from None
        self.check(value)
        return value

    def switch(self, value: bool | None) -> list[str]:
        """Return the words that ask for a value of a boolean; none for a flag that is off."""
        declared = None if self.about is None else self.about.option
        yes, _, no = (declared or self.option).partition("/")
        word = "" if value is None else yes if value else no
        return [word] if word else []

    @functools.cached_property
    def _nested(self) -> tuple[Any, bool]:
        """The type inside that reads itself, or None, and whether the value is a tuple of it."""
        many = get_origin(self.base) is tuple and len(get_args(self.base)) == 2
        kind = get_args(self.base)[0] if many else self.base
        return (kind if hasattr(kind, "from_dict") else None), many

    def read(self, value: Any, where: str | os.PathLike[str]) -> Any:
        """Return the value that a JSON form stands for.

        Raises:
            DamagedError: It has another type or is out of range.
            IncompatibleError: It names a member of a registry that is not installed here.
        """
        kind, many = self._nested
        if kind is None:
            try:
                read = msgspec.convert(value, self.type, strict=True)
            except (msgspec.ValidationError, OverflowError) as error:
                what = printable(str(error)[:1].lower() + str(error)[1:])
                raise DamagedError(f"{self.name}: {what}", where=where) from error
            choices = None if self.about is None else self.about.choices
            if choices is not None and read is not None and read not in choices:
                raise IncompatibleError(
                    f"{self.name}: no {choices.kind} {printable(read)!r} is installed here",
                    where=where,
                    remedy="install the package that adds it, or upgrade pbvf-offline",
                )
            return read
        if value is None and self._unwrapped[2]:
            return None
        inside = f"{os.fspath(where)}: {self.name}"
        if not many:
            return kind.from_dict(value, inside)
        if not isinstance(value, list):
            raise DamagedError("a list is expected", where=inside)
        return tuple(kind.from_dict(entry, inside) for entry in value)

    def check(self, value: Any) -> None:
        """Check a value.

        Raises:
            UsageError: It has another type or is out of range; the message names the option.
        """
        if self._nested[0] is not None:
            return  # checked when it was made
        where = self.name if self.about is None else self.option
        finite = not isinstance(value, float) or math.isfinite(value)
        try:
            msgspec.convert(value, self.type, strict=True, from_attributes=True)
        except (msgspec.ValidationError, OverflowError):
            finite = False
        if not finite:
            written = self.about is not None and self.about.write is not None
            shown = (repr(value) if written else self.text(value))[:40] or "nothing"
            raise UsageError(f"{shown} is not {self.expected}", where=where)
        choices = None if self.about is None else self.about.choices
        if choices is not None and value is not None and value not in choices:
            choices.choose(value, where=where)


def _unwrapped(hint: Any) -> tuple[Any, list[msgspec.Meta], bool]:
    """Return an annotation's plain type, what is declared of it, and whether it may be None."""
    declared: list[msgspec.Meta] = []
    optional = False
    while get_origin(hint) in (Annotated, Union, UnionType):
        if get_origin(hint) is Annotated:
            hint, *metas = get_args(hint)
            declared += [meta for meta in metas if isinstance(meta, msgspec.Meta)]
        else:
            optional = optional or NoneType in get_args(hint)
            hint = next(part for part in get_args(hint) if part is not NoneType)
    return hint, declared, optional


def _expected(hint: Any, bounds: Mapping[str, float] | None = None) -> str:
    """Return what an annotation stands for, in words."""
    bounds = bounds or {}
    arguments = get_args(hint)
    origin = get_origin(hint)
    if origin is Annotated:
        for meta in arguments[1:]:
            names = ("ge", "gt", "le", "lt", "min_length", "max_length")
            found = {name: getattr(meta, name, None) for name in names}
            bounds = {**bounds, **{k: v for k, v in found.items() if v is not None}}
        return _expected(arguments[0], bounds)
    if origin in (Union, UnionType):
        return " or ".join(_expected(a, bounds) for a in arguments if a is not NoneType)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin is tuple:
        inner = _expected(arguments[0]).removeprefix("a ")
        return _length(bounds) + inner.replace("number", "numbers", 1)
    plain = {
        int: "a whole number" + _int_range(bounds),
        float: _float_range(bounds),
        bool: "true or false",
        str: "a text",
    }
    return plain.get(hint, getattr(hint, "__name__", str(hint)))


def _length(bounds: Mapping[str, float]) -> str:
    least, most = bounds.get("min_length"), bounds.get("max_length")
    if most is not None:
        return f"{least or 0} to {most} "
    return "" if least is None else f"{least} or more "


def _int_range(bounds: Mapping[str, float]) -> str:
    """Return the range of a whole number, in words."""
    if "ge" not in bounds:
        return ""
    return f" from {bounds['ge']:,}" + (f" to {bounds['le']:,}" if "le" in bounds else "")


def _float_range(bounds: Mapping[str, float]) -> str:
    """Return a number and its range, in words."""
    low = bounds.get("ge", bounds.get("gt"))
    high = bounds.get("le", bounds.get("lt"))
    if low is None:
        return "a finite number"
    if high is None:
        return f"a finite number {'from' if 'ge' in bounds else 'above'} {low:g}"
    left, right = "[" if "ge" in bounds else "(", "]" if "le" in bounds else ")"
    return f"a number in {left}{low:g}, {high:g}{right}"


def setting(
    help: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    symbol: str | None = None,
    paper: str | None = None,
    option: str | None = None,
    metavar: str | None = None,
    default: str | None = None,
    panel: str | None = None,
    blank: str | None = None,
    choices: Registry[Any] | None = None,
    since: int = 1,
    read: Callable[[str, str], Any] | None = None,
    write: Callable[[Any], str] | None = None,
) -> msgspec.Meta:
    """Declare a setting: its range for the check, and what people read about it.

    ``ge``, ``gt``, ``le`` and ``lt`` bound a number, ``min_length`` and ``max_length`` a tuple's
    number of entries. ``since`` is the format version that the field came with, see
    :data:`pbvf_offline.io.formats.FORMAT_VERSION`; such a field has a default. All else is an
    attribute of :class:`About`.
    """
    about = About(help, symbol, paper, option, metavar, default, panel, blank, choices, read, write)
    bounds: dict[str, Any] = {
        "ge": ge,
        "gt": gt,
        "le": le,
        "lt": lt,
        "min_length": min_length,
        "max_length": max_length,
    }
    meta: msgspec.Meta = msgspec.Meta(
        **bounds, description=help, extra={_ABOUT: about, _SINCE: since}
    )
    return meta


def since(version: int) -> msgspec.Meta:
    """Declare with which format version a field came that is no setting; it has a default."""
    return msgspec.Meta(extra={_SINCE: version})


def fields(record: type[Record]) -> tuple[Field, ...]:
    """Return the declared fields of a record, in order."""
    if record not in _FIELDS:
        _FIELDS[record] = tuple(_declared(record))
    return _FIELDS[record]


def _declared(record: type[Record]) -> Iterator[Field]:
    hints = get_type_hints(record, include_extras=True)
    for field in dataclasses.fields(record):
        hint = hints[field.name]
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        found = ((meta.extra or {}).get(_ABOUT) for meta in _unwrapped(hint)[1])
        yield Field(field.name, hint, next((about for about in found if about), None), default)


@dataclass(frozen=True)
class Record:
    """Base of frozen dataclasses that are checked at construction and stored as JSON.

    Raises:
        UsageError: A value has another type or is out of range; the message names the option.
    """

    def __post_init__(self) -> None:
        """Check every field."""
        for field in fields(type(self)):
            field.check(getattr(self, field.name))

    def words(self, *names: str, leave_out: Collection[str] = ()) -> list[str]:
        """Return settings as words of a command line.

        What is None, a flag that is off, and a field of a later format version that has its
        default are left out.

        Args:
            names: The fields, in the order wanted; all settings when there are none.
            leave_out: Fields that are not wanted.
        """
        known = {field.name: field for field in fields(type(self)) if field.about is not None}
        words: list[str] = []
        for name in names or [name for name in known if name not in leave_out]:
            field, value = known[name], getattr(self, name)
            if field.since > 1 and value == field.default:
                continue
            if field.is_switch:
                words += field.switch(value)
            elif text := field.text(value):
                words += [field.option, text]
        return words

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form.

        A field that came with a later format version is left out while it has its default, so
        that files that do not use it keep the bytes they had before.
        """
        return {name: to_json(value) for name, value in self._stored()}

    @property
    def format_version(self) -> int:
        """The lowest format version whose readers know all of :meth:`to_dict`."""
        since = {field.name: field.since for field in fields(type(self))}
        return max(
            (max(since[name], format_version(value)) for name, value in self._stored()), default=1
        )

    def _stored(self) -> Iterator[tuple[str, Any]]:
        for field in fields(type(self)):
            value = getattr(self, field.name)
            if field.since == 1 or value != field.default:
                yield field.name, value

    @classmethod
    def from_dict(cls, data: object, where: str | os.PathLike[str]) -> Self:
        """Read the JSON form; a missing field of a later version takes its recorded default.

        Args:
            data: Parsed JSON, from a file whose format version this program reads.
            where: The file and the entry in it, for messages.

        Raises:
            DamagedError: A value is missing, out of range or of another type, or there is a
                field that no version up to this program's has.
            IncompatibleError: A value names what no package that is installed here has.
        """
        if not isinstance(data, Mapping):
            raise DamagedError("an object is expected", where=where)
        known = fields(cls)
        unknown = sorted(str(name)[:40] for name in set(data) - {field.name for field in known})
        if unknown:
            raise DamagedError(f"field {unknown[0]!r} does not belong there", where=where)
        given: dict[str, Any] = {}
        for field in known:
            if field.name in data:
                given[field.name] = field.read(data[field.name], where)
            elif field.since == 1 or field.default is dataclasses.MISSING:
                raise DamagedError(f"field {field.name!r} is missing", where=where)
        try:
            return cls(**given)
        except UsageError as error:
            name = "" if error.where is None else f"{error.where.lstrip('-')}: "
            raise DamagedError(name + error.what, where=where) from error


def later_defaults(record: type[Record]) -> dict[str, Any]:
    """Return the JSON of what fields mean that :meth:`Record.to_dict` may leave out, by name."""
    return {field.name: to_json(field.default) for field in fields(record) if field.since > 1}


def to_json(value: Any) -> Any:
    """Return the JSON form of a value in which records, tuples and mappings may be nested."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {name: to_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(inner) for inner in value]
    return value


def format_version(value: Any) -> int:
    """Return the lowest format version whose readers know all of a value's JSON form."""
    if hasattr(value, "format_version"):
        version: int = value.format_version
        return version
    if isinstance(value, Mapping):
        return max(map(format_version, value.values()), default=1)
    if isinstance(value, list | tuple):
        return max(map(format_version, value), default=1)
    return 1


@dataclass(frozen=True)
class Defaults(Generic[R]):
    """Settings that nobody chose, and where each value comes from.

    Attributes:
        settings: The settings.
        sources: A field's name to the origin of its value, such as ``paper default for
            Swimmer``; a field that is not named has the origin ``default``.
    """

    settings: R
    sources: Mapping[str, str]

    def source_of(self, name: str) -> str:
        """Return where the value of a field comes from."""
        return self.sources.get(name, "default")


_FIELDS: dict[type[Record], tuple[Field, ...]] = {}
