"""When a process ends: on request, with its parent, and never halfway through its own exit."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

Result = TypeVar("Result")
PARENT_VARIABLE = "IMPALA_TF_PARENT"
"""Environment variable with the parent's process id; the child then ends when the parent does."""
TOLD_VARIABLE = "IMPALA_TF_TOLD"
"""Environment variable with the descriptor of a file, to which the child adds BEGAN and DONE."""
BEGAN, DONE = b"b", b"d"

STDOUT, STDERR = 1, 2
"""File descriptors."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_POLL_S = 0.2
# How long after the first signal others count as the same request: any signal, and SIGTERM.
_SAME_S, _SAME_SIGTERM_S = 0.5, 10.0
_DESCRIPTORS = 65_536
_THREADS_S = 5.0
_told: list[int] = []  # see TOLD_VARIABLE


class StopRequest:
    """Becomes true on the first SIGTERM, SIGINT or SIGHUP; a later one ends the process at once.

    One request may be several signals, which must not cost the checkpoint: from timeout(1), Slurm,
    systemd, a supervisor, or the kernel when the parent ends. So signals soon after the first one
    are ignored, and SIGTERM, which nobody types, for longer, unless the parent has ended since.
    SIGHUP, of a closed terminal, is always the same request; under nohup, it stays ignored.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._first_s = 0.0
        self._parent = 0
        self._on_request: list[Callable[[], None]] = []

    def __call__(self) -> bool:
        """Whether this process was asked to stop."""
        return self._event.is_set()

    def install(self) -> None:
        """Installs the signal handlers. Call from the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._handle)

    def on_request(self, wake: Callable[[], None]) -> None:
        """Calls `wake` when the request arrives, to release threads that are blocked."""
        self._on_request.append(wake)
        if self():
            wake()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self():
            since_s = time.monotonic() - self._first_s
            if since_s < _SAME_S:
                self._parent = os.getppid()  # the first signal may have come before it had ended
                return
            same_parent = os.getppid() == self._parent
            is_sigterm = number == signal.SIGTERM
            if number == signal.SIGHUP or (
                is_sigterm and same_parent and since_s < _SAME_SIGTERM_S
            ):
                return
            _show_cursor()
            os._exit(128 + number)
        self._first_s, self._parent = time.monotonic(), os.getppid()
        self._event.set()
        # In a thread, because `wake` may need a lock that the interrupted main thread holds.
        threading.Thread(target=self._wake, daemon=True).start()

    def _wake(self) -> None:
        for wake in self._on_request:
            wake()


def _show_cursor() -> None:
    """Shows the terminal's cursor again, as the live panel does at a normal exit."""
    with contextlib.suppress(OSError):
        if os.isatty(STDOUT):
            os.write(STDOUT, b"\x1b[?25h\n")


def run_interruptibly(work: Callable[[], Result], timeout_s: float = float("inf")) -> Result:
    """Runs `work` in a thread, so that the main thread handles signals while TensorFlow blocks.

    Returns or raises what `work` does. Raises TimeoutError: it takes too long, and continues in its
    thread, as nothing ends it.
    """
    results: list[Result] = []
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            results.append(work())
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=guarded, name="work", daemon=True)
    thread.start()
    until_s = time.monotonic() + timeout_s
    while thread.is_alive() and (left_s := until_s - time.monotonic()) > 0:
        thread.join(min(_POLL_S, left_s))
    if failures:
        raise failures.pop()  # not kept: its traceback would keep the work's objects alive
    if not results:
        raise TimeoutError(f"no answer within {timeout_s:.0f} s")
    return results.pop()


def die_with_parent(parent_pid: int, signal_number: int = signal.SIGKILL) -> None:
    """Makes the kernel send a signal to this process when its parent ends for any reason.

    Linux ties this to the *thread* that started this process, so start processes from a thread that
    lives as long as they should. If the parent with the id `parent_pid` has already ended, the
    signal is raised at once. On other systems, this does nothing. Raises OSError: the kernel
    refuses.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
    # A parent that ended before prctl sends nothing; by now, another process has adopted this one.
    if os.getppid() != parent_pid:
        signal.raise_signal(signal_number)


def stop_with_parent() -> bool:
    """Asks this process to stop (SIGTERM) when its parent ends, if PARENT_VARIABLE is set.

    Call this first: the parent may end while this process is still importing TensorFlow. From here
    on, the parent takes any end without `say_done` for a failure.

    Returns:
      whether it is set.
    """
    # Removed from the environment, because it does not apply to this process's own children.
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent:
        die_with_parent(int(parent), signal.SIGTERM)
    if told := os.environ.pop(TOLD_VARIABLE, None):
        os.set_inheritable(int(told), False)
        _told.append(int(told))
        os.write(int(told), BEGAN)
    return bool(parent)


def say_done() -> None:
    """Tells the parent that this process has done its work: its code, or a level's, may exit, too.

    See `supervision.LEFT_WORK`.
    """
    with contextlib.suppress(OSError):  # a level has closed it
        for told in _told:
            os.write(told, DONE)


def raise_descriptor_limit() -> None:
    """Raises the limit of open files and connections as far as the system allows.

    A thousand actors, or idle connections, would exhaust the usual limit of 1,024.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def ignore_stop_requests() -> None:
    """Ignores SIGTERM from here on: this process is already exiting.

    Python restores the default handlers about a second before a process with TensorFlow is gone. A
    learner that stopped because another one did would be killed by its own, later request.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def exit_in_time(status: int, patience_s: float = _THREADS_S) -> None:
    """Makes this exiting process end with a status, even if threads of a level still run.

    Python waits forever for all threads that are not daemons. Threads of pools are waited for here,
    too: they end by themselves, and the launcher's clean up on machines.
    """

    def watch() -> None:
        time.sleep(patience_s)
        left = [each for each in threading.enumerate() if not (each.daemon or _is_waited_for(each))]
        if names := {thread.name for thread in left}:
            try:
                print(
                    f"ending without threads that still run: {', '.join(sorted(names))}",
                    file=sys.stderr,
                    flush=True,
                )
                sys.stdout.flush()
            finally:  # even if the terminal is gone
                os._exit(status)

    threading.Thread(target=watch, name="exit", daemon=True).start()


def _is_waited_for(thread: threading.Thread) -> bool:
    is_of_pool = thread.name.startswith("ThreadPoolExecutor")  # the names that Python gives them
    return thread is threading.main_thread() or is_of_pool
