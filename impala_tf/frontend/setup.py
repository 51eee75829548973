"""Sets up all machines of a plan at once: copies the project, and installs its packages with uv."""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import platform
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from impala_tf.config import user_commands
from impala_tf.frontend import project, requirements
from impala_tf.frontend.connection import (
    PYTHONS_OWN_FIRST,
    CommandRunner,
    Stream,
    cause,
    lines_of,
    until_input_ends,
)
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.inventory import Secret
from impala_tf.frontend.parallel import Machines, try_all
from impala_tf.frontend.plan import REMOTE_PYTHON, NodeSpec, Plan
from impala_tf.frontend.preflight import run_probe

Report = Callable[[float, str], None]
"""Called with the fraction of the work that is done, 0 to 1, and the current step."""

_VENV = REMOTE_PYTHON.removesuffix("/bin/python")
_UV = ".uv/uv"
_COPIED = 0.2  # the part of the progress bar for copying
_INSTALL_LINES = 150  # about as many as uv and the build of Horovod print
_LAST_LINES = 4
"""How many lines of a failed installation are shown: uv and pip end with what is wrong."""
_OLDEST, _NEWEST = (".".join(map(str, version)) for version in requirements.PYTHON_VERSIONS)


def set_up(
    plan: Plan,
    known: Mapping[str, Secret],
    accept_new_host_keys: bool,
    console: Console,
    extras: Sequence[str] = (),
    root: Path = project.ROOT,
) -> int:
    """Sets up all machines of a plan in parallel; returns 1 if that fails for any, else 0.

    Prints a line about each machine as soon as it is ready or has failed, and then the totals.

    Args:
      plan: the machines and their roles.
      known: {name of the node: password}.
      accept_new_host_keys: whether to trust machines that SSH does not know yet.
      console: where to show the progress.
      extras: extras of pyproject.toml to install, such as worlds, procgen or retro.
      root: the project's folder.
    """
    installer = Installer(plan, project.files(root=root), root, extras)
    column = functools.partial(TextColumn, markup=False)
    columns = (column("{task.fields[node]}"), BarColumn(), column("{task.description}"))
    with (
        Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as display,
        contextlib.closing(Machines(known, accept_new_host_keys)) as machines,
    ):
        rows = {each.name: display.add_task("", total=1.0, node=each.name) for each in plan.nodes}

        def report(name: str, share: float, text: str) -> None:
            display.update(rows[name], completed=share, description=text)

        def end(name: str, text: str) -> None:
            display.remove_task(rows[name])
            console.print(text, markup=False, highlight=False, soft_wrap=True)

        def work(node: NodeSpec) -> None:
            try:
                report(node.name, 0.0, "logging in")
                runner = machines.connect([node])[node.name]
                if isinstance(runner, ClusterError):
                    raise runner
                done = installer.set_up(runner, functools.partial(report, node.name))
            except ClusterError as error:
                end(node.name, str(error))
                raise
            end(node.name, f"{node.name}: {done}")

        try:
            results = try_all(plan.nodes, lambda node: node.name, work)
        except BaseException:
            installer.cancel()
            raise
    failed = [name for name, result in results.items() if isinstance(result, ClusterError)]
    text = f"{len(results) - len(failed)} of {len(results)} machine(s) ready"
    if failed:
        text += f"; not {', '.join(failed)}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 1 if failed else 0


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
        self._files = files
        self._digests = project.digests(files)
        self._root = root
        self._extras = extras
        import uv  # not every installation launches runs

        # Not in the threads: called by many at a time, sysconfig.get_config_var fails.
        self._uv = Path(uv.find_uv_bin())
        with self._uv.open("rb") as file:
            self._uv_digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._uv_pieces: list[bytes] = []
        self._compressing = threading.Lock()
        self._cancelled = False
        self._streams: set[Stream] = set()

    def cancel(self) -> None:
        """Ends what runs on the machines."""
        self._cancelled = True
        for stream in list(self._streams):
            stream.cancel()

    def set_up(self, runner: CommandRunner, report: Report) -> str:
        """Sets up a machine; returns one line about it.

        Copies the files that differ, and creates a virtual environment unless the CSV names an
        interpreter. Installs the packages of the machine's role, and Horovod if needed, unless all
        have the pinned versions.

        Raises:
          ClusterError: with the reason in one line.
        """
        node = runner.node
        copied = 0 if node.is_local else self._copy_project(runner, report)
        role = self._plan.role(node)
        with_horovod = any(process.group for process in self._plan.on(node))
        pins = requirements.pinned(role, with_horovod, self._root, self._extras)
        own = node.is_local or node.python != REMOTE_PYTHON
        if not own:
            self._make_environment(runner, report)
        report(_COPIED, "checking the packages")
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
            self._install(runner, [*wanted, *(["pip"] if with_horovod else [])], report)
            if with_horovod:
                script = "impala_tf/frontend/install_horovod.sh"
                self._watch(runner, ["sh", script, node.python, "--progress-bar=off"], report)
            mismatches = wrong_packages(runner, pins)
        if mismatches:
            raise ClusterError(
                f"{node.name}: after the installation there is still {', '.join(mismatches)}"
            )
        return f"ready: {copied} files copied, {len(pins)} packages as pinned, in {node.workdir}"

    def _copy_project(self, runner: CommandRunner, report: Report) -> int:
        """Copies the files that are missing or different; returns how many."""
        report(0.0, "copying the project")
        made = runner.run(["mkdir", "-p", "--", runner.node.workdir], in_workdir=False)
        if made.status != 0:
            raise ClusterError(f"{runner.node.name}: {made.last_line}")
        done = runner.run(["sha256sum", "--zero", "--", *self._digests])
        present = {
            path: digest
            for digest, _, path in (line.partition("  ") for line in done.text.split("\0"))
        }
        missing = [name for name, digest in self._digests.items() if present.get(name) != digest]
        if missing:
            archive = project.pieces({name: self._files[name] for name in missing})
            self._send(runner, ["tar", "-x", "-f", "-", "--no-same-owner"], archive)
        return len(missing)

    def _make_environment(self, runner: CommandRunner, report: Report) -> None:
        node = runner.node
        if runner.run([node.python, "-c", ""]).status == 0:
            return
        report(_COPIED / 2, "copying uv")
        self.copy_uv(runner)
        report(_COPIED, "creating a virtual environment")
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
        self._send(runner, ["sh", "-c", script, _UV], self._compressed_uv(), "uv: ")

    def _compressed_uv(self) -> list[bytes]:
        """Returns uv in compressed pieces, which all machines share."""
        with self._compressing:
            if not self._uv_pieces:
                self._uv_pieces = list(_compressed(self._uv))
        return self._uv_pieces

    def _install(self, runner: CommandRunner, wanted: Sequence[str], report: Report) -> None:
        """Installs packages in the pinned versions: with uv or, where that fails, with pip.

        uv takes a fraction of pip's time, but knows nothing of the indexes, certificates and
        proxies in pip's own configuration.
        """
        python = runner.node.python
        self.copy_uv(runner)  # an environment that somebody else made lacks it
        what = ["-c", project.CONSTRAINTS, *wanted]
        uv_install = [_UV, "pip", "install", "--system-certs", "--no-progress"]
        try:
            self._watch(runner, [*uv_install, "--python", python, *what], report)
            return
        except ClusterError as error:
            if self._cancelled:
                raise
            by_uv = str(error)
        pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off"]
        try:
            self._watch(runner, [python, "-m", "ensurepip"], report)
            self._watch(runner, [*pip, *what], report)
        except ClusterError as error:
            by_pip = str(error).removeprefix(f"{runner.node.name}: ")
            raise ClusterError(f"{by_uv}; with pip: {by_pip}") from None

    def _send(
        self,
        runner: CommandRunner,
        command: list[str],
        pieces: Iterable[bytes],
        before_error: str = "",
    ) -> None:
        """Runs a command with this input. Raises ClusterError, with the cause, if it fails."""
        stream = self._stream(runner, command)
        broken = None
        try:
            for piece in pieces:
                stream.write(piece)
        except ClusterError as error:
            broken = error  # If the command has ended, its output says why.
        stream.close_input()
        output = b"".join(stream.chunks()).decode(errors="replace")
        self._finish(runner, stream, before_error + cause(output))
        if broken is not None:
            raise broken

    def _watch(self, runner: CommandRunner, command: list[str], report: Report) -> None:
        """Runs an installation and shows its lines. Raises ClusterError with the last of them."""
        stream = self._stream(runner, until_input_ends(command))
        last = collections.deque([""], maxlen=_LAST_LINES)
        try:
            for number, line in enumerate(filter(str.strip, lines_of(stream.chunks()))):
                last.append(line.strip())
                share = _COPIED + (1 - _COPIED) * min(0.95, number / _INSTALL_LINES)
                report(share, last[-1][:60])
        except ClusterError:
            if not self._cancelled:
                raise
        self._finish(runner, stream, " ".join(last).strip())

    def _stream(self, runner: CommandRunner, command: list[str]) -> Stream:
        if self._cancelled:
            raise ClusterError(f"{runner.node.name}: interrupted")
        stream = runner.stream(command)
        self._streams.add(stream)
        if self._cancelled:  # `cancel` may have missed this stream
            stream.cancel()
        return stream

    def _finish(self, runner: CommandRunner, stream: Stream, reason: str) -> None:
        self._streams.discard(stream)
        if self._cancelled:
            raise ClusterError(f"{runner.node.name}: interrupted")
        if stream.finish() != 0:
            raise ClusterError(f"{runner.node.name}: {reason}")


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


def _compressed(path: Path) -> Iterator[bytes]:
    gzip = zlib.compressobj(1, wbits=31)
    with path.open("rb") as file:
        while piece := file.read(project.PIECE_BYTES):
            yield gzip.compress(piece)
    yield gzip.flush()
