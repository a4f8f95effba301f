"""Settings and other records, each declared once.

A record is a frozen dataclass that inherits from :class:`Record`. A field that a user can set
is ``Annotated[type, setting(...)]``, or ``Annotated[type, setting(...)] | None``. Type, range,
help text and the paper's symbol stand in that one place; the check at construction, the JSON
form, the reader of stored JSON, the option of the command line and the row in the table of
settings are made from it.

The default of a dataclass field is what a stored record without the field means: files written
before the field existed keep their meaning. What a new fit or run should use is decided by the
presets.

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
import math
from collections.abc import Iterator, Mapping
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

from pbvf_offline.errors import DamagedError, IncompatibleError, UsageError

if TYPE_CHECKING:
    from pbvf_offline.registry import Registry

_ABOUT = "about"
R = TypeVar("R", bound="Record")


@dataclass(frozen=True)
class About:
    """What people read about a setting.

    Attributes:
        help: One sentence for the option's help.
        symbol: How the paper writes it, if it does.
        option: The option on the command line, with dashes. A boolean is the pair
            ``--name/--no-name``, or ``--name`` alone where only true can be asked for.
        metavar: What stands for the value in the help.
        default: The default in words, where it depends on the environment or the algorithm.
        panel: The heading of the help under which the option stands.
        blank: What a user writes for None or for an empty tuple, such as ``episode``.
        choices: The registry whose names a value is one of.
    """

    help: str
    symbol: str | None = None
    option: str | None = None
    metavar: str | None = None
    default: str | None = None
    panel: str | None = None
    blank: str | None = None
    choices: Registry[Any] | None = None


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
        return _base(self.type)

    def text(self, value: Any) -> str:
        """Return a value as a user writes it on the command line."""
        if value is None or value == ():
            return (self.about and self.about.blank) or ""
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
                value: Any = () if get_origin(kind) is tuple else None
            elif get_origin(kind) is tuple:
                entry = _base(get_args(kind)[0])
                value = tuple(entry(part) for part in text.split(","))
            else:
                value = text if get_origin(kind) is Literal else kind(text)
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

    def check(self, value: Any) -> None:
        """Check a value.

        Raises:
            UsageError: It has another type or is out of range; the message names the option.
        """
        where = self.name if self.about is None else self.option
        finite = not isinstance(value, float) or math.isfinite(value)
        try:
            msgspec.convert(value, self.type, strict=True, from_attributes=True)
        except (msgspec.ValidationError, OverflowError):
            finite = False
        if not finite:
            shown = self.text(value)[:40] or "nothing"
            raise UsageError(f"{shown} is not {self.expected}", where=where)
        choices = None if self.about is None else self.about.choices
        if choices is not None and value not in choices:
            choices.choose(value, where=where)


def _base(hint: Any) -> Any:
    """Return an annotation without range and without None."""
    if get_origin(hint) is Annotated:
        return _base(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return _base(next(part for part in get_args(hint) if part is not NoneType))
    return hint


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
    option: str | None = None,
    metavar: str | None = None,
    default: str | None = None,
    panel: str | None = None,
    blank: str | None = None,
    choices: Registry[Any] | None = None,
) -> msgspec.Meta:
    """Declare a setting: its range for the check, and what people read about it.

    Args:
        help: One sentence for the option's help.
        ge: Smallest value.
        gt: The value must be larger.
        le: Largest value.
        lt: The value must be smaller.
        min_length: Least number of entries of a tuple.
        max_length: Greatest number of entries of a tuple.
        symbol: How the paper writes it; this and what follows: see :class:`About`.
        option: The option with dashes, where it is not the field's name.
        metavar: What stands for the value in the help.
        default: The default in words, where it depends on the environment or the algorithm.
        panel: The heading of the help under which the option stands.
        blank: What a user writes for None or for an empty tuple.
        choices: The registry whose names a value is one of.
    """
    about = About(help, symbol, option, metavar, default, panel, blank, choices)
    bounds: dict[str, Any] = {
        "ge": ge,
        "gt": gt,
        "le": le,
        "lt": lt,
        "min_length": min_length,
        "max_length": max_length,
    }
    meta: msgspec.Meta = msgspec.Meta(**bounds, description=help, extra={_ABOUT: about})
    return meta


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
        yield Field(field.name, hint, _about(hint), default)


def _about(hint: Any) -> About | None:
    """Return what is declared of an annotation, also of ``Annotated[…] | None``."""
    if get_origin(hint) is not Annotated:
        choices = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
        return next((found for found in map(_about, choices) if found is not None), None)
    metas = (m for m in get_args(hint)[1:] if isinstance(m, msgspec.Meta) and m.extra)
    return next((m.extra[_ABOUT] for m in metas if m.extra), None)


@dataclass(frozen=True)
class Record:
    """Base of frozen dataclasses that are checked at construction and stored as JSON.

    Raises:
        UsageError: A value has another type or is out of range; the message names the option.
    """

    def __post_init__(self) -> None:
        """Check every field."""
        for field in fields(type(self)):
            value = getattr(self, field.name)
            # Another dataclass checks itself.
            if field.about is not None or not (value is None or dataclasses.is_dataclass(value)):
                field.check(value)

    def words(self, *names: str) -> list[str]:
        """Return settings as words of a command line.

        Args:
            names: The fields, in the order wanted; all settings when there are none. What is
                None, and a flag that is off, is left out.
        """
        known = {field.name: field for field in fields(type(self)) if field.about is not None}
        words: list[str] = []
        for name in names or known:
            field, value = known[name], getattr(self, name)
            if field.base is bool:
                words += field.switch(value)
            elif text := field.text(value):
                words += [field.option, text]
        return words

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, every field written out."""
        data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return data

    @classmethod
    def from_dict(cls, data: object, where: str, *, newer: bool = False) -> Self:
        """Read the JSON form; a missing field takes its recorded default.

        Args:
            data: Parsed JSON.
            where: The file and the entry in it, for messages.
            newer: Whether the file's version is newer than this program's.

        Raises:
            DamagedError: A value is missing, out of range or of another type, or there is a
                field that no version up to the file's own has.
            IncompatibleError: A newer version's file has a field that this program lacks.
        """
        if not isinstance(data, Mapping):
            raise DamagedError("an object is expected", where=where)
        known = {field.name for field in fields(cls)}
        unknown = sorted(str(name)[:40] for name in set(data) - known)
        if unknown and newer:
            raise IncompatibleError(
                f"field {unknown[0]!r} is of a newer version of pbvf-offline",
                where=where,
                remedy="upgrade pbvf-offline",
            )
        if unknown:
            raise DamagedError(f"field {unknown[0]!r} does not belong there", where=where)
        try:
            return msgspec.convert(data, cls, strict=True)
        except UsageError as error:
            raise DamagedError(error.what, where=where) from error
        except msgspec.ValidationError as error:
            raise DamagedError(str(error), where=where) from error


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
