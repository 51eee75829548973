"""The other learners of a group: their names, and which of them answer."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

_LOOK_S = 5.0


class Absence:
    """Tells whether another learner does not answer, looking every few seconds at most.

    A learner that waits for a batch would find out only in its next update that the group has
    ended; one that knows earlier takes part in that update at once.

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
        self._looked_at = clock()
        self._found = False

    def __call__(self) -> bool:
        """Whether somebody did not answer when last asked. May take 3 s."""
        now = self._clock()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            self._found = bool(silent(self._hosts, self._rank))
        return self._found


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
