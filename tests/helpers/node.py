"""This machine as a node of a launched run of the stand-in project."""

import json
import subprocess
import sys

from impala_tf.cluster.node import state as files
from impala_tf.cluster.node.plain import from_plain, to_plain
from impala_tf.cluster.node.state import NodeState, ProcessSpec
from tests.helpers.stand_in import make_project
from tests.helpers.waiting import wait_until


class Node:
    """This machine, with the stand-in project."""

    def __init__(self, tmp_path):
        self.project = make_project(tmp_path / "a project; $(touch x)")
        self.logdir = tmp_path / "logs"

    def orders(self, *names, **settings):
        processes = tuple(
            ProcessSpec(name, "h", (
                "run_experiment.py", f"--job_name={name.split('-')[0]}",
                f"--task={name.split('-')[1]}", f"--logdir={self.logdir}",
            ))
            for name in names
        )  # fmt: skip
        return {"run_id": "run", "node": "node-0", "tmux_sess": "impala", "code": "",
                "logdir": str(self.logdir), "processes": to_plain(processes),
                **settings}  # fmt: skip

    def ask(self, task, **question):
        """Runs the agent as the launcher does; returns its answer, or what it says is wrong."""
        done = subprocess.run(
            [sys.executable, "-m", "impala_tf.cluster.node.tasks", task],
            cwd=self.project, input=json.dumps(question), capture_output=True, text=True,
        )  # fmt: skip
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()

    def launch(self, *names, **settings):
        keys = {"ca.pem": "-", "actor.key": "secret"}
        answer = self.ask("launch", orders=self.orders(*names, **settings), credentials=keys)
        if not isinstance(answer, dict):
            return answer
        self.wait_until_up(*names)
        return from_plain(NodeState, answer)

    def wait_until_up(self, *names, times=1):
        """Waits until processes have started so many times: then they stop cleanly."""
        logs = [files.log_path(self.logdir, name) for name in names]
        wait_until(lambda: all(
            log.exists() and log.read_text().count("is up with") >= times for log in logs
        ))  # fmt: skip

    def about(self, **more):
        return {"logdir": str(self.logdir), "node": "node-0", **more}

    def stop(self, *names, timeout_s=20.0):
        return self.ask("stop", **self.about(
            run_id="run", tmux_sess="impala", names=list(names) or None, timeout_s=timeout_s,
            close=True, is_final=True,
        ))  # fmt: skip

    def restart(self, *names, of):
        """Starts processes again, of all that the node has."""
        processes = self.orders(*of)["processes"]
        return self.ask("restart", **self.about(processes=processes, names=list(names)))

    def state(self):
        return files.read_state(files.state_path(self.logdir, "node-0"))
