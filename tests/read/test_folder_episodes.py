"""Every hostile folder through the one iterator: refused by name, and nothing outside is opened.

The reader raises the first problem and ``verify`` collects all; what else reads folders has one
case of its own in its own file.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pytest

import hostile
import watching
from pbvf_datasets.format.schema import DATA_FILE
from pbvf_datasets.inspect.verify import verify
from pbvf_datasets.read.dataset import load_dataset
from pbvf_datasets.read.folder_episodes import folder_episodes
from pbvf_datasets.read.untrusted import UnverifiedWarning, open_folder
from pbvf_offline.errors import DamagedError, IncompatibleError, PbvfError, UnsafeError, UsageError

pytestmark = pytest.mark.usefixtures("root")

STATUS = {UnsafeError: "unsafe", DamagedError: "damaged", IncompatibleError: "unverified"}


@pytest.mark.parametrize(
    ("error", "name", "seal", "case"),
    hostile.TABLE,
    ids=[f"{name}-{seal}" for _, name, seal, _ in hostile.TABLE],
)
def test_refused_by_name_and_nothing_outside_opened(
    error: type[PbvfError],
    name: str,
    seal: str,
    case: hostile.Case,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = hostile.outside(tmp_path / "outside")
    case.spoil(folder, secret)
    hostile.SEALS[seal](folder)
    (tmp_path / "evil_environment.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("an environment was built")

    monkeypatch.setattr(gymnasium, "make", refuse)
    warnings.simplefilter("ignore", UnverifiedWarning)
    with watching.watching(secret) as watch:
        with pytest.raises(PbvfError) as caught:
            load_dataset(folder)
        found = verify(folder)
    message = str(caught.value)
    assert type(caught.value) is error, message
    assert all(word in message for word in case.words), message
    assert all(str(p).isprintable() and str(folder) in str(p) for p in found.problems)
    # The same fault has the same words, whether one problem is raised or all are collected.
    assert message in [str(problem) for problem in found.problems]
    if seal == "stale" and error is IncompatibleError:
        assert found.status in ("damaged", "unverified")
    else:
        assert found.status == STATUS[error]
        assert type(found.error) is error
    assert found.safe_for_minari in ((False,) if error is UnsafeError else (True, False))
    assert watch.touched == []
    # Python itself opens only by a name inside an open folder, or the folder.
    inside = {str(folder), "data", "main_data.hdf5", "metadata.json", "manifest.json"}
    inside |= {"README.md", "croissant.json", "/proc/self/maps"}  # the last: threadpoolctl
    inside.add(str(tmp_path / "cache"))  # where what was read so far is laid out
    opened = {o for o in watch.opened if not o.endswith((".py", ".pyc", ".so", ".cache"))}
    assert opened <= inside
    assert "evil_environment" not in sys.modules
    assert "evil_environment" not in watch.imported


def test_another_folder_is_no_damaged_dataset(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for use in (load_dataset, verify):
        with pytest.raises(UsageError, match=r"neither data/main_data\.hdf5 nor a"):
            use(tmp_path)


def test_the_watch_sees_what_hdf5_opens(tmp_path: Path) -> None:
    secret = hostile.outside(tmp_path / "outside")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = h5py.ExternalLink(str(secret / "secret.h5"), "values")
        with watching.watching(secret) as watch:
            assert file["x"].shape == (hostile.STEPS,)
    assert "secret.h5" in watch.touched


def test_stock_minari_would_build_what_is_refused_here(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this the tests above would prove nothing."""
    minari_dataset = importlib.import_module("minari").MinariDataset
    hostile.UNSAFE["no action space"].spoil(folder, tmp_path)
    (tmp_path / "evil_environment.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    warnings.simplefilter("ignore")
    with pytest.raises(SystemExit, match="imported"):
        minari_dataset(folder / "data")


def test_episodes_in_any_order_and_only_the_arrays_asked_for(folder: Path) -> None:
    with open_folder(folder) as opened:
        found = list(folder_episodes(opened, indices=[2, 0, 2], fields=["rewards"]))
    assert [episode.index for episode in found] == [2, 0, 2]
    for episode in found:
        assert list(episode.arrays) == ["rewards"]
        expected = hostile.episode(episode.index)
        np.testing.assert_array_equal(episode.arrays["rewards"], expected.rewards)
        assert (episode.steps, episode.segments, episode.seed) == (20, 2, expected.seed)


def test_what_is_wrong_elsewhere_does_not_matter_to_one_episode(folder: Path) -> None:
    hostile.DAMAGED["NaN observations"].spoil(folder, folder)  # of episode 1
    hostile.reseal(folder)
    with open_folder(folder) as opened:
        assert len(list(folder_episodes(opened, indices=[0, 2]))) == 2
        with pytest.raises(DamagedError, match="episode_1/observations"):
            list(folder_episodes(opened, indices=[0, 1, 2]))


def test_several_problems_of_one_episode_are_all_told(folder: Path) -> None:
    for place, at, value in (
        ("rewards", 3, np.nan),
        ("terminations", 4, True),
        ("actions", (0, 0), 9.0),
        ("infos/obs_std", (1, 1), -1.0),
    ):
        hostile.set_values(f"episode_1/{place}", at, value)(folder, folder)
    hostile.reseal(folder)
    problems: list[PbvfError] = []

    def collect(error: PbvfError, *, unopened: bool = False) -> None:
        assert not unopened
        problems.append(error)

    with open_folder(folder) as opened:
        good = [episode.index for episode in folder_episodes(opened, collect)]
    assert good == [0, 2]
    start = f"{folder / DATA_FILE}: episode_1/"
    places = [(p.where or "").removeprefix(start) for p in problems]
    assert places == ["rewards", "actions", "infos/obs_std", "terminations"]
