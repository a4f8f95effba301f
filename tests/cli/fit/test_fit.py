"""``pbvf fit-critic`` from a user's side."""

from __future__ import annotations

import json
import pickle
import re
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest

import hostile
from cli_tools import make, pbvf, rows
from pbvf_offline.fit.augment import AUGMENTATIONS
from pbvf_offline.fit.critic_file import load_critic

SMALL = ("--hidden", "8", "--batch-size", "4", "-q", "--json")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(
        tmp_path_factory.mktemp("made"),
        *(
            f"collect toyenv:{env}-v0 --dataset lab/{name}-v0 --steps 52 --seed 0 {more}"
            for name, env, more in (
                ("toy", "Toy", ""),
                ("parts", "Toy", "--perturb-every 2"),
                ("discrete", "ToyDiscrete", ""),
                ("noisy", "Toy", "--stochastic"),
                ("choices", "ToyDiscrete", "--stochastic"),
                ("survive", "ToySurvive", ""),
            )
        ),
    )


@pytest.fixture(autouse=True)
def datasets(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made / "datasets"))
    return made / "datasets"


def run(dataset: str, kind: str, *argv: object, **kwargs: bool):
    """Fit a critic to ``c.safetensors``."""
    out = ("--out", "c.safetensors", *SMALL)
    return pbvf("fit-critic", dataset, "--critic", kind, *out, *argv, **kwargs)


def fit(dataset: str, kind: str, *argv: object):
    ran = run(dataset, kind, *argv).ok()
    return ran.json


def test_policies_that_the_fit_cannot_express_name_their_dataset(here, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(here))
    for name, numbers in (("fine", range(4)), ("odd", range(4, 16))):
        stds = {k: np.full((1, 3), 1e-300 if k == 6 else 1.0) for k in numbers}
        episodes = [hostile.episode(k, policies=1, obs_std=std) for k, std in stds.items()]
        hostile.make(here, f"lab/{name}-v0", episodes=episodes)
    words = "lab/odd-v0: policy 2 cannot be expressed in another normaliser"
    run("lab/odd-v0", "psvf", "--updates", 2).refused(5, words, "leave such policies out")
    several = ("fit-critic", "lab/fine-v0", "lab/odd-v0", "--critic", "psvf", "--out", "c", *SMALL)
    pbvf(*several).refused(5, "lab/fine-v0, lab/odd-v0: policy 6 cannot be expressed")
    model = ("--noise", 0, "--no-angles", "--no-mixed", "--updates", 2, "--hidden", 8, "-q")
    checked = pbvf("fit-model", "lab/odd-v0", "--out", "m", "--validation-episodes", 0.5, *model)
    checked.refused(5, words)


def test_values_beyond_single_precision_name_the_dataset_and_a_loss_the_output(here, datasets):
    huge = pbvf("collect", "toyenv:ToyHuge-v0", "--dataset", "lab/huge-v0", "--steps", 40, "-q")
    assert huge.code == 0, huge.err
    words = "beyond single precision; scale the rewards"
    run("lab/huge-v0", "psvf", "--seed", 0).refused(8, "lab/huge-v0: values up to", words)
    lost = run("lab/toy-v0", "psvf", "--lr", 1e30, "--updates", 50, "--seed", 0)
    lost.refused(8, "c.safetensors: the loss is", "lower --lr")


@pytest.mark.parametrize("kind", ["pssvf", "psvf", "pavf"])
def test_json_holds_what_the_interface_promises(here, kind):
    result = fit("lab/toy-v0", kind, "--updates", 30, "--validation-policies", 0.3, "--seed", 0)
    assert result["critic"] == "c.safetensors"
    assert result["updates"] == 30
    assert result["loss"] > 0
    assert result["updates_per_second"] == pytest.approx(30 / result["seconds"])
    assert result["gamma"] == (1.0 if kind == "pssvf" else 0.99)
    assert result["snapshots"] == []
    validation = result["validation"]
    assert (
        len(validation["predicted"]) == len(validation["observed"]) == len(validation["policies"])
    )
    assert {"rank_correlation", "top_tenth_return"} <= set(validation)
    assert load_critic(here / "c.safetensors").fit.settings.kind == kind


