"""The learner's port: opened, served, closed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from pathlib import Path

import grpc

from impala_tf.config import ConfigError
from impala_tf.transport import credentials, impala_pb2_grpc
from impala_tf.transport.identity import RunIdentity
from impala_tf.transport.options import SERVER_OPTIONS
from impala_tf.transport.parameters import ParameterStore
from impala_tf.transport.service import ActorView, LearnerService, PushReport
from impala_tf.types import Unroll

# A push that waits holds a thread; they start on demand. The difference is for all other calls,
# which therefore always find one; the pushes of more actors are told to come again.
_MAX_THREADS = 512
_MAX_WAITING_PUSHES = 448


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
    ) -> None:
        """Binds the port; `start` serves it.

        Args:
          address: host:port or [IPv6]:port; port 0 takes a free one, see `port`.
          credentials_dir: as `credentials.ensure` makes it.
          run: what actors must agree with.
          put: takes a decoded unroll of read-only NumPy arrays [N, ...]. Called from many threads.
            Blocks while the queue is full, which holds the actor back; raises QueueClosed once the
            learner takes no more, which tells the actor to come again later, or after `finish` that
            the run is over.
          parameters: where the learner publishes.
          on_push: told of every push that was put, exactly once, from the threads that put.

        Raises: ConfigError if the port cannot be bound or the credentials cannot be used.
        """
        server_credentials = credentials.server_credentials(credentials_dir)
        self._service = LearnerService(run, put, parameters, on_push, _MAX_WAITING_PUSHES)
        self._threads = futures.ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="serve")
        self._server = grpc.server(self._threads, options=SERVER_OPTIONS)
        impala_pb2_grpc.add_LearnerServicer_to_server(self._service, self._server)
        self.port = _bind(self._server, address, server_credentials)

    def start(self) -> None:
        """Begins to answer; returns at once."""
        self._server.start()

    def finish(self) -> None:
        """From now on every call is answered RUN_OVER; `actors` shows who has been told."""
        self._service.finish()

    def stop(self, grace_s: float) -> None:
        """Closes the port, gives calls under way `grace_s` seconds, then cancels them.

        A `put` that still blocks is not interrupted: close the queue first.
        """
        self._server.stop(grace_s).wait()
        self._threads.shutdown(wait=False)

    def actors(self) -> list[ActorView]:
        """Returns what is known of every actor heard of in the last 5 min, ordered by id."""
        return self._service.actors()


def _bind(server: grpc.Server, address: str, server_credentials: grpc.ServerCredentials) -> int:
    """Returns the port; gRPC says that it failed by an exception or, in older versions, by 0."""
    try:
        port = server.add_secure_port(address, server_credentials)
    except RuntimeError as error:
        raise _cannot_listen(address) from error
    if port == 0:
        raise _cannot_listen(address)
    return port


def _cannot_listen(address: str) -> ConfigError:
    return ConfigError(
        f"--learner_hosts: cannot listen on {address}: another process holds the port, "
        "or it is not an address of this machine"
    )
