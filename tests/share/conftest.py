"""Remotes that need no network: fsspec's memory, and an S3 server on the loopback address."""

from __future__ import annotations

import pytest


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
