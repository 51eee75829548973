"""Sets up all machines of a plan at once: copies the project, and installs its packages with uv."""

from __future__ import annotations

import collections
import gzip
import hashlib
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_tf.cluster import code, requirements
from impala_tf.cluster.inventory import Secret
from impala_tf.cluster.machines import connected, good, on_all, problems
from impala_tf.cluster.plan import REMOTE_PYTHON, NodeSpec, Plan
from impala_tf.cluster.requirements import CONSTRAINTS, ROOT
from impala_tf.cluster.runner import ClusterError, CommandRunner, run_probe
from impala_tf.config import user_commands

_VENV = REMOTE_PYTHON.removesuffix("/bin/python")
_UV = ".uv/uv"
_TAKE_UV = 'mkdir -p .uv && gzip -d > .uv/uv.new && chmod 755 .uv/uv.new && mv .uv/uv.new "$0"'
_LAST_LINES = 4
"""How many lines of a failed installation are shown: uv and pip end with what is wrong."""
_LONG_S = 600.0
_OLDEST, _NEWEST = (".".join(map(str, version)) for version in requirements.PYTHON_VERSIONS)


def set_up(
    plan: Plan, passwords: Mapping[str, Secret], extras: Sequence[str] = (), root: Path = ROOT
) -> int:
    """Sets up all machines of a plan in parallel; returns 1 if that fails for any, else 0.

    Prints a line about each machine before steps that may take minutes, and when it is ready; and
    then the failures and totals. Ctrl-C ends what runs on the machines, with the connections.

    Args:
      plan: the machines and their roles.
      passwords: {name of the node: password}.
      extras: extras of pyproject.toml to install, such as worlds, procgen or retro.
      root: the project's folder.
    """
    installer = Installer(plan, extras, root)
    with connected([], passwords) as machines:
        results = on_all(plan.nodes, lambda node: installer.set_up(machines.runner(node)))
    text = f"{len(good(results))} of {len(results)} machine(s) ready"
    failed = ", ".join(results.keys() - good(results).keys())
    print(*problems(results), f"{text}; not {failed}" if failed else text, sep="\n")
    return 1 if failed else 0


def look(runner: CommandRunner, pins: Mapping[str, str], folder: str = "/") -> dict[str, Any]:
    """Returns what a machine has: the answer of `probe.look`, and what is wrong with packages.

    Args:
      runner: the machine; it needs no project.
      pins: {package: version that it should have}.
      folder: where the run will write.

    Returns:
      The answer and, as "wrong", a line for each package that has another version, or lacks its
      patch.
    """
    has: dict[str, Any] = run_probe(runner, "look", {"packages": list(pins), "folder": folder})
    versions = has["versions"]
    has["wrong"] = [
        f"{name} {versions[name] or 'missing'} instead of {version}"
        for name, version in pins.items()
        if versions[name] != version
    ]
    if "horovod" in pins and versions["horovod"] == pins["horovod"]:
        program = "import horovod; horovod.built_for"
        if runner.run([runner.node.python, "-P", "-c", program]).status != 0:
            has["wrong"].append("horovod without the patch of install_horovod.sh")
    return has


