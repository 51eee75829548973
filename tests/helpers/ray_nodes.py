"""A Ray cluster on this machine, whose nodes come and go."""

from __future__ import annotations

import os
from typing import Any

_FIRST = 21
# Ray's defaults take 20 s to miss a node.
_HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}
_STORE_BYTES = 80 * 2**20  # nearly the least that Ray takes


class RayNodes:
    """A cluster that runs: its head, which has no room for processes, and nodes.

    Attributes:
      address: of the cluster.
      environment: variables for commands that use it.
    """

    def __init__(self) -> None:
        # Nodes have the variables of this process. Horovod would choose the host name's interface.
        os.environ.update(RAY_USAGE_STATS_ENABLED="0", HOROVOD_GLOO_IFACE="lo")
        from ray.cluster_utils import Cluster

        self._count = 0
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={**self._settings(), "num_cpus": 0, "_system_config": _HEALTH},
        )
        self.address: str = self._cluster.address
        self.environment = {**os.environ, "RAY_ADDRESS": self.address}

    def add(self, cpus: int, **resources: float) -> Any:
        """Adds a node with resources of any names; returns what `remove` takes."""
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
