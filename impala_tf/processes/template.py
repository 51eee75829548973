"""Becomes a process of a run whenever it is asked.

    python -m impala_tf.processes.template SOCKET [tensorflow]

The other side is `impala_tf.machine.forking`. It imports what an actor imports and, with the second
argument, TensorFlow. It starts no thread of TensorFlow, so its copies can start their own.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import socket
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import setproctitle

from impala_tf.machine.process_lifetime import stop_with_parent
from impala_tf.machine.process_memory import unmap_library_pages

_ADOPTION_S = 10.0


def main(descriptor: int, with_tensorflow: bool) -> None:
    """Answers requests until the other side has closed its socket; returns in no copy."""
    # The first call finds the memory of the arguments, which it cannot once `environ` has moved.
    setproctitle.setproctitle(f"{sys.executable} -m impala_tf.processes.template")
    stop_with_parent()
    _import_everything(with_tensorflow)
    with socket.socket(fileno=descriptor) as connection:
        while True:
            size, descriptors, _, _ = socket.recv_fds(connection, 4, 2)
            if not size:
                return
            request = json.loads(_read(connection, int.from_bytes(size, "big")))
            log, begin = descriptors
            pid = _fork_orphan()
            if pid == 0:
                connection.close()
                _wait_to_begin(begin)
                _become(request, log)
                return
            os.close(log)
            os.close(begin)
            connection.sendall(str(pid).encode())


def _import_everything(with_tensorflow: bool) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # as in run_experiment.py
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from impala_tf.processes import tensorflow_startup

    if with_tensorflow and tensorflow_startup.is_installed():  # else the copies say what is missing
        tensorflow_startup.import_tensorflow()
        from impala_tf.processes import learner_main, tensorflow_actor  # noqa: F401
    from impala_tf.processes import actor_main  # noqa: F401

    # A collection in a copy would write to every object, and so copy the memory they are in.
    gc.collect()
    gc.freeze()
    unmap_library_pages()  # copies need few of them


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError("the other side has gone")
        data += part
    return data


def _fork_orphan() -> int:
    """Forks a process whose parent ends at once; returns its id here and 0 in it."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # BLAS has idle threads
        middle = os.fork()
        if middle == 0:
            pid = os.fork()
            if pid:
                os.write(write_end, str(pid).encode())
                os._exit(0)
            os.close(read_end)
            os.close(write_end)
            return 0
    os.close(write_end)
    os.waitpid(middle, 0)
    with os.fdopen(read_end, "rb") as answer:
        return int(answer.read())


def _wait_to_begin(descriptor: int) -> None:
    """Ends this process if the process that asked for it no longer wants it."""
    with os.fdopen(descriptor, "rb") as begin:
        if not begin.read(1):
            sys.exit("the process that asked for this one no longer waits for it")


def _become(request: dict[str, Any], log: int) -> None:
    """Runs a script as if it had been started alone."""
    os.setpgid(0, 0)
    deadline = time.monotonic() + _ADOPTION_S
    while os.getppid() != request["parent"]:  # until the kernel has found the new one
        if time.monotonic() > deadline:
            sys.exit("the process that asked for this one has ended")
        time.sleep(0.001)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)
    os.chdir(request["workdir"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = list(request["arguments"])
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))  # as Python does for a script
    _show_arguments()
    runpy.run_path(sys.argv[0], run_name="__main__")


def _show_arguments() -> None:
    """Lets `ps` show this process's own arguments."""
    setproctitle.setproctitle(" ".join([sys.executable, *sys.argv]))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] == ["tensorflow"])
