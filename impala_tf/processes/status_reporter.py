"""Writes status.json once per second, and ends a learner that hangs."""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from impala_tf.learner.peers import Peers
from impala_tf.machine.process_lifetime import STDERR
from impala_tf.monitoring import status_file
from impala_tf.monitoring.storage import StorageWatch

EXITING = "exiting; after a restart, the group resumes from the last checkpoint"

_log = logging.getLogger("impala_tf.learner")


class StatusReporter:
    """A context that keeps status.json up to date; on exit, it writes how the run ended.

    Args:
      path: of status.json.
      describe: returns the contents. It takes the state if the run has ended, else None.
      storage: learns if status.json cannot be written.
      peers: tells whether this learner hangs.
      end_state: returns how the run ended; only called if no error ended it.
      interval_s: seconds between updates.
    """

    def __init__(
        self,
        path: Path,
        describe: Callable[[status_file.State | None], status_file.Status],
        storage: StorageWatch,
        peers: Peers,
        end_state: Callable[[], status_file.State],
        interval_s: float = 1.0,
    ) -> None:
        self._path, self._describe, self._storage = path, describe, storage
        self._peers, self._end_state, self._interval_s = peers, end_state, interval_s
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._end: status_file.State = "stopped"

    def __enter__(self) -> StatusReporter:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._finished.set()
        self._thread.join()
        self._end = self._end_state() if error is None else "failed"
        self.write_end()

    def write_end(self) -> None:
        """Writes how the run ended, with results that came later."""
        self._write(self._end)

    def _write(self, state: status_file.State | None) -> None:
        with self._storage.attempt("status.json"):
            status_file.write_status(self._path, self._describe(state))

    def _run(self) -> None:
        while not self._finished.wait(self._interval_s):
            self._write(None)
            if message := self._peers.hung():
                self._end_hung(message)

    def _end_hung(self, message: str) -> None:
        """Exits at once, as nothing else ends a thread that hangs. Checkpoints stay complete."""
        _log.error("%s; %s", message, EXITING)
        faulthandler.dump_traceback(STDERR)
        self._write("failed")
        os._exit(1)


def unix_s(monotonic_s: float) -> float:
    """Returns the Unix time of a monotonic time, by the clock as it is set now."""
    return time.time() - time.monotonic() + monotonic_s
