"""A Ray cluster on this machine, whose nodes come and go."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

_FIRST = 21
_START_S = 240
_SYSTEM = {
    # Ray's defaults take 20 s to miss a node. A lost one refuses connections, so that only its
    # period counts; the timeout is for a node on a busy machine.
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 20_000,
    "health_check_failure_threshold": 3,
    "agent_register_timeout_ms": _START_S * 1000,
}
_STORE_BYTES = 80 * 2**20  # nearly the least that Ray takes


def _most_urgent() -> int:
    """Returns 10 if this process may raise its priority so far, as root may; else 0."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, usual - 10)
    except PermissionError:
        return 0
    os.setpriority(os.PRIO_PROCESS, 0, usual)
    return 10


# A raylet ends if its agents need more than 15 s to start, which they may beside other tests.
_URGENCY = _most_urgent()
"""By how much a node's own processes come before others. Those of a run do not."""


class RayNodes:
    """A cluster that runs: its head, which has no room for processes, and nodes.

    Attributes:
      address: of the cluster.
      environment: variables for commands that use it.
    """

    def __init__(self) -> None:
        # Nodes have the variables of this process. Horovod would choose the host name's interface.
        os.environ.update(
            RAY_USAGE_STATS_ENABLED="0", HOROVOD_GLOO_IFACE="lo",
            RAY_gcs_server_port_wait_time_s=str(_START_S),
            # In place of 15: other tests would leave them no time. Counted from the node's own.
            RAY_worker_niceness=str(_URGENCY),
        )  # fmt: skip
        from ray.cluster_utils import Cluster

        self._count = 0
        with _patient_start():
            self._cluster = Cluster(
                initialize_head=True,
                head_node_args={**self._settings(), "num_cpus": 0, "_system_config": _SYSTEM},
            )
        self.address: str = self._cluster.address
        self.environment = {**os.environ, "RAY_ADDRESS": self.address}

    def add(self, cpus: int, **resources: float) -> Any:
        """Adds a node with resources of any names; returns what `remove` takes."""
        with _patient_start():
            return self._cluster.add_node(**self._settings(), num_cpus=cpus, resources=resources)

    def remove(self, node: Any) -> None:
        """Ends a node and all that runs on it at once, as a power cut does."""
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()

    def _settings(self) -> dict[str, Any]:
        self._count += 1
        address = f"127.0.0.{_FIRST + self._count}"
        return {"node_ip_address": address, "object_store_memory": _STORE_BYTES,
                "include_dashboard": False}  # fmt: skip


@contextlib.contextmanager
def _patient_start() -> Iterator[None]:
    """Gives a node a high priority, and `_START_S`: Ray's own 30 s are too few beside tests."""
    from ray._private import services

    get_node = services.get_node

    def get_started_node(gcs_address: str, node_id: str) -> Any:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                return get_node(gcs_address, node_id)
            except RuntimeError:  # it has not registered yet
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    usual = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, usual - _URGENCY)
    try:
        with mock.patch.object(services, "get_node", get_started_node):
            yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)