def test_an_augmentation_is_chosen_by_name(here):
    blur = ("--updates", 5, "--seed", 0, "--augment", "blur")
    fit("lab/toy-v0", "psvf", *blur, "--relabel", 0.1)
    settings = load_critic(here / "c.safetensors").fit.settings
    assert (settings.augment, settings.relabel) == ("blur", 0.1)
    ran = run("lab/toy-v0", "psvf", *blur[:4], "--relabel", 0.1)
    assert ran.code == 7
    assert 'augment is "blur" there and "relabel" here' in ran.err
    ran = run("lab/toy-v0", "psvf", "--augment", "odd")
    assert ran.code == 2
    assert f"choose one of {', '.join(sorted(AUGMENTATIONS))}" in ran.err


def test_without_held_out_policies_validation_is_null():
    assert fit("lab/toy-v0", "psvf", "--updates", 2)["validation"] is None


def test_settings_name_their_source_and_cut_episodes_are_counted():
    argv = ["--critic", "psvf", "--out", "c.safetensors", "--updates", 2, "--hidden", "8"]
    ran = pbvf("fit-critic", "lab/toy-v0", *argv, "--lr", 0.01)
    shown = rows(ran.err)
    assert shown["lr"] == "0.01 given"
    assert shown["batch-size"] == "128 paper default for psvf"
    assert shown["environment"] == "toyenv:Toy-v0 stored in the dataset"
    assert re.search(r"note: 1 of \d+ episodes, cut by the step budget: no return", ran.err)


def test_snapshots_are_the_fits_of_so_many_updates(here):
    result = fit("lab/toy-v0", "psvf", "--updates", 20, "--snapshots", "10,5", "--seed", 1)
    assert result["snapshots"] == ["c-000005.safetensors", "c-000010.safetensors"]
    middle = (here / "c-000010.safetensors").read_bytes()
    (here / "c.safetensors").unlink()
    fit("lab/toy-v0", "psvf", "--updates", 10, "--seed", 1)
    assert (here / "c.safetensors").read_bytes() == middle


def test_the_same_twice_then_more_updates_then_other_settings(here):
    path = here / "c.safetensors"
    first = fit("lab/toy-v0", "psvf", "--updates", 10)
    before = path.read_bytes()
    again = fit("lab/toy-v0", "psvf", "--updates", 10)
    assert again["already_complete"] is True
    assert again["updates_per_second"] is None
    assert again["seed"] == first["seed"]
    assert path.read_bytes() == before
    run("lab/toy-v0", "psvf", "--updates", 10, "--lr", 0.1).refused(
        7, "lr is 0.001 there and 0.1 here"
    )
    assert path.read_bytes() == before
    assert fit("lab/toy-v0", "psvf", "--updates", 20)["updates"] == 20
    extended = path.read_bytes()
    fit("lab/toy-v0", "psvf", "--updates", 20, "--seed", first["seed"], "--overwrite")
    assert path.read_bytes() == extended


def test_what_was_interrupted_is_not_lost_to_fewer_updates(here):
    fit("lab/toy-v0", "psvf", "--updates", 20, "--seed", 0)
    left = here / ".c.safetensors.partial"
    (here / "c.safetensors").rename(left)  # as an interruption leaves it
    run("lab/toy-v0", "psvf", "--updates", 10, "--seed", 0).refused(
        7, "it has 20 updates of an interrupted fit, and 10 were asked for", "--updates 20 or more"
    )
    before = left.read_bytes()
    left.unlink()
    fit("lab/toy-v0", "psvf", "--updates", 10, "--seed", 0)
    left.write_bytes(before)
    argv = ("--critic", "psvf", "--out", "c.safetensors", *SMALL[:4], "--seed", 0)
    ran = pbvf("fit-critic", "lab/toy-v0", *argv, "--updates", 10).ok()
    assert "nothing to do" in ran.out
    assert "note: .c.safetensors.partial has 20 updates of an interrupted fit and stays" in ran.err
    assert left.read_bytes() == before
    assert fit("lab/toy-v0", "psvf", "--updates", 20)["updates"] == 20
    assert (here / "c.safetensors").read_bytes() == before
    assert not left.exists()


