"""How large a launched run was: its command is that of one machine."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from impala_tf.config import ConfigError, split
from impala_tf.frontend.record import load


def size(logdir: Path, learner_hosts: str, statuses: Sequence[Mapping[str, Any]]) -> str:
    """Returns such as "2 learners and 24 actors on 5 machines"; '' if it was not launched.

    Where the record of a launch over SSH is missing, the learners' statuses tell the actors that
    they had at last, by the addresses from which these connected.

    Args:
      logdir: of the run.
      learner_hosts: the flag, as the run had it.
      statuses: of the learners, as far as they are in the logdir.
    """
    hosts = split(learner_hosts)
    try:
        plan = load(logdir).plan
    except ConfigError:  # of another engine, or it was launched from another machine
        plan = None
    if plan is not None and plan.learner_hosts == hosts:  # else the run has moved since
        actors = len(plan.processes) - len(hosts)
        return f"{_sizes(len(hosts), actors)} on {_count(len(plan.nodes), 'machine')}"
    actors_at = {
        actor["name"]: actor["host"]
        for each in statuses
        for actor in each.get("actors", ())
        if {"name", "host"} <= actor.keys()
    }
    addresses = set(actors_at.values())
    if len(hosts) < 2 and all(map(_is_this_machine, addresses)):
        return ""
    if not addresses or len(statuses) < len(hosts):
        return _count(len(hosts), "learner")
    many = f"{len(addresses)} address{'es' * (len(addresses) > 1)}"
    return f"{_sizes(max(1, len(hosts)), len(actors_at))} at {many}"


def _sizes(learners: int, actors: int) -> str:
    return f"{_count(learners, 'learner')} and {_count(actors, 'actor')}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _is_this_machine(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
