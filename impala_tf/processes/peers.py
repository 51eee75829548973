"""The other learners of a group: their names, and which of them answer."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

_LOOK_S = 5.0


class Absence:
    """Tells whether another learner has stopped answering, looking every few seconds at most.

    A learner that waits for a batch would find out only in its next update that the group has
    ended; one that knows earlier takes part in that update at once. Who has never answered, maybe
    for a firewall between the two, is not taken for absent: it would be so for ever, and this
    learner would take part in one update after another without a batch.

    Args:
      hosts: host:port by rank.
      rank: this learner's.
      clock: seconds.
    """

    def __init__(
        self, hosts: Sequence[str], rank: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._hosts = hosts
        self._rank = rank
        self._clock = clock
        self._looked_at = clock() - _LOOK_S  # at once: who answers now may be missed later
        self._answered: set[int] = set()

    def __call__(self) -> bool:
        """Whether somebody has stopped answering; said once of each time. May take 3 s."""
        if self._clock() - self._looked_at < _LOOK_S:
            return False
        quiet = set(silent(self._hosts, self._rank))
        self._looked_at = self._clock()
        absent = self._answered & quiet
        self._answered = set(range(len(self._hosts))) - quiet
        return bool(absent)


def names(ranks: Sequence[int]) -> str:
    """Returns ranks as people know learners: 'learner-0, learner-2'."""
    return ", ".join(f"learner-{rank}" for rank in ranks)


def silent(hosts: Sequence[str], rank: int, timeout_s: float = 3.0) -> list[int]:
    """Returns the ranks of the learners, other than `rank`, whose port does not answer.

    Args:
      hosts: host:port by rank.
      rank: this learner's.
      timeout_s: for each, all at once.
    """
    others = [other for other in range(len(hosts)) if other != rank]
    with ThreadPoolExecutor(len(others) or 1) as pool:
        answers = pool.map(lambda other: _answers(hosts[other], timeout_s), others)
        return [other for other, lives in zip(others, answers, strict=True) if not lives]


def _answers(host_port: str, timeout_s: float) -> bool:
    """Tells whether a TLS server begins a handshake there.

    A connection alone says little: the kernel accepts it for a process that is stopped. Who it is
    does not matter here, and nothing is sent, so nothing is verified.
    """
    host, _, port = host_port.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    address = host.strip("[]"), int(port)
    try:
        with socket.create_connection(address, timeout_s) as raw, context.wrap_socket(raw):
            return True
    except ssl.SSLError:
        return True  # it was there to refuse
    except OSError:
        return False
