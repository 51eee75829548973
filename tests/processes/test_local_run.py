"""Whole runs on this machine: they learn, stop, resume, and leave no process behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time

import numpy as np
import pytest

from impala_tf.config import user_commands
from impala_tf.processes.actor_main import seed_of_start
from impala_tf.processes.common import seed_of
from tests.helpers.runs import checkpointed_frames, rows, status
from tests.helpers.waiting import wait_until

QUICK = ("--num_actors=1", "--metrics_interval_s=1", "--seed=7")
LONG = "--total_environment_frames=1000000000"
ENDLESS = (*QUICK, "--level_name=tests.helpers.worlds:CalmCartPole-v1", LONG)


def test_a_run_learns_cartpole_and_says_what_to_do_next(start, tmp_path):
    logdir = tmp_path / "run"
    flags = ("--level_name=CartPole-v1", "--total_environment_frames=60000")
    run = start(*QUICK, *flags, f"--logdir={logdir}")
    code, printed, err = run.wait()
    assert code == 0, err + printed
    assert run.alive() == []
    last = rows(logdir)[-1]
    assert int(last["environment_frames"]) >= 60_000
    assert float(last["episode_return_mean"]) > 80  # 22 at random
    assert status(logdir)["state"] == "done"
    assert re.search(r"done: 60,\d{3} of 60,000 frames", printed)
    assert f"to evaluate: {user_commands.impala('test')}" in printed
    assert list((logdir / "tensorboard").glob("events.*"))
    assert (logdir / "run.json").stat().st_mode & 0o777 == 0o600
    config = json.loads((logdir / "config.json").read_text())
    assert flags[0] in config["command"], "what a person typed"
    assert config["flags"]["seed"] == 7
    assert config["versions"]["tensorflow"]


def strictly_rising(found: list[dict[str, str]], column: str) -> bool:
    values = [float(row[column]) for row in found]
    return all(a < b for a, b in zip(values, values[1:], strict=False))


def test_a_killed_run_resumes_from_its_last_whole_checkpoint(start, run_here, tmp_path):
    """Starting from scratch would overwrite what the user wanted to continue."""
    logdir = tmp_path / "run"
    flags = (
        *QUICK, "--level_name=Acrobot-v1", LONG, "--envs_per_actor=3", "--environment_processes",
        "--checkpoint_interval_s=1", f"--logdir={logdir}",
    )  # fmt: skip
    killed = start(*flags)
    killed.wait_until(lambda: len(checkpoints(logdir)) >= 3 and len(rows(logdir)) >= 2)
    assert len(killed.alive()) >= 6  # parent, learner, actor, three environments
    killed.process.kill()
    killed.process.wait()
    wait_until(lambda: killed.alive() == [], what="end of every process")
    before = rows(logdir)
    # A kill in the middle of a write leaves a torn row, which must not stay.
    with (logdir / "metrics.csv").open("a") as file:
        file.write("123.4,5")
    newest = checkpoints(logdir)[-1]
    data = next(newest.glob("variables.data*"))
    data.write_bytes(data.read_bytes()[:-10])

    resumed = start(*flags)
    resumed.wait_until(lambda: len(rows(logdir)) >= len(before) + 3)
    resumed.process.send_signal(signal.SIGTERM)
    code, out, err = resumed.wait()
    assert code == 0, err + out
    assert f"{newest} is damaged" in out
    assert "resuming from" in out
    assert status(logdir)["state"] == "stopped"
    after = rows(logdir)
    for column in ("wall_time_s", "agent_steps", "environment_frames", "learner_updates"):
        assert strictly_rising(after, column), column
    assert all(None not in row.values() and None not in row for row in after)
    assert resumed.alive() == []

    for checkpoint in checkpoints(logdir):
        (checkpoint / "manifest.json").write_text("")
    code, _, err = run_here(*flags)
    assert code == 2
    assert "no checkpoint is whole" in err


def checkpoints(logdir):
    return sorted((logdir / "checkpoints").glob("ckpt-*"))


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
    with contextlib.suppress(ProcessLookupError):  # in a container, it may have ended
        os.kill(learner, signal.SIGCONT)
    wait_until(lambda: run.alive() == [], what="end of every process")


def test_a_second_run_is_refused_and_killed_processes_are_restarted(start, run_here, tmp_path):
    """Neither a lost actor or learner nor a second run in the same logdir may end a run."""
    logdir, told = tmp_path / "run", tmp_path / "seeds"
    level = "--level_name=tests.helpers.worlds:SeedsCartPole-v1"
    flags = (*QUICK, level, "--envs_per_actor=2", "--unroll_length=10", "--batch_size=2", LONG,
             "--checkpoint_interval_s=1", f"--logdir={logdir}")  # fmt: skip
    run = start(*flags, environment={"IMPALA_TF_TEST_SEEDS": str(told)})
    run.wait_until(lambda: len(rows(logdir)) >= 1 and checkpointed_frames(logdir) > 0)

    code, _, err = run_here(*ENDLESS, f"--logdir={logdir}")
    assert code == 2
    assert f"--logdir={logdir}: another run is writing there" in err

    os.kill(run.pid_of("--job_name=actor"), signal.SIGKILL)
    steps = int(rows(logdir)[-1]["agent_steps"])
    run.wait_until(lambda: int(rows(logdir)[-1]["agent_steps"]) > steps + 2_000)
    seeds = [int(word) for word in told.read_text().split() if word != "0"]  # of the first look
    assert len(set(seeds)) == 4, "the actor that was started again plays other games"
    # What the first actor of every run with --seed=7 has.
    first = int(np.random.SeedSequence(seed_of(7, "actor", 0)).generate_state(1)[0] >> 2)
    assert seeds[:2] == [first, first + 1]

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


def test_every_start_of_an_actor_has_a_seed_of_its_own():
    starts = [(steps, restarts) for steps in (0, 1, 2, 10**12) for restarts in range(3)]
    seeds = [seed_of_start(seed, *start) for seed in (1, 2) for start in starts]
    assert len(set(seeds)) == len(seeds)
    assert seed_of_start(1, 0, 0) == 1


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
