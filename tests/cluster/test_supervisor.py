"""The supervisor of a node: follows its orders, reports, and leaves nothing running."""

import os
import signal
import subprocess
import sys
import time
from typing import IO, cast

import pytest

from impala_tf.cluster.node import state as files
from impala_tf.cluster.node.state import ProcessSpec
from impala_tf.cluster.requirements import ROOT
from impala_tf.machine.supervision import OVER
from tests.helpers.waiting import wait_until


def shell(name, script, **settings):
    """A process that runs a shell script; the supervisor starts Python with its arguments."""
    code = f"import os; os.execvp('sh', ['sh', '-c', {script!r}])"
    return ProcessSpec(name, "h", ("-c", code), **settings)


class Supervised:
    """A supervisor, as its window runs it."""

    def __init__(self, folder, processes, **settings):
        self.folder = folder
        self.path = files.orders_path(folder, "node-0")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        files.write(self.path, files.new_orders("run", "node-0", folder, processes, **settings))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        module = "impala_tf.cluster.node.supervisor"
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, str(self.path)],
            cwd=folder, env=environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.output = cast(IO[str], self.process.stdout)

    def state(self):
        return files.read_state(files.state_path(self.folder, "node-0"))

    def of(self, name):
        state = self.state()
        return state.processes.get(name) if state else None

    def wait_for_line(self, name, line):
        log = files.log_path(self.folder, name)
        wait_until(lambda: log.exists() and f"{line}\n" in log.read_text())

    def wait_for(self, name, state):
        wait_until(lambda: self.of(name) is not None and self.of(name).state == state)


@pytest.fixture
def supervise(tmp_path):
    started = []

    def start(*processes, **settings):
        started.append(Supervised(tmp_path, processes, **settings))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
        each.output.close()


LEARNER = "trap 'sleep .5; echo saved; exit 0' TERM; echo up; sleep 1000 & wait"
ACTOR = "trap 'echo gone; exit 0' TERM; echo up; sleep 1000 & wait"


def test_a_stopped_node_stops_its_learner_before_its_actors(supervise, tmp_path):
    node = supervise(shell("actor-0", ACTOR), shell("learner-0", LEARNER))
    for name in ("actor-0", "learner-0"):
        node.wait_for_line(name, "up")
    node.process.send_signal(signal.SIGINT)
    assert node.process.wait(60) == 0
    ends = {name: node.of(name).ended_unix_s for name in ("learner-0", "actor-0")}
    assert ends["actor-0"] > ends["learner-0"]
    assert "saved\n" in files.log_path(tmp_path, "learner-0").read_text()
    assert node.of("learner-0").state == "stopped"


def test_a_machine_that_goes_down_leaves_the_run_and_does_not_end_it(supervise):
    """Rented machines get SIGTERM before they are taken away."""
    node = supervise(shell("learner-0", LEARNER))
    node.wait_for("learner-0", "running")
    time.sleep(0.5)
    node.process.terminate()
    assert node.process.wait(60) == 0
    assert node.of("learner-0").state == "left"
    assert "left" not in OVER


def test_a_run_ends_after_its_hours_and_tells_whoever_asked(supervise, tmp_path):
    node = supervise(
        shell("learner-0", LEARNER), max_hours=1.0 / 3600,
        end_command='echo "$IMPALA_TF_STATES" > told',
    )  # fmt: skip
    assert node.process.wait(60) == 0
    assert node.of("learner-0").state == "stopped"
    assert (tmp_path / "told").read_text() == "learner-0=stopped\n"


def test_max_hours_count_from_the_launch_whatever_clocks_say(supervise):
    """Also after a supervisor has started again."""
    begun = {"started_boot_id": files.boot_id(), "started_uptime_s": files.uptime_s() - 3600}
    node = supervise(shell("learner-0", LEARNER), max_hours=0.5, **begun)
    node.wait_for("learner-0", "stopped")
    assert node.of("learner-0").detail.startswith("--max_hours=0.5 have passed")


def test_a_state_that_cannot_be_written_ends_nothing(supervise, tmp_path):
    """A full disk, for example."""
    node = supervise(shell("actor-0", "while [ ! -e go ]; do sleep .1; done"))
    node.wait_for("actor-0", "running")
    folder = files.processes_folder(tmp_path)
    folder.rename(tmp_path / "aside")
    assert any("cannot write its state" in line for line in node.output)
    (tmp_path / "aside").rename(folder)
    (tmp_path / "go").touch()
    assert node.process.wait(60) == 0
    assert node.of("actor-0").state == "finished"
