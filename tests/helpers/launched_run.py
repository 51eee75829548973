"""A launched run of the stand-in project on this machine, as its launcher sees it."""

import contextlib
import subprocess
import sys
from unittest import mock

from impala_tf.cluster import watch
from impala_tf.cluster.cluster_main import main
from impala_tf.cluster.engines import ssh
from impala_tf.cluster.node.state import read_state, state_path
from impala_tf.cluster.runner import ClusterError
from impala_tf.config import Given
from tests.helpers.stand_in import make_project, write_csv


def submit(given, make_display):
    """Launches a run as the command does; returns the exit status."""
    try:
        return ssh.submit(given, make_display, lambda run, logdir: [])
    except ClusterError as error:
        print(*error.problems, sep="\n", file=sys.stderr)
        return 1


class RecordedDisplay:
    """Records its calls; passes the newest status to `on_update`."""

    def __init__(self, source, on_update):
        self._source = source
        self._on_update = on_update
        self.notes, self.final = [], None

    def start(self):
        assert self._source() is None, "there is a status before the learner wrote one"

    def update(self):
        self._on_update(self._source())

    def note(self, text):
        self.notes.append(text)

    def stop(self, final_line):
        self.final = final_line


class Run:
    """A run of the stand-in project."""

    def __init__(self, tmp_path):
        self.logdir = tmp_path / "logs"
        self.project = make_project(tmp_path / "a project; $(touch x)")
        self.csv = write_csv(tmp_path / "w.csv", self.project)
        self.display = None

    def launch(self, on_update=lambda status: None, **flags):
        config = Given().replace(workers_csv_path=str(self.csv), logdir=str(self.logdir), **flags)

        with self._shown(on_update) as make_display:
            return submit(config, make_display)

    @contextlib.contextmanager
    def _shown(self, on_update):
        def make_display(source):
            self.display = RecordedDisplay(source, on_update)
            return self.display

        with mock.patch.multiple(watch, FIRST_LEARNER_S=0.1, LOOK_S=0.2, RETRY_S=0.2, GONE_S=1.0):
            yield make_display

    def node(self):
        return read_state(state_path(self.logdir, "node-here"))

    def state(self, name):
        return self.node().processes[name]

    def log(self, name):
        folders = self.logdir, self.project / "there"
        paths = [folder / "processes" / f"{name}.log" for folder in folders]
        return "".join(path.read_text() for path in paths if path.exists())

    def command(self, *words):
        return main([words[0], f"--logdir={self.logdir}", *words[1:]])


def windows():
    command = ["tmux", "list-panes", "-s", "-t", "=impala", "-F", "#{window_name} #{pane_dead}"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.split("\n")[:-1]
