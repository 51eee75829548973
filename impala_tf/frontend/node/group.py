"""Lets a learner wait for the other learners, and gives it Horovod's environment."""

from __future__ import annotations

import hashlib
import http.client
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from impala_tf.frontend.node.rendezvous import Address, RendezvousServer, StoreProxy, ask
from impala_tf.frontend.node.state import RankInfo
from impala_tf.machine.addresses import interface_of
from impala_tf.machine.supervision import Command, GiveUpError, ProcessState, SupervisedProcess

POLL_S = 0.5
PATIENCE_S = 600.0
"""How long learners wait for one that is missing: longer than a machine takes to boot."""
GLOO_TIMEOUT_S = 45
"""How long starting learners wait for each other, and how long a running one may be silent. If a
machine is lost, the group must end within a minute, so this is less than a minute."""
_GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
_REPORT_S = 60.0
HUNG_S = 60.0
"""A learner that still runs after the others have waited for this long hangs: it would have noticed
within GLOO_TIMEOUT_S that they have ended."""
ASK_S = 5.0


class Membership:
    """A learner's membership in the group of learners."""

    def __init__(
        self,
        rank_info: RankInfo,
        run_id: str,
        credentials: Path,
        log_event: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        patience_s: float = PATIENCE_S,
        hung_s: float = HUNG_S,
        ask_s: float = ASK_S,
    ) -> None:
        """For rank 0, starts the rendezvous server.

        Args:
          rank_info: the learner's position.
          run_id: of the run.
          credentials: the folder with learner.key, which only learners have.
          log_event: called with one line for people.
          clock: in seconds.
          patience_s: how long to wait for a learner that is missing.
          hung_s: a learner that runs on while the others wait for this long is killed.
          ask_s: how often to ask whether they do.

        Raises:
          OSError: if the port of the rendezvous or the key cannot be used.
        """
        self._rank_info = rank_info
        self._log_event = log_event
        self._clock = clock
        self._patience_s = patience_s
        self._hung_s = hung_s
        self._ask_s = ask_s
        secret = (credentials / "learner.key").read_bytes()
        key = hashlib.sha256(b"rendezvous " + run_id.encode() + b"\n" + secret).digest()
        self._rendezvous = Address(rank_info.hosts[0], rank_info.rendezvous_port, key)
        self._server: RendezvousServer | None = None
        if rank_info.rank == 0:
            self._server = RendezvousServer(self._rendezvous, rank_info.size)
        self._proxy = StoreProxy(self._rendezvous)
        self._closed = threading.Event()

    def gather(self, stopping: Callable[[], bool]) -> bool:
        """Waits until every learner is ready to start. Says every 60 s which ones are missing.

        Args:
          stopping: tells whether to give up waiting.

        Returns:
          True if the learner is to start, False if `stopping` said to give up.

        Raises:
          GiveUpError: if a learner has left, or has been missing for too long.
        """
        attempt = secrets.token_hex(8)
        start_s = logged_s = self._clock()
        while not stopping():
            missing = self._poll(attempt)
            if missing == "":
                return True
            waited_s = self._clock() - start_s
            if waited_s > self._patience_s:
                raise GiveUpError(f"waited {waited_s / 60:.0f} min for {missing}")
            if self._clock() - logged_s >= _REPORT_S:
                logged_s = self._clock()
                self._log_event(f"has waited {waited_s:.0f} s for {missing}")
            time.sleep(POLL_S)
        return False

    def watch(self, process: SupervisedProcess) -> None:
        """Kills the learner when the others have long been waiting to start again, and it runs on.

        One that hangs or is stopped does not notice that the group has ended. Returns at once.
        """
        threading.Thread(target=self._watch, args=(process,), daemon=True).start()

    def _watch(self, process: SupervisedProcess) -> None:
        while not self._closed.wait(self._ask_s) and not process.over:
            runs_s = time.time() - (process.state.started_unix_s or time.time())
            if process.state.state != "running" or runs_s < self._hung_s:
                continue
            try:
                answer = ask(self._rendezvous, "/waiting", {"rank": self._rank_info.rank})
            except (OSError, http.client.HTTPException):
                continue
            if answer["waiting_s"] > self._hung_s:
                others = f"the other learners have waited {answer['waiting_s']:.0f} s for it"
                self._log_event(f"learner-{self._rank_info.rank} hangs: {others}; killing it")
                process.kill()

    def reopen(self) -> None:
        """Lets the group start again after a member had left it."""
        if self._server is not None:
            self._server.gathering.reopen()

    def end(self, state: ProcessState) -> None:
        """Tells the others that this learner will not start again, if that is so."""
        if state.state not in ("refused", "failed"):
            return
        reason = f"learner-{self._rank_info.rank}: {state.detail}"
        if self._server is not None:
            self._server.gathering.leave(reason)
            return
        try:
            ask(self._rendezvous, "/leave", {"reason": reason})
        except (OSError, http.client.HTTPException) as error:
            self._log_event(f"could not tell the other learners: {error}")

    def close(self) -> None:
        """Stops the servers."""
        self._closed.set()
        self._proxy.close()
        if self._server is not None:
            self._server.close()

    def command(self, command: Command) -> Command:
        """Returns the learner's command, with what Horovod needs."""
        gloo = gloo_environment(self._rank_info, self._proxy.port)
        return command._replace(environment={**gloo, **command.environment})

    def _poll(self, attempt: str) -> str:
        """Returns which learners are missing; '' once all are ready."""
        message: dict[str, Any] = {"rank": self._rank_info.rank, "attempt": attempt}
        try:
            answer = ask(self._rendezvous, "/join", message)
        except (OSError, http.client.HTTPException) as error:
            host, port, _ = self._rendezvous
            return f"learner-0, which is unreachable at {host}:{port} ({error})"
        if answer["over"]:
            raise GiveUpError(f"the group of learners is over: {answer['over']}")
        if answer["go"]:
            return ""
        return ", ".join(f"learner-{rank}" for rank in answer["missing"]) or "the other learners"


def gloo_environment(rank_info: RankInfo, rendezvous_port: int) -> dict[str, str]:
    """Returns the variables for Horovod's Gloo controller, as horovod.runner.gloo_run sets them.

    Args:
      rank_info: the learner's position.
      rendezvous_port: where a store on this machine listens (see `StoreProxy`).
    """
    host = rank_info.hosts[rank_info.rank]
    found = {
        "HOROVOD_RANK": str(rank_info.rank),
        "HOROVOD_SIZE": str(rank_info.size),
        "HOROVOD_LOCAL_RANK": str(rank_info.local_rank),
        "HOROVOD_LOCAL_SIZE": str(rank_info.local_size),
        "HOROVOD_CROSS_RANK": str(rank_info.cross_rank),
        "HOROVOD_CROSS_SIZE": str(rank_info.cross_size),
        "HOROVOD_HOSTNAME": host,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(rendezvous_port),
        _GLOO_TIMEOUT: os.environ.get(_GLOO_TIMEOUT, str(GLOO_TIMEOUT_S)),
    }
    interface = interface_of(host)
    # Without this, Gloo listens on the address of the machine's host name, which is often loopback.
    return {**found, "HOROVOD_GLOO_IFACE": interface} if interface else found
