"""The actors' sessions. A name is of one live process, whose unrolls count once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Container
from typing import TYPE_CHECKING

import grpc

from impala_tf.transport import impala_pb2
from impala_tf.transport.failures import HandshakeRefused, StreamError
from impala_tf.types import ActorReport

if TYPE_CHECKING:
    from impala_tf.transport.service import ActorStream

logger = logging.getLogger(__name__)

SHOWN_S = 300.0
"""A lost actor is hidden after this many seconds. It reappears when it reconnects."""
MOST_NAMES = 2_000
"""How many names of one certificate are remembered. An actor that was cut off for hours may repeat
its last push."""
KEPT_S = 60.0
"""For how long after a message a lost actor's name stays with its certificate, in seconds."""


class Session:
    """One process of an actor, as its learner knows it. A restarted actor has a new session.

    Changed in the event loop and by threads that take pushes; read by any thread.

    Args:
      hello: the actor's handshake.
      stream: the actor's stream.

    Attributes:
      actor_id: the actor's name.
      number: a random number that the actor chose.
      num_environments: the largest N of a push.
      host: the address that the actor connects from.
      certificate: the name in its certificate.
      stream: the open stream; None while there is none.
      restarts: how many other processes had the name before.
      last_sequence: the number of the last push that was accepted, refused or stale; -1: none.
      pushing: the push that is being put into the queue; None if there is none.
      parameter_version: of the last push; -1: none yet.
      report: of the last push.
      trouble: what keeps the actor from acting; '' after a push.
      told_run_over: whether it knows that the run is over.
    """

    def __init__(self, hello: impala_pb2.Hello, stream: ActorStream) -> None:
        self.actor_id = hello.actor_id
        self.number = hello.session
        self.num_environments = hello.num_environments
        self.host = stream.host
        self.certificate = stream.certificate
        self.stream: ActorStream | None = stream
        self.restarts = 0
        self.last_sequence = -1
        self.pushing: asyncio.Future[None] | None = None
        self.parameter_version = -1
        self.report = ActorReport()
        self.trouble = ""
        self.told_run_over = False
        self.note_contact()

    def note_contact(self) -> None:
        """Notes that the actor has sent something."""
        self._contact_s = time.monotonic()

    def count(self, sequence: int, parameter_version: int, report: ActorReport) -> None:
        """Notes a push that was used, or was stale; see the attributes."""
        self.last_sequence, self.parameter_version = sequence, parameter_version
        self.report, self.trouble = report, ""

    @property
    def last_contact(self) -> float:
        """Seconds of the monotonic clock. A push that waits for room in the queue counts."""
        return time.monotonic() if self.pushing else self._contact_s

    @property
    def is_present(self) -> bool:
        """Whether the stream is open, however long the actor's unroll takes."""
        return self.stream is not None


class Sessions:
    """The actors of one learner. `shown` and `count_present` are thread-safe."""

    def __init__(self) -> None:
        self._current: dict[str, Session] = {}

    def find(self, hello: impala_pb2.Hello, certificate: str) -> Session | None:
        """Returns the session of an actor; None if it does not have its name now."""
        session = self._current.get(hello.actor_id)
        if session and (session.number, session.certificate) == (hello.session, certificate):
            return session
        return None

    async def admit(
        self, hello: impala_pb2.Hello, stream: ActorStream, revoked: Container[str] = ()
    ) -> Session:
        """Gives a name to the process at the other end of a stream, and returns its session.

        Args:
          hello, stream: see `Session`.
          revoked: the certificates whose names are free.

        Raises:
          HandshakeRefused: another live actor has the name. The message names both hosts. Or its
            certificate has too many live actors.
          StreamError: another certificate had the name a moment ago; it is free later.
        """
        name, certificate = hello.actor_id, stream.certificate
        while holder := self._current.get(name):
            if self.find(hello, certificate):  # it calls again: its pushes stay counted
                self._end_stream(holder)
                holder.stream = stream
                holder.note_contact()
                return holder
            if holder.stream is not None and await holder.stream.is_alive():
                raise HandshakeRefused(
                    f"{name}: this name is taken by an actor at {holder.host}, and this one is"
                    f" at {stream.host}; give each actor its own --task"
                )
            silent_s = time.monotonic() - holder.last_contact
            is_others = holder.certificate != certificate and holder.certificate not in revoked
            if is_others and silent_s < KEPT_S:
                since = f"{name}: another certificate had this name {silent_s:.0f} s ago"
                raise StreamError(since, grpc.StatusCode.UNAVAILABLE)
            if self._current.get(name) is holder:  # else another process has taken the name
                break
        session = Session(hello, stream)
        if holder is None:
            self._forget_one(certificate)
        else:
            session.restarts = holder.restarts + 1
            self._end_stream(holder)
            del self._current[name]
        self._current[name] = session  # the last one
        logger.info("actor %s %s from %s", name, "reconnected" if holder else "joined", stream.host)
        return session

    def _forget_one(self, certificate: str) -> None:
        """Forgets the lost actor of a certificate that joined first, if it has many names."""
        own = [each for each in self._current.items() if each[1].certificate == certificate]
        if len(own) < MOST_NAMES:
            return
        lost = (name for name, each in own if each.stream is None and each.pushing is None)
        if (first := next(lost, None)) is None:
            raise HandshakeRefused(f"{len(own)} actors with its certificate are here")
        del self._current[first]

    @staticmethod
    def _end_stream(session: Session) -> None:
        if session.stream is not None:
            session.stream.end(StreamError("its name has called again", grpc.StatusCode.ABORTED))

    def end(self, reason: Exception) -> None:
        """Ends all streams for a reason; see `ActorStream.end`."""
        for session in self._current.values():
            if session.stream is not None:
                session.stream.end(reason)

    def count_present(self) -> int:
        """Returns the number of actors whose streams are open."""
        return sum(session.is_present for session in list(self._current.values()))

    def shown(self) -> list[Session]:
        """Returns all actors that are present or called in the last SHOWN_S seconds, by name."""
        shown_from = time.monotonic() - SHOWN_S
        shown = [
            session
            for session in list(self._current.values())
            if session.is_present or session.last_contact > shown_from
        ]
        return sorted(shown, key=lambda session: session.actor_id)