class Installer:
    """Sets up machines; thread-safe."""

    def __init__(self, plan: Plan, extras: Sequence[str] = (), root: Path = ROOT) -> None:
        """Reads the project and uv; touches no machine yet. The arguments are those of `set_up`."""
        import uv  # not every installation launches runs

        self._plan, self._extras, self._root = plan, extras, root
        self._project = code.pack(root=root)
        binary = Path(uv.find_uv_bin()).read_bytes()
        self._uv, self._uv_digest = gzip.compress(binary, 1), hashlib.sha256(binary).hexdigest()

    def set_up(self, runner: CommandRunner) -> None:
        """Sets up a machine, and says so.

        Copies the project, and creates a virtual environment unless the CSV names an
        interpreter. Installs the packages of the machine's role, and Horovod if needed, unless all
        have the pinned versions.

        Raises:
          ClusterError: with the reason in one line.
        """
        node = runner.node
        role = self._plan.role(node)
        with_horovod = any(process.group for process in self._plan.on(node))
        pins = requirements.pinned(role, with_horovod, self._root, self._extras)
        if not node.is_local:
            _run(runner, ["mkdir", "-p", "--", node.workdir], in_workdir=False)
            # With the time of now (-m): Python takes a .pyc for a file of its time and size.
            _run(runner, ["tar", "-x", "-z", "-m", "-f", "-", "--no-same-owner"], self._project)
        is_own = node.is_local or node.python != REMOTE_PYTHON
        if not is_own and (not _has_environment(runner) or look(runner, pins)["wrong"]):
            wanted = requirements.of_role(role, self._root, self._extras)
            self._install(runner, wanted, with_horovod)
        if wrong := look(runner, pins)["wrong"]:
            advice = f"; {_by_hand(node, wrong)}" if is_own else " after the installation"
            raise ClusterError(f"{node.name}: {node.python} has {', '.join(wrong)}{advice}")
        _say(node, f"ready: {len(pins)} packages as pinned, in {node.workdir}")

    def _install(self, runner: CommandRunner, wanted: Sequence[str], with_horovod: bool) -> None:
        """Installs packages in the pinned versions, in a virtual environment."""
        node, python = runner.node, runner.node.python
        compiler = "command -v cmake && command -v g++"
        if with_horovod and runner.run(["sh", "-c", compiler]).status != 0:
            raise ClusterError(  # before minutes of downloads
                f"{node.name}: Horovod, which several learners need, cannot be compiled there; on"
                " Debian: apt-get install cmake g++ python3-dev"
            )
        self.copy_uv(runner)
        if not _has_environment(runner):
            versions = f">={_OLDEST},<3.{requirements.PYTHON_VERSIONS[1][1] + 1}"
            venv = [_UV, "venv", "--quiet", "--clear", "--no-python-downloads", _VENV]
            done = runner.run([*venv, "--python", versions], timeout_s=_LONG_S)
            if done.status != 0:
                raise ClusterError(
                    f"{node.name}: {done.stderr.decode(errors='replace')}; install Python {_OLDEST}"
                    f" to {_NEWEST} there, or name its interpreter in the column python"
                )
        _say(node, "installing the packages ...")
        what = ["-c", CONSTRAINTS, *wanted, *(["pip"] if with_horovod else [])]
        uv_install = [_UV, "pip", "install", "--system-certs", "--no-progress", "--python", python]
        try:
            _watch(runner, [*uv_install, *what])
        except ClusterError as by_uv:
            # pip is slower, but knows the indexes and certificates of pip's own configuration.
            pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "-q"]
            try:
                _watch(runner, [python, "-m", "ensurepip"])
                _watch(runner, [*pip, *what])
            except ClusterError as by_pip:
                raise ClusterError([*by_uv.problems, *by_pip.problems]) from None
        if with_horovod:
            _say(node, "compiling Horovod ...")
            script = "impala_tf/cluster/install_horovod.sh"
            _watch(runner, ["sh", script, python, "--progress-bar=off"])

    def copy_uv(self, runner: CommandRunner) -> None:
        """Copies uv to a machine, unless it has the same version."""
        machine = runner.run(["uname", "-sm"]).text.strip()
        if machine != f"{platform.system()} {platform.machine()}":
            raise ClusterError(
                f"{runner.name}: a machine of another kind ({machine}): create the environment"
                " there by hand, and name its interpreter in the column python"
            )
        if not runner.run(["sha256sum", "--", _UV]).text.startswith(self._uv_digest):
            _run(runner, ["sh", "-c", _TAKE_UV, _UV], self._uv)


def _say(node: NodeSpec, text: str) -> None:
    print(f"{node.name}: {text}", flush=True)


def _has_environment(runner: CommandRunner) -> bool:
    return runner.run([runner.node.python, "-c", ""]).status == 0


def _run(
    runner: CommandRunner, command: list[str], stdin: bytes = b"", in_workdir: bool = True
) -> None:
    """Runs a command. Raises ClusterError, with the cause, if it fails."""
    done = runner.run(command, stdin, _LONG_S, in_workdir)
    if done.status != 0:
        raise ClusterError(f"{runner.name}: {done.last_line}")


def _watch(runner: CommandRunner, command: list[str]) -> None:
    """Runs an installation. Raises ClusterError, with its last lines, if it fails."""
    running = runner.start(command)
    lines = (line.decode(errors="replace").strip() for line in running.output)
    last = collections.deque(filter(None, lines), maxlen=_LAST_LINES)
    if running.finish() != 0:
        raise ClusterError(f"{runner.name}: {' '.join(last)}")


def _by_hand(node: NodeSpec, wrong: Sequence[str]) -> str:
    """Returns how users install the packages that `wrong` names, for their own Python."""
    if node.is_local and all(line.startswith("horovod ") for line in wrong):
        return f"run {user_commands.install_horovod(Path(node.python))}"
    other = "" if node.is_local else ", or leave the column python empty"
    return f"install the versions that {CONSTRAINTS} pins{other}"
