"""Lets a learner's supervisor wait for the other learners, and gives it Horovod's environment."""

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
"""How long the other learners wait for learner 0's supervisor at first."""
LOST_CONTACT_S = 30.0
"""How long they wait once they have reached it."""
GLOO_TIMEOUT_S = 45
"""How long starting learners wait for each other, and how long a running one may be silent. If a
machine is lost, the group must end within a minute, so this is less than a minute."""
_GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
_SIOCGIFADDR = 0x8915  # linux/sockios.h


class GroupOverError(Exception):
    """The group will not start again; the message says which learner left, and why."""


class Membership:
    """A supervisor's membership in the group of learners."""

    def __init__(
        self,
        seat: Seat,
        run_id: str,
        log_event: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        lost_contact_s: float = LOST_CONTACT_S,
    ) -> None:
        """For rank 0, starts the rendezvous server. Raises OSError if its port cannot be used."""
        self._seat = seat
        self._run_id = run_id
        self._log_event = log_event
        self._clock = clock
        self._lost_contact_s = lost_contact_s
        self._contact_s: float | None = None
        self._server: RendezvousServer | None = None
        if seat.rank == 0:
            self._server = RendezvousServer(
                seat.rendezvous_host, seat.rendezvous_port, run_id, seat.size
            )

    def gather(self, stopping: Callable[[], bool], wait: Callable[[float], None]) -> bool:
        """Waits until every learner is ready to start. Says every 60 s which ones are missing.

        Args:
          stopping: tells whether to give up waiting.
          wait: sleeps for at most the given number of seconds.

        Returns:
          True if the learner is to start, False if `stopping` said to give up.

        Raises:
          GroupOverError: if a learner has left, or learner 0's supervisor is unreachable.
        """
        attempt = secrets.token_hex(8)
        start_s = logged_s = self._clock()
        while not stopping():
            missing = self._poll(attempt, start_s)
            if missing == "":
                return True
            if self._clock() - logged_s >= 60:
                logged_s = self._clock()
                self._log_event(f"has waited {logged_s - start_s:.0f} s for {missing}")
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
            self._log_event(f"could not tell the other learners: {error}")

    def close(self) -> None:
        """Stops the rendezvous server, if this is learner 0's."""
        if self._server is not None:
            self._server.close()

    def command(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the command that runs `argv` so that learners on other machines can reach it."""
        if self._seat.local_size == self._seat.size:
            return argv
        return (sys.executable, str(Path(own_name.__file__)), self._seat.host, *argv)

    def _poll(self, attempt: str, start_s: float) -> str:
        """Returns which learners are missing; '' once all are ready."""
        try:
            answer = self._ask("/join", {"rank": self._seat.rank, "attempt": attempt})
        except (OSError, http.client.HTTPException) as error:
            since, limit = self._contact_s, self._lost_contact_s
            if since is None:
                since, limit = start_s, FIRST_CONTACT_S
            if self._clock() - since > limit:
                raise GroupOverError(f"learner-0 is unreachable: {error}") from error
            return f"learner-0 at {self._seat.rendezvous_host}:{self._seat.rendezvous_port}"
        self._contact_s = self._clock()
        if answer["over"]:
            raise GroupOverError(answer["over"])
        if answer["go"]:
            return ""
        return ", ".join(f"learner-{rank}" for rank in answer["missing"]) or "the other learners"

    def _ask(self, path: str, message: dict[str, object]) -> dict[str, Any]:
        seat = self._seat
        return ask(
            seat.rendezvous_host, seat.rendezvous_port, path, {"run_id": self._run_id, **message}
        )


def gloo_environment(seat: Seat) -> dict[str, str]:
    """Returns the variables for Horovod's Gloo controller, as horovod.runner.gloo_run sets them."""
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
    # Without this, Gloo listens on the address of the machine's host name, which is often loopback.
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
                continue  # It has no IPv4 address.
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    return None
