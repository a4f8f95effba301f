"""``--ray``: the same bytes from a cluster of two nodes as from two processes; lost nodes."""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_tools import SOURCES, content, pbvf, run_process, start, wait_for

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]


class Cluster:
    """Nodes of Ray on this machine, each with one core; all their processes are one group."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        # Ray listens to the network, so that only who has the token may use it.
        self.env = {
            **{"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)},
            **{"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join(map(str, SOURCES))},
            # Else the loss of a node would be noticed after half a minute.
            **{"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "4"},
            "RAY_health_check_timeout_ms": "1000",
        }
        self.address, self._folder = f"127.0.0.1:{port}", folder
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.add("--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false")

    def add(self, *how: str, **env: str) -> subprocess.Popen[bytes]:
        """Start a node."""
        log = self._folder / f"node-{len(self.nodes)}.log"
        where = how or (f"--address={self.address}",)
        with log.open("wb") as output:
            node = subprocess.Popen(
                [
                    *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
                    *("--num-cpus=1", "--object-store-memory=100000000", *where),
                ],
                env={**os.environ, **self.env, **env},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.nodes.append(node)
        while b"Ray runtime started" not in log.read_bytes():
            assert node.poll() is None, log.read_text()
            time.sleep(0.1)
        return node

    @staticmethod
    def kill(node: subprocess.Popen[bytes]) -> None:
        """End a node as a power cut would."""
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()

    def close(self) -> None:
        for node in reversed(self.nodes):
            if node.poll() is None:
                self.kill(node)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A head and a second node."""
    found = Cluster(tmp_path_factory.mktemp("ray"))
    try:
        found.add(NODE="second")
        yield found
    finally:
        found.close()


ENVIRONMENT = """
import os, signal
from pathlib import Path
import gymnasium as gym
from toyenv import ToyEnv

LOG = Path(__file__).with_name("log.txt")
FIFO = LOG.with_name("fifo")

def hold():
    LOG.with_name("held").write_text("held\\n")
    signal.pause()

class Lossy(ToyEnv):
    def reset(self, **how):
        with LOG.open("a") as log:
            log.write(f"{os.getpid()}\\n")
        if LOG.with_name("hold").exists() and len(LOG.read_text().splitlines()) >= 20:
            hold()
        if FIFO.exists():
            if os.environ.get("NODE") == "second":
                FIFO.open("w").close()  # until the first node opens it too
                hold()
            FIFO.open().close()
            FIFO.unlink()
        if LOG.with_name("die").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reset(**how)

gym.register("Lossy-v0", "lossy:Lossy", max_episode_steps=40, kwargs={"length": None})
"""
COLLECT = ("collect", "lossy:Lossy-v0", "--dataset", "lab/x-v0", "--perturb-every", 10)
ALL = (*COLLECT, "--episodes", 60, "--seed", 0, "--backend", "gymnasium")