def test_several_seeds_are_files_that_other_commands_take(here):
    argv = ("--updates", 10, "--validation-policies", 0.3, "--snapshots", 5, "--log-dir", "log")
    result = fit("lab/toy-v0", "psvf", *argv, "--seeds", "3,0")
    files = ["c-seed-3.safetensors", "c-seed-0.safetensors"]
    assert result["critic"] == files
    assert result["seeds"] == [3, 0]
    assert result["updates"] == 10
    assert result["snapshots"] == [f"c-seed-{k}-000005.safetensors" for k in (3, 0)]
    assert [part["seed"] for part in result["fits"]] == [3, 0]
    assert [part["loss"] for part in result["fits"]] == result["loss"]
    assert result["updates_per_second"] == pytest.approx(10 / result["seconds"])
    assert not (here / "c.safetensors").exists()
    for part, file in zip(result["fits"], files, strict=True):
        assert (part["critic"], part["updates"]) == (file, 10)
        own = ("--seed", part["seed"], "--out", file)
        assert fit("lab/toy-v0", "psvf", *argv[:6], *own)["already_complete"] is True
        assert len(pbvf("predict", file, "lab/toy-v0", "-q", "--json").ok().json["policies"]) > 0
        logged = (here / "log" / f"seed-{part['seed']}" / "metrics.jsonl").read_text()
        settings = json.loads(logged.splitlines()[0])
        assert (settings["kind"], settings["out"]) == ("settings", file)
    again = pbvf(
        *("fit-critic", "lab/toy-v0", "--critic", "psvf", "--out", "c.safetensors"),
        *(*SMALL[:4], *argv, "--seeds", "0,3"),
    ).ok()
    assert "already complete: c-seed-0.safetensors, c-seed-3.safetensors" in again.err
    lines = again.out.splitlines()
    assert any(line.split()[0] == "3" and line.endswith(files[0]) for line in lines if line)
    # Curves lie beside each other, and are one line of a plot.
    plot = ("plot", "log", "--out", "p.png", "-q", "--json")
    (panel,) = pbvf(*plot).ok().json["panels"]
    (group,) = panel["groups"]
    assert group["seeds"] == [0, 3]
    run("lab/toy-v0", "psvf", *argv, "--seeds", "0,3", "--lr", 0.5).refused(
        7, "c-seed-0.safetensors", "lr is 0.001 there and 0.5 here"
    )


def test_case_8_discrete_actions_keep_their_space(here):
    fit("lab/discrete-v0", "psvf", "--updates", 3)
    actions = load_critic(here / "c.safetensors").spec.actions
    assert (actions.n, actions.start) == (4, 2)


@pytest.mark.parametrize("dataset", ["lab/noisy-v0", "lab/choices-v0"])
@pytest.mark.parametrize("kind", ["pssvf", "psvf", "pavf"])
def test_stochastic_policies(here, kind, dataset):
    result = fit(dataset, kind, "--updates", 20, "--validation-policies", 0.3, "--seed", 0)
    assert result["updates"] == 20
    assert result["loss"] > 0
    file = load_critic(here / "c.safetensors")
    assert file.spec.stochastic
    assert file.critic.kind.name == kind
    argv = ["--from-scratch", 2, "--steps", 3, "--out", "p.safetensors", "-q", "--json"]
    grown = pbvf("synthesize", "c.safetensors", *argv).ok()
    assert len(grown.json["predicted"]) == 2


@pytest.mark.parametrize(
    ("dataset", "kind", "argv", "words"),
    [
        ("lab/discrete-v0", "pavf", (), "psvf or pssvf"),
        ("lab/parts-v0", "pssvf", (), "psvf"),  # it needs one policy an episode
        ("lab/toy-v0", "psvf", ("--reward", "without-survival"), "reward_survive"),
    ],
)
def test_data_that_do_not_suit_the_critic_exit_5(here, dataset, kind, argv, words):
    run(dataset, kind, *argv).refused(5, words)
    assert not (here / "c.safetensors").exists()


def test_reward_without_survival():
    survive = fit("lab/survive-v0", "psvf", "--updates", 2, "--reward", "without-survival")
    assert survive["reward"] == "without-survival"


def test_the_papers_reward_for_hopper_needs_what_old_versions_do_not_report():
    for env, expected in (("Hopper-v4", "raw"), ("Hopper-v5", "without-survival")):
        data = f"lab/{env.lower()}"
        argv = ["--dataset", data, "--episodes", 2, "--warmup-episodes", 1, "-q"]
        assert pbvf("collect", env, *argv).code == 0
        assert fit(data, "pssvf", "--updates", 2, "--overwrite")["reward"] == expected


def test_case_28_divergence_keeps_the_last_good_file(here):
    argv = ["--lr", "1e6", "--hidden", "64,64", "--seed", 0]
    fit("lab/toy-v0", "psvf", "--updates", 1, *argv)
    before = (here / "c.safetensors").read_bytes()
    run("lab/toy-v0", "psvf", *argv, "--updates", 300).refused(8, "--lr")
    assert (here / "c.safetensors").read_bytes() == before


