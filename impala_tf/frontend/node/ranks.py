"""A learner's position among those that train together now, in Horovod's terms."""

from __future__ import annotations

import os
from collections.abc import Sequence

from impala_tf.frontend.node.state import GroupInfo
from impala_tf.machine.addresses import interface_of

GLOO_TIMEOUT_S = 45
"""How long starting learners wait for each other, and how long a running one may be silent. If a
machine is lost, the group must end within a minute, so this is less than a minute."""
_GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"


def gloo_environment(
    group: GroupInfo, members: Sequence[int], rendezvous_port: int
) -> dict[str, str]:
    """Returns the variables for Horovod's Gloo controller, as horovod.runner.gloo_run sets them.

    Args:
      group: the learner, which is one of the members.
      members: the numbers of the learners that train together, in ascending order.
      rendezvous_port: the port of the store on this machine (see `rendezvous.StoreProxy`).
    """
    nodes = [group.nodes[number] for number in members]
    rank = members.index(group.number)
    node, local_rank = nodes[rank], nodes[:rank].count(nodes[rank])
    # The machines that have a member with this local rank.
    peers = [peer for peer in dict.fromkeys(nodes) if nodes.count(peer) > local_rank]
    host = group.hosts[group.number]
    variables = {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(len(members)),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(nodes.count(node)),
        "HOROVOD_CROSS_RANK": str(peers.index(node)),
        "HOROVOD_CROSS_SIZE": str(len(peers)),
        "HOROVOD_HOSTNAME": host,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(rendezvous_port),
        _GLOO_TIMEOUT: os.environ.get(_GLOO_TIMEOUT, str(GLOO_TIMEOUT_S)),
    }
    interface = interface_of(host)
    # By default, Gloo listens on the address of the machine's host name, which is often loopback.
    return {**variables, "HOROVOD_GLOO_IFACE": interface} if interface else variables
