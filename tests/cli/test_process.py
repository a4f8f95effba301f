"""The command as a process: start-up, workers, signals, pipes."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import pytest

from cli_tools import content, digest, pbvf, run_process, start, wait_for, wait_for_group

SLOW = ("collect", "toyenv:ToySlow-v0", "--dataset", "lab/slow-v0", "--seed", 0, "-q")


def test_collect_never_imports_torch():
    code = (
        "import sys; from pbvf_cli.__main__ import main\n"
        "code = main(sys.argv[1:])\n"
        "print(code, 'torch' in sys.modules, file=sys.stderr)"
    )
    argv = ["collect", "toyenv:Toy-v0", "--dataset", "lab/toy-v0", "--steps", 12, "-q"]
    ran = run_process(*argv, code=code)
    assert ran.err.splitlines()[-1] == "0 False"


def test_case_5_and_11_workers_give_the_same_bytes(here):
    argv = ["collect", "toyenv:Toy-v0", "--steps", 102, "--seed", 0, "--perturb-every", 2, "-q"]
    for workers in (1, 2):
        run_process(*argv, "--workers", workers, "--dataset", f"lab/with{workers}-v0").ok()
    one, two = (content(here / f"datasets/lab/with{w}-v0/data") for w in (1, 2))
    assert one["main_data.hdf5"] == two["main_data.hdf5"]


def test_a_module_of_the_current_folder_is_found_by_workers_too(here):
    (here / "mine.py").write_text(
        "import gymnasium as gym\n"
        "from toyenv import ToyEnv\n"
        "class Mine(ToyEnv):\n    pass\n"
        "gym.register('Mine-v0', entry_point='mine:Mine', max_episode_steps=50)\n"
    )
    argv = ["collect", "mine:Mine-v0", "--dataset", "lab/mine-v0", "--episodes", 6, "--workers", 2]
    # As the installed command starts: the current folder is not on the path.
    run_process(*argv, "-q", env={"PYTHONSAFEPATH": "1"}).ok()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The command of case 14, the folder of its log, and what it makes when left alone."""
    folder = tmp_path_factory.mktemp("undisturbed")
    argv = [*SLOW, "--steps", 70, "--warmup-episodes", 1]
    argv += ["--env-kwargs", f'{{"log": "{folder / "log.txt"}"}}']
    run_process(*argv, env={"MINARI_DATASETS_PATH": str(folder / "datasets")}).ok()
    return argv, folder / "log.txt", content(folder / "datasets/lab/slow-v0")


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)],
)
@pytest.mark.slow
def test_case_14_stopped_in_the_middle_the_same_command_continues(here, undisturbed, number, code):
    argv, log, expected = undisturbed
    log.unlink()
    process = start(*argv)
    wait_for(log, 40, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == ""
    if code > 0:
        assert len(err.splitlines()) == 1
        assert "continues" in err
    root = here / "datasets"
    assert not (root / "lab/slow-v0").exists()
    before = len(log.read_text().splitlines())
    run_process(*argv).ok()
    assert content(root / "lab/slow-v0") == expected
    if code > 0:  # finished episodes were kept; the first is played again, after three others
        assert len(log.read_text().splitlines()) - before < 70 + 4 * 5


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_stopping_a_group_of_workers_leaves_no_process_behind(here, number, code):
    log = here / "log.txt"
    argv = [*SLOW, "--steps", 2000, "--workers", 2, "--warmup-episodes", 0]
    argv += ["--env-kwargs", f'{{"log": "{log}"}}']
    process = start(*argv, start_new_session=True)
    wait_for(log, 10, process)
    os.killpg(process.pid, number)  # as a terminal does
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert len(err.splitlines()) == 1
    wait_for_group(process)


def test_nohup_goes_on_without_its_terminal(here):
    log = here / "log.txt"
    argv = [*SLOW, "--steps", 60, "--workers", 2, "--warmup-episodes", 0]
    argv += ["--env-kwargs", f'{{"log": "{log}"}}']
    code = (
        "import signal, runpy, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "sys.argv[0] = 'pbvf'; runpy.run_module('pbvf_cli', run_name='__main__')"
    )
    process = start(*argv, code=code, start_new_session=True)
    wait_for(log, 10, process)
    os.killpg(process.pid, signal.SIGHUP)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "60" in out


@pytest.mark.skipif(sys.platform != "linux", reason="pseudo-terminals")
def test_a_terminal_that_goes_away_costs_no_finished_episode(here):
    """A dropped ssh: the terminal is gone, bar and all, when the signal arrives."""
    import fcntl
    import pty
    import termios

    log = here / "log.txt"
    argv = [*SLOW[:-1], "--steps", 2000, "--warmup-episodes", 0]  # with a progress bar
    argv += ["--env-kwargs", f'{{"log": "{log}"}}']
    parent, child = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(child, termios.TIOCSCTTY, 0)

    streams = {"stdin": child, "stdout": child, "stderr": child}
    process = start(*argv, env={"TERM": "xterm"}, preexec_fn=take_terminal, **streams)
    os.close(child)
    wait_for(log, 40, process)
    os.close(parent)
    assert process.wait(timeout=60) == 129
    assert list((here / "datasets/lab").glob(".slow-v0.collecting/shard-*"))


GREEDY = """
import signal
import gymnasium as gym
from toyenv import ToyEnv


class Greedy(ToyEnv):
    def __init__(self, where, **kwargs):
        super().__init__(**kwargs)
        self.where = where
        self.take("made")

    def reset(self, **kwargs):
        self.take("reset")
        return super().reset(**kwargs)

    def take(self, where):
        if where == self.where:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, lambda *_: None)


gym.register("Greedy-v0", "greedy:Greedy", max_episode_steps=50)
"""


@pytest.mark.parametrize("where", ["made", "reset"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_environment_that_takes_the_signals_cannot_keep_them(here, where, number):
    (here / "greedy.py").write_text(GREEDY)
    log, kwargs = here / "log.txt", {"where": where, "delay": 0.02}
    argv = ["collect", "greedy:Greedy-v0", "--dataset", "lab/g-v0", "--steps", 5000, "-q"]
    argv += ["--env-kwargs", json.dumps({**kwargs, "log": str(log)})]
    process = start(*argv)
    wait_for(log, 10, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "continues" in err


@pytest.mark.parametrize("workers", [1, 2])
def test_an_environment_that_raises_a_keyboard_interrupt_stops_the_command(here, workers):
    """An emulator does that when its window is closed, say."""
    (here / "closed.py").write_text(
        "import gymnasium as gym\n"
        "from toyenv import ToyEnv\n"
        "class Closed(ToyEnv):\n"
        "    def step(self, action):\n"
        "        raise KeyboardInterrupt\n"
        "gym.register('Closed-v0', entry_point='closed:Closed', max_episode_steps=50)\n"
    )
    argv = ["collect", "closed:Closed-v0", "--dataset", "lab/c-v0", "--episodes", 2, "-q"]
    ran = run_process(*argv, "--no-normalize", "--workers", workers)
    assert (ran.code, ran.error) == (
        130,
        "interrupted; what was finished is safe, the same command continues",
    )


def test_what_starts_over_says_so(here, drift):
    """An evaluation keeps nothing; nor does a search by rounds of imagination."""
    shown = drift / "grown"
    argv = ["evaluate", shown, "--env", "toyenv:ToyDrift-v0", "--episodes", 10_000, "--json"]
    process = start(*argv)
    for line in process.stderr:
        if "evaluating" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "interrupted; the same command starts over"


@pytest.mark.slow
def test_an_interrupted_fit_continues_to_the_same_bytes(here):
    collect = ["--dataset", "lab/toy-v0", "--steps", 200, "--seed", 0, "-q"]
    assert pbvf("collect", "toyenv:Toy-v0", *collect).code == 0
    # Large enough to be caught in the middle.
    fit = ["fit-critic", "lab/toy-v0", "--critic", "psvf", "--updates", 300, "--seed", 0]
    fit += ["--hidden", "128,128", "--snapshots", "20", "-q"]
    process = start(*fit, "--out", "c.safetensors")
    for _ in range(3000):
        if (here / "c-000020.safetensors").exists() or process.poll() is not None:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert not (here / "c.safetensors").exists()
    assert (here / ".c.safetensors.partial").exists()
    for out in ("c.safetensors", "d.safetensors"):
        pbvf(*fit, "--out", out).ok()
    assert (here / "c.safetensors").read_bytes() == (here / "d.safetensors").read_bytes()
    assert not (here / ".c.safetensors.partial").exists()


def test_two_at_once_conflict(here):
    log = here / "log.txt"
    argv = [*SLOW, "--steps", 200, "--warmup-episodes", 0]
    argv += ["--env-kwargs", f'{{"log": "{log}"}}']
    process = start(*argv)
    wait_for(log, 3, process)
    second = run_process(*argv)
    process.kill()
    process.communicate()
    assert second.code == 7
    assert "another process" in second.error


@pytest.mark.parametrize("argv", [["--help"], ["collect", "--help"]])
def test_a_reader_that_leaves_early_is_no_error(argv):
    with start(*argv) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 0


def test_a_result_nobody_reads_is_still_a_success(here):
    argv = ["collect", "toyenv:Toy-v0", "--dataset", "lab/toy-v0", "--steps", 12, "--json", "-q"]
    with start(*argv) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 0
    assert digest(here / "datasets", "lab/toy-v0")


def test_progress_is_plain_lines_without_a_terminal():
    argv = ["collect", "toyenv:Toy-v0", "--dataset", "lab/toy-v0", "--steps", 12, "--json"]
    ran = run_process(*argv)
    assert ran.json["steps"] == 12
    assert "\x1b" not in ran.err + ran.out
    assert "\r" not in ran.err


def test_a_dependency_that_complains_does_not_break_json():
    # Hopper-v4 is old: Gymnasium has remarks about it.
    argv = ["collect", "Hopper-v4", "--dataset", "lab/h-v0", "--steps", 20, "--json", "-q"]
    ran = run_process(*argv, "--warmup-episodes", 1).ok()
    assert ran.err == ""
    assert ran.json["steps"] == 20


@pytest.mark.skipif(sys.platform != "linux", reason="pseudo-terminals")
def test_a_terminal_gets_a_bar():
    import pty

    parent, child = pty.openpty()
    argv = ["collect", "toyenv:ToySlow-v0", "--dataset", "lab/toy-v0", "--steps", 50, "--seed", 0]
    with start(*argv, "--workers", 2, env={"TERM": "xterm"}, stderr=child) as process:
        os.close(child)
        seen = b""
        while True:
            try:
                seen += os.read(parent, 65536)
            except OSError:  # the other side is gone
                break
        os.close(parent)
        assert process.wait(timeout=60) == 0
    text = seen.decode()
    assert "50/50 steps" in text
    assert "\x1b[?25h" in text  # the cursor is back


NOISY = """
import os
import sys
import threading
import gymnasium as gym
import numpy as np

print("printed at import")


class Env(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float64)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, thread=False):
        if thread:
            threading.Thread(target=threading.Event().wait).start()

    def reset(self, *, seed=None, options=None):
        print("printed in reset")
        return np.zeros(2), {}

    def step(self, action):
        os.write(1, b"written in step\\n")
        return np.zeros(2), 1.0, True, False, {}

    def close(self):
        raise RuntimeError("cannot close")


class Exits(Env):
    def step(self, action):
        sys.exit(0)


class Words(Env):
    def step(self, action):
        return np.zeros(2), "1.5", True, False, {}


for name in ("Env", "Exits", "Words"):
    gym.register(f"{name}-v0", entry_point=f"noisyenv:{name}", max_episode_steps=5)
"""


def noisy(here, name, *arguments):
    (here / "noisyenv.py").write_text(NOISY)
    command = ["collect", f"noisyenv:{name}-v0", "--dataset", "lab/noisy-v0", "--episodes", 3]
    argv = [*command, "--json", "--seed", 0, *arguments]
    return run_process(*argv)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_an_environment_prints_stays_out_of_the_data(here, workers):
    ran = noisy(here, "Env", "--workers", workers).ok()
    assert ran.json["episodes"] == 3
    assert "written in step" in ran.err


def test_an_environments_threads_do_not_keep_the_command_alive(here):
    ran = noisy(here, "Env", "--env-kwargs", '{"thread": true}').ok()
    assert ran.json["steps"] == 3


@pytest.mark.parametrize(("name", "words"), [("Exits", "SystemExit"), ("Words", "'1.5'")])
def test_an_environment_cannot_end_the_command_or_pass_words_for_numbers(here, name, words):
    ran = noisy(here, name)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err.splitlines()[-1]


def test_mujoco_writes_no_log_of_warnings(here):
    """It warns of this model while it is loaded."""
    command = ("collect", "HalfCheetah-v5", "--dataset", "lab/log-v0", "--steps", "1")
    ran = run_process(*command, "--no-normalize", "--workers", "1", "--quiet").ok()
    assert [path.name for path in here.iterdir()] == ["datasets"]
    assert ran.err == ""


def test_a_renderer_that_mujoco_does_not_know_is_no_bug(here):
    command = ("collect", "InvertedPendulum-v5", "--dataset", "lab/gl-v0", "--steps", "5")
    run_process(*command, env={"MUJOCO_GL": "foo"}).refused(2, "change or unset MUJOCO_GL")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_bug(here, closed):
    command = f"{sys.executable} -m pbvf_cli collect LQR-v0 --dataset lab/closed-v0 --episodes 1"
    shell = f"import os; raise SystemExit(os.system('{command} --seed 0 --json {closed}'))"
    ran = run_process(code=shell).ok()
    assert (here / "datasets/lab/closed-v0/manifest.json").exists()
    if closed == "2>&-":
        assert ran.json["episodes"] == 1


def test_a_process_started_under_closed_streams_has_streams(here):
    child = "import os; [os.fstat(number) for number in range(3)]"
    inner = (
        "import subprocess, sys, pbvf_cli.__main__ as cli; cli.main(['--version']); "
        f"raise SystemExit(subprocess.call([sys.executable, '-c', '{child}']))"
    )
    code = f"""
import os, subprocess, sys
def close():
    for number in range(3):
        os.close(number)
raise SystemExit(subprocess.call([sys.executable, "-c", {inner!r}], preexec_fn=close))
"""
    run_process(code=code).ok()
