"""Copies the project to a machine and installs its packages there, with uv."""

from __future__ import annotations

import hashlib
import platform
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from impala_tf.config import user_commands
from impala_tf.frontend import packages, pip_settings, project, requirements
from impala_tf.frontend.connection import (
    CommandRunner,
    Stream,
    cause,
    lines_of,
    until_input_ends,
)
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.plan import REMOTE_PYTHON, NodeSpec, Plan
from impala_tf.frontend.requirements import Role
from impala_tf.frontend.wheelhouse import Kind, Wheelhouse

Report = Callable[[float, str], None]
"""Called with the fraction of the work that is done, 0 to 1, and the current step."""

_VENV = REMOTE_PYTHON.removesuffix("/bin/python")
_UV = ".uv/uv"
_WHEELS = ".wheels"
_COPIED = 0.2  # the part of the progress bar for copying
_INSTALL_LINES = 150  # about as many as uv and the build of Horovod print
_ERROR_CHARS = 500
_ERRORS = ("error", "could not fetch url ", "because ", "\u00d7")
"""Beginnings of the lines in which pip and uv say what is wrong."""


class SetupOptions(NamedTuple):
    """The options of `frontend setup`."""

    extras: tuple[str, ...] = ()
    """Extras of pyproject.toml to install, such as worlds, procgen or retro."""
    wheelhouse: bool = False
    """Whether to send the packages from here, so that no machine needs an index."""
    install_python: str | None = None
    """The Python version that uv downloads where the machine's is too old or too new."""


class Needs(NamedTuple):
    """What a machine needs in its folder."""

    role: Role
    with_horovod: bool
    python: str


