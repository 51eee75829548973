"""The learner's port: opened, served, closed."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent import futures
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio

from impala_tf.addresses import is_here
from impala_tf.config import ConfigError
from impala_tf.transport import credentials
from impala_tf.transport.codec import NestCodec
from impala_tf.transport.grpc_options import MAX_HANDSHAKE_BYTES, SERVER_OPTIONS
from impala_tf.transport.handshake import RunIdentity
from impala_tf.transport.inference import Infer
from impala_tf.transport.parameter_store import ParameterStore
from impala_tf.transport.service import ActorView, LearnerService, Networks, PushReport

# Decode unrolls and wait for room in the queue; the other pushes wait for them, in their order.
_WORKERS = 8
# Of the machine's memory, for pushes that wait. Pushes beyond it are told to retry.
_WAITING_SHARE = 0.25
_METHODS = ("Handshake", "Attend", "GetParameters", "GetNetwork", "Infer", "PushUnroll", "Report")

_log = logging.getLogger("impala_tf.learner")
Result = TypeVar("Result")


class LearnerServer:
    """Serves the actors of one learner over mutual TLS, from an event loop in its own thread.

    A call that waits holds no thread: neither many actors nor slow ones keep others from being
    answered.
    """

    def __init__(
        self,
        address: str,
        credentials_dir: Path,
        run: RunIdentity,
        put: Callable[[Any], None],
        parameters: ParameterStore,
        on_push: Callable[[PushReport], None] | None = None,
        on_refused: Callable[[int], None] | None = None,
        parameter_lag: int = 1,
        infer: Infer | None = None,
        networks: Networks | None = None,
        least_grants: int | None = None,
        run_steps: int = 0,
        on_stale: Callable[[PushReport], None] | None = None,
    ) -> None:
        """Binds the port; `start` serves it.

        Args:
          address: host:port or [IPv6]:port; port 0 takes a free port, see `port`.
          credentials_dir: as `certificates.ensure` creates it.
          run: what actors must agree with.
          put: takes a decoded unroll of read-only NumPy arrays [N, ...]. Called from several
            threads. Blocks while the queue is full, which makes the actor wait. Raises QueueClosed
            when the learner takes no more unrolls: the actor retries later or, after `finish`,
            ends. Raises RefusedUnroll if the learner does not train on it: the actor is told why.
            Raises StaleUnroll if it learns from newer parameters only: the actor fetches those.
          parameters: where the learner publishes. Actors wait until there is a first version.
          on_push: called once for every push that was put, from the threads that put.
          on_refused: called with the number of unrolls of every push that was refused.
          parameter_lag: parameters that are fewer updates old than this are new enough.
          infer: chooses actions for actors, see `inference.Infer`; None: they do it themselves.
          networks: converts the network for actors that run it without TensorFlow, see
            `service.Networks`; None: they have their own.
          least_grants: so many unrolls may always be in the making; how many more depends on how
            long they wait for room in the queue, see `grants`. None: any number.
          run_steps: agent steps that the run has now, see `handshake.Start`.
          on_stale: called for every push that was stale, from the threads that put.

        Raises: ConfigError if the port cannot be bound or the credentials cannot be used.
        """
        server_credentials = credentials.server_credentials(credentials_dir)
        self._workers = futures.ThreadPoolExecutor(_WORKERS, thread_name_prefix="put")
        self._service = LearnerService(
            run,
            put,
            parameters,
            self._workers,
            _max_waiting_bytes(),
            parameter_lag,
            credentials.Revoked(credentials_dir),
            on_push,
            on_refused,
            infer,
            networks,
            least_grants,
            run_steps,
            on_stale,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="serve", daemon=True)
        self._thread.start()
        limit = ("grpc.max_receive_message_length", _max_message_bytes(run))
        try:
            self._server = self._in_loop(self._make([*SERVER_OPTIONS, limit]))
            self.port = self._in_loop(_bind(self._server, address, server_credentials))
        except BaseException:
            self._end_loop()
            raise

    def start(self) -> None:
        """Starts to answer calls; returns at once."""
        self._in_loop(self._server.start())

    def finish(self) -> None:
        """Answers every call with RUN_OVER from now on; `actors` shows which actors were told."""
        self._loop.call_soon_threadsafe(self._service.finish)

    def stop(self, grace_s: float) -> None:
        """Closes the port, gives running calls `grace_s` seconds, then cancels them.

        A `put` that still blocks is not interrupted: close the queue first.
        """
        if not self._thread.is_alive():
            return
        self._in_loop(self._stop(grace_s))
        self._end_loop()
        self._workers.shutdown(wait=False)

    def actors(self) -> list[ActorView]:
        """Returns every actor that called in the last 5 minutes, ordered by id."""
        return self._service.actors()

    def last_refusal(self) -> str:
        """Returns which actor was refused last, and why; '' if none was in the last minute."""
        return self._service.last_refusal()

    def num_acting(self) -> int:
        """Returns how many live actors do not wait for the learner's next update."""
        return self._service.num_acting()

    async def _make(self, options: list[tuple[str, int]]) -> grpc.aio.Server:
        server = grpc.aio.server(options=options)
        # Without serializers: the service takes and returns bytes.
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(getattr(self._service, name))
            for name in _METHODS
        }
        service = grpc.method_handlers_generic_handler("impala.Learner", handlers)
        server.add_generic_rpc_handlers((service,))
        return server

    async def _stop(self, grace_s: float) -> None:
        self._service.sessions.release()
        await self._server.stop(grace_s)

    def _in_loop(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


async def _bind(
    server: grpc.aio.Server, address: str, server_credentials: grpc.ServerCredentials
) -> int:
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


def _max_message_bytes(run: RunIdentity) -> int:
    """The largest unroll that the handshake admits, with room for its episodes."""
    unroll_bytes = NestCodec(run.unroll_specs).nbytes
    return int(1.1 * run.max_environments * unroll_bytes) + 4 * MAX_HANDSHAKE_BYTES


def _max_waiting_bytes() -> int:
    return int(_WAITING_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _cannot_listen(address: str) -> ConfigError:
    return ConfigError(
        f"--learner_hosts: cannot listen on {address}: another process holds the port"
    )
