"""The learner's port: opened, served, closed."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from concurrent import futures
from pathlib import Path

import grpc

from impala_tf.addresses import is_here
from impala_tf.config import ConfigError
from impala_tf.transport import credentials, impala_pb2_grpc
from impala_tf.transport.grpc_options import SERVER_OPTIONS
from impala_tf.transport.handshake import RunIdentity
from impala_tf.transport.parameter_store import ParameterStore
from impala_tf.transport.service import ActorView, LearnerService, PushReport
from impala_tf.types import Unroll

# Each waiting push holds a thread. Threads start on demand. The difference is reserved for other
# calls, so they always find a thread; pushes beyond the limit are told to retry.
_MAX_THREADS = 512
_MAX_WAITING_PUSHES = 448

_log = logging.getLogger("impala_tf.learner")


class LearnerServer:
    """Serves the actors of one learner over mutual TLS."""

    def __init__(
        self,
        address: str,
        credentials_dir: Path,
        run: RunIdentity,
        put: Callable[[Unroll], None],
        parameters: ParameterStore,
        on_push: Callable[[PushReport], None] | None = None,
        on_refused: Callable[[int], None] | None = None,
    ) -> None:
        """Binds the port; `start` serves it.

        Args:
          address: host:port or [IPv6]:port; port 0 takes a free port, see `port`.
          credentials_dir: as `credentials.ensure` creates it.
          run: what actors must agree with.
          put: takes a decoded unroll of read-only NumPy arrays [N, ...]. Called from many threads.
            Blocks while the queue is full, which makes the actor wait. Raises QueueClosed when the
            learner takes no more unrolls: the actor retries later or, after `finish`, ends. Raises
            RefusedUnroll if the learner does not train on it: the actor is told why.
          parameters: where the learner publishes. Actors wait until there is a first version.
          on_push: called once for every push that was put, from the threads that put.
          on_refused: called with the number of unrolls of every push that was refused.

        Raises: ConfigError if the port cannot be bound or the credentials cannot be used.
        """
        server_credentials = credentials.server_credentials(credentials_dir)
        self._service = LearnerService(
            run, put, parameters, on_push, _MAX_WAITING_PUSHES, on_refused
        )
        self._threads = futures.ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="serve")
        self._server = grpc.server(self._threads, options=SERVER_OPTIONS)
        impala_pb2_grpc.add_LearnerServicer_to_server(self._service, self._server)
        self.port = _bind(self._server, address, server_credentials)

    def start(self) -> None:
        """Starts to answer calls; returns at once."""
        self._server.start()

    def finish(self) -> None:
        """Answers every call with RUN_OVER from now on; `actors` shows which actors were told."""
        self._service.finish()

    def stop(self, grace_s: float) -> None:
        """Closes the port, gives running calls `grace_s` seconds, then cancels them.

        A `put` that still blocks is not interrupted: close the queue first.
        """
        self._server.stop(grace_s).wait()
        self._threads.shutdown(wait=False)

    def actors(self) -> list[ActorView]:
        """Returns every actor that called in the last 5 minutes, ordered by id."""
        return self._service.actors()


def _bind(server: grpc.Server, address: str, server_credentials: grpc.ServerCredentials) -> int:
    """Returns the port. gRPC reports failure by an exception or, in older versions, by port 0."""
    host, _, port = address.rpartition(":")
    if not is_here(host.strip("[]")):
        # Behind NAT, the address at which actors reach this machine is not its own.
        wildcard = f"[::]:{port}" if socket.has_dualstack_ipv6() else f"0.0.0.0:{port}"
        _log.info("%s is not an address of this machine; listening on all of its own", host)
        address = wildcard
    try:
        bound = server.add_secure_port(address, server_credentials)
    except RuntimeError as error:
        raise _cannot_listen(address) from error
    if bound == 0:
        raise _cannot_listen(address)
    return bound


def _cannot_listen(address: str) -> ConfigError:
    return ConfigError(
        f"--learner_hosts: cannot listen on {address}: another process holds the port"
    )
