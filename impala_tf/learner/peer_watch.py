"""The other learners of a group: their names, and which of them can be reached."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

_INTERVAL_S = 5.0


class PeerWatch:
    """Tells whether another learner has become unreachable, checking every few seconds at most.

    A learner that waits for a batch would only notice a lost peer in its next update; this lets it
    start that update at once. A peer that never answered (e.g. behind a firewall) does not count as
    lost: otherwise this learner would run one update after another without a batch.

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
        self._checked_at = clock() - _INTERVAL_S  # check at the first call: peers answer now
        self._reachable: set[int] = set()

    def lost_peer(self) -> bool:
        """Whether a peer has stopped answering; True once per loss. May take 3 s."""
        if self._clock() - self._checked_at < _INTERVAL_S:
            return False
        gone = set(unreachable(self._hosts, self._rank))
        self._checked_at = self._clock()
        lost = self._reachable & gone
        self._reachable = set(range(len(self._hosts))) - gone
        return bool(lost)


def names(ranks: Sequence[int]) -> str:
    """Returns the learners' names: 'learner-0, learner-2'."""
    return ", ".join(f"learner-{rank}" for rank in ranks)


def unreachable(hosts: Sequence[str], rank: int, timeout_s: float = 3.0) -> list[int]:
    """Returns the ranks of the learners, other than `rank`, whose port does not answer.

    Args:
      hosts: host:port by rank.
      rank: this learner's.
      timeout_s: for each; all are asked at once.
    """
    others = [other for other in range(len(hosts)) if other != rank]
    with ThreadPoolExecutor(len(others) or 1) as pool:
        answers = pool.map(lambda other: _answers(hosts[other], timeout_s), others)
        return [other for other, alive in zip(others, answers, strict=True) if not alive]


def _answers(host_port: str, timeout_s: float) -> bool:
    """Tells whether a TLS server starts a handshake there.

    A TCP connection alone is no proof: the kernel accepts it for a stopped process too. Nothing is
    sent and the identity does not matter here, so nothing is verified.
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
        return True  # it refused, so it is there
    except OSError:
        return False
