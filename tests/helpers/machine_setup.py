"""A machine for `frontend setup`, behind an sshd."""

from impala_tf.frontend import project
from impala_tf.frontend.node.state import ProcessSpec
from impala_tf.frontend.plan import Plan
from impala_tf.frontend.setup import Installer
from impala_tf.frontend.ssh import SshRunner
from impala_tf.frontend.ssh_login import SshConnector


class Setup:
    """A machine to set up."""

    def __init__(self, sshd, root, workdir, python=".venv/bin/python"):
        self.root = root
        node = sshd.node(workdir=str(workdir), python=python)
        self.runner = SshRunner(node, SshConnector({}, False, sshd.known_hosts))
        self.plan = Plan("impala", (node,), (ProcessSpec("actor-0", node.name, ()),), ())
        self.said = []

    def installer(self, extras=()):
        return Installer(self.plan, project.files("", self.root), self.root, extras)

    def run(self, extras=()):
        return self.installer(extras).set_up(
            self.runner, lambda share, text: self.said.append(text)
        )

    def version(self, package):
        code = f"import importlib.metadata as m; print(m.version('{package}'))"
        return self.runner.run([".venv/bin/python", "-c", code]).text.strip()
