"""Real Horovod groups form through our rendezvous server, and form again after a restart."""

import sys
import threading

import pytest

from frontend.process_state import Seat, Spec, log_path, read_state, state_path
from frontend.supervisor import Supervisor
from tests.helpers.ports import free_port

# The sum is 3 only if exactly the two learners of one attempt meet.
PROGRAM = """
import os, pathlib, sys
rank = os.environ["HOROVOD_RANK"]
started = pathlib.Path(f"started{rank}")
is_first_start = not started.exists()
started.touch()
if is_first_start and rank == "1":
    sys.exit(5)  # before it meets learner 0
import horovod.tensorflow as hvd, tensorflow as tf
hvd.init()
total = hvd.allreduce(tf.constant([hvd.rank() + 1.0]), op=hvd.Sum)
print(f"rank {hvd.rank()} of {hvd.size()}: sum {total.numpy()[0]:g}", flush=True)
hvd.shutdown()
"""


@pytest.fixture
def group(tmp_path):
    """Runs the supervisors of two learners in threads; stops them when the test ends."""
    port = free_port()
    supervisors, threads = [], []
    for rank in range(2):
        spec = Spec(
            run_id="run",
            name=f"learner-{rank}",
            argv=(sys.executable, "-c", PROGRAM),
            workdir=str(tmp_path),
            logdir=str(tmp_path),
            # Learner 0 waits this long for the learner 1 that has failed.
            environment={"HOROVOD_GLOO_TIMEOUT_SECONDS": "5"},
            max_restarts=2,
            seat=Seat(rank, 2, rank, 2, 0, 1, "127.0.0.1", "127.0.0.1", port),
        )
        supervisors.append(Supervisor(spec, delay_s=lambda quick_failures: 0.0))
        threads.append(threading.Thread(target=supervisors[-1].run))
        threads[-1].start()
    yield threads
    for supervisor in supervisors:
        supervisor.stop()


def test_a_group_forms_again_after_one_learner_failed_before_it_met_the_other(group, tmp_path):
    for thread in group:
        thread.join(timeout=240)
    logs = [log_path(tmp_path, f"learner-{rank}").read_text() for rank in range(2)]
    assert "rank 0 of 2: sum 3\n" in logs[0], logs
    assert "rank 1 of 2: sum 3\n" in logs[1], logs
    states = [read_state(state_path(tmp_path, f"learner-{rank}")) for rank in range(2)]
    assert [s.state for s in states if s] == ["finished", "finished"]
    assert [s.restarts for s in states if s] == [1, 1]
