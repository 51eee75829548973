"""A launched run of the stand-in project on a machine behind an sshd."""

import sys

import pytest

from impala_tf.cluster import code, requirements
from impala_tf.cluster.cluster_main import main
from impala_tf.config import Given
from tests.helpers.launched_run import submit
from tests.helpers.ports import free_port
from tests.helpers.sshd import trust
from tests.helpers.stand_in import make_project


class Remote:
    """A learner and an actor of the stand-in project, on a machine behind an sshd."""

    def __init__(self, sshd, tmp_path):
        self.project = make_project(tmp_path / "project")
        self.work = tmp_path / "work; $(touch x)"
        self.work.mkdir()
        (self.work / "impala_tf").symlink_to(
            requirements.ROOT / "impala_tf"
        )  # what `impala cluster setup` has put there
        trust(sshd)
        self.logdir = tmp_path / "here" / "logs"
        self.csv = tmp_path / "w.csv"
        rest = f"127.0.0.1,{sshd.port},root,{sshd.user_key},{self.work},{sys.executable}"
        rows = [f"learner,127.0.0.1,{free_port()},-1,{rest}", f"actor,127.0.0.1,,-1,{rest}"]
        header = "job,ip,tf_port,cuda_visible_devices,ssh_host,ssh_port,ssh_username,key_filename"
        self.csv.write_text("\n".join([f"{header},workdir,python", *rows]) + "\n")

    def launch(self, logdir="logs", **flags):
        config = Given().replace(workers_csv_path=str(self.csv), logdir=logdir, detach=True,
            **flags,
        )  # fmt: skip
        return submit(config, make_display=lambda status: pytest.fail("it is detached"))

    def command(self, *words):
        return main([words[0], f"--logdir={self.logdir}", *words[1:]])

    def edit(self, word):
        """Lets processes say `word` instead of "up"."""
        script = self.project / "run_experiment.py"
        script.write_text(script.read_text().replace("is up with", f"is {word} with"))

    def log(self, logdir="logs"):
        path = self.work / logdir / "processes" / "actor-0.log"
        return path.read_text() if path.exists() else ""

    def folders(self):
        return {path.name: path for path in (self.work / code.PARENT).iterdir()}
