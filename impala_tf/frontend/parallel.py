"""Works on many machines at once. If one fails, the others can still be used."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from impala_tf.config import ConfigError, user_commands
from impala_tf.frontend.connection import CommandRunner, LocalRunner
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.inventory import Secret
from impala_tf.frontend.plan import NodeSpec

T = TypeVar("T")
R = TypeVar("R")
_MAX_AT_ONCE = 128


def try_all(
    items: Iterable[T], name: Callable[[T], str], work: Callable[[T], R]
) -> dict[str, R | ClusterError]:
    """Does `work` for all items in parallel; returns {name: result or ClusterError}.

    Args:
      items: machines, or work for them.
      name: returns the name of an item.
      work: called in a thread.
    """

    def attempt(item: T) -> R | ClusterError:
        try:
            return work(item)
        except ClusterError as error:
            return error

    listed = list(items)
    pool = ThreadPoolExecutor(min(len(listed), _MAX_AT_ONCE) or 1)
    try:
        futures = {name(item): pool.submit(attempt, item) for item in listed}
        return {name: future.result() for name, future in futures.items()}
    finally:
        # After Ctrl-C, only the caller can end the work that is going on, so this must not wait.
        pool.shutdown(wait=False, cancel_futures=True)


def on_all(
    runners: Iterable[CommandRunner], work: Callable[[CommandRunner], R]
) -> dict[str, R | ClusterError]:
    """Does `work` on all machines; returns {name of the node: result or error}; see `try_all`."""
    return try_all(runners, lambda runner: runner.node.name, work)


def good(answers: Mapping[str, R | ClusterError]) -> dict[str, R]:
    """Returns the results that are not errors."""
    return {
        name: answer for name, answer in answers.items() if not isinstance(answer, ClusterError)
    }


def problems(answers: Mapping[str, R | ClusterError]) -> list[str]:
    """Returns the lines of all errors."""
    return [
        line
        for answer in answers.values()
        if isinstance(answer, ClusterError)
        for line in answer.problems
    ]


class Machines:
    """The machines of a run: a connection to each, or the reason why there is none."""

    def __init__(self, passwords: Mapping[str, Secret], accept_new_host_keys: bool) -> None:
        """Connects to nothing yet; see `SshConnector`.

        Raises:
          ConfigError: paramiko is not installed here, as not every installation launches runs.
        """
        if importlib.util.find_spec("paramiko") is None:
            extra = user_commands.install_extra("learner")
            raise ConfigError(f"SSH needs the package paramiko, of the extra learner: {extra}")
        from impala_tf.frontend.ssh_login import SshConnector

        self._connector = SshConnector(passwords, accept_new_host_keys)
        self.found: dict[str, CommandRunner | ClusterError] = {}

    def connect(self, nodes: Iterable[NodeSpec]) -> dict[str, CommandRunner | ClusterError]:
        """Connects to machines; those that fail may be tried again later; see `try_all`."""

        def open_one(node: NodeSpec) -> CommandRunner:
            if node.is_local:
                return LocalRunner(node)
            from impala_tf.frontend.ssh import SshRunner  # needs paramiko

            return SshRunner(node, self._connector)

        results = try_all(nodes, lambda node: node.name, open_one)
        self.found.update(results)
        return results

    def reached(self) -> list[CommandRunner]:
        """Returns the machines that are connected."""
        return list(good(self.found).values())

    def close(self) -> None:
        """Closes all connections."""
        self._connector.close()  # from now on, nothing reconnects
        for machine in self.reached():
            machine.close()


@contextlib.contextmanager
def connected(
    nodes: Iterable[NodeSpec],
    passwords: Mapping[str, Secret],
    accept_new_host_keys: bool = False,
) -> Iterator[Machines]:
    """Connects to machines until the block ends; see `Machines`."""
    machines = Machines(passwords, accept_new_host_keys)
    try:
        machines.connect(nodes)
        yield machines
    finally:
        machines.close()
