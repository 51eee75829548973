"""A learner's position among those that train together now, in Horovod's terms."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from impala_tf.frontend.node.state import GroupInfo
from impala_tf.machine.addresses import interface_of

GLOO_TIMEOUT_S = 45
"""How long starting learners wait for each other, and how long a running one may be silent. If a
machine is lost, the group must end within a minute, so this is less than a minute."""
_GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"


class RankInfo(NamedTuple):
    """A learner's position in a group, in the terms of Horovod's Gloo controller."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host: str
    """The learner's own address, as the others reach it."""


def rank_info(group: GroupInfo, members: Sequence[int]) -> RankInfo:
    """Returns a learner's position among the members, numbered as Horovod does.

    Args:
      group: the learner, which is one of the members.
      members: numbers of the learners that train together, in ascending order.
    """
    nodes = [group.nodes[number] for number in members]
    rank = members.index(group.number)
    node, local_rank = nodes[rank], nodes[:rank].count(nodes[rank])
    # The machines that have a member with this local rank.
    peers = [each for each in dict.fromkeys(nodes) if nodes.count(each) > local_rank]
    return RankInfo(
        rank=rank,
        size=len(members),
        local_rank=local_rank,
        local_size=nodes.count(node),
        cross_rank=peers.index(node),
        cross_size=len(peers),
        host=group.hosts[group.number],
    )


def gloo_environment(rank: RankInfo, rendezvous_port: int) -> dict[str, str]:
    """Returns the variables for Horovod's Gloo controller, as horovod.runner.gloo_run sets them.

    Args:
      rank: the learner's position.
      rendezvous_port: where a store on this machine listens (see `rendezvous.StoreProxy`).
    """
    found = {
        "HOROVOD_RANK": str(rank.rank),
        "HOROVOD_SIZE": str(rank.size),
        "HOROVOD_LOCAL_RANK": str(rank.local_rank),
        "HOROVOD_LOCAL_SIZE": str(rank.local_size),
        "HOROVOD_CROSS_RANK": str(rank.cross_rank),
        "HOROVOD_CROSS_SIZE": str(rank.cross_size),
        "HOROVOD_HOSTNAME": rank.host,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(rendezvous_port),
        _GLOO_TIMEOUT: os.environ.get(_GLOO_TIMEOUT, str(GLOO_TIMEOUT_S)),
    }
    interface = interface_of(rank.host)
    # Without this, Gloo listens on the address of the machine's host name, which is often loopback.
    return {**found, "HOROVOD_GLOO_IFACE": interface} if interface else found
