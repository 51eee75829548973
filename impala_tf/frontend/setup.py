"""Sets up all machines of a plan at once: copies the project, and installs its packages with uv."""

from __future__ import annotations

import collections
import contextlib
import gzip
import hashlib
import platform
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from impala_tf.config import user_commands
from impala_tf.frontend import project, requirements
from impala_tf.frontend.inventory import Secret
from impala_tf.frontend.machines import Machines, try_all
from impala_tf.frontend.plan import REMOTE_PYTHON, NodeSpec, Plan
from impala_tf.frontend.preflight import PYTHONS_OWN_FIRST, run_probe
from impala_tf.frontend.runner import ClusterError, CommandRunner, until_input_ends

_VENV = REMOTE_PYTHON.removesuffix("/bin/python")
_UV = ".uv/uv"
_LAST_LINES = 4
"""How many lines of a failed installation are shown: uv and pip end with what is wrong."""
_OLDEST, _NEWEST = (".".join(map(str, version)) for version in requirements.PYTHON_VERSIONS)


def set_up(
    plan: Plan,
    known: Mapping[str, Secret],
    extras: Sequence[str] = (),
    root: Path = project.ROOT,
) -> int:
    """Sets up all machines of a plan in parallel; returns 1 if that fails for any, else 0.

    Prints a line about each machine before steps that may take minutes, and when it is ready or has
    failed; and then the totals. Ctrl-C ends what runs on the machines, with the connections.

    Args:
      plan: the machines and their roles.
      known: {name of the node: password}.
      extras: extras of pyproject.toml to install, such as worlds, procgen or retro.
      root: the project's folder.
    """
    installer = Installer(plan, project.files(root=root), root, extras)
    interrupted = threading.Event()

    def work(node: NodeSpec) -> None:
        try:
            runner = machines.connect([node])[node.name]
            if isinstance(runner, ClusterError):
                raise runner
            _say(node, installer.set_up(runner))
        except ClusterError as error:
            if not interrupted.is_set():
                print(error, flush=True)
            raise

    with contextlib.closing(Machines(known)) as machines:
        try:
            results = try_all(plan.nodes, lambda node: node.name, work)
        except BaseException:
            interrupted.set()
            raise
    failed = [name for name, result in results.items() if isinstance(result, ClusterError)]
    text = f"{len(results) - len(failed)} of {len(results)} machine(s) ready"
    print(f"{text}; not {', '.join(failed)}" if failed else text)
    return 1 if failed else 0


def _say(node: NodeSpec, text: str) -> None:
    print(f"{node.name}: {text}", flush=True)


class Installer:
    """Sets up machines; thread-safe."""

    def __init__(
        self, plan: Plan, files: Mapping[str, Path], root: Path, extras: Sequence[str] = ()
    ) -> None:
        """Touches no machine yet.

        Args:
          plan: the machines and their roles.
          files: {name: file} of the project.
          root: the project's folder.
          extras: extras of pyproject.toml to install.
        """
        self._plan = plan
        self._archive = project.archive(files)
        self._digests = project.digests(files)
        self._root = root
        self._extras = extras
        import uv  # not every installation launches runs

        # Not in the threads: called by many at a time, sysconfig.get_config_var fails.
        self._uv = Path(uv.find_uv_bin())
        with self._uv.open("rb") as file:
            self._uv_digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._uv_compressed = b""
        self._compressing = threading.Lock()

    def set_up(self, runner: CommandRunner) -> str:
        """Sets up a machine; returns one line about it.

        Copies the project, and creates a virtual environment unless the CSV names an
        interpreter. Installs the packages of the machine's role, and Horovod if needed, unless all
        have the pinned versions.

        Raises:
          ClusterError: with the reason in one line.
        """
        node = runner.node
        if not node.is_local:
            self._copy_project(runner)
        role = self._plan.role(node)
        with_horovod = any(process.group for process in self._plan.on(node))
        pins = requirements.pinned(role, with_horovod, self._root, self._extras)
        own = node.is_local or node.python != REMOTE_PYTHON
        if not own:
            self._make_environment(runner)
        mismatches = wrong_packages(runner, pins)
        if mismatches and own:
            raise ClusterError(
                f"{node.name}: {node.python} has {', '.join(mismatches)};"
                f" {_by_hand(node, mismatches)}"
            )
        if mismatches:
            if with_horovod:
                _check_compiler(runner)
            wanted = requirements.of_role(role, self._root, self._extras)
            _say(node, "installing the packages ...")
            self._install(runner, [*wanted, *(["pip"] if with_horovod else [])])
            if with_horovod:
                _say(node, "compiling Horovod ...")
                script = "impala_tf/frontend/install_horovod.sh"
                _watch(runner, ["sh", script, node.python, "--progress-bar=off"])
            mismatches = wrong_packages(runner, pins)
        if mismatches:
            raise ClusterError(
                f"{node.name}: after the installation there is still {', '.join(mismatches)}"
            )
        return f"ready: {len(pins)} packages as pinned, in {node.workdir}"

    def _copy_project(self, runner: CommandRunner) -> None:
        """Copies the project's files, unless all of them are there."""
        made = runner.run(["mkdir", "-p", "--", runner.node.workdir], in_workdir=False)
        if made.status != 0:
            raise ClusterError(f"{runner.node.name}: {made.last_line}")
        done = runner.run(["sha256sum", "--zero", "--", *self._digests])
        there = {line.partition("  ")[::2] for line in done.text.split("\0")}
        if not {(digest, name) for name, digest in self._digests.items()} <= there:
            _send(runner, ["tar", "-x", "-f", "-", "--no-same-owner"], self._archive)

    def _make_environment(self, runner: CommandRunner) -> None:
        node = runner.node
        if runner.run([node.python, "-c", ""]).status == 0:
            return
        self.copy_uv(runner)
        versions = f">={_OLDEST},<3.{requirements.PYTHON_VERSIONS[1][1] + 1}"
        command = [_UV, "venv", "--quiet", "--clear", "--no-python-downloads", "--python", versions]
        done = runner.run([*command, _VENV], timeout_s=600.0)
        if done.status != 0:
            reason = " ".join(done.stderr.decode(errors="replace").split())
            raise ClusterError(
                f"{node.name}: {reason}; install Python {_OLDEST} to {_NEWEST} there, or name its"
                " interpreter in the column python"
            )

    def copy_uv(self, runner: CommandRunner) -> None:
        """Copies uv to a machine, unless it has the same version."""
        name, machine = runner.node.name, runner.run(["uname", "-sm"]).text.strip()
        if machine != f"{platform.system()} {platform.machine()}":
            raise ClusterError(
                f"{name}: a machine of another kind ({machine}): create the environment there "
                f"by hand, and name its interpreter in the column python"
            )
        if runner.run(["sha256sum", "--", _UV]).text.startswith(self._uv_digest):
            return
        script = (
            'mkdir -p .uv && gzip -d > .uv/uv.new && chmod 755 .uv/uv.new && mv .uv/uv.new "$0"'
        )
        _send(runner, ["sh", "-c", script, _UV], self._compressed_uv(), "uv: ")

    def _compressed_uv(self) -> bytes:
        with self._compressing:  # once for all machines
            if not self._uv_compressed:
                self._uv_compressed = gzip.compress(self._uv.read_bytes(), 1)
        return self._uv_compressed

    def _install(self, runner: CommandRunner, wanted: Sequence[str]) -> None:
        """Installs packages in the pinned versions: with uv or, where that fails, with pip.

        uv takes a fraction of pip's time, but knows nothing of the indexes, certificates and
        proxies in pip's own configuration.
        """
        python = runner.node.python
        self.copy_uv(runner)  # an environment that somebody else made lacks it
        what = ["-c", project.CONSTRAINTS, *wanted]
        uv_install = [_UV, "pip", "install", "--system-certs", "--no-progress"]
        try:
            _watch(runner, [*uv_install, "--python", python, *what])
            return
        except ClusterError as error:
            by_uv = str(error)
        pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off"]
        try:
            _watch(runner, [python, "-m", "ensurepip"])
            _watch(runner, [*pip, *what])
        except ClusterError as error:
            by_pip = str(error).removeprefix(f"{runner.node.name}: ")
            raise ClusterError(f"{by_uv}; with pip: {by_pip}") from None


