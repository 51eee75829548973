"""Starts processes as copies of one that has imported what they need.

They start within a moment, and share its memory: importing TensorFlow takes seconds, and 220 MB of
every process that does it alone. Standard library only; the other side is processes/template.py.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from impala_tf.machine.process_lifetime import PARENT_VARIABLE
from impala_tf.machine.supervision import Command, start_process

_MODULE = "impala_tf.processes.template"
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_FORK_TIMEOUT_S = 300.0
"""A machine whose disk is slow takes minutes to import TensorFlow for the first time."""


class Template:
    """A process that is copied for every command.

    The copies are children of this process, as if it had started them itself. As a context manager,
    it ends the template on exit; copies that still run continue.
    """

    def __init__(self, with_tensorflow: bool) -> None:
        """Starts it; it imports in the background.

        Args:
          with_tensorflow: for learners and for actors that compute with TensorFlow.
        """
        self._can_adopt = _adopt_orphans()
        self._lock = threading.Lock()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        imports = ["tensorflow"] if with_tensorflow else []
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(_FORK_TIMEOUT_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno()), *imports],
                env=_with_this_package(os.environ) | {PARENT_VARIABLE: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )

    def __enter__(self) -> Template:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the template."""
        self._socket.close()
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def start(self, command: Command, environment: Mapping[str, str], log: IO[bytes]) -> int:
        """Starts a Python script; see `supervision.start_process`.

        Without the template, if it cannot be copied: the log has the reason then. A template that
        does not answer in time is not asked again, because its late answer would be taken for the
        next one.
        """
        request = {
            "arguments": command.argv[1:],
            "workdir": command.workdir,
            "environment": dict(environment),
            "parent": os.getpid(),
        }
        try:
            if not self._can_adopt:
                raise OSError("this system does not let a process adopt others")
            with self._lock:
                try:
                    return self._ask(json.dumps(request).encode(), log.fileno())
                except OSError:
                    self._socket.close()
                    raise
        except (OSError, ValueError) as error:
            log.write(f"without a template: {error}; {self._last_words()}\n".encode())
            log.flush()
            return start_process(command, environment, log)

    def _ask(self, request: bytes, log: int) -> int:
        """Returns the id of a copy. If this raises, a copy that is made later ends by itself."""
        if self._socket.fileno() < 0:
            raise OSError("it did not answer before")
        read_end, write_end = os.pipe()  # a copy begins when it is told so
        with os.fdopen(write_end, "wb", buffering=0) as begin:
            descriptors = array.array("i", [log, read_end])
            with os.fdopen(read_end, "rb"):
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)
                self._socket.sendmsg([len(request).to_bytes(4, "big")], [rights])
            self._socket.sendall(request)
            answer = self._socket.recv(32)  # a few bytes, which come together
            pid = int(answer)
            with contextlib.suppress(BrokenPipeError):  # who waits for the copy sees that it ended
                begin.write(b"!")
        return pid

    def _last_words(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            self._errors.seek(0)
            return self._errors.read().decode(errors="replace").strip()[-1000:]
        return ""


def _with_this_package(environment: Mapping[str, str]) -> dict[str, str]:
    """Lets Python find this package, wherever the current folder is."""
    before = environment.get("PYTHONPATH")
    paths = [str(Path(__file__).parents[2]), *([before] if before else [])]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}


def _adopt_orphans() -> bool:
    """Makes this process the parent of descendants whose own parent has ended, if that can be."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
