"""``--export-dataset``: the training episodes of a run as a dataset."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pbvf_cli.shared.card_commands import train_online_command
from pbvf_offline.errors import UsageError

if TYPE_CHECKING:
    from pbvf_cli.shared.form import Form
    from pbvf_runs.records import RunConfig, RunResult


@dataclass(frozen=True)
class Export:
    """The dataset to make of a run: its id, its licence and its authors' names."""

    dataset: str
    license: str | None
    authors: tuple[str, ...]

    def show(self, form: Form) -> None:
        """Have a form remember it."""
        form.show("export-dataset", self.dataset)
        form.rights(self.license, self.authors)

    def check(self, config: RunConfig, steps: int, *, overwrite: bool) -> None:
        """Refuse, before a run, what the export would come up against; see ``check_export``."""
        from pbvf_runs.export import check_export

        check_export(
            config,
            steps,
            self.dataset,
            license=self.license,
            authors=self.authors,
            overwrite=overwrite,
        )

    def write(self, result: RunResult, *, overwrite: bool) -> RunResult:
        """Make the dataset of a finished run; returns the result with the dataset's folder."""
        from pbvf_runs.export import export_dataset

        path = export_dataset(
            result,
            self.dataset,
            license=self.license,
            authors=self.authors,
            command=train_online_command(result, self.dataset, self.license, self.authors),
            overwrite=overwrite,
        )
        return dataclasses.replace(result, exported=path)


def chosen_export(
    dataset: str | None,
    license_id: str | None,
    authors: tuple[str, ...],
    *,
    seeds: str | None,
    run: Path,
) -> Export | None:
    """Return the export that was asked for by ``--export-dataset``, if any.

    Raises:
        UsageError: Something does not go with ``--export-dataset``, or without it.
    """
    if dataset is None:
        for option, value in (("--license", license_id), ("--author", authors)):
            if value:
                raise UsageError(
                    "is about a dataset", where=option, remedy="give --export-dataset too"
                )
        return None
    if seeds is not None:
        raise UsageError(
            "makes a dataset of one run, and --seeds trains several",
            where="--export-dataset",
            remedy=f"train first, then export one of them: --run {run}/seed-N --seed N "
            "in place of --seeds",
        )

    from pbvf_datasets.format.schema import check_dataset_id

    check_dataset_id(dataset)
    return Export(dataset, license_id, authors)
