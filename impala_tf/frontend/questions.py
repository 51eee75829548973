"""Asks the user, who may press Ctrl-C instead of answering."""

from __future__ import annotations

import atexit
import contextlib
import getpass
import queue
import sys
import termios
import threading
from collections.abc import Callable

from impala_tf.frontend.inventory import Secret
from impala_tf.frontend.ssh_proxy import is_terminal

Ask = Callable[[str], Secret | None]
"""Asks for a secret, or returns None."""
_given_up = threading.Event()


def ask_on_terminal(prompt: str) -> Secret | None:
    """Asks for a secret, if somebody can answer; None after `give_up_asking`."""
    if not is_terminal():
        return None
    answers: queue.SimpleQueue[str | BaseException] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(getpass.getpass(f"{prompt}: ", stream=sys.stderr))
        except BaseException as error:
            answers.put(error)

    # A thread that reads cannot be interrupted, but a process does not wait for daemon threads.
    atexit.register(termios.tcsetattr, sys.stdin, termios.TCSANOW, termios.tcgetattr(sys.stdin))
    threading.Thread(target=ask, daemon=True).start()
    while not _given_up.is_set():
        with contextlib.suppress(queue.Empty):
            answer = answers.get(timeout=0.1)
            if isinstance(answer, BaseException):
                raise answer
            return Secret(answer)
    return None


def give_up_asking() -> None:
    """Ends all questions without answers, after Ctrl-C."""
    _given_up.set()
