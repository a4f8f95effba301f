"""``--wrapper``: from a collection through every file to a measurement without `--env`."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import shlex
from subprocess import PIPE

import gymnasium as gym
import minari
import pytest

from cli_tools import pbvf, start
from pbvf_datasets import load_dataset
from pbvf_offline.io.tensor_file import decode, encode
from pbvf_offline.policies.files import load_policies

STACK = ("--wrapper", 'frame-stack:{"stack_size": 2}', "--wrapper", "time-feature")
SEED = ("--seed", 0, "-q", "--json")


def ok(*argv):
    return pbvf(*argv).ok()


def test_a_wrapped_environment_goes_through_all_files(here):
    collect = ("collect", "LQR-v0", *STACK, "--dataset", "lab/l-v0", "--episodes", 6, *SEED)
    ok(*collect)
    assert load_dataset("lab/l-v0", cache=False).spec.obs_dim == 3
    folder = here / "datasets/lab/l-v0"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["version"] == 2
    assert [w["name"] for w in manifest["provenance"]["environment"]["wrappers"]] == [
        "frame-stack",
        "time-feature",
    ]
    assert (
        """--wrapper 'frame-stack:{"stack_size": 2}' --wrapper time-feature"""
        in (folder / "README.md").read_text()
    )
    assert ok("dataset", "verify", folder, "--json").json["status"] == "intact"
    # Another wrapper is another dataset.
    assert pbvf("collect", "LQR-v0", *collect[6:]).code == 7

    fit = ("--critic", "psvf", "--updates", 5, "--out", "critic", *SEED)
    told = pbvf("fit-critic", "lab/l-v0", *fit, warns=True).ok()  # such policies diverge
    assert "more than a critic reaches" in told.err
    grow = ("--from-scratch", 2, "--steps", 2, "--evaluate", "--episodes", 1, "--out", "p", *SEED)
    ok("synthesize", "critic", *grow)
    assert [w.name for w in load_policies(here / "p").environment.wrappers] == [
        "frame-stack",
        "time-feature",
    ]
    stored = ok("evaluate", "p", "--episodes", 1, *SEED).json["returns"]
    named = ("evaluate", "p", "--env", "LQR-v0", "--episodes", 1, *SEED)
    assert ok(*named).json["returns"] == ok(*named, *STACK).json["returns"] == stored
    assert pbvf(*named, "--wrapper", "time-feature").code == 5


PARTS = ("--wrapper", 'select-observation:{"keys": ["place", "image"]}')
FLAT = ("--wrapper", "flatten-observation")
SEEN = ("--wrapper", 'select-observation:{"keys": ["direction", "image"]}')


@pytest.mark.parametrize(
    ("env", "options", "size"),
    [
        ("toyenv:ToyParts-v0", (*PARTS, "--wrapper", "continuous-action"), 7),
        ("toyenv:ToyParts-v0", (*PARTS, "--wrapper", "discrete-action"), 7),
        ("gymnasium_robotics:FetchReach-v4", FLAT, 16),
        ("gymnasium_robotics:PointMaze_UMaze-v3", FLAT, 8),
        ("minigrid:MiniGrid-Empty-5x5-v0", (*SEEN, "--max-episode-steps", 20), 151),
        ("shimmy:dm_control/cartpole-balance-v0", (*FLAT, "--max-episode-steps", 20), 5),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*DISPLAY.*:UserWarning")  # dm_control without a screen
def test_environments_of_other_spaces(here, monkeypatch, env, options, size):
    module, _, env_id = env.partition(":")
    _need(module, env_id)
    collect = ("collect", env, *options, "--dataset", "lab/e-v0", "--steps", 60)
    collect = (*collect, "--perturb-every", 10, *SEED)
    ok(*collect)
    data = load_dataset("lab/e-v0", cache=False)
    assert data.spec.obs_dim == size
    folder = here / "datasets/lab/e-v0"
    assert ok("verify", folder, "--json").json["status"] == "intact"
    stock = minari.load_dataset("lab/e-v0")
    assert stock.total_steps == 60
    if module != "shimmy":  # which registers functions: no file can hold them
        recovered = stock.recover_environment()
        assert recovered.observation_space == stock.observation_space
        assert recovered.action_space == stock.action_space
        recovered.close()

    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("MINARI_DATASETS_PATH", str(here / "again"))
        ok(*collect, "--workers", 2)
    for name in ("manifest.json", "data/main_data.hdf5"):
        assert (here / "again/lab/e-v0" / name).read_bytes() == (folder / name).read_bytes()

    ok("fit-critic", "lab/e-v0", "--critic", "psvf", "--updates", 3, "--out", "critic", *SEED)
    ok("synthesize", "critic", "--from-scratch", 1, "--steps", 2, "--out", "p", *SEED)
    measured = ok("evaluate", "p", "--episodes", 1, *SEED).json["returns"]
    # A process that has not imported the module has to be told which one.
    code = f"from pbvf_cli.__main__ import main; raise SystemExit(main({EVALUATE}))"
    process = start(code=code, stdout=PIPE, stderr=PIPE)
    err = process.communicate()[1]
    assert process.returncode == 4
    advised = shlex.split(err.partition("if you trust that module, add ")[2])
    assert ok(*EVALUATE, *advised, "--json").json["returns"] == measured


EVALUATE = ["evaluate", "p", "--episodes", "1", "--seed", "0", "-q"]


def _need(module, env_id):
    """Skip where an environment's package is not installed, or cannot make it."""
    try:
        importlib.import_module(module)
        gym.make(env_id).close()
    except ImportError:
        pytest.skip(f"{module} is not installed")
    except (AssertionError, AttributeError) as error:
        if module == "toyenv":
            raise
        mujoco = importlib.metadata.version("mujoco")
        pytest.skip(f"{module} does not go with mujoco {mujoco}: {error!r}")


