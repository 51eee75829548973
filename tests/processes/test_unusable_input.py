"""Unusable flags and files: one line that names the problem, status 2, and nothing is started."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from tests.helpers.runs import PROJECT

CARTPOLE = "--level_name=CartPole-v1"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--level_name=Breakot-v4"], "BreakoutNoFrameskip-v4"),
        (["--level_name=procgen:coinrum"], "coinrun"),
        (["--level_name=retro:SonicTheHedgehog-Genesis-v0"], " -m stable_retro.import"),
        ([CARTPOLE, "--agent_name=CartAgent"], "MLPAgent"),
        ([CARTPOLE, "--agent_name=ResNetAgent"], "--agent_name=ResNetAgent"),
        ([CARTPOLE, "--width_scale=2"], "--width_scale=2"),
        (
            ["--level_name=tests.helpers.broken_worlds:Graph-v0"],
            "--level_name=tests.helpers.broken_worlds:Graph-v0",
        ),
        (["--logdir=/proc/nowhere/run"], "--logdir=/proc/nowhere/run"),
        (["--mode=test", "--logdir=/nowhere"], "--logdir=/nowhere"),
        (
            ["--level_name=Pendulum-v1", "--algorithm=dqn"],
            "--algorithm=dqn: learns a value of each action",
        ),
    ],
)
def test_unusable_flags_give_one_line_and_status_2(
    run_here, tmp_path, monkeypatch, flags, expected
):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_here(*flags)
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert expected in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("package", "flags", "named"),
    [
        ("tensorflow", [CARTPOLE], "this needs TensorFlow"),
        ("tensorflow", ["--mode=describe"], "this needs TensorFlow"),
        ("wandb", [CARTPOLE, "--track=wandb"], "--track=wandb: needs the package wandb"),
    ],
)
def test_a_machine_without_a_package_is_told_what_to_install(
    run_here, tmp_path, monkeypatch, package, flags, named
):
    """One that was set up for actors has no TensorFlow."""
    monkeypatch.setitem(sys.modules, package, None)
    code, out, err = run_here(*flags, f"--logdir={tmp_path / 'run'}")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1 and named in err, err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("level_name", "expected"),
    [
        ("CartPole-v9", "--level_name=CartPole-v9: no such level; near matches: CartPole-v1"),
        ("someones_levels:Level-v0", "it imports the Python module someones_levels"),
    ],
)
@pytest.mark.parametrize("flags", [["test"], ["export"], ["export", "--to=shared"]])
def test_a_wrong_level_is_told_before_tensorflow_is_imported(
    run_here, tmp_path, monkeypatch, flags, level_name, expected
):
    """That takes seconds. So is the question whether a module is trusted."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.chdir(tmp_path)
    run = {"flags": {"level_name": level_name, "agent_name": "MLPAgent"}}
    (tmp_path / "config.json").write_text(json.dumps(run))
    code, out, err = run_here(f"--mode={flags[0]}", f"--logdir={tmp_path}", *flags[1:])
    assert (code, out) == (2, "")
    assert expected in err and len(err.splitlines()) == 1, err
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_port_in_use_is_named(start, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = (CARTPOLE, f"--learner_hosts={address}", f"--logdir={tmp_path / 'run'}")
        code, _, err = start(*flags, "--num_actors=1").wait(120)
    assert code == 2, err
    assert address in err
    assert len(err.splitlines()) == 1, err


def test_a_missing_gpu_gives_one_line_and_status_2(start, tmp_path):
    """--device=gpu that computes on the CPU would train for days without a word."""
    flags = (CARTPOLE, "--learner_hosts=127.0.0.1:1", f"--logdir={tmp_path / 'run'}")
    code, out, err = start(*flags, "--job_name=learner", "--device=gpu").wait(120)
    assert code == 2, err
    assert err.startswith("run_experiment.py: --device=gpu: TensorFlow finds no GPU; "), err
    assert len(err.splitlines()) == 1, err
    assert "computing on" not in out
    assert not (tmp_path / "run").exists()


def test_a_stop_request_during_the_exit_does_not_change_the_status():
    """Two learners stop together. One may receive the request when Python is already exiting."""
    script = """if True:
        import os, signal, sys
        import run_experiment

        class Late:
            def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGTERM):
                kill(pid, number)

        late = Late()
        sys.argv = ["run_experiment.py", "--batch_size=0"]
        sys.exit(run_experiment.main())
    """
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True)
    assert done.returncode == 2, done.stderr


@pytest.mark.parametrize(
    ("process", "code"),
    [((), 2), (("--job_name=actor",), 1), (("--join", "--job_name=actor"), 1)],
)
@pytest.mark.parametrize("name", ["NeedsFile-v0", "needs_file"])
def test_a_level_that_raises_now_may_work_after_an_actors_restart(
    run_here, tmp_path, name, process, code
):
    """What it needs, such as a simulator, may be away for a moment: the whole run would end."""
    level, hosts = f"tests.helpers.broken_worlds:{name}", "--learner_hosts=127.0.0.1:1"
    flags = (*process, hosts) if process else ()
    status, _, err = run_here(f"--level_name={level}", f"--logdir={tmp_path}", *flags)
    assert status == code, err
    assert err.startswith(f"run_experiment.py: --level_name={level}: raised FileNotFoundError: ")
    assert err.count("\n") == 1, err