def test_case_29_a_moved_dataset_works_by_path(datasets, here):
    shutil.copytree(datasets / "lab/toy-v0", here / "elsewhere/copy")
    fit("lab/toy-v0", "psvf", "--updates", 5, "--seed", 0)
    by_id = (here / "c.safetensors").read_bytes()
    fit("elsewhere/copy", "psvf", "--updates", 5, "--seed", 0, "--overwrite")
    assert (here / "c.safetensors").read_bytes() == by_id
    assert str(here).encode() not in by_id


def test_damaged_data_exits_3_and_names_the_file(datasets, here):
    shutil.copytree(datasets / "lab/toy-v0", here / "bad")
    file = here / "bad/data/main_data.hdf5"
    image = bytearray(file.read_bytes())
    image[len(image) // 2] ^= 1
    file.write_bytes(image)
    run("bad", "psvf").refused(3, "main_data.hdf5")
    assert not (here / "c.safetensors").exists()


def test_a_folder_without_manifest_warns_or_is_refused(datasets, here):
    shutil.copytree(datasets / "lab/toy-v0", here / "plain")
    (here / "plain/manifest.json").unlink()
    ran = run("plain", "psvf", "--updates", 2, warns=True).ok()
    assert ran.err.startswith("warning: ")
    assert ran.err.count("\n") == 1
    run("plain", "psvf", "--require-manifest", "--overwrite").refused(4, "manifest")


def test_a_full_disk_exits_6_and_leaves_no_half_file(here):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    fit("lab/toy-v0", "psvf", "--updates", 2, "--out", "warm.safetensors")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        ran = run("lab/toy-v0", "psvf", "--updates", 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ran.code == 6
    assert "c.safetensors" in ran.error
    assert not (here / "c.safetensors").exists()


def test_a_place_that_cannot_be_written_exits_6(here):
    (here / "file").write_text("")
    assert run("lab/toy-v0", "psvf", "--out", "file/c.safetensors").code == 6


def test_a_pickle_at_the_output_is_not_opened(here):
    content = pickle.dumps({"weights": list(range(99))})
    (here / "c.safetensors").write_bytes(content)
    run("lab/toy-v0", "psvf").refused(7, "is no critic file")
    assert (here / "c.safetensors").read_bytes() == content


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["lab/missing-v0"], "no dataset lab/missing-v0"),
        (["lab/toy"], "lab/toy"),
        (["lab/toy-v0", "--gamma", "1.5"], "--gamma"),
        (["lab/toy-v0", "--lr", "0"], "--lr"),
        (["lab/toy-v0", "--lr", "nan"], "--lr"),
        (["lab/toy-v0", "--hidden", "a"], "--hidden"),
        (["lab/toy-v0", "--hidden", "linear"], "--hidden: 'linear' is not 1 to 16 whole numbers"),
        (["lab/toy-v0", "--snapshots", "0"], "--snapshots"),
        (["lab/toy-v0", "--snapshots", "50", "--updates", "10"], "--snapshots"),
        (["lab/toy-v0", "--updates", "0"], "--updates"),
        (["lab/toy-v0", "--validation-policies", "1"], "--validation-policies"),
        (["lab/toy-v0", "--seed", "-1"], "--seed"),
        (["lab/toy-v0", "--batch-size", "99999999999999999999"], "--batch-size"),
        (["lab/toy-v0", "--relabel", "1e300"], "--relabel"),
        (["lab/toy-v0", "--relabel", "nan"], "--relabel"),
        (["lab/toy-v0", "--out", "."], "folder"),
        (["lab/toy-v0", "--seeds", "0-4", "--seed", "0"], "either --seed or --seeds"),
        (["lab/toy-v0", "--seeds", "4-0"], "--seeds: seeds '4-0' are not understood"),
        (
            ["lab/toy-v0", "--seeds", "0,2,1-3"],
            "--seeds: '0,2,1-3' has a seed twice; give each once",
        ),
        (["lab/toy-v0", "--seeds", "99999999999"], "out of range"),
        (["lab/toy-v0", "--seeds", "0-1", "--model", "m"], "--seeds: does not go with --model"),
    ],
)
def test_wrong_usage_exits_2(here, argv, words):
    run(argv[0], "psvf", *argv[1:]).refused(2, words)
    assert not (here / "c.safetensors").exists()


def test_a_huge_n_step_is_the_whole_segment(here):
    argv = ("--seed", 0, "--updates", 3, "--overwrite", "--n-step")
    huge, usual = (fit("lab/toy-v0", "psvf", *argv, steps)["loss"] for steps in (10**30, 1000))
    assert huge == usual
