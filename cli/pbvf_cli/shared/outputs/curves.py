"""``--log-dir``: the curve of a fit or a synthesis."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pbvf_cli.shared import values
from pbvf_offline.errors import UsageError

if TYPE_CHECKING:
    from pbvf_cli.shared.settings import SettingsTable
    from pbvf_cli.shared.terminal.output import Sink
    from pbvf_offline.curve import OnEvent


@dataclass(frozen=True)
class Curve:
    """What was given of ``--log-dir`` and ``--logger`` to a command that writes ``out``.

    Attributes:
        log_dir: The folder of the curve, if one is wanted.
        logger: The loggers that were given.
        out: The output.
        seed: Whose curve it is, where the command writes one for each of several seeds.

    Raises:
        UsageError: The folder is a file, or the output lies where the curve is written; or there
            are loggers and no folder.
        ResourceError: The folder cannot be written.
    """

    log_dir: Path | None
    logger: Sequence[str] | None
    out: Path
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.log_dir is not None:
            from pbvf_runs.curves import check_folder

            check_folder(self.log_dir, self.out)
            values.output_folder(self.log_dir)
        elif self.logger:
            raise UsageError(
                "needs a folder to write to", where="--logger", remedy="give --log-dir too"
            )

    def of_seed(self, seed: int, out: Path) -> Curve:
        """Return the curve of one of several seeds, in a folder ``seed-N`` of this one's."""
        folder = None if self.log_dir is None else self.log_dir / f"seed-{seed}"
        return dataclasses.replace(self, log_dir=folder, out=out, seed=seed)

    def show(self, table: SettingsTable) -> None:
        """Add the folder and the loggers to the settings, where there are any."""
        from pbvf_runs.loggers import DEFAULT

        if self.log_dir is not None:
            table.show("log-dir", self.log_dir)
            table.choose("logger", self.logger, DEFAULT)

    @contextlib.contextmanager
    def opened(self, command: str, table: SettingsTable) -> Iterator[OnEvent | None]:
        """Yield what takes the events of a command, if anything does.

        Raises:
            ConflictError: The folder holds another curve, or a file of another origin.
        """
        if self.log_dir is None:
            yield None
            return

        from pbvf_runs.curves import CurveLog
        from pbvf_runs.loggers import DEFAULT

        settings = {"command": command} | {
            s.name: s.value if isinstance(s.value, int | float | None) else s.shown
            for s in table.settings
            if s.name != "seeds"
        }
        if self.seed is not None:
            settings["out"] = str(self.out)
        if self.seed is not None:
            settings["seed"] = self.seed
        log = CurveLog(self.log_dir, self.out, settings, self.logger or DEFAULT)
        with contextlib.closing(log):
            yield log.add

    def note_missing(self, sink: Sink, *, complete: bool) -> None:
        """Say that an output that is complete does not hold its curve, where it is asked for."""
        from pbvf_runs.curves import CURVE_FILE

        if complete and self.log_dir is not None and not (self.log_dir / CURVE_FILE).exists():
            sink.note(
                f"note: {self.log_dir}: there is no curve, because nothing was left to do; "
                "--overwrite makes the output again, with one"
            )
