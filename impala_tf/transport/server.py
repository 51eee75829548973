"""The learner's server: opens its port, serves calls and closes it."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio

from impala_tf.config import ConfigError
from impala_tf.config.addresses import split_host_port
from impala_tf.machine.addresses import is_here
from impala_tf.transport import credentials
from impala_tf.transport.codec import NestCodec
from impala_tf.transport.handshake import RunTerms
from impala_tf.transport.service import LearnerService
from impala_tf.transport.wire import MAX_HANDSHAKE_BYTES, METHODS, SERVER_OPTIONS, SERVICE

_log = logging.getLogger("impala_tf.learner")
Result = TypeVar("Result")


class LearnerServer:
    """Serves the actors of one learner over mutual TLS, from an event loop in its own thread.

    A waiting call occupies no thread, so neither many nor slow actors block others.
    """

    def __init__(self, address: str, credentials_dir: Path, service: LearnerService) -> None:
        """Binds the port; `start` serves it.

        Args:
          address: host:port or [IPv6]:port; port 0 takes a free port, see `port`.
          credentials_dir: the folder that `certificates.ensure` creates.
          service: answers the calls.

        Raises: ConfigError if the port cannot be bound or the credentials cannot be used.
        """
        server_credentials = credentials.server_credentials(credentials_dir)
        service.revoked = credentials.Revoked(credentials_dir)
        self.service = service
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="serve", daemon=True)
        self._thread.start()
        limit = ("grpc.max_receive_message_length", _max_message_bytes(service.terms))
        try:
            self._server = self._in_loop(self._make([*SERVER_OPTIONS, limit]))
            self.port = self._in_loop(_bind(self._server, address, server_credentials))
        except BaseException:
            self._end_loop()
            raise

    def start(self) -> None:
        """Starts answering calls; returns at once."""
        self._in_loop(self._server.start())

    def finish(self) -> None:
        """Answers every call with RUN_OVER from now on; `actors` shows which actors were told."""
        self._loop.call_soon_threadsafe(self.service.finish)

    def stop(self, grace_s: float) -> None:
        """Closes the port, gives running calls `grace_s` seconds, then cancels them.

        A `put` that still blocks is not interrupted: close the queue first.
        """
        if not self._thread.is_alive():
            return
        self._in_loop(self._stop(grace_s))
        self._end_loop()
        self.service.close()

    async def _make(self, options: list[tuple[str, int]]) -> grpc.aio.Server:
        server = grpc.aio.server(options=options)
        # Without serializers: the service takes and returns bytes.
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(getattr(self.service, name))
            for name in METHODS
        }
        service = grpc.method_handlers_generic_handler(SERVICE, handlers)
        server.add_generic_rpc_handlers((service,))
        return server

    async def _stop(self, grace_s: float) -> None:
        self.service.sessions.release()
        await self._server.stop(grace_s)

    def _in_loop(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


async def _bind(
    server: grpc.aio.Server, address: str, server_credentials: grpc.ServerCredentials
) -> int:
    """Binds the server to an address; returns the port."""
    host, port = split_host_port(address)
    if not is_here(host):
        # Behind NAT, the address at which actors reach this machine is not its own.
        wildcard = f"[::]:{port}" if socket.has_dualstack_ipv6() else f"0.0.0.0:{port}"
        _log.info("%s is not an address of this machine; listening on all of its own", host)
        address = wildcard
    try:
        return server.add_secure_port(address, server_credentials)
    except RuntimeError as error:
        raise ConfigError(
            f"--learner_hosts: cannot listen on {address}: another process holds the port (in a"
            " workers CSV: the learner's tf_port)"
        ) from error


def _max_message_bytes(terms: RunTerms) -> int:
    """Returns the size of the largest push that the handshake allows, with its episodes."""
    unroll_bytes = NestCodec(terms.sent_specs).nbytes
    return int(1.1 * terms.max_environments * unroll_bytes) + 4 * MAX_HANDSHAKE_BYTES
