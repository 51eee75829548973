"""A launch on many machines with four actors each, some of which do not answer."""

import contextlib
import functools
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from impala_tf.cluster import code
from impala_tf.cluster.cluster_main import main
from impala_tf.cluster.launch import Launcher
from impala_tf.cluster.node.state import read_state, state_path
from impala_tf.cluster.record import load
from impala_tf.config import Given
from tests.helpers.launched_run import submit
from tests.helpers.netns import know, network_of
from tests.helpers.stand_in import make_project
from tests.helpers.waiting import wait_until

pytestmark = [
    pytest.mark.zoo,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("cluster"),
]
MACHINES = 20
ACTORS = 4
# The learner is the stand-in's; actors are shells, so that 80 of them fit on a small machine.
ACTOR = """
import os, sys
if "--job_name=actor" in sys.argv:
    os.execvp("sh", ["sh", "-c", "trap 'echo stopped cleanly; exit' TERM; sleep 10000 & wait"])
"""


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    with network_of(tmp_path_factory.mktemp("zoo"), MACHINES) as found:
        for node in found[0]:
            script = make_project(node.workdir) / "run_experiment.py"
            script.write_text(ACTOR + script.read_text())
        yield found


@pytest.fixture
def nodes(network, home, tmp_path, monkeypatch):
    """The machines, and a CSV with a learner on the first one, and actors on all of them."""
    nodes, _ = network
    know(home / "known_hosts", nodes)
    monkeypatch.setattr(code, "pack", functools.partial(code.pack, root=nodes[0].workdir))
    monkeypatch.chdir(tmp_path)
    rows = [("learner", nodes[0], 8001), *[("actor", node, "") for node in nodes * ACTORS]]
    lines = ["job,ip,tf_port,cuda_visible_devices,workdir,python"]
    lines += [
        f"{job},{node.address},{port},-1,{node.workdir},{sys.executable}"
        for job, node, port in rows
    ]
    Path("w.csv").write_text("\n".join(lines) + "\n")
    yield nodes
    stop()


def launch(**flags):
    given = {"workers_csv_path": "w.csv", "logdir": "runs", "detach": True, **flags}
    return submit(Given().replace(envs_per_actor=8, **given), make_display=None)


def stop():
    return main(["stop", "--logdir=runs", "--timeout_s=30"])


def count_running(node):
    """Returns how many processes run on a machine."""
    name = next(n for n in load(Path("runs")).plan.nodes if n.address == node.address)
    state = read_state(state_path(node.workdir / "runs", name.id))
    if state is None:
        return 0
    return [each.state for each in state.processes.values()].count("running")


def test_machines_that_do_not_answer_are_named_and_delay_nobody(nodes, capfd):
    frozen, cut = nodes[10:15], nodes[15:20]
    lost = {node.address for node in (*frozen, *cut)}
    with contextlib.ExitStack() as healing:
        for node in frozen:
            node.freeze_sshd()
            healing.callback(node.thaw_sshd)
        for node in cut:
            node.cut_off()
            healing.callback(node.reconnect)
        assert launch() == 1
        said = capfd.readouterr().err.splitlines()
        assert lost <= {line.split(":")[0] for line in said}
        assert launch(min_actors=1) == 0
        said = capfd.readouterr().err.splitlines()
        assert {line.split(":")[0] for line in said} == lost, said
        there = [node for node in nodes if node.address not in lost]
        assert [count_running(node) for node in there] == [1 + ACTORS, *[ACTORS] * 9]
        assert main(["status", "--logdir=runs"]) == 1
        shown = capfd.readouterr().out
        assert all(shown.count(f" {address} ") == ACTORS for address in lost)
        running, unknown = ACTORS * len(there), ACTORS * len(lost)
        assert shown.count(" running ") == running + 1
        assert shown.startswith(f"learners: 1 running; actors: {running} running, {unknown} unkno")
    for node in (frozen[0], cut[0]):
        assert main(["restart", "--logdir=runs", node.address]) == 0, capfd.readouterr().err
        assert count_running(node) == ACTORS
    assert stop() == 0, capfd.readouterr().err
    assert not any("sleep 10000" in line for node in nodes for line in node.processes())


def test_a_launcher_that_is_killed_leaves_a_run_that_can_be_completed_or_stopped(
    nodes, capfd, monkeypatch
):
    first_half = {node.address for node in nodes[: MACHINES // 2]}
    start = Launcher.start

    def start_half(launcher, runner):
        if runner.node.address not in first_half:
            time.sleep(1000)
        return start(launcher, runner)

    if (launcher := os.fork()) == 0:
        monkeypatch.setattr(Launcher, "start", start_half)
        launch()
        os._exit(0)
    there = nodes[: MACHINES // 2]
    wait_until(
        lambda: Path("runs/launch_id").exists() and all(count_running(node) for node in there)
    )
    os.kill(launcher, signal.SIGKILL)
    os.waitpid(launcher, 0)
    missing = nodes[-1]
    assert count_running(missing) == 0
    assert main(["restart", "--logdir=runs", missing.address]) == 0, capfd.readouterr().err
    assert count_running(missing) == ACTORS
    assert launch() == 1, "its processes run"
    assert stop() == 0, capfd.readouterr().err
    assert not any("sleep 10000" in line for node in nodes for line in node.processes())
    assert launch() == 0, capfd.readouterr().err
    assert all(count_running(node) for node in nodes)
