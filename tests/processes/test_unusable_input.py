"""Unusable flags and files: one line that names the problem, status 2, and nothing is started."""

from __future__ import annotations

import socket
import sys

import pytest

CARTPOLE = "--level_name=CartPole-v1"
ACTOR = ("--job_name=actor", "--learner_hosts=127.0.0.1:1")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--level_name=Breakot-v4"], "BreakoutNoFrameskip-v4"),
        (["--level_name=procgen:coinrum"], "coinrun"),
        (["--level_name=retro:SonicTheHedgehog-Genesis-v0"], " -m stable_retro.import"),
        ([CARTPOLE, "--agent_name=CartAgent"], "MLPAgent"),
        ([CARTPOLE, "--agent_name=ResNetAgent"], "--agent_name=ResNetAgent"),
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
        ("tensorflow", [CARTPOLE, "--algorithm=pqn", *ACTOR], "this needs TensorFlow"),
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


def test_a_port_in_use_is_named(start, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = (CARTPOLE, f"--learner_hosts={address}", f"--logdir={tmp_path / 'run'}")
        code, _, err = start(*flags, "--num_actors=1").wait(120)
    assert code == 2, err
    assert address in err
    assert len(err.splitlines()) == 1, err


@pytest.mark.parametrize(("process", "code"), [((), 2), (ACTOR, 1), (("--join", *ACTOR), 1)])
def test_a_level_that_raises_now_may_work_after_an_actors_restart(
    run_here, tmp_path, process, code
):
    """What it needs, such as a simulator, may be away for a moment: the whole run would end."""
    level = "tests.helpers.broken_worlds:NeedsFile-v0"
    status, _, err = run_here(f"--level_name={level}", f"--logdir={tmp_path}", *process)
    assert status == code, err
    assert err.startswith(f"run_experiment.py: --level_name={level}: raised FileNotFoundError: ")
    assert err.count("\n") == 1, err
