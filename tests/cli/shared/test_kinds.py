"""``pbvf info`` and ``pbvf verify`` of everything that this project writes."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.numpy

from cli_tools import make, pbvf, run_process
from pbvf_cli.shared.kinds import KINDS
from pbvf_offline.exchange.weight_files import description_of
from pbvf_offline.io.tensor_file import decode, encode
from pbvf_offline.policies.files import load_policies

ENV = "toyenv:ToyDrift-v0"


@pytest.fixture(scope="module")
def made(drift: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kinds") / "all"
    shutil.copytree(drift, folder)
    train = f"train-online {ENV} --critic pssvf --steps 200 --evaluations 2"
    return make(
        folder,
        f"{train} --run one --seed 0",
        f"{train} --run many --seeds 3-4",
        "policies export grown --index 0 --out weights",
        "policies export grown --index 0 --out graph --format onnx",
        "dataset pack lab/drift-v0 packed",
        "dataset keygen key",
        "dataset sign lab/drift-v0 --key key",
        "pack theta grown one bundled.tar",
        "unpack bundled.tar --out bundle",
    )


@pytest.fixture
def at(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(made / "datasets"))
    monkeypatch.chdir(made)
    return made


THINGS = {
    "lab/drift-v0": "dataset",
    "datasets/lab/drift-v0": "dataset",
    "theta": "critic",
    "actions": "critic",
    "one/critic.safetensors": "critic",
    "grown": "policies",
    "one/policy.safetensors": "policies",
    "good": "model",
    "bad": "model",
    "one": "run",
    "one/checkpoint.safetensors": "checkpoint",
    "many": "runs",
    "packed": "archive",
    "weights": "weights",
    "graph": "onnx",
    "bundled.tar": "archive",
    "bundle": "bundle",
    "bundle/theta": "critic",
    "bundle/one": "run",
}
EXPORTED = ("weights", "onnx")  # for other programs, without a digest of ours


def test_every_kind_is_tried(at: Path) -> None:
    assert {*THINGS.values(), "signature", "file"} == set(KINDS)


@pytest.mark.parametrize(("name", "kind"), THINGS.items())
def test_what_is_whole_is_told_shown_and_intact(name: str, kind: str, at: Path) -> None:
    shown = pbvf("info", name, "--json", "-q").ok().json
    found = pbvf("verify", name, "--json", "-q").ok().json
    status = "unverified" if kind in EXPORTED else "intact"
    assert (shown["kind"], found["kind"], found["status"]) == (kind, kind, status)
    assert found["problems"] == []
    assert pbvf("dataset", "verify", name, "-q", "--json").ok().json == found
    text = pbvf("info", name, "-q").ok().out
    assert text.split()[:2] == ["kind", kind]


def test_what_something_was_made_from_can_be_followed(at: Path) -> None:
    def shown(name: str) -> dict[str, object]:
        return pbvf("info", name, "--json", "-q").ok().json

    data = shown("lab/drift-v0")["digest"]
    assert shown("theta")["dataset"] == shown("good")["dataset"] == data
    assert shown("packed")["digest"] == data
    origin = shown("grown")["origin"]
    assert isinstance(origin, dict)
    assert origin["critic"] == shown("theta")["sha256"]
    assert shown("one")["digest"] == shown("one/critic.safetensors")["dataset"]
    settings = shown("theta")["settings"]
    assert isinstance(settings, dict)
    assert settings["hidden"] == [8]
    text = pbvf("info", "good", "-q").ok().out
    assert str(data) in text
    assert "hidden [16, 16]" in text


def test_a_kind_is_told_by_content_not_by_name(at: Path, tmp_path: Path) -> None:
    for name, kind in (("packed", "archive"), ("theta", "critic"), ("grown", "policies")):
        shutil.copy(at / name, tmp_path / "file.json")
        assert pbvf("info", tmp_path / "file.json", "--json", "-q").ok().json["kind"] == kind
    shutil.copytree(at / "many", tmp_path / "data-v0")
    assert pbvf("info", tmp_path / "data-v0", "--json", "-q").ok().json["kind"] == "runs"


def test_a_signature_is_shown_and_needs_its_key(at: Path) -> None:
    name = at / "datasets/lab/drift-v0/manifest.json.sig"
    shown = pbvf("info", name, "--json").ok().json
    assert shown["kind"] == "signature"
    assert shown["digest"] == pbvf("info", "lab/drift-v0", "--json").ok().json["digest"]
    pbvf("verify", name).refused(2, "public key", "check-signature")


def test_an_exported_policy_is_shown_by_its_tensors(at: Path) -> None:
    spec = load_policies(at / "grown").policies.spec
    sizes = (spec.obs_dim, spec.actions.outputs)
    shown = pbvf("info", "weights", "--json", "-q").ok().json
    tensors = {tensor["name"]: tensor["shape"] for tensor in shown["tensors"]}
    assert tensors["net.0.weight"] == [sizes[1], sizes[0]]
    assert tensors["obs_std"] == [sizes[0]]
    assert f"tanh network {sizes[0]} - {sizes[1]};" in shown["summary"]
    shown = pbvf("info", "graph", "--json", "-q").ok().json
    assert [(end["name"], end["shape"]) for end in (*shown["inputs"], *shown["outputs"])] == [
        ("obs", [None, sizes[0]]),
        ("action", [None, sizes[1]]),
    ]
    assert shown["operators"]["MatMul"] == 1
    text = pbvf("info", "graph", "-q").ok().out
    assert "net.0.weight" in text
    assert "obs, float64 of shape (any, " in text


def _state(at: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:  # type: ignore[type-arg]
    image = (at / "weights").read_bytes()
    return dict(safetensors.numpy.load(image)), {"description": description_of(image)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"obs_std": np.zeros(3)}, "obs_std is not positive"),
        ({"net.0.weight": np.full((1, 3), np.nan)}, "net.0.weight holds NaN"),
        ({"net.0.weight": np.zeros((1, 4))}, "net.0.weight is of shape (1, 4), expected (1, 3)"),
        ({"net.0.bias": None}, "lacks net.0.bias"),
        ({"action_low": None}, "lacks action_low"),
    ],
    ids=str,
)
def test_exported_weights_that_contradict_themselves(
    changes: dict[str, Any], words: str, at: Path, here: Path
) -> None:
    tensors, metadata = _state(at)
    tensors = {n: a for n, a in {**tensors, **changes}.items() if a is not None}
    (here / "w").write_bytes(safetensors.numpy.save(tensors, metadata))
    pbvf("info", here / "w").refused(3, words)
    ran = pbvf("verify", here / "w", "--json", "-q")
    assert (ran.code, ran.json["kind"], ran.json["status"]) == (3, "weights", "damaged")
    # Without the description it is anybody's, and no file of this project.
    (here / "w").write_bytes(safetensors.numpy.save(tensors))
    pbvf("info", here / "w").refused(5, "not a file of this project")


def _external(model: Any) -> None:
    model.graph.initializer[0].data_location = 1
    entry = model.graph.initializer[0].external_data.add()
    entry.key, entry.value = "location", "/etc/passwd"


def _foreign(model: Any) -> None:
    model.graph.node[0].domain = "their.ops"


def _without_numbers(model: Any) -> None:
    model.graph.initializer[0].raw_data = b""


def _nan(model: Any) -> None:
    model.graph.initializer[0].raw_data = np.full(3, np.nan).tobytes()


def _renamed(model: Any) -> None:
    model.graph.input[0].name = model.graph.node[0].input[0] = "other"


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (_external, 4, "in another file"),
        (_foreign, 4, "plain operators"),
        (_without_numbers, 3, "no valid ONNX graph"),
        (_nan, 3, "holds NaN"),
        (_renamed, 3, "does not take obs"),
    ],
)
def test_a_graph_that_is_not_what_was_exported(
    change: Any, code: int, words: str, at: Path, here: Path
) -> None:
    model = onnx.load_model_from_string((at / "graph").read_bytes())
    change(model)
    (here / "g").write_bytes(model.SerializeToString(deterministic=True))
    pbvf("info", here / "g").refused(code, words)
    ran = pbvf("verify", here / "g", "--json", "-q")
    assert (ran.code, ran.json["kind"]) == (code, "onnx")


def test_a_graph_cut_short_or_without_its_package(
    at: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "g").write_bytes((at / "graph").read_bytes()[:-9])
    assert pbvf("verify", here / "g", "-q", "--json").json["status"] == "damaged"
    monkeypatch.setitem(sys.modules, "onnx", None)
    for command in ("info", "verify"):
        pbvf(command, at / "graph").refused(2, "onnx is not installed", "pip install")


@pytest.mark.parametrize("command", ["info", "verify"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("one/config.json", "a part of a run; give one"),
        ("one/metrics.jsonl", "a part of a run"),
        ("datasets/lab/drift-v0/manifest.json", "a part of a dataset"),
        ("datasets/lab/drift-v0/data/main_data.hdf5", "HDF5"),
        ("one/pending.safetensors", "a part of a run"),
        ("datasets/lab/drift-v0/README.md", "a part of a dataset"),
        ("datasets/lab/drift-v0/data/metadata.json", "a part of a dataset"),
        ("bundle/README.md", "a part of a bundle; give bundle"),
        ("datasets/lab/drift-v0/data", "a part of a dataset; give"),
        ("one/episodes", "a part of a run; give one"),
        ("datasets", "neither a dataset's, a bundle's nor a run's"),
        ("", "'' is neither a dataset id nor a folder"),
        ("lab/none-v0", "there is no dataset"),
    ],
)
def test_a_part_or_nothing_is_wrong_usage(name: str, words: str, command: str, at: Path) -> None:
    pbvf(command, name).refused(2, words)


def test_a_folder_with_a_configuration_of_something_else_is_no_run(at: Path, here: Path) -> None:
    (here / "config.json").write_text('{"model_type": "bert"}')
    for command in ("info", "verify"):
        pbvf(command, here).refused(2, "neither a dataset's, a bundle's nor a run's")
    config = json.loads((at / "one/config.json").read_text())
    (here / "config.json").write_text(json.dumps(config | {"evaluations": "many"}))
    pbvf("info", here).refused(3, "config.json: evaluations")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"hello world", 3),
        (b"", 3),
        (b'{"a": [1]}', 3),
        (b"\x1f\x8b\x08\x00" * 9, 3),
        (b"\x80\x04\x95\x0b\x00\x00\x00", 4),
    ],
)
def test_files_of_no_kind(data: bytes, code: int, here: Path) -> None:
    (here / "file").write_bytes(data)
    words = "none of this project's files" if code == 3 else "pickle"
    if not data:
        words = "is empty, so it is none of this project's files"
    pbvf("info", "file").refused(code, words)
    (here / "manifest.json").write_text('{"format":"pbvf-bundle"}')  # which does not list it
    pbvf("info", "file").refused(code, words)
    ran = pbvf("verify", "file", "--json")
    assert (ran.code, ran.json["kind"]) == (code, "file")


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("weights", 5, "is not a critic file of this project; 'pbvf fit-critic' makes critics; "),
        ("weights", 5, "'pbvf policies import' takes weights of other programs"),
        ("packed", 3, "is an archive, no tensor file of this project; 'pbvf unpack' takes out"),
        ("datasets/lab/drift-v0/data/main_data.hdf5", 3, "an HDF5 file, no tensor file of"),
    ],
)
def test_a_file_in_the_place_of_a_critic_says_what_it_is(
    name: str, code: int, words: str, at: Path
) -> None:
    pbvf("predict", at / name, at / "grown", "-q").refused(code, words)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("theta", "this is a critic file; a dataset is a folder; 'pbvf synthesize' and"),
        ("grown", "this is a policies file; a dataset is a folder; 'pbvf evaluate' and"),
        ("packed", "this is an archive; a dataset is a folder; 'pbvf unpack' takes out"),
        ("weights", "this is a file; a dataset is a folder; 'pbvf info' tells"),
        ("datasets/lab/drift-v0/data/main_data.hdf5", "data/main_data.hdf5 is the dataset"),
    ],
)
def test_a_file_in_the_place_of_a_dataset_says_what_it_is(name: str, words: str, at: Path) -> None:
    pbvf("fit-model", at / name, "--out", "m", "-q").refused(2, words)


def test_a_damaged_run_and_a_damaged_archive_are_exit_3(at: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(at / "one", tmp_path / "one"))
    (run / "policy.safetensors").unlink()
    ran = pbvf("verify", run, "--json", "-q")
    assert (ran.code, ran.json["status"]) == (3, "damaged")
    image = bytearray((at / "packed").read_bytes())
    image[len(image) // 2] ^= 1
    (tmp_path / "packed").write_bytes(image)
    ran = pbvf("verify", tmp_path / "packed", "--json", "-q")
    assert (ran.code, ran.json["kind"], ran.json["status"]) == (3, "archive", "damaged")
    assert ran.json["problems"][0]["where"].startswith(str(tmp_path / "packed"))


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": "x"},
        {"episodes": []},
        {"updates": [[[]]]},
        {"settings": "text"},
        {"steps": -1},
        {"spec": {"obs_dim": -1}},
    ],
    ids=str,
)
def test_a_checkpoint_with_a_malformed_header_is_damaged(
    changes: dict[str, object], at: Path, here: Path
) -> None:
    content, tensors = decode("checkpoint", (at / "one/checkpoint.safetensors").read_bytes(), "x")
    if isinstance(spec := changes.get("spec"), dict):
        changes = {"spec": {**content["spec"], **spec}}
    (here / "file").write_bytes(encode("checkpoint", {**content, **changes}, tensors))
    pbvf("info", here / "file").refused(3, *changes)
    ran = pbvf("verify", here / "file", "--json")
    assert (ran.code, ran.json["status"]) == (3, "damaged")


def test_half_a_character_in_a_header_or_a_result_is_exit_3(
    at: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, tensors = decode("critic", (at / "theta").read_bytes(), "theta")
    content["config"]["hidden"] = "\ud800"
    with monkeypatch.context() as patch:  # this project writes no such text
        patch.setattr(
            "pbvf_offline.io.tensor_file.canonical_json",
            lambda value: json.dumps(value, sort_keys=True, separators=(",", ":")).encode(),
        )
        (tmp_path / "half").write_bytes(encode("critic", content, tensors))
    for command in (("info",), ("verify",), ("synthesize", "--out", tmp_path / "new")):
        ran = pbvf(*command, tmp_path / "half", "-q")
        assert (ran.code, ran.err.count("\n")) == (3, 1)
        assert "half of a character" in ran.err
    run = Path(shutil.copytree(at / "one", tmp_path / "one"))
    result = json.loads((run / "result.json").read_text("utf-8"))
    (run / "result.json").write_text(json.dumps({**result, "note": "\ud800"}))
    pbvf("info", run, "-q").refused(3, "half of a character")
    assert pbvf("verify", run, "-q").code == 3


@pytest.mark.parametrize(
    "command",
    [
        ("dataset", "info", "one"),
        ("dataset", "merge", "one", "--dataset", "lab/new-v0"),
        ("synthesize", "theta", "--dataset", "one", "--out", "new"),
    ],
)
def test_a_run_where_a_dataset_is_wanted_is_wrong_usage(command: tuple[str, ...], at: Path) -> None:
    pbvf(*command, "-q").refused(2, "not a dataset folder", "--export-dataset")


def test_info_of_a_dataset_imports_no_torch(at: Path) -> None:
    code = (
        "import sys\nfrom pbvf_cli.__main__ import main\n"
        "assert main(['info', 'lab/drift-v0', '--json']) == 0\n"
        "assert not {'torch', 'minari', 'toyenv'} & set(sys.modules)\n"
    )
    assert run_process(code=code).ok().json["kind"] == "dataset"


def test_a_folder_called_data_makes_no_dataset(here: Path) -> None:
    (here / "project" / "data").mkdir(parents=True)
    (here / "linked").mkdir()
    (here / "linked" / "data").symlink_to(here)
    for name in ("project", "linked"):
        for command in (("info",), ("verify",)):
            pbvf(*command, here / name).refused(2, "this folder is neither a dataset's")
    pbvf("dataset", "info", here / "project").refused(2, "this is not a dataset folder")


def episodes_in(text: str) -> str:
    line = next(line for line in text.splitlines() if line.startswith("episodes "))
    return line.removeprefix("episodes").strip()


def test_episodes_are_counted_and_told_alike_everywhere(here: Path) -> None:
    varied = "toyenv:ToyVaried-v0"
    name = "lab/x-v0"
    made = pbvf("collect", varied, "--dataset", name, "--steps", 95, "--seed", 0, "-q").ok()
    trained = pbvf(
        "train-online", varied, "--critic", "pssvf", "--run", "run", "--steps", 95, "--seed", 0,
        "--evaluations", 1, "--evaluation-episodes", 1, "--export-dataset", "lab/run-v0", "-q",
    ).ok()  # fmt: skip
    pbvf("pack", name, "x.tar", "-q").ok()
    told = episodes_in(made.out)
    ends = pbvf("info", name, "--json").json["ends"]
    terminated, truncated, cut = ends.values()
    assert cut == 1
    assert terminated > 1
    assert told == (
        f"{terminated + 1}: {terminated} whole ({terminated} terminated, {truncated} truncated), "
        "1 cut by the step budget"
    )
    for thing in (name, "x.tar"):
        for command in ("info", "verify"):
            assert episodes_in(pbvf(command, thing, "-q").ok().out) == told
    listed = {one["dataset"]: one for one in pbvf("dataset", "list", "--json").json["datasets"]}
    assert listed[name]["ends"] == ends
    same = {episodes_in(pbvf(c, t, "-q").ok().out)
            for c in ("info", "verify") for t in ("run", "lab/run-v0")}  # fmt: skip
    whole = episodes_in(trained.out).removesuffix(", 1 cut by the step budget")
    assert len(same) == 1
    assert same.pop().startswith(f"{whole} (")


def test_arguments_of_an_environment_are_shown_themselves(here: Path) -> None:
    kwargs = '{"obs_dim": 4, "length": 6}'
    own = ("--env-kwargs", kwargs, "--wrapper", "flatten-observation", "--seed", 0, "-q")
    pbvf("collect", "toyenv:Toy-v0", "--dataset", "lab/x-v0", "--episodes", 30, *own).ok()
    quick = ("--updates", 1, "--hidden", 8, "--seed", 0, "-q")
    pbvf("fit-critic", "lab/x-v0", "--critic", "pssvf", "--out", "critic", *quick).ok()
    pbvf("fit-model", "lab/x-v0", "--out", "model", "--noise", 0, "--no-angles", "--no-mixed",
         *quick).ok()  # fmt: skip
    pbvf("synthesize", "critic", "--steps", 1, "--out", "policies", "-q").ok()
    pbvf("train-online", "toyenv:Toy-v0", "--critic", "pssvf", "--steps", 6, "--run", "run",
         "--evaluations", 1, *own).ok()  # fmt: skip
    things = ("lab/x-v0", "critic", "model", "policies", "run")
    for thing in things:
        told = pbvf("info", thing).ok().out
        assert "length=6, obs_dim=4, wrapper flatten-observation" in told
        assert pbvf("info", thing, "--json").json["env_kwargs"] == json.loads(kwargs)
    settings = pbvf("info", "lab/x-v0", "--json").json["settings"]
    pbvf("report", *things, "--out", "page.html", "-q").ok()
    page = Path("page.html").read_text()
    assert "length=6, obs_dim=4" in page
    told = pbvf("info", "lab/x-v0").out
    assert settings["env_kwargs"] not in page + told
    assert "policy []" not in told  # the architecture has a line of its own
