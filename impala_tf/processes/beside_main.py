"""The beginning and the end of processes beside the learner; see `beside`."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from impala_tf.config import ConfigError, command_line
from impala_tf.machine.process_lifetime import (
    exit_in_time,
    ignore_stop_requests,
    stop_with_parent,
)
from impala_tf.processes import tensorflow_startup
from impala_tf.processes.common import resolve

if TYPE_CHECKING:
    from impala_tf.processes.trained_agent import TrainedAgent


def load(flags: Sequence[str]) -> TrainedAgent:
    """Returns the agent of the newest checkpoint; from now on, TensorFlow uses one thread.

    Args:
      flags: the run's flags.

    Raises:
      ConfigError: there is no complete checkpoint.
    """
    given = command_line.parse(list(flags))
    tensorflow_startup.import_tensorflow()
    tensorflow_startup.use_one_cpu_thread()
    tensorflow_startup.start_xla()
    from impala_tf.processes import trained_agent  # imports TensorFlow

    resolved = resolve(given)
    signal.signal(signal.SIGTERM, _stop)  # again: a level's code may have replaced the handler
    return trained_agent.load(*resolved)


def run(main: Callable[[list[str]], None]) -> NoReturn:
    """Calls `main` with the command line, and exits. Prints a ConfigError, after its cause.

    The process ends with its parent.
    """
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the learner, which ends this
    stop_with_parent()
    status = 1
    try:
        main(sys.argv[1:])
        status = 0
    except ConfigError as error:
        if error.__cause__ is not None:  # such as what a level's own code raised
            traceback.print_exception(error.__cause__)
        status = command_line.fail(error)
    finally:
        ignore_stop_requests()
        exit_in_time(status)
    sys.exit(status)


def _stop(number: int, frame: FrameType | None) -> None:
    """Exits in order, so that no half-written file is left."""
    sys.exit(128 + number)
