"""Packages that are downloaded here and sent to the machines, so that machines need no index."""

from __future__ import annotations

import hashlib
import platform
import shlex
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from impala_tf.frontend import project
from impala_tf.frontend.errors import ClusterError

_BUILD_TOOLS = ("pip", "setuptools", "wheel", "packaging", "pyyaml", "psutil", "cloudpickle")
"""What impala_tf/frontend/install_horovod.sh needs to build."""


class Kind(NamedTuple):
    """Machines that need the same files."""

    wanted: tuple[str, ...]
    """Requirements; constraints.txt pins their versions."""
    with_horovod: bool
    """Whether to include Horovod's source and what builds it."""
    python: str
    """The machines' Python version, such as 3.12: most wheels are for one version only."""


class Wheelhouse:
    """Downloads what each kind of machine needs, once, into a folder that is kept. Thread-safe."""

    def __init__(self, root: Path) -> None:
        """Takes the project's folder, whose constraints.txt pins the versions."""
        self._constraints = root / project.CONSTRAINTS
        self._lock = threading.Lock()
        self._found: dict[Kind, Path | ClusterError] = {}
        self._pip: subprocess.Popen[str] | None = None
        self._cancelled = False

    def folder(self, kind: Kind) -> Path:
        """Returns the folder with the packages of a kind of machine, and nothing else.

        Raises:
          ClusterError: pip cannot get a package.
        """
        with self._lock:
            if kind not in self._found:
                try:
                    self._found[kind] = self._download(kind)
                except ClusterError as error:
                    self._found[kind] = error
            result = self._found[kind]
        if isinstance(result, ClusterError):
            raise ClusterError(result.problems)
        return result

    def cancel(self) -> None:
        """Ends a download."""
        self._cancelled = True
        if self._pip is not None:
            self._pip.terminate()

    def _download(self, kind: Kind) -> Path:
        key = "\n".join([*map(str, kind), self._constraints.read_text()])
        digest = hashlib.sha256(key.encode()).hexdigest()
        folder = Path.home() / ".cache" / "impala_tf" / f"wheels-{digest[:12]}"
        # -P: a file in the current folder, such as random.py, must not hide a module of Python's.
        pip = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "-d", str(folder),
               "-c", str(self._constraints)]  # fmt: skip
        own = ".".join(platform.python_version_tuple()[:2])
        # For another Python than its own, pip accepts only wheels.
        other = [f"--python-version={kind.python}", "--only-binary=:all:"]
        tools = _BUILD_TOOLS if kind.with_horovod else ()
        try:
            self._call([*pip, *(other if kind.python != own else ()), *kind.wanted, *tools])
            if kind.with_horovod:
                source = ["--no-deps", "--no-binary=horovod", "--no-build-isolation", "horovod"]
                self._call([*pip, *source])
        except ClusterError as error:
            if kind.python == own:
                raise
            raise ClusterError(
                f"{error}; the machine has Python {kind.python}, this one {own}: give it Python "
                f"{own}, or leave out --wheelhouse"
            ) from error
        return folder

    def _call(self, command: Sequence[str]) -> None:
        self._pip = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        if self._cancelled:
            self._pip.terminate()
        _, errors = self._pip.communicate()
        if self._pip.returncode != 0:
            lines = [line for line in errors.splitlines() if line.strip()]
            raise ClusterError(f"{shlex.join(command[:5])}: {lines[-1] if lines else 'failed'}")
