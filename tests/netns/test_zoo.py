"""Many machines with four actors each: what a launch costs, and machines that do not answer."""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from impala_tf.cluster import code
from impala_tf.cluster.cluster_main import main
from impala_tf.cluster.launch import Launcher
from impala_tf.cluster.node.state import read_state, state_path
from impala_tf.cluster.record import folder, load
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
START = Launcher.start
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
    folder = tmp_path_factory.mktemp("zoo")
    with network_of(folder, MACHINES) as (nodes, user_key):
        archive = b""
        for node in nodes:
            script = make_project(node.workdir) / "run_experiment.py"
            script.write_text(ACTOR + script.read_text())
            archive = archive or code.pack(root=node.workdir)
            # As an earlier launch has left it, so that all launches take the same commands.
            folder = node.workdir / code.PARENT / code.digest(archive)
            folder.mkdir(parents=True)
            subprocess.run(["tar", "-xzC", str(folder)], input=archive, check=True)
        yield nodes, user_key


class Zoo:
    """A run of stand-in processes on the first machines of the network."""

    def __init__(self, nodes, home, folder):
        self.nodes, self._home, self.logdir = nodes, home, folder / "here"
        self._csv = folder / "w.csv"

    def write(self):
        """Writes the CSV: a learner on the first machine, and actors on all of them."""
        lines = ["job,ip,tf_port,cuda_visible_devices,workdir,python"]
        for number, node in enumerate(self.nodes):
            rest = f"{node.workdir},{sys.executable}"
            if number == 0:
                lines.append(f"learner,{node.address},8001,-1,{rest}")
            lines += [f"actor,{node.address},,-1,{rest}"] * ACTORS
        self._csv.write_text("\n".join(lines) + "\n")
        know(self._home / "known_hosts", self.nodes)

    def config(self, **flags):
        return Given().replace(
            workers_csv_path=str(self._csv),
            logdir="runs",
            detach=True,
            envs_per_actor=8,
            **flags,
        )

    def launch(self, **flags):
        return submit(self.config(**flags), no_display)

    def state(self, node):
        if not (self.logdir / "runs" / "launch_id").exists():
            return None  # its launch is still checking the machines
        name = next(n for n in load(self.logdir / "runs").plan.nodes if n.address == node.address)
        return read_state(state_path(node.workdir / "runs", name.id))

    def running(self, node):
        """Returns the names of the processes that run on a machine."""
        state = self.state(node)
        if state is None:
            return set()
        return {name for name, each in state.processes.items() if each.state == "running"}

    def names(self, node):
        plan = load(self.logdir / "runs").plan
        address = {each.name: each.address for each in plan.nodes}
        return {each.name for each in plan.processes if address[each.node] == node.address}

    def sizes(self):
        """Returns the bytes of the record per machine, and of the largest orders."""
        orders = [path for node in self.nodes for path in node.workdir.glob("runs/*/*.orders.json")]
        record = (folder() / f"{load(self.logdir / 'runs').run_id}.json").stat().st_size
        return record / len(self.nodes), max(path.stat().st_size for path in orders)

    def stop(self):
        return main(["stop", "--logdir=runs", "--timeout_s=30"])


def no_display(status):
    raise AssertionError("the run is detached")


@pytest.fixture
def zoo(network, home, tmp_path, monkeypatch):
    """What makes a Zoo of so many machines, which is stopped at the end."""
    made = []
    files_of = functools.partial(code.pack, root=network[0][0].workdir)
    monkeypatch.setattr(code, "pack", files_of)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def make(count):
        made.append(Zoo(network[0][:count], home, tmp_path))
        return made[-1]

    yield make
    if (tmp_path / "here" / "runs" / "launch_id").exists():
        made[-1].stop()


