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

Machine = TypeVar("Machine", NodeSpec, CommandRunner)
R = TypeVar("R")
_MAX_AT_ONCE = 128


def on_all(
    machines: Iterable[Machine], work: Callable[[Machine], R]
) -> dict[str, R | ClusterError]:
    """Does `work` for all machines, each in a thread; returns {name: result or ClusterError}."""

    def attempt(machine: Machine) -> R | ClusterError:
        try:
            return work(machine)
        except ClusterError as error:
            return error

    listed = list(machines)
    pool = ThreadPoolExecutor(min(len(listed), _MAX_AT_ONCE) or 1)
    try:
        futures = {machine.name: pool.submit(attempt, machine) for machine in listed}
        return {name: future.result() for name, future in futures.items()}
    finally:
        # After Ctrl-C, only the caller can end the work that is going on, so this must not wait.
        pool.shutdown(wait=False, cancel_futures=True)


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
        """Takes {name of the node: password}, tried in place of keys; connects to nothing yet."""
        self._passwords = passwords
        self.found: dict[str, CommandRunner | ClusterError] = {}

    def runner(self, node: NodeSpec) -> CommandRunner:
        """Returns a machine; logs in there if it is not connected.

        Raises:
          ClusterError: it cannot be reached; a later call tries again.
          ConfigError: paramiko is not installed here, as not every installation launches runs.
        """
        found = self.found.get(node.name)
        if not isinstance(found, CommandRunner):
            try:
                found = self.found[node.name] = self._open(node)
            except ClusterError as error:
                self.found[node.name] = error
                raise
        return found

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


@contextlib.contextmanager
def connected(nodes: Iterable[NodeSpec], passwords: Mapping[str, Secret]) -> Iterator[Machines]:
    """Connects to machines until the block ends; see `Machines`."""
    machines, listed = Machines(passwords), list(nodes)
    try:
        on_all(listed, machines.runner)
        # In the order of the CSV, whichever answered first.
        machines.found = {node.name: machines.found[node.name] for node in listed}
        yield machines
    finally:
        for machine in machines.reached():
            machine.close()
