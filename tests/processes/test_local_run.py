"""Whole runs on this machine: they learn, stop, resume, and leave no process behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest

from impala_tf.config import user_commands
from impala_tf.machine import certificates
from tests.helpers.ports import free_port
from tests.helpers.runs import Run, checkpointed_frames, rows, status
from tests.helpers.waiting import wait_until

QUICK = ("--num_actors=1", "--metrics_interval_s=1", "--seed=7")
LONG = "--total_environment_frames=1000000000"
ENDLESS = (*QUICK, "--level_name=tests.helpers.worlds:CalmCartPole-v1", LONG)
TRAINED = (*QUICK, "--level_name=CartPole-v1")  # what `trained_run` was trained on
COMPLETE = (*TRAINED, "--total_environment_frames=100000")
# One worker of pytest-xdist runs these tests, so that they share one trained run.
SHARES_THE_TRAINED_RUN = pytest.mark.xdist_group("trained_run")


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory) -> tuple[Path, str]:
    """The logdir of a complete run, and what the run printed."""
    logdir = tmp_path_factory.mktemp("trained") / "run"
    run = Run(*COMPLETE, "--checkpoint_interval_s=2", f"--logdir={logdir}")
    try:
        code, out, err = run.wait()
        assert code == 0, err + out
        assert run.alive() == []
    finally:
        run.end()
    return logdir, out


@pytest.fixture
def copied_run(trained_run, tmp_path) -> Path:
    """A copy of the trained run's logdir, which the test may change."""
    return Path(shutil.copytree(trained_run[0], tmp_path / "copy"))


@SHARES_THE_TRAINED_RUN
def test_a_run_learns_cartpole_and_says_what_to_do_next(trained_run):
    logdir, printed = trained_run
    last = rows(logdir)[-1]
    assert int(last["environment_frames"]) >= 100_000
    assert float(last["episode_return_mean"]) > 150
    assert status(logdir)["state"] == "done"
    assert re.search(r"done: 100,\d{3} of 100,000 frames", printed)
    assert f"to evaluate: {user_commands.impala('test')}" in printed
    assert list((logdir / "tensorboard").glob("events.*"))
    config = json.loads((logdir / "config.json").read_text())
    assert config["flags"]["seed"] == 7
    assert config["versions"]["tensorflow"]


@SHARES_THE_TRAINED_RUN
def test_a_new_run_starts_with_the_network_of_another_and_then_needs_it_no_more(
    start, copied_run, tmp_path
):
    def train(frames: int) -> str:
        flags = (f"--total_environment_frames={frames}", f"--start_from={copied_run}")
        code, out, err = start(*TRAINED, *flags, f"--logdir={tmp_path / 'new'}").wait()
        assert code == 0, err + out
        return out

    assert "frames); taken: torso, policy, baseline" in train(20_000)
    assert float(rows(tmp_path / "new")[-1]["episode_return_mean"]) > 75  # 30 without
    shutil.rmtree(copied_run)
    assert "resuming from" in train(30_000)


@SHARES_THE_TRAINED_RUN
def test_a_trained_agent_can_be_evaluated_and_filmed(start, copied_run):
    code, out, err = start(
        "--mode=test", f"--logdir={copied_run}", "--test_num_episodes=20", "--video"
    ).wait()
    assert code == 0, err + out
    result = json.loads((copied_run / "evaluation.json").read_text())
    assert result["num_episodes"] == len(result["episode_returns"]) == 20
    assert result["mean"] > 100
    assert f"mean {result['mean']:.2f}" in out
    assert result["protocol"] in out
    assert (copied_run / "evaluation.mp4").stat().st_size > 1000


@SHARES_THE_TRAINED_RUN
def test_a_complete_run_is_not_trained_further_and_another_run_is_refused(run_here, copied_run):
    """It would mix two runs, and reports would credit the mixture to the new flags."""
    before = sorted({*copied_run.rglob("*"), copied_run / ".lock"}), rows(copied_run)
    for frames in (100_000, 1000):
        flags = (*TRAINED, f"--total_environment_frames={frames}", f"--logdir={copied_run}")
        code, out, err = run_here(*flags)
        assert code == 0, err
        told = rf"this run is complete \(100,\d{{3}} frames; you asked for {frames:,}\)"
        assert re.search(told, out)
        assert "resuming" not in out
    given = ("--agent_name=MLPLSTMAgent", "--seed=2", "--discounting=0.5")
    code, out, err = run_here(*TRAINED, LONG, *given, f"--logdir={copied_run}")
    assert (code, out) == (2, "")
    for flag in (*given, "--agent_name=MLPAgent", "--seed=7", "--discounting=0.99", "--fresh"):
        assert flag in err
    assert (sorted(copied_run.rglob("*")), rows(copied_run)) == before