def test_what_a_launch_costs_a_machine_does_not_grow_with_their_number(zoo):
    sizes = []
    for count in (1, 10, MACHINES):
        run = zoo(count)
        before = [node.commands for node in run.nodes]
        run.write()
        assert run.launch() == 0
        assert all(run.running(node) == run.names(node) for node in run.nodes)
        assert {n.commands - b for n, b in zip(run.nodes, before, strict=True)} == {3}
        sizes.append(run.sizes())
        assert run.stop() == 0
        shutil.rmtree(run.logdir / "runs")
    (_, orders), (record, _), (record_of_all, orders_of_all) = sizes
    assert record_of_all < 1.1 * record, "the record grows faster than the number of machines"
    assert orders_of_all < 1.1 * orders, "a machine's orders grow with the number of machines"


def test_machines_that_do_not_answer_are_named_and_delay_nobody(zoo, capfd):
    run = zoo(MACHINES)
    run.write()
    frozen, cut = run.nodes[10:15], run.nodes[15:20]
    lost = {node.address for node in (*frozen, *cut)}
    with contextlib.ExitStack() as healing:
        for node in frozen:
            node.freeze_sshd()
            healing.callback(node.thaw_sshd)
        for node in cut:
            node.cut_off()
            healing.callback(node.reconnect)
        assert run.launch() == 1
        said = capfd.readouterr().err.splitlines()
        assert lost <= {line.split(":")[0] for line in said}
        assert run.launch(min_actors=1) == 0
        said = capfd.readouterr().err.splitlines()
        assert {line.split(":")[0] for line in said} == lost, said
        there = [node for node in run.nodes if node.address not in lost]
        assert all(run.running(node) == run.names(node) for node in there)
        assert main(["status", "--logdir=runs"]) == 1
        shown = capfd.readouterr().out
        assert all(shown.count(f" {address} ") == ACTORS for address in lost)
        running, unknown = ACTORS * len(there), ACTORS * len(lost)
        assert shown.count(" running ") == running + 1
        assert shown.startswith(f"learners: 1 running; actors: {running} running, {unknown} unkno")
        assert f" {len(there)} of {MACHINES} machine(s) answer\n" in shown
    for node in (frozen[0], cut[0]):
        assert main(["restart", "--logdir=runs", node.address]) == 0, capfd.readouterr().err
        assert run.running(node) == run.names(node)
    assert run.stop() == 0, capfd.readouterr().err
    assert not any("sleep 10000" in line for node in run.nodes for line in node.processes())


def test_a_launcher_that_is_killed_leaves_a_run_that_can_be_completed_or_stopped(
    zoo, capfd, monkeypatch
):
    run = zoo(MACHINES)
    run.write()
    launcher = os.fork()
    if launcher == 0:
        monkeypatch.setattr(Launcher, "start", start_half)
        run.launch()
        os._exit(0)

    def started():
        return [node for node in run.nodes if run.running(node)]

    wait_until(lambda: len(started()) == MACHINES // 2)
    os.kill(launcher, signal.SIGKILL)
    os.waitpid(launcher, 0)
    there = started()
    assert len(there) == MACHINES // 2
    main(["status", "--logdir=runs"])
    shown = capfd.readouterr().out
    for node in run.nodes:
        assert shown.count(f" {node.address} ") >= ACTORS, shown
    missing = [node for node in run.nodes if node not in there]
    assert main(["restart", "--logdir=runs", missing[0].address]) == 0, capfd.readouterr().err
    assert run.running(missing[0]) == run.names(missing[0])
    assert run.stop() == 0, capfd.readouterr().err
    assert not any("sleep 10000" in line for node in run.nodes for line in node.processes())
    assert run.launch() == 0, capfd.readouterr().err
    assert len(started()) == MACHINES


def start_half(launcher, runner):
    """Starts the processes of the first half of the machines, and never those of the others."""
    names = [node.name for node in launcher.record.plan.nodes]
    if names.index(runner.node.name) >= MACHINES // 2:
        time.sleep(1000)
    return START(launcher, runner)
