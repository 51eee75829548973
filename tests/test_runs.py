"""Whole runs with real processes: they learn, stop, resume, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from impala_tf.process_lifetime import PARENT_VARIABLE
from tests.runs import PROJECT, Run, rows, wait_until

pytestmark = pytest.mark.end_to_end

QUICK = ("--num_actors=1", "--metrics_interval_s=1", "--seed=7")
ENDLESS = (*QUICK, "--level_name=CartPole-v1", "--total_environment_frames=1000000000")


@pytest.fixture
def start():
    started = []

    def start_run(*flags: str, **settings) -> Run:
        started.append(Run(*flags, **settings))
        return started[-1]

    yield start_run
    for run in started:
        run.end()


def test_cartpole_learns_and_can_be_evaluated_and_filmed(start, tmp_path):
    logdir = tmp_path / "run"
    run = start(
        *QUICK,
        "--level_name=CartPole-v1",
        f"--logdir={logdir}",
        "--total_environment_frames=400000",
    )
    code, out, err = run.wait()
    assert code == 0, err + out
    assert run.alive() == []
    found = rows(logdir)
    assert int(found[-1]["environment_frames"]) >= 400_000
    assert float(found[-1]["episode_return_mean"]) > 150
    assert "to evaluate: python run_experiment.py --mode=test" in out
    assert "400,000 of 400,000 frames" in out
    assert list((logdir / "tensorboard").glob("events.*"))
    config = json.loads((logdir / "config.json").read_text())
    assert config["flags"]["seed"] == 7
    assert config["versions"]["tensorflow"]

    test = start("--mode=test", f"--logdir={logdir}", "--test_num_episodes=20", "--video")
    code, out, err = test.wait()
    assert code == 0, err + out
    result = json.loads((logdir / "evaluation.json").read_text())
    assert result["num_episodes"] == len(result["episode_returns"]) == 20
    assert result["mean"] > 100
    assert f"mean {result['mean']:.2f}" in out
    assert result["protocol"] in out
    assert (logdir / "evaluation.mp4").stat().st_size > 1000

    # The run is complete: starting it again changes nothing and says so.
    again = start(
        *QUICK,
        "--level_name=CartPole-v1",
        f"--logdir={logdir}",
        "--total_environment_frames=400000",
    )
    code, out, err = again.wait()
    assert code == 0, err + out
    assert "has already had all of its 400,000 frames" in out
    assert rows(logdir) == found


def checkpointed_frames(logdir: Path) -> int:
    status = logdir / "status.json"
    if not status.exists():
        return 0
    checkpoint = json.loads(status.read_text())["checkpoint"]
    return checkpoint["environment_frames"] if checkpoint else 0


def strictly_rising(found: list[dict[str, str]], column: str) -> bool:
    values = [float(row[column]) for row in found]
    return all(a < b for a, b in zip(values, values[1:], strict=False))


def test_a_killed_run_goes_on_from_its_last_checkpoint(start, tmp_path):
    logdir = tmp_path / "run"
    flags = (*ENDLESS, f"--logdir={logdir}", "--checkpoint_interval_s=2")
    killed = start(*flags)
    killed.wait_until(lambda: checkpointed_frames(logdir) > 0 and len(rows(logdir)) >= 4)
    killed.process.kill()
    killed.process.wait()
    wait_until(lambda: killed.alive() == [], 30)
    before = rows(logdir)
    # A kill in the middle of a write would leave this; no row may stay torn.
    with (logdir / "metrics.csv").open("a") as file:
        file.write("123.4,5")

    resumed = start(*flags)
    resumed.wait_until(lambda: len(rows(logdir)) >= len(before) + 3)
    resumed.process.send_signal(signal.SIGINT)
    code, out, err = resumed.wait()
    assert code == 0, err + out
    assert "resuming from" in out
    after = rows(logdir)
    for column in ("wall_time_s", "agent_steps", "environment_frames", "learner_updates"):
        assert strictly_rising(after, column), column
    assert all(None not in row.values() and None not in row for row in after)
    episodes = [int(row["episodes"]) for row in after]
    assert episodes == sorted(episodes)
    assert resumed.alive() == []


def test_interrupting_once_saves_and_says_how_to_go_on(start, tmp_path):
    logdir = tmp_path / "run"
    run = start(*ENDLESS, f"--logdir={logdir}", "--checkpoint_interval_s=1000")
    run.wait_until(lambda: len(rows(logdir)) >= 2)
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.wait(60)
    assert code == 0, err + out
    assert "to resume:   python run_experiment.py" in out
    assert f"--logdir={logdir}" in out
    assert "to evaluate: python run_experiment.py --mode=test" in out
    frames = int(rows(logdir)[-1]["environment_frames"])
    assert checkpointed_frames(logdir) == frames > 0
    assert run.alive() == []


def test_interrupting_twice_stops_now(start, tmp_path):
    run = start(*ENDLESS, f"--logdir={tmp_path / 'run'}")
    run.wait_until(lambda: len(run.alive()) >= 3)
    learner = pid_of(run, "--job_name=learner")
    os.kill(learner, signal.SIGSTOP)  # so that asking it once is not enough
    run.process.send_signal(signal.SIGINT)
    assert any("Ctrl-C again: stop now" in line for line in run.process.stdout)
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(10) == 128 + signal.SIGINT
    os.kill(learner, signal.SIGCONT)
    wait_until(lambda: run.alive() == [], 60)


def test_a_process_whose_starter_ended_before_it_looked_does_not_stay(start, tmp_path):
    """It takes seconds to start, and meanwhile somebody may have pressed Ctrl-C twice."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    flags = ("--job_name=actor", "--learner_hosts=127.0.0.1:1", f"--logdir={tmp_path}")
    run = start(*ENDLESS, *flags, environment={PARENT_VARIABLE: str(gone.pid)})
    assert run.wait(60)[0] == -signal.SIGTERM


