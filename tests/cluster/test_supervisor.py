"""The supervisor of a node: follows its orders, reports, and leaves nothing running."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, cast

import pytest

from impala_tf.cluster.node import state as files
from impala_tf.cluster.node.state import ProcessSpec
from impala_tf.cluster.requirements import ROOT
from impala_tf.machine.supervision import OVER, start_ticks
from tests.helpers.waiting import wait_until


def shell(name, script, **settings):
    """A process that runs a shell script; the supervisor starts Python with its arguments."""
    code = f"import os; os.execvp('sh', ['sh', '-c', {script!r}])"
    return ProcessSpec(name, "h", ("-c", code), **settings)


class Supervised:
    """A supervisor, as its window runs it."""

    def __init__(self, folder, processes, echo=False, **settings):
        self.folder = folder
        self.path = files.orders_path(folder, "node-0")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.orders = files.new_orders("run", "node-0", folder, processes, **settings)
        files.write(self.path, self.orders)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        module = "impala_tf.cluster.node.supervisor"
        code = f"from pathlib import Path; from {module} import NodeSupervisor as N; "
        code += f"raise SystemExit(N(Path({str(self.path)!r}), echo=True).run_with_signals())"
        program = ["-c", code] if echo else ["-m", module, str(self.path)]
        self.process = subprocess.Popen(
            [sys.executable, *program],
            cwd=folder, env=environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.output = cast(IO[str], self.process.stdout)

    def change(self, **changes):
        self.orders = self.orders._replace(**changes)
        files.write(self.path, self.orders)

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


def test_the_state_names_every_process_and_how_it_ended(supervise):
    node = supervise(shell("learner-0", "exit 0"), shell("actor-0", "exit 2"))
    assert node.process.wait(60) == 2
    state = node.state()
    assert [(p.name, p.state, p.exit_status) for p in state.processes.values()] == [
        ("learner-0", "finished", 0), ("actor-0", "refused", 2)
    ]  # fmt: skip
    assert files.living_pids(state) == {}


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


def test_new_orders_start_stop_and_restart_processes(supervise):
    node = supervise(shell("actor-0", "sleep 1000"), shell("actor-1", "sleep 1000"))
    node.wait_for("actor-1", "running")
    pid = node.of("actor-0").pid
    node.change(
        processes=(*node.orders.processes, shell("actor-2", "sleep 1000")),
        stopped=("actor-1",),
        restarts={"actor-0": 1},
    )
    node.wait_for("actor-2", "running")
    node.wait_for("actor-1", "stopped")
    wait_until(lambda: node.of("actor-0").pid not in (None, pid))
    node.change(stopped=("actor-0", "actor-1", "actor-2"))
    assert node.process.wait(60) == 0


def test_a_run_ends_after_its_hours_and_tells_whoever_asked(supervise, tmp_path):
    node = supervise(
        shell("learner-0", LEARNER), max_hours=1.0 / 3600,
        end_command='echo "$IMPALA_TF_STATES" > told',
    )  # fmt: skip
    assert node.process.wait(60) == 0
    assert node.of("learner-0").state == "stopped"
    assert (tmp_path / "told").read_text() == "learner-0=stopped\n"


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


def test_a_closed_pipe_behind_its_output_ends_nothing(supervise, tmp_path):
    """As in `run_experiment.py --join | head`, or with a full disk behind a job's output."""
    node = supervise(shell("actor-0", "while [ ! -e go ]; do echo up; sleep .1; done"), echo=True)
    assert "up\n" in node.output
    node.output.close()
    time.sleep(1)
    assert node.process.poll() is None
    (tmp_path / "go").touch()
    assert node.process.wait(60) == 0
    assert node.of("actor-0").state == "finished"


def test_a_supervisor_of_four_actors_is_small(supervise):
    """Cheap machines have a gigabyte."""
    node = supervise(*(shell(f"actor-{k}", "sleep 1000") for k in range(4)))
    for number in range(4):
        node.wait_for(f"actor-{number}", "running")
    text = Path(f"/proc/{node.process.pid}/smaps_rollup").read_text()
    (pss_kib,) = [int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")]
    assert pss_kib < 15 * 1024
    assert start_ticks(node.process.pid) is not None
