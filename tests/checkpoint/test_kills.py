"""A kill while a checkpoint is saved leaves the one before or the new one, whole."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.checkpoint.checkpointer import Checkpointer
from tests.helpers.runs import PROJECT

# Each kill happens in a fork of one process, which has imported TensorFlow but not used it yet.
KILLED_CHILDREN = """
import json, os, signal, sys
import tensorflow as tf
from impala_tf.checkpoint.checkpointer import Checkpointer

def run(directory, kill_at, updates):
    weights = tf.Variable([0.0] * 1000)

    def stage(name):
        if name == kill_at and saving == 5:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpointer = Checkpointer(directory, {"weights": weights}, stage=stage)
    for saving in (1, 2, 3, 4, 5):
        weights.assign([float(saving)] * 1000)
        checkpointer.save({"saving": saving}, updates or saving)

signals = {}
for kill_at in sys.argv[3:]:
    pid = os.fork()
    if pid == 0:
        run(os.path.join(sys.argv[1], kill_at), kill_at, int(sys.argv[2]))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    signals[kill_at] = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
print(json.dumps(signals))
"""
BEFORE_RENAME = ("folder", "variables", "state", "manifest", "flushed")
AFTER_RENAME = ("renamed", "removing")


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    """One folder per stage, of a process that was killed in that stage of saving step 5."""
    folder = tmp_path_factory.mktemp("killed")
    kill_in(folder, BEFORE_RENAME + AFTER_RENAME)
    return folder


def kill_in(folder: Path, stages: tuple[str, ...], updates: int = 0) -> None:
    """Kills a process in each stage of its fifth save; all were after so many updates, if not 0."""
    result = subprocess.run(
        [sys.executable, "-c", KILLED_CHILDREN, str(folder), str(updates), *stages],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=PROJECT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert result.returncode == 0, result.stderr
    signals = json.loads(result.stdout.splitlines()[-1])
    assert signals == dict.fromkeys(stages, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.xdist_group("killed")
@pytest.mark.parametrize(
    ("stage", "step"),
    [(stage, 4) for stage in BEFORE_RENAME] + [(stage, 5) for stage in AFTER_RENAME],
)
def test_a_kill_at_any_stage_leaves_the_previous_or_the_new_checkpoint_whole(killed, stage, step):
    directory = killed / stage
    weights = tf.Variable([0.0] * 1000)
    checkpointer = Checkpointer(directory, {"weights": weights})
    assert checkpointer.restore() == {"saving": step}
    np.testing.assert_array_equal(weights.numpy(), np.full(1000, step, np.float32))
    assert checkpointer.latest == directory / f"ckpt-{step:012d}"

    # The next run removes what the killed one left, and keeps three again.
    leftovers = [path.name for path in directory.iterdir() if path.name.startswith(".tmp-")]
    assert bool(leftovers) == (stage != "renamed")
    checkpointer.save({"learner_updates": 6}, 6)
    names = sorted(path.name for path in directory.iterdir())
    assert len(names) == 3
    assert names[-1] == "ckpt-000000000006"
    assert all(name.startswith("ckpt-") for name in names)


@pytest.mark.slow
def test_a_kill_while_a_checkpoint_is_replaced_leaves_the_old_or_the_new_one_whole(tmp_path):
    """As while a replay fills: the run has no other checkpoint."""
    steps = dict.fromkeys((*BEFORE_RENAME, "replacing"), 4) | dict.fromkeys(AFTER_RENAME, 5)
    kill_in(tmp_path, tuple(steps), updates=7)
    for stage, step in steps.items():
        weights = tf.Variable([0.0] * 1000)
        checkpointer = Checkpointer(tmp_path / stage, {"weights": weights})
        assert checkpointer.restore() == {"saving": step}, stage
        np.testing.assert_array_equal(weights.numpy(), np.full(1000, step, np.float32))
        checkpointer.save({"saving": 6}, 7)
        assert [path.name for path in (tmp_path / stage).iterdir()] == ["ckpt-000000000007"], stage
