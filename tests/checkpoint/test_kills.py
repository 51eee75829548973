"""A kill while a checkpoint is saved leaves the one before or the new one, whole."""

import os
import subprocess
import sys

import numpy as np
import tensorflow as tf

from impala_tf.checkpoint.checkpointer import Checkpointer
from tests.helpers.runs import PROJECT
from tests.helpers.states import state

# Each fork is killed before another one of the steps on files of its fifth save. They fork from one
# process, which has imported TensorFlow but not used it yet.
KILLED_CHILDREN = """
import itertools, os, signal, sys
import tensorflow as tf
from impala_tf.checkpoint.checkpointer import Checkpointer
from tests.helpers.states import state

STEPS = ("open", "os.mkdir", "os.rename", "shutil.rmtree")

def run(directory, kill_at):
    weights, seen, saving = tf.Variable([0.0] * 1000), itertools.count(), 0

    def kill(event, arguments):
        if event in STEPS and saving == 5 and directory in str(arguments[0]):
            if next(seen) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    checkpointer = Checkpointer(directory, {"weights": weights})
    for saving in (1, 2, 3, 4, 5):
        weights.assign([float(saving)] * 1000)
        checkpointer.save(state(saving), saving)

for kill_at in itertools.count():
    pid = os.fork()
    if pid == 0:
        run(os.path.join(sys.argv[1], f"{kill_at:03d}"), kill_at)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status):
        sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_kill_at_any_step_leaves_the_previous_or_the_new_checkpoint_whole(tmp_path):
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_CHILDREN, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=PROJECT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert killed.returncode == 0, killed.stderr
    restored = []
    for directory in sorted(tmp_path.iterdir()):
        weights = tf.Variable([0.0] * 1000)
        checkpointer = Checkpointer(directory, {"weights": weights})
        restored_state = checkpointer.restore()
        assert restored_state is not None
        step = restored_state["counters"]["learner_updates"]
        np.testing.assert_array_equal(weights.numpy(), np.full(1000, step, np.float32))
        restored.append(step)
        # The next run removes what the killed one left, and keeps three again.
        checkpointer.save(state(6), 6)
        names = sorted(path.name for path in directory.iterdir())
        assert (len(names), names[-1]) == (3, "ckpt-000000000006")
        assert all(name.startswith("ckpt-") for name in names)
    assert len(restored) > 10
    assert restored == sorted(restored) and set(restored) == {4, 5}