def test_a_request_to_stop_that_comes_too_late_changes_nothing():
    """Two learners stop together; one of them may hear of it while Python already takes it down."""
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


def test_a_dead_actor_is_replaced(start, tmp_path):
    logdir = tmp_path / "run"
    run = start(*ENDLESS, f"--logdir={logdir}")
    run.wait_until(lambda: len(rows(logdir)) >= 1)
    os.kill(pid_of(run, "--job_name=actor"), signal.SIGKILL)
    steps = int(rows(logdir)[-1]["agent_steps"])
    run.wait_until(lambda: int(rows(logdir)[-1]["agent_steps"]) > steps + 50_000)
    run.process.send_signal(signal.SIGINT)
    code, out, _ = run.wait()
    assert code == 0
    assert "actor-0 exited with -9" in out


def pid_of(run: Run, flag: str) -> int:
    for pid in run.alive():
        if flag.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            return pid
    raise AssertionError(f"no process with {flag}")


def test_processes_of_a_level_in_processes_end_with_the_run(start, tmp_path):
    """Levels without a native vector environment run in processes of their own."""
    logdir = tmp_path / "run"
    run = start(*QUICK, "--level_name=Acrobot-v1", "--envs_per_actor=3", f"--logdir={logdir}")
    run.wait_until(lambda: len(rows(logdir)) >= 1)
    assert len(run.alive()) >= 6  # starter, learner, actor, three environments
    run.process.kill()
    run.process.wait()
    wait_until(lambda: run.alive() == [], 30)


