"""The rendezvous of a group of learners, where they exchange their addresses at a start.

Horovod's Gloo controller finds its peers through a key-value store over HTTP. The store's keys do
not say which attempt they belong to, so a learner that restarts early would find stale addresses of
the previous attempt. Therefore the supervisors gather first (see `gathering`). Each attempt has a
name and a new, empty store, which learners of other attempts cannot use.

Learner 0's supervisor serves both with gRPC and a learner's TLS certificate; callers prove with a
token that they have a learner's key. Horovod's client can do neither, so each supervisor runs a
`StoreProxy` on its machine's loopback. Other users do not know the proxy's path.

The proxy speaks the protocol of horovod.runner.http.http_server (0.28.1): GET, PUT and DELETE of
/scope/key.
"""

from __future__ import annotations

import errno
import hmac
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from impala_tf.cluster.node.gathering import Gathering
from impala_tf.config.addresses import host_port
from impala_tf.machine.certificates import LEARNER_NAME
from impala_tf.machine.local_addresses import is_here

_SERVICE = "impala.Rendezvous"
_MAX_BODY_BYTES = 1 << 16
_REQUEST_S = 5.0
_THREADS = 16
_OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel does not wait for an earlier one's turn
    ("grpc.max_receive_message_length", 4 * _MAX_BODY_BYTES),
    ("grpc.server_handshake_timeout_ms", 10_000),
]


class Address(NamedTuple):
    """Where the rendezvous of a run is, and what proves that one may take part."""

    host: str
    port: int
    run_id: str
    credentials: Path
    """The folder with LEARNER_FILES of `certificates`, which only the run's learners have."""

    @property
    def token(self) -> str:
        """What callers send. Raises OSError if the learner's key cannot be read."""
        key = (self.credentials / "learner.key").read_bytes()
        return hmac.new(key, f"rendezvous {self.run_id}".encode(), "sha256").hexdigest()


class RendezvousServer:
    """Serves a Gathering and its store until it is closed."""

    def __init__(self, address: Address, gathering: Gathering) -> None:
        """Listens. Raises OSError if the address or the credentials cannot be used.

        The addresses of callers do not matter: learners behind NAT, in a tunnel or with several
        interfaces send from another one than their `ip`.

        Args:
          address: if the host is not this machine's own, because of NAT, binds to all addresses.
          gathering: answers the learners.
        """
        self.gathering = gathering
        self._token = address.token
        key, certificate = (
            (address.credentials / name).read_bytes() for name in ("learner.key", "learner.pem")
        )
        methods = (gathering.join, gathering.watch, gathering.leave, gathering.put, gathering.value)
        handlers = {
            method.__name__: grpc.unary_unary_rpc_method_handler(self._answering(method))
            for method in methods
        }
        self._server = grpc.server(ThreadPoolExecutor(_THREADS), options=_OPTIONS)
        service = grpc.method_handlers_generic_handler(_SERVICE, handlers)
        self._server.add_generic_rpc_handlers((service,))
        host = address.host if is_here(address.host) else "0.0.0.0"
        try:
            self._server.add_secure_port(
                host_port(host, address.port), grpc.ssl_server_credentials([(key, certificate)])
            )
        except RuntimeError:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)) from None
        self._server.start()

    def close(self) -> None:
        """Stops serving."""
        self._server.stop(0).wait()

    def _answering(
        self, method: Callable[..., Any]
    ) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            token = str(dict(context.invocation_metadata()).get("token", ""))
            if not hmac.compare_digest(token.encode(), self._token.encode()):
                context.abort(grpc.StatusCode.PERMISSION_DENIED, "not a learner of this run")
            return json.dumps(method(**json.loads(request))).encode()

        return answer


class Client:
    """Asks a RendezvousServer. Thread-safe."""

    def __init__(self, address: Address) -> None:
        """Connects when it is first used. Raises OSError if the credentials cannot be read."""
        self._address = address
        self._token = address.token
        self._ca = (address.credentials / "ca.pem").read_bytes()
        self._channel: grpc.Channel | None = None

    def ask(self, method: str, **message: Any) -> Any:
        """Calls a method of the `Gathering`; returns its answer.

        Raises:
          ConnectionRefusedError: nobody listens there, or not for this run.
          OSError: the server is unreachable.
        """
        host, port, *_ = self._address
        channel = self._channel
        if channel is None:
            options = [*_OPTIONS, ("grpc.ssl_target_name_override", LEARNER_NAME)]
            channel = self._channel = grpc.secure_channel(
                host_port(host, port), grpc.ssl_channel_credentials(self._ca), options
            )
        call = channel.unary_unary(f"/{_SERVICE}/{method}", None, None)
        request, metadata = json.dumps(message).encode(), (("token", self._token),)
        try:
            return json.loads(call(request, timeout=_REQUEST_S, metadata=metadata))
        except grpc.RpcError as error:
            self._channel = None  # the next call connects again, at once
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                raise TimeoutError("timed out") from None
            socket.create_connection((host, port), timeout=_REQUEST_S).close()
            raise ConnectionRefusedError(
                f"{host}:{port} serves another run ({error.details()})"
            ) from None


class StoreProxy:
    """Lets this machine's learner use the store of the rendezvous.

    Attributes:
      group: the name of the group that the learner is in.
      address: the address for HOROVOD_GLOO_RENDEZVOUS_ADDR. Horovod puts it before :PORT/SCOPE/KEY,
        so a path in it becomes that of all requests: it has a secret.
    """

    def __init__(self, rendezvous: Address) -> None:
        """Listens on a free port of 127.0.0.1. Raises OSError."""
        self.group = ""
        handler = type("Proxy", (_ProxyHandler,), {"client": Client(rendezvous), "proxy": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.port: int = self._server.server_address[1]
        secret = secrets.token_hex(16)
        self.address = f"127.0.0.1:{self.port}/{secret}"
        self.path = f"/{secret}:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that hang up in the middle of a request."""


class _ProxyHandler(BaseHTTPRequestHandler):
    timeout = 30
    client: Client
    proxy: StoreProxy

    def do_GET(self) -> None:
        own, length = self.proxy.path.encode(), len(self.proxy.path)
        body_bytes = int(self.headers.get("Content-Length", 0))
        is_own = hmac.compare_digest(self.path[:length].encode(), own)
        if not is_own or not 0 <= body_bytes <= _MAX_BODY_BYTES:
            return self._answer(403)
        place = {"group": self.proxy.group, "path": self.path[length:]}
        body = self.rfile.read(body_bytes).decode("latin-1")
        try:
            if self.command == "GET":
                value = self.client.ask("value", **place)
                return self._answer(404 if value is None else 200, value or "")
            if self.command == "PUT" and not self.client.ask("put", **place, value=body):
                return self._answer(507)
        except OSError:
            return self._answer(502)
        return self._answer(200)  # the next attempt starts with an empty store: nothing to DELETE

    do_PUT = do_DELETE = do_GET  # noqa: N815

    def _answer(self, status: int, body: str = "") -> None:
        content = body.encode("latin-1")
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing: the store is polled many times a second."""
