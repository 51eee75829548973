"""Work on many machines at once. If one fails, the others can still be used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from impala_tf.cluster.inventory import Secret
from impala_tf.cluster.plan import NodeSpec
from impala_tf.cluster.runner import ClusterError, CommandRunner, LocalRunner
from impala_tf.config import ConfigError, user_commands

T = TypeVar("T")
R = TypeVar("R")
_MAX_AT_ONCE = 128


def try_all(
    items: Iterable[T], name: Callable[[T], str], work: Callable[[T], R]
) -> dict[str, R | ClusterError]:
    """Does `work` for all items, each in a thread; returns {name: result or ClusterError}."""

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
    return {name: each for name, each in answers.items() if not isinstance(each, ClusterError)}


def problems(answers: Mapping[str, R | ClusterError]) -> list[str]:
    """Returns the lines of all errors."""
    errors = [each for each in answers.values() if isinstance(each, ClusterError)]
    return [line for error in errors for line in error.problems]


class Machines:
    """The machines of a run: a connection to each, or the reason why there is none."""

    def __init__(self, passwords: Mapping[str, Secret]) -> None:
        """Connects to nothing yet.

        Args:
          passwords: {name of the node: password}, tried in place of keys; never shown.
        """
        self._passwords = passwords
        self.found: dict[str, CommandRunner | ClusterError] = {}

    def connect(self, nodes: Iterable[NodeSpec]) -> dict[str, CommandRunner | ClusterError]:
        """Connects to machines; those that fail may be tried again later; see `try_all`.

        Raises:
          ConfigError: paramiko is not installed here, as not every installation launches runs.
        """
        results = try_all(nodes, lambda node: node.name, self._open)
        self.found.update(results)
        return results

    def _open(self, node: NodeSpec) -> CommandRunner:
        if node.is_local:
            return LocalRunner(node)
        try:
            from impala_tf.cluster.remote import SshRunner
        except ModuleNotFoundError as error:
            extra = user_commands.install_extra("learner")
            raise ConfigError(f"SSH needs {error.name}, of the extra learner: {extra}") from error
        return SshRunner(node, self._passwords.get(node.name))

    def reached(self) -> list[CommandRunner]:
        """Returns the machines that are connected."""
        return list(good(self.found).values())

    def close(self) -> None:
        """Closes all connections."""
        for machine in self.reached():
            machine.close()


@contextlib.contextmanager
def connected(nodes: Iterable[NodeSpec], passwords: Mapping[str, Secret]) -> Iterator[Machines]:
    """Connects to machines until the block ends; see `Machines`."""
    with contextlib.closing(Machines(passwords)) as machines:
        machines.connect(nodes)
        yield machines