@SHARES_THE_TRAINED_RUN
def test_damaged_checkpoints_are_named_and_the_previous_one_is_used(start, run_here, copied_run):
    """Starting from scratch would overwrite what the user wanted to continue."""
    checkpoints = sorted((copied_run / "checkpoints").glob("ckpt-*"))
    data = next(checkpoints[-1].glob("variables.data*"))
    data.write_bytes(data.read_bytes()[:-10])
    before = len(rows(copied_run))
    run = start(*TRAINED, LONG, f"--logdir={copied_run}")
    run.wait_until(lambda: len(rows(copied_run)) > before)
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.wait()
    assert code == 0, err
    assert f"{checkpoints[-1]} is damaged" in out

    for checkpoint in (copied_run / "checkpoints").glob("ckpt-*"):
        (checkpoint / "manifest.json").write_text("")
    code, _, err = run_here(*TRAINED, LONG, f"--logdir={copied_run}")
    assert code == 2
    assert "no checkpoint is whole" in err


def strictly_rising(found: list[dict[str, str]], column: str) -> bool:
    values = [float(row[column]) for row in found]
    return all(a < b for a, b in zip(values, values[1:], strict=False))


def test_a_killed_run_resumes_from_its_last_checkpoint(start, tmp_path):
    logdir = tmp_path / "run"
    flags = (*ENDLESS, f"--logdir={logdir}", "--checkpoint_interval_s=2")
    killed = start(*flags)
    killed.wait_until(lambda: checkpointed_frames(logdir) > 0 and len(rows(logdir)) >= 4)
    killed.process.kill()
    killed.process.wait()
    wait_until(lambda: killed.alive() == [], what="end of every process")
    before = rows(logdir)
    # A kill in the middle of a write leaves a torn row, which must not stay.
    with (logdir / "metrics.csv").open("a") as file:
        file.write("123.4,5")

    resumed = start(*flags)
    resumed.wait_until(lambda: len(rows(logdir)) >= len(before) + 3)
    resumed.process.send_signal(signal.SIGTERM)
    code, out, err = resumed.wait()
    assert code == 0, err + out
    assert "resuming from" in out
    assert status(logdir)["state"] == "stopped"
    after = rows(logdir)
    for column in ("wall_time_s", "agent_steps", "environment_frames", "learner_updates"):
        assert strictly_rising(after, column), column
    assert all(None not in row.values() and None not in row for row in after)
    episodes = [int(row["episodes"]) for row in after]
    assert episodes == sorted(episodes)
    assert resumed.alive() == []


def press_ctrl_c(run):
    run.process.send_signal(signal.SIGINT)


def end_its_time(run):
    """`timeout 10m impala ...` signals its command and then its whole group, so twice."""
    run.process.terminate()
    run.process.terminate()


def press_ctrl_c_in_a_pipe(run):
    """As in `python run_experiment.py | tee log`, whose reader ends, too."""
    run.process.send_signal(signal.SIGINT)
    run.process.stdout.close()


@pytest.mark.parametrize("stop", [press_ctrl_c, end_its_time, press_ctrl_c_in_a_pipe])
def test_a_run_that_is_stopped_saves_a_checkpoint_and_says_how_to_resume(start, tmp_path, stop):
    logdir = tmp_path / "run"
    run = start(*ENDLESS, f"--logdir={logdir}", "--checkpoint_interval_s=1000")
    run.wait_until(lambda: len(rows(logdir)) >= 2)
    stop(run)
    if stop is press_ctrl_c:
        out, _ = run.process.communicate(timeout=120)
        assert f"to resume:   {user_commands.impala('train')}" in out
        assert f"--logdir={logdir}" in out
        assert f"to evaluate: {user_commands.impala('test')}" in out
    assert run.process.wait(120) == 0
    assert status(logdir)["state"] == "stopped"
    frames = int(rows(logdir)[-1]["environment_frames"])
    assert checkpointed_frames(logdir) == frames > 0
    assert run.alive() == []


def test_a_second_ctrl_c_stops_at_once(start, tmp_path):
    run = start(*ENDLESS, f"--logdir={tmp_path / 'run'}")
    run.wait_until(lambda: len(run.alive()) >= 3)
    learner = run.pid_of("--job_name=learner")
    os.kill(learner, signal.SIGSTOP)  # so that one request is not enough
    run.process.send_signal(signal.SIGINT)
    assert any("Ctrl-C again: stop now" in line for line in run.process.stdout)
    time.sleep(1.0)  # signals that come faster are one request
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(30) == 128 + signal.SIGINT
    os.kill(learner, signal.SIGCONT)
    wait_until(lambda: run.alive() == [], what="end of every process")


