"""One of two learners hangs: the group ends, names it, and its supervisors bring it back."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import hanging_run
from tests.helpers.ports import free_port
from tests.helpers.runs import PROJECT, checkpointed_frames, rows, status
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
START_S = 300.0
FLAGS = ("--level_name=tests.helpers.worlds:CalmCartPole-v1",
         "--total_environment_frames=1000000000",
         "--envs_per_actor=8", "--metrics_interval_s=1", "--checkpoint_interval_s=2")  # fmt: skip


@pytest.mark.always
def test_a_learner_whose_thread_hangs_ends_the_group_and_is_named(
    start, start_pair, tmp_path: Path
) -> None:
    hang, logdir = tmp_path / "hang", tmp_path / "run"
    flags = (*FLAGS, f"--logdir={logdir}")
    hosts, learners = start_pair(*flags, script=[str(hanging_run.__file__), str(hang)])
    learners[0].wait_until(lambda: status(logdir) != {}, START_S)
    of_actors = (*flags, f"--learner_hosts={','.join(hosts)}", "--job_name=actor")
    actors = [start(*of_actors, f"--task={task}") for task in range(2)]
    learners[0].wait_until(lambda: len(rows(logdir)) > 3, START_S)
    learners[0].wait_until(lambda: checkpointed_frames(logdir) > 0)
    before = checkpointed_frames(logdir)
    hang.touch()
    (code_0, out_0, err_0), (code_1, out_1, err_1) = [each.wait(240) for each in learners]
    assert (code_0, code_1) == (1, 1), out_0 + err_0 + out_1 + err_1
    (hung_s,) = re.findall(r"learner-0: has hung for (\d+) s after an update; exiting", out_0)
    assert 40 <= int(hung_s) < 90
    assert "save_or_hang" in err_0, "the stacks say where it hangs"
    assert re.search(r"learner-1: (has waited \d+ s for|lost) learner-0", out_1), out_1
    assert checkpointed_frames(logdir) >= before > 0
    for actor in actors:
        actor.process.send_signal(signal.SIGINT)
        actor.wait()


def learner_1(logdir: Path) -> list[int]:
    """Returns its process, if it runs."""
    words = {f"--logdir={logdir}".encode(), b"--job_name=learner", b"--task=1"}
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended a moment ago
            if words <= set(path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
    return found


def test_a_stopped_learner_is_replaced_by_its_supervisor(start, tmp_path: Path) -> None:
    """Stopped, as on a machine that swaps to death: it notices nothing and answers nobody."""
    logdir, csv = tmp_path / "run", tmp_path / "w.csv"
    lines = [f"learner,localhost,{free_port()}" for _ in range(2)] + ["actor,localhost,"] * 2
    csv.write_text("\n".join(["job,ip,tf_port", *lines]) + "\n")
    session = f"hung-{os.getpid()}"
    run = start(
        *FLAGS, f"--logdir={logdir}", f"--workers_csv_path={csv}", f"--tmux_sess={session}",
        environment={"HOROVOD_GLOO_TIMEOUT_SECONDS": "10"},
    )  # fmt: skip
    frontend = [sys.executable, "-m", "frontend"]
    try:
        run.wait_until(lambda: len(rows(logdir)) > 3, START_S)
        run.wait_until(lambda: checkpointed_frames(logdir) > 0)
        (learner,) = learner_1(logdir)
        before = int(rows(logdir)[-1]["environment_frames"])
        os.kill(learner, signal.SIGSTOP)
        log_0 = logdir / "processes" / "learner-0.log"
        wait_until(lambda: "lost learner-1" in log_0.read_text())
        run.wait_until(
            lambda: int(rows(logdir)[-1]["environment_frames"]) > before + 2_000, START_S
        )
        assert learner_1(logdir) != [learner]
    finally:
        subprocess.run([*frontend, "stop", f"--logdir={logdir}"], cwd=PROJECT, timeout=120)
        run.wait()
    logs = [(logdir / "processes" / f"learner-{rank}.log").read_text() for rank in range(2)]
    ends = [re.findall(r"final parameters (\w+)", log) for log in logs]
    assert ends[0] == ends[1] != []
