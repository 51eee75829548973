"""The learner's server: opens its port, serves actors and closes it."""

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
from impala_tf.machine.local_addresses import is_here
from impala_tf.transport import credentials
from impala_tf.transport.failures import QueueClosed
from impala_tf.transport.service import LearnerService
from impala_tf.transport.wire import METHOD, SERVER_OPTIONS, SERVICE

_log = logging.getLogger("impala_tf.learner")
Result = TypeVar("Result")


class LearnerServer:
    """Serves the actors of one learner over mutual TLS, from an event loop in its own thread.

    A stream occupies no thread, so neither many nor slow actors block others.
    """

    def __init__(self, address: str, credentials_dir: Path, service: LearnerService) -> None:
        """Binds the port; `start` serves it.

        Args:
          address: host:port or [IPv6]:port; port 0 takes a free port, see `port`.
          credentials_dir: the folder that `certificates.ensure` creates.
          service: answers the actors.

        Raises: ConfigError if the port cannot be bound or the credentials cannot be used.
        """
        server_credentials = credentials.server_credentials(credentials_dir)
        service.revoked = credentials.Revoked(credentials_dir)
        self.service = service
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="serve", daemon=True)
        self._thread.start()
        try:
            self._server, self.port = self._in_loop(self._bind(address, server_credentials))
        except BaseException:
            self._end_loop()
            raise

    def start(self) -> None:
        """Starts serving; returns at once."""
        self._in_loop(self._server.start())

    def finish(self) -> None:
        """Tells all actors that the run is over, from now on; see `Session.told_run_over`."""
        self._loop.call_soon_threadsafe(self.service.finish)

    def stop(self, grace_s: float) -> None:
        """Closes the port, gives open streams `grace_s` seconds to end, then cancels them.

        A `put` that still blocks is not interrupted: close the queue first.
        """
        if not self._thread.is_alive():
            return
        self._in_loop(self._stop(grace_s))
        self._end_loop()
        self.service.pushes.close()

    async def _bind(
        self, address: str, server_credentials: grpc.ServerCredentials
    ) -> tuple[grpc.aio.Server, int]:
        """Returns a server, and the port that it has bound."""
        server = grpc.aio.server(options=SERVER_OPTIONS)
        # Without serializers: the service takes and returns bytes.
        handlers = {METHOD: grpc.stream_stream_rpc_method_handler(self.service.Act)}
        service = grpc.method_handlers_generic_handler(SERVICE, handlers)
        server.add_generic_rpc_handlers((service,))
        host, port = split_host_port(address)
        if not is_here(host):
            # Behind NAT, the address at which actors reach this machine is not its own.
            _log.info("%s is not an address of this machine; listening on all of its own", host)
            address = f"[::]:{port}" if socket.has_dualstack_ipv6() else f"0.0.0.0:{port}"
        try:
            return server, server.add_secure_port(address, server_credentials)
        except RuntimeError as error:
            raise ConfigError(
                f"--learner_hosts: cannot listen on {address}: another process holds the port (in a"
                " workers CSV: the learner's tf_port)"
            ) from error

    async def _stop(self, grace_s: float) -> None:
        self.service.sessions.end(QueueClosed())  # the actors call again later
        await self._server.stop(grace_s)

    def _in_loop(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
