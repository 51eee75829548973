"""A launch on many machines with four actors each, some of which do not answer."""

import contextlib
import functools
import sys
from pathlib import Path

import pytest

from impala_tf.cluster import code
from impala_tf.cluster.cluster_main import main
from impala_tf.cluster.node.state import read_state, state_path
from impala_tf.cluster.record import load
from impala_tf.config import Given
from tests.helpers.launched_run import submit
from tests.helpers.netns import know, network_of
from tests.helpers.stand_in import make_project

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
    assert state is not None
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
        assert f" {len(there)} of {MACHINES} machine(s) answer\n" in shown
    for node in (frozen[0], cut[0]):
        assert main(["restart", "--logdir=runs", node.address]) == 0, capfd.readouterr().err
        assert count_running(node) == ACTORS
    assert stop() == 0, capfd.readouterr().err
    assert not any("sleep 10000" in line for node in nodes for line in node.processes())
