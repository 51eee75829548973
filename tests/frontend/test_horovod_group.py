"""Real Horovod groups form through our rendezvous server, and form again after a restart."""

import threading
import time

import pytest

from impala_tf.frontend.node.state import (
    GroupInfo,
    Orders,
    ProcessSpec,
    log_path,
    orders_path,
    read_state,
    state_path,
    write,
)
from impala_tf.frontend.node.supervisor import NodeSupervisor
from tests.helpers.ports import free_port

pytestmark = pytest.mark.slow

# The sum is 3 only if exactly the two learners of one attempt meet.
PROGRAM = """
import os, pathlib, sys
rank = os.environ["HOROVOD_RANK"]
started = pathlib.Path(f"started{rank}")
is_first_start = not started.exists()
started.touch()
if is_first_start and rank == "1":
    sys.exit(5)  # before it meets learner 0
import horovod.tensorflow as hvd, tensorflow as tf, time
if not is_first_start:  # one may import faster than the other by more than they wait in init
    pathlib.Path(f"ready{rank}").touch()
    while not all(pathlib.Path(f"ready{each}").exists() for each in "01"):
        time.sleep(0.1)
hvd.init()
total = hvd.allreduce(tf.constant([hvd.rank() + 1.0]), op=hvd.Sum)
print(f"rank {hvd.rank()} of {hvd.size()}: sum {total.numpy()[0]:g}", flush=True)
hvd.shutdown()
"""


@pytest.fixture
def group(tmp_path, monkeypatch):
    """Runs the supervisors of two learners, in threads that it yields; stops them at the end."""
    port = free_port()
    supervisors, threads = [], []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "learner.key").write_text("secret")
    for rank in range(2):
        process = ProcessSpec(
            f"learner-{rank}",
            "h",
            ("-c", PROGRAM),
            # Learner 0 waits this long for the learner 1 that has failed.
            {"HOROVOD_GLOO_TIMEOUT_SECONDS": "5"},
            max_restarts=2,
            group=GroupInfo(rank, ("127.0.0.1",) * 2, ("h",) * 2, port),
        )
        folder = str(tmp_path)
        orders = Orders("run", f"node-{rank}", "impala", folder, folder, (process,), time.time())
        path = orders_path(tmp_path, orders.node)
        path.parent.mkdir(exist_ok=True)
        write(path, orders)
        supervisors.append(NodeSupervisor(path))
        threads.append(threading.Thread(target=supervisors[-1].run))
        threads[-1].start()
    yield threads
    for supervisor in supervisors:
        supervisor.stop()


@pytest.mark.long
def test_a_group_forms_again_after_one_learner_failed_before_it_met_the_other(group, tmp_path):
    for thread in group:
        thread.join(timeout=240)
    logs = [log_path(tmp_path, f"learner-{rank}").read_text() for rank in range(2)]
    assert "rank 0 of 2: sum 3\n" in logs[0], logs
    assert "rank 1 of 2: sum 3\n" in logs[1], logs
    states = [read_state(state_path(tmp_path, f"node-{rank}")) for rank in range(2)]
    processes = [process for state in states if state for process in state.processes.values()]
    assert [process.state for process in processes] == ["finished", "finished"]
    assert [process.restarts for process in processes] == [1, 1]
