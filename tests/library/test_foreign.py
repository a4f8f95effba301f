"""Failures of other people's code: whose they are, and where they happened."""

from __future__ import annotations

import errno
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pbvf_offline.errors import ResourceError, UsageError
from pbvf_offline.foreign import SEE_TRACEBACK, failure, place_of, raised_by_author


def imported(path: Path, text: str) -> ModuleType:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def caught(run: object, *args: object) -> Exception:
    try:
        run(*args)  # type: ignore[operator]
    except Exception as error:
        first = error.__traceback__  # this frame, which nobody would ask for
        return error.with_traceback(None if first is None else first.tb_next)
    raise AssertionError("nothing was raised")


AUTHORS = """\
import json

def mine(run):
    run()

def parse():
    mine(lambda: json.loads("{"))

def wrap():
    try:
        parse()
    except ValueError as error:
        raise RuntimeError("worse") from error
"""


def test_the_place_is_the_authors_innermost_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = imported(tmp_path / "lab_env.py", AUTHORS)
    error = caught(module.parse)  # raised deep inside json
    assert place_of(error) == f"{tmp_path}/lab_env.py:7 (in <lambda>)"
    assert not raised_by_author(error)
    monkeypatch.chdir(tmp_path)
    assert place_of(error) == "lab_env.py:7 (in <lambda>)"
    error = caught(module.wrap)
    assert place_of(error) == "lab_env.py:13 (in wrap)"
    assert raised_by_author(error)


def test_of_installed_code_the_package_that_was_called_first_counts(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    deep = imported(folder / "deep" / "core.py", "def fail():\n    raise KeyError(1)\n")
    near = "def helper(run):\n    run()\n\ndef step(run):\n    helper(run)\n"
    near_module = imported(folder / "near" / "env.py", near)
    error = caught(near_module.step, deep.fail)
    assert place_of(error) == f"{folder}/near/env.py:2 (in helper)"
    outer = imported(tmp_path / "mine.py", "def run(f, g):\n    f(g)\n")
    error = caught(outer.run, near_module.step, deep.fail)
    assert place_of(error) == f"{tmp_path}/mine.py:2 (in run)"


def test_an_exception_that_hides_the_first_one_is_looked_through(tmp_path: Path) -> None:
    module = imported(tmp_path / "lab_env.py", AUTHORS)
    hidden = ValueError("in other words")
    hidden.__cause__ = caught(module.parse)
    assert place_of(hidden) == f"{tmp_path}/lab_env.py:7 (in <lambda>)"


def test_nobodys_frames_have_no_place() -> None:
    assert place_of(ValueError("never raised")) is None
    assert place_of(caught(json.loads, "{")) is None  # Python's own library alone


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    error = caught(imported, tmp_path / "typo.py", "a = 1\ndef f(:\n")
    assert place_of(error) == f"{tmp_path}/typo.py:2"


def raised_from(cause: Exception) -> Exception:
    """Return an exception as a wrapper raises it from another one."""
    error = ValueError("wrapped")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (KeyError("k"), UsageError, "mend it; --debug"),
        (OSError(errno.ENOENT, "no such file"), UsageError, "mend it; --debug"),
        (MemoryError(), ResourceError, "make room; --debug"),
        (RuntimeError("CUDA out of memory"), ResourceError, "make room; --debug"),
        (raised_from(MemoryError()), ResourceError, "make room; --debug"),
        (OSError(errno.ENOSPC, "no space"), ResourceError, "make room; --debug"),
    ],
)
def test_what_the_machine_refuses_is_nobodys_mistake(
    error: Exception, kind: type[Exception], words: str
) -> None:
    found = failure(error, "it raised", where="Mine-v0", remedy="mend it")
    assert type(found) is kind
    assert str(found) == f"Mine-v0: it raised; {words.partition(';')[0]}; {SEE_TRACEBACK}"


def test_a_working_folder_that_is_gone_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = imported(tmp_path / "lab_env.py", AUTHORS)
    error = caught(module.parse)

    def gone() -> Path:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "cwd", gone)
    assert place_of(error) == f"{tmp_path}/lab_env.py:7 (in <lambda>)"
    assert "lab_env" not in sys.modules
