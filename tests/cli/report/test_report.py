"""``pbvf report``: what its page holds and what it refuses; that it works, a browser shows."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_tools import make, pbvf
from pbvf_datasets import load_dataset
from pbvf_offline.fit.critic_file import load_critic
from pbvf_offline.io.tensor_file import decode, encode
from pbvf_offline.models.model_file import load_model
from pbvf_offline.policies.files import load_policies
from report_tools import Page, chart, series, write_policies
from untagged import make_untagged

pytest.importorskip("plotly", reason="plotly is not installed, which draws the charts")

DATASET = "lab/drift-v0"
GROWN = ("--from-scratch", "3", "--steps", "5", "--restarts", "2", "--seed", "0")


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
    out = tmp_path / "page.html"
    pbvf("report", DATASET, "--out", out, "-q").ok()
    data = load_dataset(DATASET)
    (episodes,) = series(out, "Episodes in the order of collection")
    np.testing.assert_allclose(episodes["y"], data.trajectories.whole_returns(), rtol=1e-5)
    assert data.digest in out.read_text()


def test_a_dataset_that_names_no_policies_is_shown_without_them(
    at: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tagged = load_dataset(DATASET)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    make_untagged("theirs/drift-v0", list(tagged.episodes), tagged.policies)
    out = tmp_path / "page.html"
    given = ("theirs/drift-v0", tagged.path, "theta")
    ran = pbvf("report", *given, "--out", out, "--json", warns=True).ok().json
    assert [s["name"] for s in ran["sources"]] == ["theirs/drift-v0", DATASET, "theta"]
    theirs, ours = series(out, "Episodes in the order of collection")
    assert theirs["y"] == ours["y"]
    assert [s["source"] for s in series(out, "parameters")] == [1]
    assert "not known: the data name none" in out.read_text()


def test_environments_are_shown_apart(at: Path, tmp_path: Path) -> None:
    collect = "--steps 30 --perturb-every 5 --policy 2 --seed 0"
    make(tmp_path, f"collect toyenv:ToySurvive-v0 --dataset lab/other-v0 {collect}")
    out = tmp_path / "page.html"
    other = tmp_path / "datasets" / "lab" / "other-v0"
    pbvf("report", DATASET, other, "--out", out, "-q").ok()
    for env, source in (("ToyDrift", 0), ("ToySurvive", 1)):
        words = f"Episodes in toyenv:{env}-v0 in the order"
        assert [s["source"] for s in series(out, words)] == [source]


def test_what_was_made_from_what_is_told_by_digest(at: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    pbvf("report", "grown", "theta", "good", DATASET, "--out", out, "-q").ok()
    text = re.sub(r"<[^>]+>", " ", out.read_text().split("<h2")[-1].split("<script")[0])
    rows = re.sub(r"\s+", " ", text)
    assert "grown policies grown through theta" in rows
    assert f"theta critic fitted to {DATASET}" in rows
    assert f"good model learned from {DATASET}" in rows


def test_two_of_a_name_are_told_apart(at: Path, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    shutil.copy(at / "deep", tmp_path / "x" / "grown")
    other = tmp_path / "x" / "grown"
    ran = pbvf("report", "grown", "theta", other, "--out", tmp_path / "p", "--json").ok()
    names = ["grown (1)", "theta", "grown (2)"]
    assert [source["name"] for source in ran.json["sources"]] == names
    assert f"note: grown (2) is {other}" in ran.err
    # Names of folders are the sender's own affair.
    assert f"{at.name}/" not in (tmp_path / "p").read_text()


def test_many_points_are_thinned_and_the_page_says_so(here: Path) -> None:
    returns = np.arange(25_000.0)
    write_policies(here / "many", 25_000, {"result": {"returns": returns[::-1].tolist()}})
    pbvf("report", "many", "--out", "page.html", "-q").ok()
    (policies,) = series(here / "page.html", "Policies")
    assert len(policies["y"]) == 10_000
    assert {min(policies["y"]), max(policies["y"])} == {0.0, 24_999.0}
    assert policies["index"] == sorted(policies["index"])
    assert "10,000 of 25,000 are shown" in (here / "page.html").read_text()
    pbvf("report", *["many"] * 6, "--out", "six.html", "-q").ok()  # 30,000 points in a chart
    assert [len(s["y"]) for s in series(here / "six.html", "Policies")] == [5_000] * 6
    assert "30,000 of 150,000 are shown" in (here / "six.html").read_text()


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


def test_settings_of_a_hostile_file_stay_short(here: Path) -> None:
    settings = {"x" * 10_000: "y" * 10_000} | {f"s{k}": k for k in range(5_000)}
    write_policies(here / "long", 3, {"settings": settings})
    write_policies(here / "short", 3, {"settings": {}})
    sizes = [
        pbvf("report", name, "--out", f"{name}.html", "--json", "-q").ok().json["bytes"]
        for name in ("long", "short")
    ]
    assert 0 < sizes[0] - sizes[1] < 50_000


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
    refused(2, tmp_path / "missing", words=("missing: does not exist; check its path",))
    (tmp_path / "logs/theta").mkdir(parents=True)
    (tmp_path / "logs/theta/metrics.jsonl").touch()
    for folder in ("logs", "logs/theta"):
        words = ("holds what a fit wrote for --log-dir; 'pbvf plot' draws it",)
        refused(2, tmp_path / folder, words=words)
    pbvf("report", "grown", "--out", tmp_path, "-q").refused(2, "is a folder")
    pbvf("report", "grown", "--out", "grown", "-q").refused(2, "would replace")
    make(at, f"dataset pack {DATASET} {tmp_path}/packed")
    refused(2, tmp_path / "packed", words=("shows no archive", "unpack"))
    make(at, f"policies export grown --index 0 --out {tmp_path}/weights.safetensors")
    refused(2, tmp_path / "weights.safetensors", words=("shows no weights", "import"))
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    refused(2, "grown", words=("plotly is not installed", "pip install 'pbvf-offline[report]'"))


def test_parameters_are_projected_and_the_way_of_policies_ends_at_them(
    at: Path, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    pbvf("report", DATASET, "theta", "grown", "--ascent", "--out", out, "-q").ok()
    assert "Stars are policies of a policies file" in out.read_text()
    pbvf("report", "grown", "--out", tmp_path / "alone.html", "-q").ok()
    assert [cloud["style"] for cloud in series(tmp_path / "alone.html", "linear")] == ["points"]
    assert "Stars are" not in (tmp_path / "alone.html").read_text()
    data, stars, *ways = series(out, "linear policies of")
    assert (len(data["x"]), stars["style"], len(ways)) == (120, "stars", 3)
    theta = load_dataset(DATASET).theta.astype(np.float64)
    away = theta - theta.mean(axis=0)
    spread = np.sqrt(np.linalg.eigvalsh(away.T @ away)[::-1][:2])
    np.testing.assert_allclose(np.linalg.norm([data["x"], data["y"]], axis=1), spread, rtol=1e-3)
    chosen = pbvf("synthesize", "theta", *GROWN, "--out", "grown", "--json", "-q").ok().json
    for way, step, x in zip(ways, chosen["chosen_step"], stars["x"], strict=True):
        assert way["x"][way["more"]["gradient step"].index(step)] == pytest.approx(x, abs=1e-5)


def test_the_model_that_chose_among_candidates_chooses_again(at: Path, tmp_path: Path) -> None:
    grow = "synthesize theta --from-scratch 2 --steps 9 --restarts 8 --candidates 4 --seed 0"
    make(at, f"{grow} --model good --out {tmp_path}/judged")
    out, grown = tmp_path / "page.html", ("theta", tmp_path / "judged", "--ascent")
    pbvf("report", *grown, "good", "--out", out, "-q").ok()
    _, stars, *ways = series(out, "linear policies of")
    assert [way["name"] for way in ways] == ["ways of policies"] * len(stars["x"])
    pbvf("report", *grown, "bad", "--out", out, "--overwrite", "-q").ok()
    text = out.read_text()
    assert "judged: no ascent is shown: the model that chose among its candidates is not on" in text
    file = load_policies(tmp_path / "judged")
    chosen_in = [file.origin["chosen_in"][0], 10**9]
    dataclasses.replace(file, origin={**file.origin, "chosen_in": chosen_in}).save(grown[1])
    pbvf("report", *grown, "good", "--out", out, "--overwrite", "-q").ok()
    assert "an episode of 1,000,000,000 steps cannot be imagined" in out.read_text()


def test_a_way_that_is_not_known_is_left_out(at: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"

    def said(*names: object) -> str:
        pbvf("report", *names, "--ascent", "--out", out, "--overwrite", "-q").ok()
        assert "ways of policies" not in out.read_text()
        return out.read_text()

    assert "the critic that it climbed is not on this page" in said("grown", DATASET)
    file = load_policies(at / "grown")
    moved = dataclasses.replace(file.policies, theta=file.policies.theta + np.float32(0.5))
    dataclasses.replace(file, policies=moved).save(tmp_path / "moved")
    assert "climbing again ended elsewhere" in said(tmp_path / "moved", "theta")
    for name, wrong in (("steps", 10**9), ("count", 2), ("hidden", [10**6])):
        settings = {**file.origin["settings"], name: wrong}
        origin = {**file.origin, "settings": settings}
        dataclasses.replace(file, origin=origin).save(tmp_path / "wrong")
        assert "no ascent is shown" in said(tmp_path / "wrong", "theta")


def test_predictions_are_the_critics(at: Path, tmp_path: Path) -> None:
    make(
        at,
        f"fit-critic {DATASET} --critic psvf --hidden 8 --updates 20 --seed 0 "
        f"--validation-policies 0.2 --out {tmp_path}/held",
        f"synthesize {tmp_path}/held {' '.join(GROWN)} --evaluate --env toyenv:ToyDrift-v0 "
        f"--evaluate-every 5 --episodes 2 --out {tmp_path}/measured",
    )
    out = tmp_path / "page.html"
    pbvf("report", tmp_path / "held", tmp_path / "measured", "--out", out, "-q").ok()
    critic, file = load_critic(tmp_path / "held"), load_policies(tmp_path / "measured")
    (data,) = series(out, "policies of its data")
    np.testing.assert_allclose(data["x"], critic.predict(critic.context.theta), rtol=1e-4)
    np.testing.assert_allclose(data["y"], critic.context.returns, rtol=1e-5)
    assert critic.unit in chart(out, "policies of its data")["x"]
    (held,) = series(out, "held out of the fit")
    np.testing.assert_allclose(held["y"], critic.validation["observed"], rtol=1e-5)
    assert [guide["axis"] for guide in chart(out, "held out of the fit")["guides"]] == ["both"]
    assert chart(out, "grown through it")["guides"] == []  # discounted beside undiscounted
    (grown,) = series(out, "grown through it")
    np.testing.assert_allclose(grown["y"], file.origin["result"]["returns"], rtol=1e-5)
    (known,) = series(out, "distance and return in its data")  # of pieces of episodes
    (stars,) = series(out, "distance and measured return")  # of whole ones
    np.testing.assert_allclose(stars["x"], file.origin["result"]["distance"], rtol=1e-4)
    assert np.quantile(known["x"], 0.95) == pytest.approx(1, abs=0.01)
    measured, predicted = series(out, "Ascents")
    assert (measured["x"], predicted["style"]) == ([0, 5], "band")


def test_a_critic_whose_predictions_are_no_numbers_is_named(at: Path, tmp_path: Path) -> None:
    content, tensors = decode("critic", Path("theta").read_bytes(), "theta")
    huge = {k: np.full_like(v, 3e38) if "network" in k else v for k, v in tensors.items()}
    (tmp_path / "huge").write_bytes(encode("critic", content, huge))
    out = tmp_path / "page.html"
    pbvf("report", "theta", tmp_path / "huge", "--out", out, "-q").ok()
    count = len(load_critic(tmp_path / "huge").context.theta)
    words = f"predictions for {count} of {count} policies are not finite, so no chart shows them."
    assert f"huge (psvf): the critic&#39;s {words}" in out.read_text()
    titles = [c["title"] for c in Page(out).data["charts"] if "policies of its data" in c["title"]]
    assert titles == ["theta (psvf): policies of its data"]


def test_returns_without_the_survival_bonus_are_called_so_and_mixed_with_no_others(
    here: Path,
) -> None:
    fit = "fit-critic lab/s-v0 --critic psvf --hidden 8 --updates 5 --seed 0"
    make(
        here,
        "collect toyenv:ToySurvive-v0 --dataset lab/s-v0 --steps 200 --perturb-every 5 "
        "--policy 2 --seed 0",
        f"{fit} --out raw",
        f"{fit} --reward without-survival --validation-policies 0.2 --out less",
        "synthesize less --from-scratch 2 --steps 2 --restarts 1 --seed 0 --evaluate "
        "--env toyenv:ToySurvive-v0 --evaluate-every 2 --episodes 1 --out grown",
    )
    bonus, out = "without the survival bonus", here / "page.html"
    pbvf("report", "raw", "less", "grown", "--out", out, "-q").ok()
    held = chart(out, "held out of the fit")
    assert bonus in held["x"]
    assert bonus in held["y"]
    for title in ("{} (psvf): policies of its data", "{} (psvf): distance and return in its data"):
        assert bonus in chart(out, title.format("less"))["y"]
        assert bonus not in chart(out, title.format("raw"))["y"]
    assert bonus not in chart(out, "less (psvf): distance and measured return")["y"]
    known = load_critic(here / "less").context.returns
    parameters = chart(out, "parameters")
    raw, less, stars = parameters["series"]
    assert parameters["colour"] == raw["quantity"] == "mean return in the data (sum of rewards)"
    assert bonus in less["quantity"]
    assert stars["quantity"] == "measured mean return (sum of rewards)"
    np.testing.assert_allclose(less["value"], known, rtol=1e-5)
    filters = [a["data-quantity"] for _, a in Page(out).tags if "data-quantity" in a]
    named = [s["quantity"] for c in Page(out).data["charts"] for s in c["series"] if s["quantity"]]
    assert filters == list(dict.fromkeys(named))  # one for each quantity, by its name
    pbvf("report", "less", "grown", "--out", out, "--overwrite", "-q").ok()
    assert chart(out, "parameters")["colour"] == less["quantity"]


def test_a_critic_of_no_such_policies_is_left_out(at: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    write_policies(tmp_path / "elsewhere", 3, {"result": {"returns": [1.0, 2.0, 3.0]}})
    given = ("theta", "actions", "deep", tmp_path / "elsewhere")
    pbvf("report", *given, "--out", out, "-q").ok()
    assert not [c for c in Page(out).data["charts"] if "distance and measured" in c["title"]]
    text = out.read_text()
    # A row a pair, however many there are.
    table = text.split("Policies without measured returns", 1)[1].split("</table>")[0]
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", table)[4:]
    assert cells[:2] == ["deep", "actions"]
    assert len(cells) == 4


def test_a_check_is_shown_with_what_it_has_to_pass(at: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    pbvf("report", "good", "bad", "--out", out, "-q").ok()
    check = load_model(at / "good").check
    assert check is not None
    good, bad = series(out, "Error by horizon")
    np.testing.assert_allclose(good["y"], [h.relative_error for h in check.horizons], rtol=1e-5)
    assert min(bad["y"]) > 0.75 > max(good["y"])
    text = out.read_text()
    assert "Dashed: at most 0.75." in text
    assert "correlation, " in text
    last = check.horizons[-1]
    assert f"{last.reached} of {last.pieces}" in text
    assert f"{last.error:.3g}" in text
    assert f"{last.spread:.3g}" in text
    assert [s["source"] for s in series(out, "Fit of the model")] == [0]  # bad has one update


def test_a_check_says_whether_stored_actions_were_replayed(at: Path, tmp_path: Path) -> None:
    file = load_model(at / "good")
    assert file.check is not None
    replayed = dataclasses.replace(file.check, replayed=True)
    dataclasses.replace(file, check=replayed).save(tmp_path / "theirs")
    pbvf("report", "good", tmp_path / "theirs", "--out", tmp_path / "page.html", "-q").ok()
    text = (tmp_path / "page.html").read_text()
    assert "theirs: stored actions were replayed, since its data name no policies." in text
    assert "good: stored actions were replayed" not in text


def test_runs_are_shown_beside_each_other(here: Path) -> None:
    train = "train-online toyenv:ToyDrift-v0 --critic pssvf --steps 200 --evaluations 2"
    make(here, f"{train} --run many --seeds 3-4")
    ran = pbvf("report", "many", "--out", "page.html", "--json", "-q").ok().json
    assert [s["name"] for s in ran["sources"]] == ["seed-3", "seed-4"]
    (mean,) = series(here / "page.html", "interquartile mean over seeds")
    runs = [pbvf("info", f"many/seed-{seed}", "--json", "-q").ok().json for seed in (3, 4)]
    of_both = [[np.mean(e["returns"]) for e in run["evaluations"]] for run in runs]
    np.testing.assert_allclose(mean["y"], np.mean(of_both, axis=0), rtol=1e-5)
    episodes, learned, *_ = series(here / "page.html", "Training runs")
    known = pbvf("info", "many/seed-3", "--json", "-q").ok().json
    assert learned["x"] == [e["step"] for e in known["evaluations"]]
    assert len(episodes["x"]) == known["episodes"]
    made_from = pbvf("report", "many/seed-3", "many/seed-3/policy.safetensors", "--out", "b.html")
    assert "<td>seed-3</td>" in (made_from.ok() and (here / "b.html").read_text())


def test_films_go_into_the_page(at: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "page.html"
    pbvf("report", "grown", "--env", "x", "--out", out, "-q").refused(2, "--env", "add --video")
    monkeypatch.setattr("pbvf_cli.shared.outputs.video.check_video", lambda *_, **__: None)
    file = load_policies(at / "grown")
    assert file.environment is not None
    elsewhere = dataclasses.replace(file.environment, id="Elsewhere-v0", module="elsewhere")
    dataclasses.replace(file, environment=elsewhere).save(tmp_path / "foreign")
    pbvf("report", tmp_path / "foreign", "--video", "--out", out, "-q").refused(4, "--env")
    played: list[int] = []

    def film(config: Any, policies: Any, path: Path, **_: Any) -> tuple[int, int]:
        played.append(len(policies))
        path.write_bytes(config.name.encode())
        return 250, 4

    monkeypatch.setattr("pbvf_cli.shared.outputs.video.record_video", film)
    pbvf("report", "grown", "--video", "--env", "toyenv:ToyDrift-v0", "--out", out, "-q").ok()
    (address,) = (a["src"] for t, a in Page(out).tags if t == "video")
    assert (played, base64.b64decode(str(address).split(",")[1])) == ([1], b"toyenv:ToyDrift-v0")
    train = "train-online toyenv:ToyDrift-v0 --critic pssvf --steps 60 --evaluations 1 --seed 0"
    make(tmp_path, f"{train} --run {tmp_path}/run")
    many = (*["grown"] * 12, tmp_path / "run")
    filming = ("--video", "--env", "toyenv:ToyDrift-v0", "--out", out, "--overwrite", "-q")
    pbvf("report", tmp_path / "run", *filming).ok()
    assert "run: the learned policy, one step in 4, first episode" in out.read_text()
    pbvf("report", *many, *filming).ok()
    assert len([t for t, _ in Page(out).tags if t == "video"]) == 12
    assert "run: no film is shown: a page has 12 at most." in out.read_text()
    (tmp_path / "run" / "result.json").unlink()  # as of one that was stopped
    pbvf("report", tmp_path / "run", *filming).ok()
    assert "no film is shown: the run is not finished" in out.read_text()
