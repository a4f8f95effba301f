"""``pbvf report``: what its page holds and what it refuses; that it works, a browser shows."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from cli_tools import make, pbvf
from report_tools import Page, series, write_policies

pytest.importorskip("plotly", reason="plotly is not installed, which draws the charts")

DATASET = "lab/drift-v0"


@pytest.fixture
def at(drift: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(drift / "datasets"))
    monkeypatch.chdir(drift)
    return drift


def test_a_page_says_what_it_holds_and_is_the_same_again(at: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "page.html"
    ran = pbvf("report", DATASET, "grown", "--out", out, "--json").ok().json
    assert (ran["report"], ran["bytes"]) == (str(out), out.stat().st_size)
    assert {"Returns", "Settings", "Lineage"} <= set(ran["sections"])
    again = pbvf("report", DATASET, "grown", "--out", out, "--json").ok()
    assert (again.json["already_complete"], ran["already_complete"]) == (True, False)
    assert "already complete" in again.err
    pbvf("report", at / "datasets" / DATASET, at / "grown", "--out", tmp_path / "b").ok()
    assert (tmp_path / "b").read_bytes() == out.read_bytes()  # no path is in it
    assert str(tmp_path.parent) not in out.read_text()


def test_another_page_is_replaced_only_when_asked_and_other_files_never(
    at: Path, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    pbvf("report", DATASET, "--out", out, "-q").ok()
    first = out.read_bytes()
    pbvf("report", "grown", "--out", out, "-q").refused(7, "page.html", "--overwrite")
    assert out.read_bytes() == first
    pbvf("report", "grown", "--out", out, "--overwrite", "-q").ok()
    assert out.read_bytes() != first
    out.write_text("notes")
    pbvf("report", "grown", "--out", out, "--overwrite", "-q").refused(7, "no page")
    assert out.read_text() == "notes"


def test_only_scripts_of_the_program_run(at: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    pbvf("report", DATASET, "grown", "--out", out, "-q").ok()
    page = Page(out)
    (policy,) = (a["content"] or "" for t, a in page.tags if "http-equiv" in a)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    own = {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in page.scripts[1:]}
    assert set(re.findall(r"'sha256-([^']+)'", policy)) == own
    assert not [t for t, a in page.tags if {"src", "href"} & set(a) and t != "a"]


def test_episodes_and_policies_are_those_of_the_files(at: Path, tmp_path: Path) -> None:
    from pbvf_datasets import load_dataset

    out = tmp_path / "page.html"
    pbvf("report", DATASET, "--out", out, "-q").ok()
    data = load_dataset(DATASET)
    (episodes,) = series(out, "Episodes in the order of collection")
    np.testing.assert_allclose(episodes["y"], data.trajectories.whole_returns(), rtol=1e-5)
    assert data.digest in out.read_text()


def test_what_was_made_from_what_is_told_by_digest(at: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    pbvf("report", "grown", "theta", "good", DATASET, "--out", out, "-q").ok()
    text = re.sub(r"<[^>]+>", " ", out.read_text().split("<h2")[-1].split("<script")[0])
    rows = re.sub(r"\s+", " ", text)
    assert "grown policies the critic theta" in rows
    assert f"theta critic the data {DATASET}" in rows
    assert f"good model the data {DATASET}" in rows


def test_two_of_a_name_are_told_apart(at: Path, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    shutil.copy(at / "deep", tmp_path / "x" / "grown")
    ran = pbvf("report", "grown", tmp_path / "x" / "grown", "--out", tmp_path / "p", "--json").ok()
    assert [source["name"] for source in ran.json["sources"]] == ["grown", "grown (2)"]


def test_many_points_are_thinned_and_the_page_says_so(here: Path) -> None:
    returns = np.arange(25_000.0)
    write_policies(here / "many", 25_000, {"result": {"returns": returns[::-1].tolist()}})
    pbvf("report", "many", "--out", "page.html", "-q").ok()
    (policies,) = series(here / "page.html", "Policies")
    assert len(policies["y"]) == 10_000
    assert {min(policies["y"]), max(policies["y"])} == {0.0, 24_999.0}
    assert policies["index"] == sorted(policies["index"])
    assert "10,000 of 25,000 are shown" in (here / "page.html").read_text()


@pytest.mark.parametrize(
    "result",
    [
        [1.0], "text", {"returns": 3}, {"returns": [1.0, 2.0]}, {"returns": [1.0, None, 2.0]},
        {"returns": [1.0, True, 2.0]}, {"returns": [[1.0], 2.0, 3.0]},
        {"returns": [1.0, 2.0, 1e301]}, {"curve": [None], "returns": {}},
        {"curve": [{"step": "x", "returns": 1}]},
    ],
)  # fmt: skip
def test_a_result_of_another_form_is_left_out(result: object, here: Path) -> None:
    write_policies(here / "odd", 3, {"result": result, "imagined_in": [], "critic": 7})
    ran = pbvf("report", "odd", "--out", "page.html", "--json", "-q").ok().json
    assert "Returns" not in ran["sections"]


def test_what_cannot_be_shown_is_refused(
    at: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "page.html"

    def refused(code: int, *names: object, words: tuple[str, ...] = ()) -> None:
        pbvf("report", *names, "--out", out, "-q").refused(code, *words)
        assert not out.exists()

    damaged = tmp_path / "damaged"
    damaged.write_bytes((at / "grown").read_bytes()[:-1])
    refused(3, DATASET, damaged, words=("damaged",))
    (tmp_path / "pickle").write_bytes(b"\x80\x04K\x01.")
    refused(4, tmp_path / "pickle")
    link = Path(shutil.copytree(at / "datasets" / DATASET, tmp_path / "link-v0"))
    (link / "data" / "main_data.hdf5").rename(tmp_path / "moved")
    (link / "data" / "main_data.hdf5").symlink_to(tmp_path / "moved")
    refused(4, link, words=("symbolic link",))
    refused(2, tmp_path / "missing", words=("missing",))
    pbvf("report", "grown", "--out", tmp_path, "-q").refused(2, "is a folder")
    pbvf("report", "grown", "--out", "grown", "-q").refused(2, "would replace")
    make(at, f"dataset pack {DATASET} {tmp_path}/packed")
    refused(2, tmp_path / "packed", words=("shows no archive", "unpack"))
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    refused(2, "grown", words=("plotly is not installed", "pip install 'pbvf-offline[report]'"))
