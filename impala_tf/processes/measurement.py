"""Measurements in processes of their own, which compute as the processes of a run do.

Does not import TensorFlow by itself: in the new process, that has to happen without its messages.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Literal

from impala_tf.config import Config, ConfigError
from impala_tf.process_lifetime import die_with_parent
from impala_tf.types import EnvironmentSpec

if TYPE_CHECKING:
    from impala_tf.processes.measured_speed import Measured

What = Literal["environment", "inference", "transport", "update", "checkpoint"]


def measure(what: What, config: Config, spec: EnvironmentSpec, seconds: float) -> Measured:
    """Measures what an actor or a learner of a run would compute; see `measured_speed`.

    Args:
      what: a function of `measured_speed`.
      config: resolved.
      spec: of the level.
      seconds: to measure for; compiling comes on top.

    Raises:
      ConfigError: flags that cannot be used on this machine.
      RuntimeError: the process failed; it has printed why.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_send, args=(sender, os.getpid(), what, config, spec, seconds), daemon=True
    )
    process.start()
    sender.close()
    try:
        result: Measured | ConfigError = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"measuring {what}: ended with status {process.exitcode}") from None
    finally:
        process.terminate()
        process.join()
    if isinstance(result, ConfigError):
        raise result
    return result


def _send(
    sender: Connection,
    parent_pid: int,
    what: What,
    config: Config,
    spec: EnvironmentSpec,
    seconds: float,
) -> None:
    """Measures, and sends the result; in the new process."""
    die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    logging.disable(logging.WARNING)  # the parent has warned
    from impala_tf.processes import tensorflow_startup

    tensorflow_startup.import_tensorflow()
    from impala_tf.processes import measured_speed

    try:
        sender.send(getattr(measured_speed, what)(config, spec, seconds))
    except ConfigError as error:
        sender.send(error)