@pytest.fixture
def place(here: Path) -> Path:
    """The current folder, with a module of an environment that nodes find there alone."""
    (here / "lossy.py").write_text(ENVIRONMENT)
    return here


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The dataset that two processes make."""
    folder = tmp_path_factory.mktemp("expected")
    (folder / "lossy.py").write_text(ENVIRONMENT)
    run_process(*ALL, "--workers", 2, "-q", cwd=folder, env=datasets(folder)).ok()
    return content(folder / "datasets")


def datasets(folder: Path) -> dict[str, str]:
    return {"MINARI_DATASETS_PATH": str(folder / "datasets")}


def on(cluster: Cluster, *argv: object) -> tuple[object, ...]:
    return (*argv, "--ray", cluster.address, "-q")


def test_nodes_of_other_versions_are_refused(cluster: Cluster, place: Path) -> None:
    other = place / "other" / "numpy-0.0.1.dist-info" / "METADATA"
    other.parent.mkdir(parents=True)
    other.write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.0.1\n")
    path = os.pathsep.join([str(place / "other"), cluster.env["PYTHONPATH"]])
    node = cluster.add(PYTHONPATH=path)
    run_process(*on(cluster, *ALL), env=cluster.env).refused(5, "has numpy 0.0.1 (not ")
    cluster.kill(node)


def test_a_cluster_collects_the_bytes_of_two_processes(
    cluster: Cluster, place: Path, expected: dict[str, bytes]
) -> None:
    ran = run_process(*on(cluster, *ALL), "--json", env=cluster.env).ok()
    assert (ran.err, ran.json["episodes"]) == ("", 60)
    assert content(place / "datasets") == expected


def test_an_interrupted_command_continues(
    cluster: Cluster, place: Path, expected: dict[str, bytes]
) -> None:
    (place / "hold").touch()
    process = start(*on(cluster, *ALL), env=cluster.env)
    wait_for(place / "held", 1, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, len(err.splitlines())) == (130, "", 1)
    (place / "hold").unlink()
    run_process(*on(cluster, *ALL), env=cluster.env).ok()
    assert content(place / "datasets") == expected


def test_runs_of_seeds_and_sweeps_are_those_of_this_machine(cluster: Cluster, place: Path) -> None:
    train = ("train-online", "LQR-v0", "--critic", "pssvf", "--steps", 100, "--evaluations", 1)
    train = (*train, "--hidden", 4, "--logger", "metrics", "--seeds", "0-1", "--run")
    run_process(*on(cluster, *train, "there"), env=cluster.env).ok()
    run_process(*train, "here", "--workers", 1, "-q").ok()
    for seed in (0, 1):
        for name in ("critic.safetensors", "policy.safetensors"):
            there, here = (place / run / f"seed-{seed}" / name for run in ("there", "here"))
            assert there.read_bytes() == here.read_bytes()

    sweep = ("sweep", "--grid", "sigma=1,x", "--out", "sweep")
    collect = ("--", "collect", "LQR-v0", "--dataset", "lab/s{sigma}-v0", "--episodes", 1)
    ran = run_process(*on(cluster, *sweep), "--json", *collect, "--seed", 0, env=cluster.env)
    assert ran.code == 2
    assert [cell["exit"] for cell in ran.json["cells"]] == [0, 2]
    assert (place / "sweep" / "raw" / "sigma=1.json").exists()
    assert not list(place.glob(".*.ray"))


def test_many_policies_climb_to_the_bytes_of_this_machine(cluster: Cluster, place: Path) -> None:
    pbvf("collect", "LQR-v0", "--dataset", "lab/x-v0", "--episodes", 9, "--seed", 0, "-q").ok()
    fit = ("fit-critic", "lab/x-v0", "--critic", "psvf", "--updates", 3, "--hidden", 4, "-q")
    pbvf(*fit, "--out", "critic").ok()
    climb = ("synthesize", "critic", "--from-scratch", 25, "--steps", 2, "--seed", 0, "--out")
    run_process(*on(cluster, *climb, "there"), env=cluster.env).ok()
    pbvf(*climb, "here", "-q").ok()
    assert (place / "there").read_bytes() == (place / "here").read_bytes()


def test_what_kills_its_worker_each_time_is_given_up(cluster: Cluster, place: Path) -> None:
    (place / "die").touch()
    run_process(*on(cluster, *ALL), env=cluster.env).refused(9, "3 times on item ")


def test_what_a_lost_node_had_in_hand_is_done_again(
    cluster: Cluster, place: Path, expected: dict[str, bytes]
) -> None:
    os.mkfifo(place / "fifo")  # each node waits there until the other one has a unit in hand
    process = start(*on(cluster, *ALL), env=cluster.env)
    wait_for(place / "held", 1, process)
    cluster.kill(cluster.nodes[1])
    _, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (0, "")
    assert content(place / "datasets") == expected


def test_one_process_starts_ray_again_and_again() -> None:
    blocks = "\n".join(['with ray_engine("local", workers=1): pass'] * 2)
    again = f"from pbvf_offline.rollout.cluster import ray_engine\n{blocks}"
    variables = {"PYTHONPATH": os.pathsep.join(map(str, SOURCES))}
    others = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
    subprocess.run([sys.executable, "-c", again], env={**others, **variables}, check=True)


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (("reproduce", "table", "--out", "o", "--ray", "h"), 2, "no address"),
        (
            ("reproduce", "table", "--out", "/proc/x/o", "--ray", "auto"),
            6,
            "/proc/x: cannot be made",
        ),
        (("collect", "LQR-v0", "--dataset", "lab/x-v0", "--ray", "ray://h:1"), 2, "no address"),
        (("collect", "LQR-v0", "--dataset", "lab/x-v0", "--ray", "127.0.0.1:9"), 10, "no cluster"),
        (
            ("train-online", "LQR-v0", "--critic", "pssvf", "--run", "r", "--ray", "auto"),
            2,
            "--ray",
        ),
    ],
)
def test_addresses_and_outputs_that_cannot_be(argv: tuple[str, ...], code: int, said: str) -> None:
    pbvf(*argv, "-q").refused(code, said)