def _send(
    runner: CommandRunner, command: list[str], content: bytes, before_error: str = ""
) -> None:
    """Runs a command with this input. Raises ClusterError, with the cause, if it fails."""
    done = runner.run(command, content)
    if done.status != 0:
        raise ClusterError(f"{runner.node.name}: {before_error}{done.last_line}")


def _watch(runner: CommandRunner, command: list[str]) -> None:
    """Runs an installation. Raises ClusterError with its last lines if it fails."""
    running = runner.start(until_input_ends(command))
    lines = (line.decode(errors="replace").strip() for line in running.output)
    last = collections.deque(filter(None, lines), maxlen=_LAST_LINES)
    if running.finish() != 0:
        raise ClusterError(f"{runner.node.name}: {' '.join(last)}")


def wrong_packages(runner: CommandRunner, pins: Mapping[str, str]) -> list[str]:
    """Returns a line for each package that has another version, or lacks its patch."""
    versions = run_probe(runner, "look", {"packages": list(pins), "folder": "/"})["versions"]
    lines = [
        f"{name} {versions[name] or 'missing'} instead of {version}"
        for name, version in pins.items()
        if versions[name] != version
    ]
    if "horovod" in pins and versions["horovod"] == pins["horovod"]:
        program = f"{PYTHONS_OWN_FIRST}import horovod; horovod.built_for"
        if runner.run([runner.node.python, "-c", program]).status != 0:
            lines.append(f"horovod {pins['horovod']} without the patch of install_horovod.sh")
    return lines


def _check_compiler(runner: CommandRunner) -> None:
    """Raises ClusterError, before minutes of downloads, if what compiles Horovod is missing."""
    node = runner.node
    missing = [tool for tool in ("cmake", "g++") if runner.run([tool, "--version"]).status != 0]
    header = PYTHONS_OWN_FIRST + (
        "import pathlib, sysconfig as s; pathlib.Path(s.get_path('include'), 'Python.h').stat()"
    )
    if runner.run([node.python, "-c", header]).status != 0:
        missing.append("python3-dev")
    if missing:
        raise ClusterError(
            f"{node.name}: Horovod, which several learners need, cannot be compiled without "
            f"{', '.join(missing)}; on Debian: apt-get install {' '.join(missing)}"
        )


def _by_hand(node: NodeSpec, wrong: Sequence[str]) -> str:
    """Returns how users install the packages that `wrong` names, for their own Python."""
    if node.is_local and all(line.startswith("horovod ") for line in wrong):
        return f"run {user_commands.install_horovod(Path(node.python))}"
    other = "" if node.is_local else ", or leave the column python empty"
    return f"install the versions that {project.CONSTRAINTS} pins{other}"
