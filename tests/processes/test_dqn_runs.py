"""A run of dqn whose learner is killed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from tests.helpers.runs import Run, rows, status
from tests.helpers.waiting import wait_until

DQN = ("--algorithm=dqn", "--metrics_interval_s=1", "--seed=3")
ENDLESS = (
    *DQN,
    "--level_name=tests.helpers.worlds:CalmCartPole-v1",
    "--num_actors=1",
    "--total_environment_frames=1000000000",
)


def test_a_killed_run_resumes_and_says_that_its_replay_refills(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    flags = (*ENDLESS, "--replay_capacity=50000", "--checkpoint_interval_s=1",
             f"--logdir={tmp_path}")  # fmt: skip

    def replay_steps() -> int:
        found = status(tmp_path).get("replay") or {}
        return int(found.get("steps", 0))

    first = start(*flags)
    wait_until(lambda: replay_steps() > 3_000 and len(rows(tmp_path)) > 2)
    first.end()
    again = start(*flags)
    log = tmp_path / "processes" / "learner-0.log"
    wait_until(lambda: "resuming from" in log.read_text())
    wait_until(lambda: status(tmp_path).get("state") == "training")
    assert "replay: refills; learning resumes in 1,000 agent steps" in log.read_text()
    again.process.send_signal(signal.SIGINT)
    code, out, err = again.wait()
    assert code == 0, err + out
