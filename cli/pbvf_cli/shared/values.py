"""How the texts and numbers of options are read and checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbvf_offline.errors import ConflictError, DamagedError, UsageError
from pbvf_offline.setting_types import MOST

if TYPE_CHECKING:
    from pbvf_offline.envs.reference import EnvConfig
    from pbvf_offline.envs.wrappers import Wrapper

_LONGEST_NAME = 200
NO_WRAPPER = "none"
ENV_OPTIONS = ("--env", "--env-kwargs", "--max-episode-steps", "--wrapper")


def count(value: int | None, option: str, *, least: int = 1, most: int | None = MOST) -> int | None:
    """Check that a number of things is in its range, where given.

    Raises:
        UsageError: It is not.
    """
    if value is None or (least <= value and (most is None or value <= most)):
        return value
    wanted = f"at least {least}" if most is None else f"in {least} … {most:,}"
    raise UsageError(f"{value} is not {wanted}", where=option)


def parse_numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    """Read whole numbers from 1 such as ``500,1000``, sorted and each once, where given.

    Raises:
        UsageError: It is something else.
    """
    if text is None:
        return None
    try:
        numbers = {int(part) for part in text.split(",")}
    except ValueError:
        numbers = {0}
    if "_" in text or not text.isascii():  # which Python takes for digits too
        numbers = {0}
    if min(numbers) < 1 or max(numbers) > MOST:
        raise UsageError(
            f"{text!r} is not a list of whole numbers from 1",
            where=option,
            remedy="give numbers such as 500,1000",
        )
    return tuple(sorted(numbers))


def parse_kwargs(text: str | None, option: str = "--env-kwargs") -> dict[str, Any]:
    """Read an option that is a JSON object; it is empty when absent.

    Raises:
        UsageError: It is something else.
    """
    from pbvf_offline.io.strict_json import parse_json

    if text is None:
        return {}
    remedy = """give an object such as '{"a": 1}'"""
    try:
        value = parse_json(text, option)
    except DamagedError as error:
        raise UsageError(error.what, where=option, remedy=remedy) from error
    if not isinstance(value, dict):
        raise UsageError(f"{text!r} is not a JSON object", where=option, remedy=remedy)
    return value


def rows_file(path: Path, option: str) -> list[int]:
    """Read a file that holds a JSON list of whole numbers from 0.

    Raises:
        UsageError: It does not exist, or holds something else.
        UnsafeError: It is too large.
    """
    from pbvf_offline.io.reading import MAX_SMALL, read_file
    from pbvf_offline.io.strict_json import parse_json

    try:
        value = parse_json(read_file(path, MAX_SMALL), path)
    except DamagedError as error:
        raise UsageError(error.what, where=f"{option} {path}") from error
    if not isinstance(value, list) or any(type(row) is not int or row < 0 for row in value):
        raise UsageError(
            "is not a JSON list of whole numbers from 0",
            where=f"{option} {path}",
            remedy="give a list such as [0, 0, 1]",
        )
    return value


def licence(value: str | None, option: str) -> str | None:
    """Check that a licence is a short printable text on one line, where given.

    Raises:
        UsageError: It is not.
    """
    if value is not None and not _is_line(value):
        raise UsageError(
            f"{value[:40]!r} is not the name of a licence",
            where=option,
            remedy="give an identifier such as CC-BY-4.0",
        )
    return value


def authors(names: list[str] | None, option: str) -> list[str] | None:
    """Check that authors are short printable texts on one line each, where given.

    Raises:
        UsageError: One is not.
    """
    for name in names or ():
        if not _is_line(name):
            raise UsageError(
                f"{name[:40]!r} is not a name",
                where=option,
                remedy="give a short printable text on one line",
            )
    return names


def _is_line(text: str) -> bool:
    """Whether a text that goes into a file is short and printable; a surrogate is not."""
    return bool(text.strip()) and text.isprintable() and len(text) <= _LONGEST_NAME


def check_dataset(dataset: str) -> None:
    """Check the id of a dataset to make, and its place.

    Raises:
        UsageError: It is not a dataset id, or its place is inside a dataset, run or bundle.
        ResourceError: A file has the place of a folder above it.
    """
    from pbvf_datasets.format.names import new_dataset_path

    check_place(new_dataset_path(dataset))


def replaces(overwrite: bool, target: Path | None, what: str) -> None:
    """Check that ``--overwrite`` has something to replace.

    Raises:
        UsageError: It is given, and nothing is written.
    """
    if overwrite and target is None:
        raise UsageError(f"replaces {what}, and none is made", where="--overwrite")


def output_file(path: Path, *inputs: Path | str | None) -> Path:
    """Check where a file is to be written that is made of ``inputs``.

    Raises:
        UsageError: It is a folder or a pipe, one of its own inputs, or inside a dataset, run or
            bundle.
        ConflictError: It is a link.
        ResourceError: A file has the place of a folder above it.
    """
    check_place(path)
    if path.exists() and any(given is not None and _same(path, given) for given in inputs):
        raise UsageError(
            "would replace what it is made from, and could not be made again",
            where=path,
            remedy="choose another --out",
        )
    if path.is_dir():
        raise UsageError(
            "is a folder", where=path, remedy="name a file, such as critic.safetensors"
        )
    if path.is_symlink():
        raise ConflictError(
            "this is a link, so it is not replaced",
            where=path,
            remedy="remove it, or name the file that it leads to",
        )
    if path.exists() and not path.is_file():
        raise UsageError("is not a regular file", where=path, remedy="choose another --out")
    return path


def check_place(path: Path) -> None:
    """Check that something may be made at a path, before any work.

    Raises:
        UsageError: It is inside a dataset, run or bundle, or in links that lead in a circle.
        ResourceError: A file has the place of a folder above it.
    """
    from pbvf_offline.io.durable import check_above

    check_above(path)
    for above in reversed(Path(os.path.realpath(path.parent), path.name).parents):
        whole = _whole(above)
        if whole is not None:
            goes_on = whole == "bundle" and _is_run(path)
            raise UsageError(
                f"would lie inside the {whole} {above}, which holds nothing else",
                where=path,
                remedy="copy the run out of the bundle, and go on with the copy"
                if goes_on
                else "choose another place",
            )


def _whole(folder: Path) -> str | None:
    """Return what a folder is, if nothing may be added to it."""
    from pbvf_datasets.format.bundle import is_bundle

    if is_bundle(folder):
        return "bundle"
    if (folder / "data" / "main_data.hdf5").is_file():
        return "dataset"
    return "run" if _is_run(folder) else None


def _is_run(folder: Path) -> bool:
    """Whether a folder is that of a run of ours, and not of somebody's ``config.json``."""
    if not (folder / "config.json").is_file():
        return False

    from pbvf_runs.folder import is_run

    return is_run(folder, surely=True)


