"""Measures in new processes, which compute like the processes of a run.

This module does not import TensorFlow; new processes that need it import it without its messages.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Literal

from rich.console import Console

from impala_tf import config as configs
from impala_tf.config import Config
from impala_tf.machine.process_lifetime import die_with_parent
from impala_tf.measure.acting import Measured
from impala_tf.types import EnvironmentSpec

What = Literal["environment", "inference", "update"]

_WIDTH = 100  # columns, if the output is not a terminal


def console_of() -> Console:
    """Returns the console for measurements."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def measure(what: What, config: Config, spec: EnvironmentSpec, seconds: float) -> Measured:
    """Measures a part of an actor or a learner, in a new process; says so on stderr.

    Args:
      what: the name of a function in `acting` or `learning`.
      config: the resolved flags.
      spec: the level's specification.
      seconds: how long to measure, after compiling.

    Raises:
      ConfigError: flags that cannot be used on this machine.
      BrokenProcessPool: the process has ended, and has printed why.
    """
    print(f"measuring {what} ...", file=sys.stderr, flush=True)
    measured: Measured
    with_litert = config.process.inference == "actor" and not configs.actors_use_tensorflow(config)
    if what == "inference" and with_litert:
        converted = _in_new_process("learning", "converted", config, spec)
        if converted is not None:
            measured = _in_new_process("acting", what, config, spec, seconds, *converted)
            return measured
    module = "acting" if what == "environment" else "learning"
    measured = _in_new_process(module, what, config, spec, seconds)
    return measured


def _in_new_process(module: str, function: str, *arguments: Any) -> Any:
    """Calls a function of another module of this package in a new process; returns its result."""
    spawn, about_it = multiprocessing.get_context("spawn"), (os.getpid(), module != "acting")
    with ProcessPoolExecutor(1, spawn, _begin, about_it) as process:
        return process.submit(_call, module, function, *arguments).result()


def _begin(parent_pid: int, with_tensorflow: bool) -> None:
    die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    logging.disable(logging.WARNING)  # the parent has warned
    if with_tensorflow:
        from impala_tf.processes import tensorflow_startup

        tensorflow_startup.import_tensorflow()


def _call(module: str, function: str, *arguments: Any) -> Any:
    return getattr(importlib.import_module(f"impala_tf.measure.{module}"), function)(*arguments)