def test_a_second_run_is_refused_and_killed_processes_are_restarted(start, run_here, tmp_path):
    """Neither a lost actor or learner nor a second run in the same logdir may end a run."""
    logdir = tmp_path / "run"
    run = start(*ENDLESS, f"--logdir={logdir}", "--checkpoint_interval_s=1")
    run.wait_until(lambda: len(rows(logdir)) >= 1 and checkpointed_frames(logdir) > 0)

    code, _, err = run_here(*ENDLESS, f"--logdir={logdir}")
    assert code == 2
    assert f"--logdir={logdir}: another run is writing there" in err

    os.kill(run.pid_of("--job_name=actor"), signal.SIGKILL)
    steps = int(rows(logdir)[-1]["agent_steps"])
    run.wait_until(lambda: int(rows(logdir)[-1]["agent_steps"]) > steps + 2_000)

    kept = checkpointed_frames(logdir)
    os.kill(run.pid_of("--job_name=learner"), signal.SIGKILL)
    run.wait_until(lambda: "resuming from" in (logdir / "processes" / "learner-0.log").read_text())
    run.wait_until(lambda: int(rows(logdir)[-1]["environment_frames"]) > kept + 2_000)
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.wait()
    assert code == 0, err
    assert "actor-0 killed by SIGKILL after" in out
    assert "learner-0 killed by SIGKILL after" in out
    assert strictly_rising(rows(logdir), "agent_steps")


def test_environments_in_their_own_processes_end_with_the_run(start, tmp_path):
    logdir = tmp_path / "run"
    flags = ("--level_name=Acrobot-v1", "--envs_per_actor=3", "--environment_processes")
    run = start(*QUICK, *flags, f"--logdir={logdir}")
    run.wait_until(lambda: len(rows(logdir)) >= 1)
    assert len(run.alive()) >= 6  # parent, learner, actor, three environments
    run.process.kill()
    run.process.wait()
    wait_until(lambda: run.alive() == [], what="end of every process")


def test_a_learner_that_cannot_work_ends_the_run_at_once(start, tmp_path):
    """It would fail again: its author wants to see the error now, not after three restarts."""
    (tmp_path / "tensorboard").write_text("in the way")
    run = start(*ENDLESS, f"--logdir={tmp_path}")
    code, _, err = run.wait()
    assert code == 1
    assert "the learner failed: exit status 1 after" in err


def test_a_run_whose_output_cannot_be_written_trains_to_its_end(start, tmp_path):
    """As with `nohup python run_experiment.py > out.log` on a full disk."""
    logdir, told = tmp_path / "run", tmp_path / "told"
    start(
        *TRAINED, f"--logdir={logdir}", "--total_environment_frames=20000",
        f"--end_command=echo $IMPALA_TF_STATES > {told}",
        launcher=("sh", "-c", 'exec "$@" > /dev/full', "sh"),
    ).wait()  # fmt: skip
    assert status(logdir)["state"] == "done"
    assert "learner-0=finished" in told.read_text()


def test_a_run_ends_after_its_hours_and_runs_the_end_command(start, tmp_path):
    logdir, told = tmp_path / "run", tmp_path / "told"
    run = start(
        *ENDLESS, f"--logdir={logdir}", "--max_hours=0.004",
        f"--end_command=echo $IMPALA_TF_LOGDIR > {told}",
    )  # fmt: skip
    code, out, err = run.wait()
    assert code == 0, err
    assert out.count("--max_hours=0.004 have passed: stopping") == 1
    assert told.read_text() == f"{logdir}\n"
    assert checkpointed_frames(logdir) == status(logdir).get("environment_frames", 0)


def test_an_actor_gives_up_on_a_learner_that_stays_away(start, tmp_path):
    """A rented machine should not wait for ever."""
    certificates.ensure(tmp_path / "credentials")
    flags = ("--job_name=actor", "--learner_hosts=127.0.0.1:1", f"--logdir={tmp_path}")
    run = start(*ENDLESS, *flags, "--idle_exit_minutes=0.05")
    code, out, err = run.wait()
    assert code == 0, err
    assert "ended: no learner for too long" in out


def test_a_learner_may_have_an_ipv6_address(start, tmp_path):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("needs IPv6")
    address = f"[::1]:{free_port()}"
    flags = (*TRAINED, "--total_environment_frames=2000", f"--learner_hosts={address}")
    code, out, err = start(*flags, f"--logdir={tmp_path / 'run'}").wait()
    assert code == 0, err + out
