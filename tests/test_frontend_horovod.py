"""Real Horovod groups form through our rendezvous server, and form again after a restart."""

import socket
import subprocess
import sys

import pytest

from frontend.process_state import Seat, Spec, log_path, read_state, state_path, to_json
from frontend.project import ROOT
from tests.waiting import wait_until

# Sums rank + 1 over all learners: 3 if exactly the two learners of this attempt have met.
PROGRAM = """
import os, pathlib, sys, horovod.tensorflow as hvd, tensorflow as tf
started = pathlib.Path(f"started{os.environ['HOROVOD_RANK']}")
first = not started.exists()
started.touch()
if first and os.environ["HOROVOD_RANK"] == "1":
    sys.exit(5)  # before it meets learner 0
hvd.init()
total = hvd.allreduce(tf.constant([hvd.rank() + 1.0]), op=hvd.Sum)
print(f"rank {hvd.rank()} of {hvd.size()}: sum {total.numpy()[0]:g}", flush=True)
hvd.shutdown()
"""


@pytest.fixture
def group(tmp_path):
    """Starts the supervisors of two learners, and stops those that are left."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(2):
        spec = Spec(
            run_id="run",
            name=f"learner-{rank}",
            argv=(sys.executable, "-c", PROGRAM),
            workdir=str(tmp_path),
            logdir=str(tmp_path),
            # Learner 0 waits in vain for the first learner 1. It should not wait a minute.
            environment={"HOROVOD_GLOO_TIMEOUT_SECONDS": "5"},
            max_restarts=2,
            seat=Seat(rank, 2, rank, 2, 0, 1, "127.0.0.1", "127.0.0.1", port),
        )
        path = tmp_path / f"{rank}.json"
        path.write_text(to_json(spec))
        command = [sys.executable, "-m", "frontend.supervisor", str(path)]
        processes.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL))
    yield processes
    for process in processes:
        process.terminate()
        process.wait(timeout=60)


def test_a_group_forms_again_after_a_learner_died_before_it_met_the_other(group, tmp_path):
    wait_until(lambda: all(process.poll() is not None for process in group), 240)
    logs = [log_path(tmp_path, f"learner-{rank}").read_text() for rank in range(2)]
    assert "rank 0 of 2: sum 3\n" in logs[0], logs
    assert "rank 1 of 2: sum 3\n" in logs[1], logs
    states = [read_state(state_path(tmp_path, f"learner-{rank}")) for rank in range(2)]
    assert [s.state for s in states if s] == ["finished", "finished"]
    assert [s.restarts for s in states if s] == [1, 1]
