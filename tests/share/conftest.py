"""A dataset to send, and remotes that need no network."""

from __future__ import annotations

from pathlib import Path

import pytest

from pbvf_datasets.share.privacy import Machine
from share_tools import SOMEBODY, bundled, licensed, without_pauses


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset that may be sent, read only."""
    return licensed(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="session", params=["dataset", "bundle"])
def thing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset or a bundle that may be sent, read only; as NAME both go to one place here."""
    if request.param == "dataset":
        path: Path = request.getfixturevalue("made")
        return path
    return bundled(tmp_path_factory.mktemp("bundled"))


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine whose names no text holds, and no waiting before new tries."""
    without_pauses(monkeypatch)
    monkeypatch.setattr(Machine, "this", classmethod(lambda cls: SOMEBODY))


@pytest.fixture
def root(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of datasets, and the current one."""
    root.mkdir()
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def memory():
    """A place that fsspec keeps in memory."""
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    yield fs
    fs.store.clear()


@pytest.fixture(scope="module")
def s3():
    """An S3 server on the loopback address with one bucket."""
    pytest.importorskip("s3fs")
    server_module = pytest.importorskip("moto.server")
    with pytest.MonkeyPatch.context() as patch:
        server = server_module.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        address = f"http://{host}:{port}"
        for key, value in {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "s3cr3t-key",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": address,
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            patch.setenv(key, value)
        import boto3

        client = boto3.client("s3")
        client.create_bucket(Bucket="lab")
        yield client
        client.close()
        server.stop()