def _same(path: Path, other: Path | str) -> bool:
    return Path(other).exists() and path.samefile(other)


def output_folder(path: Path) -> Path:
    """Check where a folder is to be written; returns it by a name that has a folder above it.

    Raises:
        UsageError: It is a file, the root of a file system, or the folder of a dataset or bundle,
            or inside a dataset, run or bundle.
        ResourceError: A file has the place of a folder above it.
    """
    check_place(path)
    whole = _whole(path)
    if whole in ("bundle", "dataset"):
        raise UsageError(f"is the folder of a {whole}", where=path, remedy="name another folder")
    if path.exists() and not path.is_dir():
        raise UsageError("is a file", where=path, remedy="name a folder")
    if path.name not in ("", ".."):
        return path
    full = path.resolve()
    if full.name == "":
        raise UsageError("has no folder above it", where=path, remedy="name another folder")
    return full


@dataclass(frozen=True)
class EnvOptions:
    """The options that say which environment; None where one was not given.

    Attributes:
        name: ``ENV`` or ``--env``.
        kwargs: ``--env-kwargs``.
        max_episode_steps: ``--max-episode-steps``.
        wrappers: ``--wrapper``.
    """

    name: str | None
    kwargs: str | None
    max_episode_steps: int | None
    wrappers: list[str] | None = None

    @property
    def given(self) -> list[str]:
        """The options that were given."""
        return [option for option, value in self._named.items() if value is not None]

    @property
    def _named(self) -> dict[str, Any]:
        values = (self.name, self.kwargs, self.max_episode_steps, self.wrappers)
        return dict(zip(ENV_OPTIONS, values, strict=True))

    @property
    def _wrapper_texts(self) -> list[str]:
        """``--wrapper`` without ``none``, which stands for no wrapper, and alone."""
        texts = self.wrappers or []
        if NO_WRAPPER not in texts:
            return texts
        if len(set(texts)) > 1:
            raise UsageError(f"{NO_WRAPPER} does not go with wrappers", where="--wrapper")
        return []

    def config(self) -> EnvConfig:
        """Return the environment that a user named.

        Raises:
            UsageError: Arguments are no JSON object, or have a render mode; or there is no such
                wrapper.
        """
        from pbvf_offline.envs.reference import EnvConfig

        assert self.name is not None  # the caller's business
        wrapped = tuple(map(_wrapper, self._wrapper_texts))
        kwargs = parse_kwargs(self.kwargs)
        if "render_mode" in kwargs:  # a window where there is no screen ends the process at once
            raise UsageError(
                "render_mode is no argument that decides what an environment does",
                where="--env-kwargs",
                remedy="leave it out; --video of evaluate renders",
            )
        return EnvConfig(self.name, kwargs, self.max_episode_steps, wrapped)


def _wrapper(text: str) -> Wrapper:
    from pbvf_offline.envs.wrappers import OPTION, WRAPPERS, Wrapper

    name, _, arguments = text.partition(":")
    WRAPPERS.choose(name, where=OPTION)
    wrapper = Wrapper(name, parse_kwargs(arguments or None, OPTION))
    if wrapper.unsafe:
        raise UsageError(
            f"{name} takes numbers, true, false, null, short texts and lists of them, and "
            f"{wrapper.unsafe[0]!r} is something else",
            where=OPTION,
        )
    return wrapper