def test_stored_wrappers_are_left_out_on_request(here):
    same_spaces = """rescale-action:{"max_action": 100.0, "min_action": -100.0}"""
    collect = ("collect", "LQR-v0", "--wrapper", same_spaces, "--dataset", "lab/l-v0")
    ok(*collect, "--episodes", 2, *SEED)
    ok("fit-critic", "lab/l-v0", "--critic", "psvf", "--updates", 2, "--out", "critic", *SEED)
    ok("synthesize", "critic", "--from-scratch", 1, "--steps", 2, "--out", "p", *SEED)
    named = ("evaluate", "p", "--env", "LQR-v0", "--episodes", 1, *SEED)
    assert ok(*named).json["wrappers"] == [same_spaces]
    plain = pbvf(*named, "--wrapper", "none", warns=True).ok()
    assert plain.json["wrappers"] == []
    assert "is used in LQR-v0 with no arguments" in plain.err
    both = ("--wrapper", "none", "--wrapper", "time-feature")
    pbvf(*named, *both).refused(2, "none does not go with wrappers")


def test_a_run_in_a_wrapped_environment(here):
    train = ("train-online", "LQR-v0", "--critic", "pssvf", "--evaluations", 1, "--run", "run")
    ok(*train, *STACK, "--steps", 60, *SEED)
    assert json.loads((here / "run/config.json").read_text())["version"] == 2
    ok(*train, *STACK, "--steps", 120, *SEED)
    assert "wrappers" in pbvf(*train, "--steps", 120, *SEED).err
    ok("evaluate", "run/policy.safetensors", "--episodes", 1, *SEED)


def test_a_wrapper_that_is_not_installed_here(here):
    collect = ("collect", "LQR-v0", "--wrapper", "time-feature", "--dataset", "lab/l-v0")
    ok(*collect, "--episodes", 2, *SEED)
    ok("fit-critic", "lab/l-v0", "--critic", "psvf", "--updates", 2, "--out", "critic", *SEED)
    content, tensors = decode("critic", (here / "critic").read_bytes(), "x")
    content["environment"]["wrappers"] = [{"name": "their-own", "kwargs": {}}]
    (here / "critic").write_bytes(encode("critic", content, tensors))
    ran = pbvf("synthesize", "critic", "--evaluate", "--out", "p", *SEED)
    assert ran.code == 4
    assert "'their-own' is not installed" in ran.err
    assert "--env" in ran.err


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        ("absent", "choose one of"),
        ("frame-stack:3", "not a JSON object"),
        ("frame-stack:{", "--wrapper"),
        ('frame-stack:{"stack_size": "a/b"}', "something else"),
        ("frame-stack", "stack_size"),
    ],
)
def test_wrong_usage(here, wrapper, words):
    argv = ("collect", "LQR-v0", "--dataset", "lab/l-v0", "--episodes", 1)
    pbvf(*argv, "--wrapper", wrapper, "-q").refused(2, words)
    assert not (here / "datasets").exists()


def test_datasets_of_other_wrappers_are_not_merged(here):
    same_spaces = '{"max_action": 100.0, "min_action": -100.0}'
    more = ("--episodes", 1, "-q")
    ok("collect", "LQR-v0", "--dataset", "lab/a-v0", *more)
    wrapped = ("--wrapper", f"rescale-action:{same_spaces}")
    ok("collect", "LQR-v0", *wrapped, "--dataset", "lab/b-v0", *more)
    ok("collect", "LQR-v0", *wrapped, "--dataset", "lab/c-v0", *more)
    pbvf("dataset", "merge", "lab/a-v0", "lab/b-v0", "--dataset", "lab/ab-v0", "-q").refused(
        5, f"wrappers rescale-action:{same_spaces} against none"
    )
    ok("dataset", "merge", "lab/b-v0", "lab/c-v0", "--dataset", "lab/bc-v0", "-q")