def test_a_second_run_of_the_same_logdir_is_refused(start, tmp_path):
    logdir = tmp_path / "run"
    first = start(*ENDLESS, f"--logdir={logdir}")
    first.wait_until(lambda: len(rows(logdir)) >= 1)
    code, _, err = start(*ENDLESS, f"--logdir={logdir}").wait()
    assert code == 2
    assert str(logdir) in err
    assert first.process.poll() is None
    steps = int(rows(logdir)[-1]["agent_steps"])
    first.wait_until(lambda: int(rows(logdir)[-1]["agent_steps"]) > steps)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--level_name=PongNoFrameskp-v4"], "PongNoFrameskip-v4"),
        (["--level_name=CartPole-v1", "--agent_name=CartAgent"], "MLPAgent"),
        (["--level_name=CartPole-v1", "--agent_name=ResNetAgent"], "--agent_name=ResNetAgent"),
        (["--level_name=Pendulum-v1"], "--level_name=Pendulum-v1"),
        (["--batch_size=0"], "--batch_size=0"),
        (["--batch_size=many"], "--batch_size"),
        (["--bacth_size=3"], "--batch_size"),
        (["--discounting=1.5"], "--discounting=1.5"),
        (["--logdir=/proc/nowhere/run"], "--logdir=/proc/nowhere/run"),
        (["--job_name=actor"], "--learner_hosts"),
        (["--mode=test", "--logdir=/nowhere"], "--logdir=/nowhere"),
    ],
)
def test_unusable_input_is_one_line_and_exit_2(start, tmp_path, flags, expected):
    run = start(*flags, cwd=tmp_path)
    code, _, err = run.wait(60)
    assert code == 2, err
    assert len(err.strip().splitlines()) == 1, err
    assert expected in err
    assert run.alive() == []
    assert not (tmp_path / "runs").exists()


def test_a_port_in_use_is_exit_2(start, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = (f"--learner_hosts={address}", f"--logdir={tmp_path / 'run'}")
        for job in ((), ("--job_name=learner",)):
            code, _, err = start(*ENDLESS, *flags, *job).wait(60)
            assert code == 2, err
            assert address in err
            assert len(err.strip().splitlines()) == 1, err


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (["--level_name=Acrobot-v1"], "level CartPole-v1, but this run has level Acrobot-v1"),
        (["--agent_name=MLPLSTMAgent"], "agent MLPAgent, but this run has agent MLPLSTMAgent"),
    ],
)
def test_a_logdir_of_another_run_is_refused(start, finished_run, change, difference):
    before = sorted(p.name for p in finished_run.rglob("*"))
    code, _, err = start(*ENDLESS, *change, f"--logdir={finished_run}").wait(60)
    assert code == 2, err
    assert difference in err
    assert sorted(p.name for p in finished_run.rglob("*")) == before


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(start, finished_run):
    newest = sorted((finished_run / "checkpoints").glob("ckpt-*"))[-1]
    data = next(newest.glob("variables.data*"))
    data.write_bytes(data.read_bytes()[:-10])
    kept = len(rows(finished_run))
    run = start(*ENDLESS, f"--logdir={finished_run}")
    run.wait_until(lambda: len(rows(finished_run)) > kept)
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.wait()
    assert code == 0, err
    assert f"{newest} is damaged" in out


def test_no_whole_checkpoint_is_an_error_not_a_fresh_start(start, finished_run):
    for checkpoint in (finished_run / "checkpoints").glob("ckpt-*"):
        (checkpoint / "manifest.json").write_text("")
    code, _, err = start(*ENDLESS, f"--logdir={finished_run}").wait(60)
    assert code == 2
    assert "is damaged" in err
    assert "no checkpoint is whole" in err


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory) -> Path:
    logdir = tmp_path_factory.mktemp("trained") / "run"
    run = Run(
        *QUICK,
        "--level_name=CartPole-v1",
        "--total_environment_frames=60000",
        "--checkpoint_interval_s=0.5",
        f"--logdir={logdir}",
    )
    code, _, err = run.wait()
    assert code == 0, err
    return logdir


@pytest.fixture
def finished_run(trained_run, tmp_path) -> Path:
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", str(trained_run), str(copy)], check=True)
    return copy


def test_the_starter_needs_no_tensorflow():
    """The process that a user looks at stays small and answers at once."""
    code = "import sys, impala_tf.processes.local_run; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PROJECT).returncode == 0
