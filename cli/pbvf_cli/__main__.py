"""Entry point of ``pbvf`` and ``python -m pbvf_cli``."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

_COMMON = ("--json", "--quiet", "-q", "--debug")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``pbvf`` command.

    Args:
        argv: Arguments without the program's name; those of the process when None.

    Returns:
        The exit code.
    """
    _open_standard_streams()

    from pbvf_cli.shared.terminal.layout import given_width

    if given_width() is None:
        os.environ.pop("COLUMNS", None)  # libraries would print nothing, or a letter a line

    from pbvf_cli.shared.errors import finish_stdout, guarded

    arguments = _common_last(sys.argv[1:] if argv is None else argv)

    def run() -> int | None:
        from typer.main import get_command

        from pbvf_cli.app import app

        answer = get_command(app).main(arguments, prog_name="pbvf", standalone_mode=False)
        return answer if isinstance(answer, int) else None

    code = guarded(run, arguments)
    finish_stdout()
    return code


def _common_last(argv: Sequence[str]) -> list[str]:
    """Return arguments with the options of every command behind it, where they came before it."""
    first = next((k for k, text in enumerate(argv) if text not in _COMMON), len(argv))
    rest = list(argv[first:])
    if not rest or rest[0].startswith("-"):
        return list(argv)
    end = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:end], *argv[:first], *rest[end:]]


def _open_standard_streams() -> None:
    """Stand in for streams that were closed (``>&-``), so that no file takes their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # It takes the lowest free number: this one. Children inherit it as they do others.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123


def _stop_at_once(number: int, _: FrameType | None) -> None:
    """End before there is anything to keep, or after all was said."""
    with contextlib.suppress(OSError):  # the terminal may be gone
        os.write(2, b"interrupted\n")
    os._exit(128 + number)


def run() -> None:
    """Run the command as a process: an environment's leftover threads do not keep it alive."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP"):
        numbers.append(signal.SIGHUP)
    for number in numbers:
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(number, _stop_at_once)
    code = main()
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)  # the outcome stands; only the process has to end
    others = [t for t in threading.enumerate() if t is not threading.main_thread()]
    if any(not t.daemon for t in others):
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    run()
