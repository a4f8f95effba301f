"""The error boundary: exit codes, one line, signals, warnings."""

from __future__ import annotations

import ast
import errno
import re
import signal
import sys
import warnings
from collections.abc import Iterator

import pytest
import torch
import typer

from cli_tools import SOURCES, pbvf
from faults import unreadable
from pbvf_cli.app import COMMANDS
from pbvf_cli.shared import errors
from pbvf_cli.shared.errors import Signals, Stopped, guarded, text_and_code
from pbvf_cli.shared.terminal.output import one_line
from pbvf_offline import errors as library


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (library.DamagedError("is cut", where="f", remedy="do this"), 3, "f: is cut; do this"),
        (MemoryError(), 6, "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 6, "memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to"), 6, "the device has not enough"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), 6, "memory"),
        (OSError(errno.ENOSPC, "No space", "/x/y"), 6, "/x/y: no space left"),
        (OSError(errno.EROFS, "Read-only", "/x/y"), 6, "/x/y"),
        (OSError(errno.EROFS, "Read-only", 7), 6, "read-only"),  # the number of an open file
        (PermissionError(errno.EACCES, "Permission", "/x/y"), 6, "permission denied"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 6, "memory"),
        (FileNotFoundError(errno.ENOENT, "No such file", "/x/y"), 1, "bug"),
        (KeyError("surprise"), 1, "bug in pbvf: KeyError"),
        (RuntimeError("surprise"), 1, "bug in pbvf: RuntimeError: surprise"),
        (Stopped(signal.SIGINT), 130, "interrupted"),
        (Stopped(signal.SIGTERM), 143, "terminated"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (typer.Abort(), 130, "interrupted"),
        (typer.BadParameter("no"), 2, "no"),
    ],
)
def test_other_errors_have_a_code(error, code, words):
    text, given = text_and_code(error)
    assert given == code
    assert text is not None
    assert words in text


def test_system_exit_says_nothing_and_keeps_its_code():
    assert text_and_code(SystemExit(3)) == (None, 3)
    assert text_and_code(SystemExit("text")) == (None, 1)


def test_a_signal_that_compiled_code_takes_for_a_failure_is_a_signal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run() -> int:
        try:
            raise Stopped(signal.SIGTERM)
        except Stopped as stopped:
            raise SystemError("returned a result with an exception set") from stopped

    assert guarded(run, []) == 143
    assert "bug" not in capsys.readouterr().err


def test_a_reader_of_the_help_that_left_is_no_failure():
    error = SystemExit(1)
    error.__context__ = BrokenPipeError()
    assert text_and_code(error) == (None, 0)


def test_bug_shows_a_traceback_and_exits_1(capsys):
    def run() -> None:
        raise ZeroDivisionError("oops")

    assert guarded(run, []) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1] == "error: this is a bug in pbvf: ZeroDivisionError: oops"


@pytest.mark.parametrize("debug", [False, True])
def test_users_errors_show_a_traceback_only_with_debug(capsys, debug):
    def run() -> None:
        raise library.DamagedError("is cut", where="a")

    assert guarded(run, ["--debug"] if debug else []) == 3
    err = capsys.readouterr().err
    assert err.splitlines()[-1] == "error: a: is cut; copy it or make it again"
    assert ("Traceback" in err) == debug


def test_control_characters_of_a_file_do_not_reach_the_terminal(capsys):
    def run() -> None:
        raise library.DamagedError("name \x1b[2J\nis\r bad", where="f")

    guarded(run, [])
    assert capsys.readouterr().err == "error: f: name \\x1b[2J is bad; copy it or make it again\n"
    assert one_line("a\u202eb") == "a\\u202eb"


def test_warnings_are_single_lines(capsys):
    def run() -> None:
        for _ in range(2):  # said once
            warnings.warn("first\nsecond", UserWarning, stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert guarded(run, []) == 0
    assert capsys.readouterr().err == "warning: first second\n"


def test_handlers_and_hooks_are_put_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), sys.unraisablehook
    show = warnings.showwarning
    seen = []
    guarded(lambda: seen.append(signal.getsignal(signal.SIGTERM)), [])
    after = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), sys.unraisablehook
    assert after == before
    assert warnings.showwarning is show
    assert seen[0] not in before


