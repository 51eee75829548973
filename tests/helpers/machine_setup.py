"""A machine for `impala cluster setup`, behind an sshd."""

import contextlib
import io

from impala_tf.cluster.node.state import ProcessSpec
from impala_tf.cluster.plan import Plan
from impala_tf.cluster.remote import SshRunner
from impala_tf.cluster.setup import Installer
from tests.helpers.sshd import trust


class Setup:
    """A machine to set up."""

    def __init__(self, sshd, root, workdir, python=".venv/bin/python"):
        self.root = root
        node = sshd.node(workdir=str(workdir), python=python)
        trust(sshd)
        self.runner = SshRunner(node)
        self.plan = Plan("impala", (node,), (ProcessSpec("actor-0", node.name, ()),), ())

    def installer(self, extras=()):
        return Installer(self.plan, extras, self.root)

    def run(self, extras=()):
        """Sets the machine up; returns the last line that this prints."""
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.installer(extras).set_up(self.runner)
        return said.getvalue().splitlines()[-1]

    def version(self, package):
        code = f"import importlib.metadata as m; print(m.version('{package}'))"
        return self.runner.run([".venv/bin/python", "-c", code]).text.strip()
