"""Lets a learner wait for the other learners, and gives it Horovod's environment."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from impala_tf.cluster.node import gathering
from impala_tf.cluster.node.gathering import LEADER, Gathering
from impala_tf.cluster.node.rendezvous import Address, Client, RendezvousServer, StoreProxy
from impala_tf.cluster.node.state import GroupInfo
from impala_tf.machine.local_addresses import interface_of
from impala_tf.machine.supervision import GiveUpError, Members, ProcessState, SupervisedProcess

GLOO_TIMEOUT_S = 45
"""How long starting learners wait for each other, and how long a running one may be silent. If a
machine is lost, the group must end within a minute, so this is less than a minute."""
_GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
POLL_S = 0.5
_REPORT_S = 60.0
_FAREWELL_S = 4 * POLL_S
"""How long learner 0's supervisor, when done, keeps telling waiting learners that the run ended."""


class Membership:
    """A learner's membership in the group of learners."""

    def __init__(
        self,
        group: GroupInfo,
        run_id: str,
        credentials: Path,
        log_event: Callable[[str], None],
        has_trained: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """For learner 0, starts the rendezvous server.

        Args:
          group: the learner's place among all learners.
          run_id: the run's id.
          credentials: the folder with LEARNER_FILES.
          log_event: called with a line for the log.
          has_trained: whether an earlier supervisor has started this learner.
          clock: returns the time in seconds.

        Raises:
          OSError: the rendezvous port or the key cannot be used.
        """
        self._group = group
        self._name = f"learner-{group.number}"
        self._log_event = log_event
        self._clock = clock
        rendezvous = Address(group.hosts[LEADER], group.rendezvous_port, run_id, credentials)
        self._server: RendezvousServer | None = None
        if group.number == LEADER:
            size = len(group.hosts)
            learners = Gathering(size, group.min_learners, has_trained, clock)
            self._server = RendezvousServer(rendezvous, learners)
        self._client = Client(rendezvous)
        self._proxy = StoreProxy(rendezvous)
        self._attempt = ""
        self._members = Members(())
        self._was_member = has_trained
        self._lost_leader = False
        self._closed = threading.Event()

    def gather(self, stopping: Callable[[], bool]) -> bool:
        """Waits until the learner may start. Every 60 s, logs which learners are missing.

        Args:
          stopping: tells whether to give up waiting.

        Returns:
          True if the learner may start; False if `stopping` returned True, or the run has ended.

        Raises:
          GiveUpError: a learner has failed for good, or too few learners have come for too long.
        """
        attempt = secrets.token_hex(8)
        start_s = logged_s = self._clock()
        lost_s: float | None = None  # when learner 0 became unreachable
        while not stopping():
            try:
                answer = self._ask("join", attempt)
            except OSError as error:
                lost_s = self._clock() if lost_s is None else lost_s
                missing = self._leader_is_unreachable(error, lost_s)
            else:
                lost_s = None
                if answer["over"]:
                    raise GiveUpError(f"the group of learners is over: {answer['over']}")
                if answer["done"]:
                    self._log_event(f"{self._name}: the run has ended")
                    return False
                if answer["group"] is not None:
                    self._enter(answer["group"], attempt)
                    return True
                missing = _names(answer["missing"]) or "the other learners"
            if self._clock() - logged_s >= _REPORT_S:
                logged_s = self._clock()
                self._log_event(f"has waited {logged_s - start_s:.0f} s for {missing}")
            time.sleep(POLL_S)
        return False

    def environment(self) -> dict[str, str]:
        """Returns the variables of the learner: what Horovod needs, and who trains with it."""
        own = gloo_environment(self._group, self._members.numbers, self._proxy)
        return own | self._members.variables()

    def watch(self, process: SupervisedProcess) -> None:
        """Asks about the other learners while this one runs, in a thread.

        Kills this learner if it hangs or is stopped, and so does not notice that its group has
        ended. Learner 0 ends the group when a lost learner has returned.
        """
        threading.Thread(target=self._watch, args=(process,), daemon=True).start()

    def _watch(self, process: SupervisedProcess) -> None:
        while not self._closed.wait(gathering.ASK_S) and not process.over:
            attempt = self._attempt
            try:
                answer = self._ask("watch", attempt)
            except OSError:
                continue
            if process.state.state != "running" or attempt != self._attempt:
                continue
            waiting_s, hung_s = answer["waiting_s"], gathering.HUNG_S
            if answer["outdated"]:
                self._log_event(f"{self._name} hangs: the others have started without it")
                process.kill()
            elif waiting_s > hung_s and process.runs_s >= hung_s:
                self._log_event(f"{self._name} hangs: the others have waited {waiting_s:.0f} s")
                process.kill()
            elif answer["returned"] and process.regroup():
                self._log_event(f"{_names(answer['returned'])} is back: the group starts again")

    def reopen(self) -> None:
        """Lets the group start again after a member has left it."""
        if self._server is not None:
            self._server.gathering.reopen()

    def end(self, state: ProcessState) -> None:
        """Tells the other learners if this one will not restart."""
        if state.state == "finished" and self._server is not None:
            self._server.gathering.finish()
            time.sleep(_FAREWELL_S)
        if state.state in ("refused", "failed") and not self._lost_leader:
            try:
                self._client.ask("leave", reason=f"{self._name}: {state.detail}")
            except OSError as error:
                self._log_event(f"could not tell the other learners: {error}")

    def close(self) -> None:
        """Stops the servers."""
        self._closed.set()
        self._proxy.close()
        if self._server is not None:
            self._server.close()

    def _ask(self, method: str, attempt: str) -> dict[str, Any]:
        answer: dict[str, Any]
        answer = self._client.ask(method, number=self._group.number, attempt=attempt)
        return answer

    def _enter(self, group: dict[str, Any], attempt: str) -> None:
        """Stores who trains together, from the answer of `Gathering.join`."""
        now = time.time()
        away = {int(number): now - away_s for number, away_s in group["away"].items()}
        self._members = Members(tuple(group["members"]), away)
        self._proxy.group = group["name"]
        self._attempt = attempt
        self._was_member = True
        if away:
            self._log_event(
                f"{_names(self._members.numbers)} of {len(self._group.hosts)} learners start"
                f" without {_names(away)}"
            )

    def _leader_is_unreachable(self, error: Exception, since_s: float) -> str:
        """Returns what this learner waits for. Raises GiveUpError if waiting is useless."""
        place = f"{self._group.hosts[LEADER]}:{self._group.rendezvous_port}"
        text = f"learner-0, which is unreachable at {place} ({error})"
        # A network that was down for hours may be repaired; then this learner joins the group
        # again. But if learner 0's machine refuses the connection, the run has probably ended.
        may_return = self._was_member and not isinstance(error, ConnectionRefusedError)
        waited_s = self._clock() - since_s
        if waited_s > gathering.PATIENCE_S and not may_return:
            self._lost_leader = True  # learner 0 may train with the others, so the group continues
            raise GiveUpError(f"waited {waited_s / 60:.0f} min for {text}")
        return text


def _names(numbers: Iterable[int]) -> str:
    return ", ".join(f"learner-{number}" for number in numbers)


def gloo_environment(group: GroupInfo, members: Sequence[int], store: StoreProxy) -> dict[str, str]:
    """Returns the variables for Horovod's Gloo controller, as horovod.runner.gloo_run sets them.

    Args:
      group: the learner, which is one of the members.
      members: the numbers of the learners that train together, in ascending order.
      store: the store on this machine.
    """
    nodes = [group.nodes[number] for number in members]
    rank = members.index(group.number)
    node, local_rank = nodes[rank], nodes[:rank].count(nodes[rank])
    # The machines that have a member with this local rank.
    peers = [peer for peer in dict.fromkeys(nodes) if nodes.count(peer) > local_rank]
    host = group.hosts[group.number]
    variables = {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(len(members)),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(nodes.count(node)),
        "HOROVOD_CROSS_RANK": str(peers.index(node)),
        "HOROVOD_CROSS_SIZE": str(len(peers)),
        "HOROVOD_HOSTNAME": host,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": store.address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(store.port),
        _GLOO_TIMEOUT: os.environ.get(_GLOO_TIMEOUT, str(GLOO_TIMEOUT_S)),
    }
    interface = interface_of(host)
    # By default, Gloo listens on the address of the machine's host name, which is often loopback.
    return {**variables, "HOROVOD_GLOO_IFACE": interface} if interface else variables
