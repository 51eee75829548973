"""Stops a process cleanly on SIGTERM or SIGINT, and at once on the second one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from impala_tf.lifeline import die_with_parent

# Set by whoever starts a process that must not outlive it; holds the starter's process id.
PARENT_VARIABLE = "IMPALA_TF_PARENT"
_POLL_S = 0.2


class StopRequest:
    """Becomes True on the first SIGTERM or SIGINT; the second one ends the process."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._on_request: list[Callable[[], None]] = []

    def __call__(self) -> bool:
        """Whether somebody asked this process to stop."""
        return self._event.is_set()

    def install(self) -> None:
        """Takes over the signals. Call from the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def on_request(self, wake: Callable[[], None]) -> None:
        """Calls `wake` when the request comes: something may be waiting that must be told."""
        self._on_request.append(wake)
        if self():
            wake()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self():
            os._exit(128 + number)
        self._event.set()
        # In a thread: what is woken may hold a lock that the interrupted main thread needs.
        threading.Thread(target=self._wake, daemon=True).start()

    def _wake(self) -> None:
        for wake in self._on_request:
            wake()


def run_interruptibly(work: Callable[[], None]) -> None:
    """Runs `work` in a thread, so that the main thread can take signals while TensorFlow waits.

    Raises whatever `work` raised.
    """
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=guarded, name="work", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_S)
    if failures:
        raise failures[0]


def end_with_starter() -> None:
    """Ties this process to the one that started it, if that one asked for it.

    Call it first of all: the starter may end while TensorFlow is still being imported.
    """
    # Taken out: it is not meant for what this process starts.
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent:
        die_with_parent(int(parent), signal.SIGTERM)


def end_undisturbed() -> None:
    """Lets a request to stop that comes from now on change nothing: this process is ending.

    Python takes its handlers back before it is gone, which with TensorFlow in it takes a while: a
    learner that has stopped because another one did would be killed by its own, later request.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