class Installer:
    """Sets up machines; thread-safe."""

    def __init__(
        self, plan: Plan, files: Mapping[str, Path], root: Path, options: SetupOptions
    ) -> None:
        self._plan = plan
        self._files = files
        self._digests = project.digests(files)
        self._root = root
        self._options = options
        import uv

        # Not in the threads: called by many at a time, sysconfig.get_config_var fails.
        self._uv = Path(uv.find_uv_bin())
        self._uv_digest = _digest(self._uv)
        self._uv_pieces: list[bytes] = []
        self._compressing = threading.Lock()
        self._wheelhouse = Wheelhouse(root) if options.wheelhouse else None
        self._cancelled = False
        self._streams: set[Stream] = set()

    def cancel(self) -> None:
        """Ends what runs on the machines."""
        self._cancelled = True
        if self._wheelhouse is not None:
            self._wheelhouse.cancel()
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
        role, with_horovod, _ = self.needs(node)
        pins = requirements.pinned(role, with_horovod, self._root, self._options.extras)
        own = node.is_local or node.python != REMOTE_PYTHON
        if not own:
            self._make_environment(runner, report)
        report(_COPIED, "checking the packages")
        mismatches = packages.wrong(runner, pins)
        if mismatches and own:
            raise ClusterError(
                f"{node.name}: {node.python} has {', '.join(mismatches)};"
                f" {_by_hand(node, mismatches)}"
            )
        if mismatches and with_horovod:
            packages.check_compiler(runner)
        if mismatches:
            self._install(runner, with_horovod, report)
            mismatches = packages.wrong(runner, pins)
            if mismatches:
                raise ClusterError(
                    f"{node.name}: after the installation there is still {', '.join(mismatches)}"
                )
        return f"ready: {copied} files copied, {len(pins)} packages as pinned, in {node.workdir}"

    def needs(self, node: NodeSpec) -> Needs:
        """Returns what a machine needs."""
        with_horovod = any(process.group for process in self._plan.on(node))
        return Needs(self._plan.role(node), with_horovod, node.python)

    def _wanted(self, node: NodeSpec) -> list[str]:
        role: Role = self._plan.role(node)
        return requirements.of_role(role, self._root, self._options.extras)

    def _copy_project(self, runner: CommandRunner, report: Report) -> int:
        """Copies the files that are missing or different; returns how many."""
        report(0.0, "copying the project")
        done = runner.run(["sha256sum", "--zero", "--", *self._digests])
        present = {
            path: digest
            for digest, _, path in (line.partition("  ") for line in done.text.split("\0"))
        }
        missing = [name for name, digest in self._digests.items() if present.get(name) != digest]
        if missing:
            self._unpack(runner, project.pieces({name: self._files[name] for name in missing}), ".")
        return len(missing)

    def _make_environment(self, runner: CommandRunner, report: Report) -> None:
        node = runner.node
        if runner.run([node.python, "-c", ""]).status == 0:
            return
        report(_COPIED / 2, "copying uv")
        self.copy_uv(runner)
        report(_COPIED, "creating a virtual environment")
        oldest, newest = requirements.PYTHON_VERSIONS
        version = self._options.install_python or (
            f">={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"
        )
        downloads = "automatic" if self._options.install_python else "never"
        variables = [*self._settings(runner), f"UV_PYTHON_DOWNLOADS={downloads}"]
        with packages.with_settings(runner, variables) as settings:
            command = [_UV, "venv", "--quiet", "--clear", "--python", version, _VENV]
            done = runner.run([*settings, *command], timeout_s=600.0)
        if done.status != 0:
            reason = " ".join(done.stderr.decode(errors="replace").split())
            raise ClusterError(
                f"{node.name}: {reason}; install Python {oldest[0]}.{oldest[1]} to {newest[0]}."
                f"{newest[1]} there, or let uv download it: --install_python="
                f"{newest[0]}.{newest[1]}"
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

    def _settings(self, runner: CommandRunner) -> list[str]:
        """Returns variables for uv and pip: where packages come from."""
        if self._wheelhouse is not None:
            return ["UV_OFFLINE=1", "PIP_NO_INDEX=1", f"PIP_FIND_LINKS={_WHEELS}"]
        return packages.index_settings(runner)

    def _install(self, runner: CommandRunner, with_horovod: bool, report: Report) -> None:
        node = runner.node
        self.copy_uv(runner)  # an environment that somebody else made lacks it
        if self._wheelhouse is not None:
            self._copy_wheels(runner, with_horovod, self._wheelhouse, report)
        variables = self._settings(runner)
        source = pip_settings.flags(variables)
        source += ["--find-links", _WHEELS] if self._wheelhouse is not None else []
        tools = ["pip"] if with_horovod else []
        uv = [_UV, "pip", "install", "--no-progress", "--python", node.python, *source]
        command = [*uv, "-c", project.CONSTRAINTS, *self._wanted(node), *tools]
        script = ["sh", "impala_tf/frontend/install_horovod.sh", node.python, "--progress-bar=off"]
        with packages.with_settings(runner, variables) as settings:
            try:
                self._watch(runner, [*settings, *command], report)
            except ClusterError as error:
                if self._wheelhouse is not None or self._cancelled:
                    raise
                raise ClusterError(f"{error}{packages.untold(runner)}") from None
            if with_horovod:
                self._watch(runner, [*settings, *script], report)

    def _copy_wheels(
        self, runner: CommandRunner, with_horovod: bool, wheelhouse: Wheelhouse, report: Report
    ) -> None:
        """Sends the packages of the machine's role, for its version of Python."""
        node = runner.node
        program = "import sys; print('%d.%d' % sys.version_info[:2])"
        python = runner.run([node.python, "-c", program]).text.strip()
        report(_COPIED, "downloading packages")
        try:
            folder = wheelhouse.folder(Kind(tuple(self._wanted(node)), with_horovod, python))
        except ClusterError as error:
            raise ClusterError(f"{node.name}: {error}") from None
        # With their sizes: after an interruption, the last file is incomplete.
        script = 'cd -- "$0" && stat -c "%s %n" -- *'
        present = set(runner.run(["sh", "-c", script, _WHEELS]).text.splitlines())
        sizes = {path: path.stat().st_size for path in sorted(folder.iterdir())}
        missing = [path for path, size in sizes.items() if f"{size} {path.name}" not in present]
        total, sent = sum(sizes[path] for path in missing) or 1, 0

        def counted() -> Iterator[bytes]:
            nonlocal sent
            for piece in project.pieces({path.name: path for path in missing}):
                sent += len(piece)
                report(_COPIED * min(1.0, sent / total), f"copying packages: {sent >> 20} MiB")
                yield piece

        self._unpack(runner, counted(), _WHEELS)

    def _unpack(self, runner: CommandRunner, archive: Iterable[bytes], folder: str) -> None:
        script = 'mkdir -p -- "$0" && exec tar -x -f - --no-same-owner -C "$0"'
        self._send(runner, ["sh", "-c", script, folder], archive)

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
        """Runs an installation and shows its lines. Raises ClusterError with its first error."""
        stream = self._stream(runner, until_input_ends(command))
        last, errors = "", list[str]()
        try:
            for number, line in enumerate(lines_of(stream.chunks())):
                last = line.strip() or last
                if errors or last.lower().startswith(_ERRORS):
                    errors.append(line.strip())
                share = _COPIED + (1 - _COPIED) * min(0.95, number / _INSTALL_LINES)
                report(share, last[:60])
        except ClusterError:
            if not self._cancelled:
                raise
        self._finish(runner, stream, " ".join(errors)[:_ERROR_CHARS] or last)

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


def _by_hand(node: NodeSpec, wrong: Sequence[str]) -> str:
    """Returns how users install the packages that `packages.wrong` names, for their own Python."""
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


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
