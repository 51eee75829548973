"""The actors' sessions. A name belongs to one live process, whose unrolls count once."""

from __future__ import annotations

import asyncio
import collections
import logging
import threading
import time
from collections.abc import Container
from typing import Any, NamedTuple

import grpc

from impala_tf.transport.errors import CallError, HandshakeRefused
from impala_tf.types import ActorReport

logger = logging.getLogger(__name__)

# How soon an actor must answer when another process claims its name.
_ANSWER_S = 3.0
SHOWN_S = 300.0
"""An actor without an open call is hidden after this many seconds without a call. It reappears when
it reconnects."""
MOST_NAMES = 2_000
"""How many names of one certificate are remembered. An actor that was cut off for hours may repeat
its last push."""
KEPT_S = 60.0
"""For how long after a call a name stays with its certificate, in seconds."""


class ActorView(NamedTuple):
    """What the learner knows about an actor's process."""

    actor_id: str
    host: str  # the address that it connects from
    last_contact: float  # seconds of the monotonic clock
    parameter_version: int = -1  # of its last push; -1: none yet
    report: ActorReport = ActorReport()  # of its last push
    trouble: str = ""  # what keeps it from acting; '' after a push
    told_run_over: bool = False
    is_present: bool = False  # it keeps a call open, however long its unroll takes


class Session:
    """One process of an actor. A restarted actor has a new session.

    Args:
      number: a random number that the actor chose.
      num_environments: the largest N of a push.
      certificate: the name in the actor's certificate.
      view: what is shown of the actor.

    Attributes:
      number, num_environments, certificate, view: as given.
      restarts: how many other processes had the name before.
      last_sequence: the number of the last push that was accepted, refused or stale; -1: none.
      last_refusal: why an unroll was last refused, without numbers; '': none was.
      pushing: the push that is being put into the queue; None if there is none.
    """

    def __init__(
        self, number: int, num_environments: int, certificate: str, view: ActorView
    ) -> None:
        self.number = number
        self.num_environments = num_environments
        self.certificate = certificate
        self.view = view
        self.restarts = 0
        self.last_sequence = -1
        self.last_refusal = ""
        self.pushing: asyncio.Future[None] | None = None
        self._attending = self._asking = 0  # open Attend calls; waits for the next one
        self._ask = asyncio.Event()
        self._answered = asyncio.Event()

    async def attend(self) -> None:
        """Waits until `is_alive` or `release` ends the call. A live actor then calls again."""
        self._attending += 1
        self._answered.set()
        try:
            await self._ask.wait()
        finally:
            self._attending -= 1

    @property
    def is_present(self) -> bool:
        """Whether the actor keeps a call open now."""
        return self._attending > 0

    async def is_alive(self) -> bool:
        """Ends the actor's Attend call, and returns whether the actor calls again in time."""
        if self._attending == self._asking == 0:
            return False
        self._answered.clear()
        self._asking += 1
        self.release()
        try:
            await asyncio.wait_for(self._answered.wait(), _ANSWER_S)
        except TimeoutError:
            return False
        finally:
            self._asking -= 1
        return True

    def release(self) -> None:
        """Ends the open Attend calls."""
        self._ask.set()
        self._ask = asyncio.Event()


class Sessions:
    """The actors of one learner. `views`, `num_present` and `update` are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the table and the views in it
        self._current: collections.OrderedDict[str, Session] = collections.OrderedDict()

    async def admit(
        self,
        name: str,
        number: int,
        num_environments: int,
        host: str,
        certificate: str,
        revoked: Container[str] = (),
    ) -> Session:
        """Gives a name to a session, and returns the session.

        Args:
          name, number, num_environments, host, certificate: see `Session` and `ActorView`.
          revoked: the certificates whose names are free.

        Raises:
          HandshakeRefused: another live actor has the name. The message names both hosts. Or its
            certificate has too many live actors.
          CallError: another certificate had the name a moment ago; it is free later.
        """
        while holder := self._current.get(name):
            if (holder.number, holder.certificate) == (number, certificate):
                self.update(holder)
                return holder  # a repeated handshake: earlier pushes stay counted
            if await holder.is_alive():
                raise HandshakeRefused(
                    f"{name}: this name is taken by an actor at {holder.view.host}, and this one is"
                    f" at {host}; give each actor its own --task"
                )
            silent_s = time.monotonic() - holder.view.last_contact
            is_others = holder.certificate != certificate and holder.certificate not in revoked
            if is_others and silent_s < KEPT_S:
                since = f"{name}: another certificate had this name {silent_s:.0f} s ago"
                raise CallError(grpc.StatusCode.UNAVAILABLE, since)
            if self._current.get(name) is holder:  # else another process has taken the name
                break
        view = ActorView(name, host, last_contact=time.monotonic())
        session = Session(number, num_environments, certificate, view)
        if holder is not None:
            session.restarts = holder.restarts + 1
            holder.release()
        with self._lock:
            own = [each for each in self._current.items() if each[1].certificate == certificate]
            if holder is None and len(own) >= MOST_NAMES:
                gone = (key for key, each in own if not (each.is_present or each.pushing))
                if (oldest := next(gone, None)) is None:
                    raise HandshakeRefused(f"{len(own)} actors with its certificate are here")
                del self._current[oldest]
            self._current[name] = session
            self._current.move_to_end(name)
        logger.info("actor %s %s from %s", name, "reconnected" if holder else "joined", host)
        return session

    def get(self, name: str, number: int, certificate: str) -> Session | None:
        """Returns the session of a caller; None if it does not have this name now."""
        session = self._current.get(name)
        if session is None or (session.number, session.certificate) != (number, certificate):
            return None
        self.update(session)
        return session

    def update(self, session: Session, **fields: Any) -> None:
        """Changes fields of an actor's view, and notes its contact."""
        with self._lock:
            session.view = session.view._replace(last_contact=time.monotonic(), **fields)

    def num_present(self) -> int:
        """Returns the number of actors that keep a call open now."""
        with self._lock:
            return sum(session.is_present for session in self._current.values())

    def mark_told(self, name: str) -> None:
        """Notes that an actor knows that the run is over."""
        session = self._current.get(name)
        if session is not None:
            self.update(session, told_run_over=True)

    def release(self) -> None:
        """Ends all Attend calls."""
        for session in self._current.values():
            session.release()

    def views(self) -> list[ActorView]:
        """Returns all actors that are present or called in the last SHOWN_S seconds, by name."""
        now = time.monotonic()
        with self._lock:
            views = [
                session.view._replace(
                    # A push that waits for room in the queue counts as contact.
                    last_contact=now if session.pushing else session.view.last_contact,
                    is_present=session.is_present,
                )
                for session in self._current.values()
            ]
        return sorted(
            view for view in views if view.is_present or view.last_contact > now - SHOWN_S
        )
