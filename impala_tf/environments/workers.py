"""Environments that each have a process of their own, and how environments are closed."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, VectorEnv

from impala_tf.config import ConfigError, LevelRaisedError, plug_ins
from impala_tf.environments import spaces
from impala_tf.environments.simplify import BrokenEnvironmentError, LevelCodeError, LevelError
from impala_tf.machine.process_lifetime import die_with_parent
from impala_tf.types import EnvironmentSpec

_log = logging.getLogger("impala_tf.environments")

_CLOSE_S, _END_S = 1.0, 60.0
"""How long closing waits for an unfinished step, and for worker processes, in seconds."""


class InProcesses(AsyncVectorEnv):
    """N environments, each in its own process. They end with the thread that makes them.

    They take the agent's actions. Processes are spawned, because forking a process that runs
    TensorFlow may hang.

    Args:
      make: makes one environment, in its process.
      num_envs: N.
      spec: the level's.

    Raises:
      ConfigError: what `make` raised in a process; LevelRaisedError: of another kind.
      LevelCodeError: a process ended.
    """

    def __init__(
        self, make: Callable[[], gymnasium.Env[Any, Any]], num_envs: int, spec: EnvironmentSpec
    ) -> None:
        make_here = functools.partial(_make_in_worker, make, spec, os.getpid())
        with _main_hidden():
            # Not as daemons, which may not start processes: a level may have a simulator.
            super().__init__([make_here] * num_envs, context="spawn", daemon=False)

    def _check_spaces(self) -> None:  # the end of AsyncVectorEnv.__init__
        atexit.register(_kill, self.processes)  # or this process would wait for them at its end
        try:
            with ends_are_errors(self):
                super()._check_spaces()
                problems = [problem for problem in self.get_attr("problem") if problem]
            if problems:
                raise problems[0]
        except Exception:
            close(self)
            raise


@contextlib.contextmanager
def ends_are_errors(env: VectorEnv[Any, Any, Any]) -> Iterator[None]:
    """Turns the end of a level's process, or sys.exit() in its code, into a LevelCodeError."""
    try:
        yield
    except (EOFError, ConnectionError) as error:
        processes = getattr(env.unwrapped, "processes", ())
        for process in processes:
            process.join(0.1)
        codes = [process.exitcode for process in processes]
        raise LevelCodeError(f"a process of the environments ended; exit codes: {codes}") from error
    except SystemExit as end:
        raise LevelCodeError(f"the level ended its process: {plug_ins.raised(end)}") from end


def close(vector: VectorEnv[Any, Any, Any]) -> None:
    """Closes environments, even if some of their worker processes have ended.

    Exceptions of the level's code are only logged, because they do no harm here.
    """
    inner = vector.unwrapped
    try:
        if isinstance(inner, AsyncVectorEnv):
            _close_processes(vector, inner)
        else:
            vector.close()
    except (Exception, SystemExit) as error:
        _log.warning("the environments did not close: %s", plug_ins.raised(error))


def _close_processes(vector: VectorEnv[Any, Any, Any], inner: AsyncVectorEnv) -> None:
    # Gymnasium waits for the processes without a limit, and a level's close() may hang.
    timer = threading.Timer(_END_S, _kill, [inner.processes])
    timer.start()
    try:
        vector.close(timeout=_CLOSE_S)
    except (EOFError, OSError) as error:
        _log.warning("a worker process of the environments had ended: %r", error)
    finally:
        timer.cancel()
        _kill(inner.processes)
        for process in inner.processes:
            process.join()
        inner.closed = True


def _kill(processes: Iterable[BaseProcess]) -> None:
    for process in processes:
        process.kill()


class _StandIn(gymnasium.Env[Any, Any]):
    """Has only the spaces of an environment, and why there is none.

    AsyncVectorEnv makes an environment in its own process, too, only for the spaces.
    """

    def __init__(self, spec: EnvironmentSpec, problem: ConfigError | None = None) -> None:
        self.observation_space = spaces.space_of(spec)
        self.action_space = spaces.agent_space(spec.actions)
        self.problem = problem


class _InWorker(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes the agent's actions, and raises only errors that can be sent to another process."""

    problem = None

    def __init__(self, env: gymnasium.Env[Any, Any], spec: EnvironmentSpec) -> None:
        super().__init__(env)
        self._convert = spaces.action_converter(env.action_space)
        self.action_space = spaces.agent_space(spec.actions)

    def reset(self, **settings: Any) -> Any:
        with _sendable():
            return self.env.reset(**settings)

    def step(self, action: Any) -> Any:
        with _sendable():
            return self.env.step(self._convert(np.asarray(action)[None])[0])


@contextlib.contextmanager
def _sendable() -> Iterator[None]:
    try:
        yield
    except (BrokenEnvironmentError, LevelError):
        raise
    except (Exception, SystemExit) as error:
        raise LevelCodeError(plug_ins.raised(error)) from error


def _make_in_worker(
    make: Callable[[], gymnasium.Env[Any, Any]], spec: EnvironmentSpec, parent_pid: int
) -> gymnasium.Env[Any, Any]:
    if os.getpid() == parent_pid:
        return _StandIn(spec)
    # Ctrl-C and a closed terminal reach all processes; only the parent acts on them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    die_with_parent(parent_pid)
    try:
        return _InWorker(make(), spec)
    except ConfigError as error:  # otherwise the parent would only see a closed pipe
        return _StandIn(spec, error)
    except (Exception, SystemExit) as error:
        return _StandIn(spec, LevelRaisedError(f"a level raised {plug_ins.raised(error)}"))


@contextlib.contextmanager
def _main_hidden() -> Iterator[None]:
    """Keeps processes that are spawned inside from running the user's script again.

    Without `if __name__ == "__main__":` around its calls, the script would make the environments
    again in each of them. They find levels by the names of their modules, so they do not need it.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
