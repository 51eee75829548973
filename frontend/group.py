"""A learner's way into its group: waits for the others, then knows Horovod's environment."""

from __future__ import annotations

import fcntl
import http.client
import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from frontend import own_name
from frontend.process_state import Seat
from frontend.rendezvous import RendezvousServer, ask

POLL_S = 0.5
FIRST_CONTACT_S = 600.0
"""How long the others wait for learner 0's supervisor to appear."""
LOST_CONTACT_S = 30.0
"""How long they wait once it has been there."""
GLOO_TIMEOUT_S = 45
"""How long learners that start wait for each other, and how long one may be silent later; less
than the minute within which the group is to end when a machine vanishes."""
_GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
_SIOCGIFADDR = 0x8915  # linux/sockios.h


class GroupOverError(Exception):
    """The others will not come; the message says who and why."""


class Membership:
    """A supervisor's membership in the group of learners."""

    def __init__(
        self,
        seat: Seat,
        run_id: str,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        lost_contact_s: float = LOST_CONTACT_S,
    ) -> None:
        """Learner 0's serves the meeting point. Raises OSError where its port cannot be had."""
        self._seat = seat
        self._run_id = run_id
        self._say = say
        self._clock = clock
        self._lost_contact_s = lost_contact_s
        self._contact_s: float | None = None
        self._server: RendezvousServer | None = None
        if seat.rank == 0:
            self._server = RendezvousServer(
                seat.rendezvous_host, seat.rendezvous_port, run_id, seat.size
            )

    def gather(self, stopping: Callable[[], bool], wait: Callable[[float], None]) -> bool:
        """Waits until every learner is ready to start; says for whom every 60 s.

        Args:
          stopping: tells whether to give up waiting.
          wait: sleeps so many seconds, or less.

        Returns:
          True to start, False when `stopping` said so.

        Raises:
          GroupOverError: if a member has left, or learner 0's supervisor cannot be reached.
        """
        attempt = secrets.token_hex(8)
        begun_s = said_s = self._clock()
        while not stopping():
            missing = self._poll(attempt, begun_s)
            if missing == "":
                return True
            if self._clock() - said_s >= 60:
                said_s = self._clock()
                self._say(f"has waited {said_s - begun_s:.0f} s for {missing}")
            wait(POLL_S)
        return False

    def leave(self, reason: str) -> None:
        """Tells the others that this learner will not start again."""
        if self._server is not None:
            self._server.gathering.leave(reason)
            return
        try:
            self._ask("/leave", {"reason": reason})
        except (OSError, http.client.HTTPException) as error:
            self._say(f"could not tell the others: {error}")

    def close(self) -> None:
        """Stops serving the meeting point."""
        if self._server is not None:
            self._server.close()

    def command(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the command that runs `argv` where the other machines' learners can reach it."""
        if self._seat.local_size == self._seat.size:
            return argv
        return (sys.executable, str(Path(own_name.__file__)), self._seat.host, *argv)

    def _poll(self, attempt: str, begun_s: float) -> str:
        """Returns whom to wait for; '' when all are here."""
        try:
            answer = self._ask("/join", {"rank": self._seat.rank, "attempt": attempt})
        except (OSError, http.client.HTTPException) as error:
            since, limit = self._contact_s, self._lost_contact_s
            if since is None:
                since, limit = begun_s, FIRST_CONTACT_S
            if self._clock() - since > limit:
                raise GroupOverError(f"learner-0 is gone: {error}") from error
            return f"learner-0 at {self._seat.rendezvous_host}:{self._seat.rendezvous_port}"
        self._contact_s = self._clock()
        if answer["over"]:
            raise GroupOverError(answer["over"])
        if answer["go"]:
            return ""
        return ", ".join(f"learner-{rank}" for rank in answer["missing"]) or "the others"

    def _ask(self, path: str, message: dict[str, object]) -> dict[str, Any]:
        seat = self._seat
        return ask(
            seat.rendezvous_host, seat.rendezvous_port, path, {"run_id": self._run_id, **message}
        )


def gloo_environment(seat: Seat) -> dict[str, str]:
    """Returns what Horovod's Gloo controller reads, as horovod.runner.gloo_run sets it."""
    found = {
        "HOROVOD_RANK": str(seat.rank),
        "HOROVOD_SIZE": str(seat.size),
        "HOROVOD_LOCAL_RANK": str(seat.local_rank),
        "HOROVOD_LOCAL_SIZE": str(seat.local_size),
        "HOROVOD_CROSS_RANK": str(seat.cross_rank),
        "HOROVOD_CROSS_SIZE": str(seat.cross_size),
        "HOROVOD_HOSTNAME": seat.host,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": seat.rendezvous_host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(seat.rendezvous_port),
        _GLOO_TIMEOUT: os.environ.get(_GLOO_TIMEOUT, str(GLOO_TIMEOUT_S)),
    }
    interface = interface_of(seat.host)
    # Without it, Gloo listens where the machine's own name points, which is often loopback.
    return {**found, "HOROVOD_GLOO_IFACE": interface} if interface else found


def interface_of(host: str) -> str | None:
    """Returns the network interface that has the IPv4 address of `host`, or None."""
    try:
        address = socket.gethostbyname(host)
    except OSError:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # an interface without an IPv4 address
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    return None