@pytest.mark.parametrize("continues", [True, False])
@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGHUP, 129, "hung up"),
    ],
)
def test_signals_unwind_through_finally(capsys, number, code, word, continues):
    saved = []

    def run() -> None:
        errors.signals.continues = continues
        try:
            signal.raise_signal(number)
            raise AssertionError("not stopped")
        finally:
            saved.append(True)

    assert guarded(run, []) == code
    assert saved == [True]
    how = "what was finished is safe, the same command continues"
    assert capsys.readouterr().err == (
        f"{word}; {how if continues else 'the same command starts over'}\n"
    )


def test_a_hangup_that_is_ignored_stays_ignored(capsys):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert guarded(lambda: signal.raise_signal(signal.SIGHUP), []) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert capsys.readouterr().err == ""


def test_held_signal_stops_at_the_next_check():
    reached = []

    def work() -> None:
        with Signals() as signals, signals.held():
            signal.raise_signal(signal.SIGTERM)
            reached.append("after the signal")
            signals.check()
            reached.append("after the check")

    with pytest.raises(Stopped) as stopped:
        work()
    assert stopped.value.exit_code == 143
    assert reached == ["after the signal"]


def test_held_signal_stops_at_the_end_at_the_latest():
    with Signals() as signals, pytest.raises(Stopped), signals.held():
        signal.raise_signal(signal.SIGINT)


def test_second_signal_stops_at_once_but_an_echo_of_the_first_does_not(monkeypatch):
    reached = []

    def work() -> None:
        with Signals() as signals, signals.held():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)  # a wrapper forwards it at once
            reached.append("echo")
            monkeypatch.setattr(errors, "_REPEAT_SECONDS", 0.0)
            signal.raise_signal(signal.SIGINT)
            reached.append("second")

    with pytest.raises(Stopped):
        work()
    assert reached == ["echo"]


COLLECT = ("collect", "X", "--dataset", "lab/x-v0")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["nonsense"], ["No such command 'nonsense'", "pbvf --help"]),
        (["colect"], ["Did you mean 'collect'"]),
        (["dataset", "shw"], ["No such command 'shw'"]),
        (["collect", "X", "--foo"], ["--foo", "pbvf collect --help"]),
        (["collect"], ["ENV"]),
        (["collect", "X"], ["--dataset"]),
        ([*COLLECT, "--steps", "0"], ["--steps", "1"]),
        ([*COLLECT, "--steps", "many"], ["--steps"]),
        ([*COLLECT, "--sigma", "wide"], ["--sigma"]),
        (["collect", "X", "--workers", "0"], ["--workers"]),
        (["fit-critic", "X", "--critic", "qvf", "--out", "c"], ["--critic", "pssvf"]),
        (["fit-critic", "X", "--critic", "psvf"], ["--out"]),
        (["evaluate", "X", "--device", "tpu"], ["--device", "cuda"]),
        (["train-online", "X", "--run", "r"], ["--critic"]),
        (["train-online", "X", "--critic", "psvf"], ["--run"]),
        (["policies", "import", "X", "--out", "p"], ["--env"]),
        (["policies", "import", "X", "--env", "E"], ["--out"]),
        (["policies", "export", "X"], ["--out"]),
        (["dataset", "sign", "X"], ["--key"]),
        (["dataset", "check-signature", "X"], ["--key"]),
        (["plot", "X", "--out", "--help"], ["--out: --help looks like an option"]),
        (["train-online", "X", "--critic", "psvf", "--run", "-r"], ["--run: -r looks like"]),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(argv, words):
    ran = pbvf(*argv)
    assert ran.code == 2
    assert ran.error.startswith("error: ")
    for word in words:
        assert word in ran.error


@pytest.mark.parametrize(
    ("group", "command"), [((), "fit-critic"), (("dataset",), "verify"), (("policies",), "export")]
)
def test_no_command_shows_the_help_and_exits_2(group, command):
    ran = pbvf(*group)
    assert ran.code == 2
    assert command in ran.out


