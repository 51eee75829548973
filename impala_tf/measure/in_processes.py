"""Measurements in processes of their own, which compute as the processes of a run do.

Does not import TensorFlow by itself: new processes that need it import it without its messages.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, Literal

from rich.console import Console

from impala_tf.config import Config, ConfigError
from impala_tf.machine.process_lifetime import die_with_parent
from impala_tf.measure.acting import Measured
from impala_tf.types import EnvironmentSpec

What = Literal["environment", "inference", "transport", "update", "checkpoint"]

_WIDTH = 100  # columns, if the output is not a terminal


def console_of(stderr: bool = False) -> Console:
    """Returns the console that measurements are shown on."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(width=_WIDTH, stderr=stderr)


@contextlib.contextmanager
def telling(what: str, console: Console) -> Iterator[None]:
    """Says what takes a while: on a terminal for as long as it does, else as a line to stderr."""
    if not console.is_terminal:
        print(f"{what} ...", file=sys.stderr, flush=True)
    with console.status(what):  # shows nothing if the output is not a terminal
        yield


def measure_each(
    labels: Mapping[What, str],
    config: Config,
    spec: EnvironmentSpec,
    seconds: float,
    console: Console,
) -> dict[str, Measured]:
    """Measures one after another; the console shows which one. Returns {label: what was measured}.

    Arguments and errors as of `measure`.
    """
    measured = {}
    for what, label in labels.items():
        with telling(f"measuring {label}", console):
            measured[label] = measure(what, config, spec, seconds)
    return measured


def measure(what: What, config: Config, spec: EnvironmentSpec, seconds: float) -> Measured:
    """Measures what an actor or a learner of a run would compute.

    Args:
      what: a function of `acting` or `learning`.
      config: the resolved flags.
      spec: the level's specification.
      seconds: how long to measure; compiling comes on top.

    Raises:
      ConfigError: flags that cannot be used on this machine.
      RuntimeError: the process failed; it has printed why.
    """
    process = config.process
    measured: Measured
    if what == "inference" and (process.inference, process.acting) == ("actor", "litert"):
        converted = _in_new_process("learning", "converted", config, spec)
        if converted is not None:
            measured = _in_new_process("acting", what, config, spec, seconds, *converted)
            return measured
    module = "acting" if what == "environment" else "learning"
    measured = _in_new_process(module, what, config, spec, seconds)
    return measured


def _in_new_process(module: str, function: str, *arguments: Any) -> Any:
    """Returns what a function of a module beside this one returns in a process of its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    # No daemon: those may not have processes of their own, in which some levels step.
    process = context.Process(target=_send, args=(sender, os.getpid(), module, function, arguments))
    process.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"measuring {function}: ended with status {process.exitcode}") from None
    finally:
        process.terminate()
        process.join()
    if isinstance(result, ConfigError):
        raise result
    return result


def _send(
    sender: Connection, parent_pid: int, module: str, function: str, arguments: tuple[Any, ...]
) -> None:
    """Calls, and sends the result; in the new process."""
    die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    logging.disable(logging.WARNING)  # the parent has warned
    if module != "acting":
        from impala_tf.processes import tensorflow_startup

        tensorflow_startup.import_tensorflow()
    functions = importlib.import_module(f"impala_tf.measure.{module}")
    try:
        sender.send(getattr(functions, function)(*arguments))
    except ConfigError as error:
        sender.send(error)
