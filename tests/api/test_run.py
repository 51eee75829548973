"""What a `Run` says once its processes have ended; they are a stand-in here."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import impala_tf as impala
from impala_tf.api import run as runs
from impala_tf.config import Config
from impala_tf.logdir import Logdir
from impala_tf.monitoring import status_file
from tests.helpers.statuses import a_status

KILLED = "the learner failed: killed by SIGKILL"


class Ended:
    """A training whose processes have ended; the learner told nothing of that.

    Args:
      folder: the run's.
      failure: why it failed; '': it did not.
      told: the last state that the learner told.
    """

    is_complete, end_reason, frames = False, "", 0
    config = Config()

    def __init__(self, folder: Path, failure: str, told: str = "training") -> None:
        self.logdir = Logdir(folder)
        self.spec = SimpleNamespace(level_name="CartPole-v1")
        self._failure = failure
        status_file.write_status(self.logdir.status(), a_status(state=told))

    def follow(self, *given: Any) -> str:
        return self._failure

    def __getattr__(self, name: str) -> Any:
        return lambda *given: None


@pytest.mark.parametrize(
    ("failure", "told", "expected"),
    [
        (KILLED, "training", "failed"),
        ("", "training", "stopped"),  # a second interrupt killed it
        ("", "stopping", "stopped"),
        ("", "done", "done"),
        ("", "failed", "failed"),
    ],
)
def test_a_run_that_is_over_never_says_that_it_trains(
    tmp_path: Path, failure: str, told: str, expected: str
) -> None:
    """Who waits for another state would wait for ever: a killed learner leaves the last one."""
    training: Any = Ended(tmp_path, failure, told)
    run = runs.Run(training, show=False)
    with contextlib.suppress(impala.RunFailed):
        run.wait()
    assert run.progress.state == expected
    assert repr(run) == f"Run({str(tmp_path)!r}, {expected})"