def test_version():
    from pbvf_offline import __version__

    assert pbvf("--version").out == f"pbvf {__version__}\n"


@pytest.mark.parametrize("argv", [("dataset", "list"), ("collect", "no:X-v0", "--dataset", "a-v0")])
def test_a_current_folder_that_was_deleted_is_exit_6(here, monkeypatch, argv):
    gone = here / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    pbvf(*argv).refused(6, "the current folder is not there any more; change to one that exists")


def test_options_of_every_command_may_come_before_it():
    ran = pbvf("-q", "--json", "dataset", "list")
    assert (ran.code, ran.err) == (0, "")
    assert ran.json == pbvf("dataset", "list", "--json").json
    pbvf("--json").refused(2, "No such option: --json")
    pbvf("-q", "--sigma", "1", "collect").refused(2, "No such option")


def test_what_permissions_close_is_not_answered_with_advice_about_writing(tmp_path):
    (tmp_path / "file").touch()
    error = PermissionError(errno.EACCES, "", str(tmp_path / "file"))
    for closed in ("file", tmp_path.name):
        with unreadable(closed):
            text, code = text_and_code(error)
        assert code == 6
        assert text == f"{tmp_path}/file: permission denied; allow reading it and what it is in"
    assert "that you may write" in str(text_and_code(error)[0])


LONG = "a" * 3000


@pytest.mark.parametrize(
    ("argv", "ends"),
    [
        (("collect", LONG, "--dataset", "lab/a-v0"), "aaa' is malformed; give a Gymnasium id"),
        (("collect", f"{LONG}-v0", "--dataset", "lab/a-v0"), "aaa` doesn't exist; check the id"),
        (("collect", "LQR-v0", "--dataset", LONG), "aaa' is not a dataset id; give an id"),
        (("train-online", "LQR-v0", "--preset", LONG, "--run", "r"), "aaa' is not one of "),
        (("info", LONG), "aaa: file name too long"),
        ((LONG,), "aaa'; see 'pbvf --help'"),
    ],
)
def test_an_overlong_word_does_not_hide_what_is_wrong_with_it(argv, ends):
    ran = pbvf(*argv)
    assert "aaa…aaa" in ran.error
    assert ends in ran.error
    assert len(ran.error) < 900


OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]")
OF_OTHERS = {"--head", "--no", "--no-deps", "--sparse", "--upgrade"}  # of ray, pip and cp


def literal_texts() -> Iterator[str]:
    """Yield every text in the source but docstrings; what is formatted in is {}."""
    for folder in SOURCES[:3]:
        for path in folder.glob("pbvf_*/**/*.py"):
            tree = ast.parse(path.read_text())
            expressions = [n.value for n in ast.walk(tree) if isinstance(n, ast.Expr)]
            formatted = [n for n in ast.walk(tree) if isinstance(n, ast.JoinedStr)]
            parts = {id(part) for n in formatted for part in n.values} | set(map(id, expressions))
            for node in ast.walk(tree):
                if isinstance(node, ast.JoinedStr):
                    literals = (
                        p.value if isinstance(p, ast.Constant) else "{}" for p in node.values
                    )
                    yield "".join(map(str, literals))
                elif isinstance(node, ast.Constant) and id(node) not in parts:
                    yield node.value if isinstance(node.value, str) else ""


def test_what_messages_advise_exists() -> None:
    shown = {name: pbvf(*name.split(), "--help").ok().out for name in ("", *COMMANDS)}
    options = {name: set(OPTION.findall(text)) for name, text in shown.items()}
    advised, wrong = 0, set()
    for text in literal_texts():
        wrong |= set(OPTION.findall(text)) - OF_OTHERS - set().union(*options.values())
        for call in re.findall(r"'pbvf ([a-z][^'{]*)[^']*'", text):
            words, advised = call.split(), advised + 1
            names = {" ".join(words[:count]) for count in (1, 2)} & set(COMMANDS)
            known = options[max(names, key=len)] if names else set()
            if not (names or words == ["policies"]) or set(OPTION.findall(call)) - known:
                wrong.add(call)
    assert advised > 50
    assert not wrong
