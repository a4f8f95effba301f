from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from libtools import box_spec, discrete_spec, make_policies
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import (
    DamagedError,
    IncompatibleError,
    ResourceError,
    UnsafeError,
    UsageError,
)
from pbvf_offline.io.tensor_file import encode
from pbvf_offline.policies.files import (
    KIND,
    PoliciesFile,
    concatenate,
    load_policies,
    single_policy,
)


def sample(rows: int = 2) -> PoliciesFile:
    policies = make_policies(box_spec(2, (3,), stochastic=True), rows, 0, [0.1, 0.2], [1.5, 2.5])
    return PoliciesFile(policies, EnvReference("LQR-v0"), {"made_by": "test", "seed": 3})


def parts_of(file: PoliciesFile) -> tuple[dict[str, Any], dict[str, Any]]:
    assert file.environment is not None
    content = {
        "spec": file.policies.spec.to_dict(),
        "environment": file.environment.to_dict(),
        "origin": dict(file.origin),
    }
    p = file.policies
    return content, {"theta": p.theta, "obs_mean": p.obs_mean, "obs_std": p.obs_std}


@pytest.mark.parametrize("spec", [box_spec(3, (4,), 2), discrete_spec(2, n=4, start=-1)])
def test_round_trip(spec: Any, tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    file = PoliciesFile(make_policies(spec, 3), None, {"a": [1, 0.5, None]})
    file.save(path)
    loaded = load_policies(path)
    assert loaded.policies.spec == spec
    assert loaded.environment is None
    assert loaded.origin == file.origin
    for name in ("theta", "obs_mean", "obs_std"):
        a, b = getattr(loaded.policies, name), getattr(file.policies, name)
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()
    assert loaded.encode() == path.read_bytes() == file.encode()
    obs = np.ones(spec.obs_dim)
    assert np.array_equal(loaded.policies.actor(1).act(obs)[0], file.policies.actor(1).act(obs)[0])


NASTY: list[Any] = [
    None,
    True,
    -1,
    2**63,
    10**400,
    1e300,
    "",
    "x" * 100,
    [],
    [[]],
    [1],
    {},
    {"id": "x"},
]


def test_nasty_content_is_refused_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    content, tensors = parts_of(sample())
    places = [(key,) for key in content]
    places += [("spec", key) for key in content["spec"]]
    places += [("spec", "actions", key) for key in content["spec"]["actions"]]
    places += [("environment", key) for key in content["environment"]]
    for place in places:
        for value in NASTY:
            bad, _ = parts_of(sample())
            target: Any = bad
            for key in place[:-1]:
                target = target[key]
            target[place[-1]] = value
            path.write_bytes(encode(KIND, bad, tensors))
            try:
                loaded = load_policies(path)
            except (DamagedError, UnsafeError, IncompatibleError):
                continue
            loaded.encode()
            loaded.policies.actor(0).act(np.zeros(2), np.random.default_rng(0))


def test_tensors_that_contradict_the_spec(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    content, good = parts_of(sample())
    theta = good["theta"]
    for change in (
        {"theta": theta[:, :-1]},
        {"obs_std": -good["obs_std"]},
        {name: array[:0] for name, array in good.items()},
        {"more": theta},
    ):
        path.write_bytes(encode(KIND, content, {**good, **change}))
        with pytest.raises(DamagedError) as caught:
            load_policies(path)
        assert caught.value.where == str(path)
    path.write_bytes(encode(KIND, content, {"theta": theta}))
    with pytest.raises(DamagedError, match="holds the tensors"):
        load_policies(path)
    del content["origin"]
    path.write_bytes(encode(KIND, content, good))
    with pytest.raises(DamagedError, match="field 'origin' is missing"):
        load_policies(path)


def test_refused_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load_policies(tmp_path / "none")
    path = tmp_path / "p.safetensors"
    path.write_bytes(pickle.dumps({"theta": [1.0] * 500}))
    with pytest.raises(UnsafeError):
        load_policies(path)
    path.write_bytes(encode("critic", {}, {}))
    with pytest.raises(IncompatibleError, match="is a critic file"):
        load_policies(path)


def test_saving_where_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ResourceError):
        sample().save(tmp_path / "file" / "p.safetensors")


def test_single_policy(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    sample(1).save(path)
    assert len(single_policy(path).policies) == 1
    sample(3).save(path)
    with pytest.raises(UsageError, match="holds 3 policies"):
        single_policy(path)


def test_concatenate() -> None:
    a, b = make_policies(box_spec(2), 2, 0), make_policies(box_spec(2), 3, 1, [1, 1])
    both = concatenate([a, b])
    assert np.array_equal(both.theta, np.concatenate([a.theta, b.theta]))
    assert np.array_equal(both.obs_mean, np.concatenate([a.obs_mean, b.obs_mean]))
    with pytest.raises(UsageError, match="different specs"):
        concatenate([a, make_policies(box_spec(2, (3,)), 1)])
