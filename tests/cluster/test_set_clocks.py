"""A machine whose clock is set back while it has a part in a run."""

import os
import signal
import threading
import time

from impala_tf.cluster.node import gathering
from impala_tf.cluster.node import state as files
from impala_tf.cluster.node.group import Membership
from impala_tf.cluster.node.state import GroupInfo, NodeState
from impala_tf.cluster.node.supervisor import earlier_states
from impala_tf.cluster.record import load
from impala_tf.cluster.runner import LocalRunner
from impala_tf.cluster.status import look
from impala_tf.machine import certificates
from impala_tf.machine.supervision import Command, ProcessState, SupervisedProcess
from tests.cluster.test_supervisor import LEARNER, shell, supervise  # noqa: F401
from tests.helpers.ports import free_port
from tests.helpers.waiting import wait_until

AN_HOUR_S = 3600.0


def test_the_state_of_another_run_with_the_same_name_is_not_taken_over(tmp_path):
    """Such as of a container that starts again; by its clock, it might be the same run."""
    later = time.time() + AN_HOUR_S
    processes = {"actor-0": ProcessState("actor-0", "failed")}
    path = files.state_path(tmp_path, "node")
    path.parent.mkdir()
    files.write(path, NodeState("run", "node", 1, 1, "boot", 0.0, later, processes, "one"))
    orders = files.new_orders("run", "node", tmp_path, ())
    assert earlier_states(orders) == {}
    assert earlier_states(orders._replace(start="one")) == processes


def test_max_hours_count_from_the_launch_after_a_supervisor_has_started_again(supervise):  # noqa: F811
    begun = {"started_boot_id": files.boot_id(), "started_uptime_s": files.uptime_s() - AN_HOUR_S}
    node = supervise(shell("learner-0", LEARNER), max_hours=0.5, **begun)
    node.wait_for("learner-0", "stopped")
    assert node.of("learner-0").detail.startswith("--max_hours=0.5 have passed")


def test_a_learner_that_hangs_is_killed(tmp_path, monkeypatch):
    """It had started in the future, so it did not seem to run for long."""
    certificates.create(tmp_path / "credentials")
    monkeypatch.setattr(gathering, "HUNG_S", 0.5)
    monkeypatch.setattr(gathering, "ASK_S", 0.1)
    port = free_port()
    places = [GroupInfo(number, ("127.0.0.1",) * 2, ("h",) * 2, port) for number in (0, 1)]
    members = [
        Membership(place, "run", tmp_path / "credentials", lambda text: None) for place in places
    ]
    command = Command("learner-0", ("sleep", "1000"), str(tmp_path), str(tmp_path / "log"))
    process = SupervisedProcess(command, before_start=members[0].gather)
    ended = threading.Event()
    threads = [process] + [
        threading.Thread(target=members[1].gather, args=(lambda: False,), daemon=True)
    ]
    try:
        for thread in threads:
            thread.start()
        wait_until(lambda: process.state.state == "running")
        process.state = process.state._replace(started_unix_s=time.time() + AN_HOUR_S)
        members[0].watch(process)
        threads[1].join()
        threading.Thread(target=members[1].gather, args=(ended.is_set,), daemon=True).start()
        wait_until(lambda: process.state.restarts == 1, 60)
    finally:
        ended.set()
        process.stop()
        process.join()
        for member in members:
            member.close()


def test_what_a_learner_says_is_shown(launched):
    """Its status was taken for an earlier run's until the clock had caught up."""
    wait_until((launched.logdir / "status.json").exists)
    record, state = load(launched.logdir), launched.node()
    learner = state.processes["learner-0"]._replace(started_unix_s=time.time() + AN_HOUR_S)
    os.kill(state.pid, signal.SIGSTOP)
    try:
        changed = state._replace(processes={**state.processes, "learner-0": learner})
        files.write(files.state_path(launched.logdir, "node-here"), changed)
        assert 0 in look(LocalRunner(record.plan.nodes[0]), record).statuses
    finally:
        os.kill(state.pid, signal.SIGCONT)
