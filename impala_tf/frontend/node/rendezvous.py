"""The rendezvous of a group of learners, where they exchange their addresses at a start.

Horovod's Gloo controller finds its peers through a key-value store over HTTP. The store's keys do
not say which attempt they belong to, so a learner that restarts early would find stale addresses of
the previous attempt. Therefore the supervisors gather first (see `gathering`). Each attempt has a
name and a new, empty store, which learners of other attempts cannot use.

Every request is signed with a key that only the run's learners have, together with a number that
the server has given this connection for one request: a recorded request does not work again.
Horovod's client cannot sign, so each supervisor runs a `StoreProxy` on its machine's loopback,
which signs and forwards, and adds the attempt's name. Other users do not know the proxy's path.

Standard library only. The store speaks the protocol of horovod.runner.http.http_server (0.28.1):
GET, PUT and DELETE of /scope/key.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import http.client
import json
import secrets
import socket
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, cast

from impala_tf.frontend.node.gathering import Gathering

_MAX_BODY_BYTES = 1 << 16
_REQUEST_S = 5.0
MAX_UNSIGNED = 256
"""How many connections without a signed request may be open; each takes a thread."""
_SIGNATURE, _NONCE = "X-Signature", "/nonce"
_GROUP = "/group-"


class Address(NamedTuple):
    """Where the rendezvous is, and the key for it."""

    host: str
    port: int
    key: bytes


class RendezvousServer:
    """Serves a Gathering and its store until it is closed."""

    def __init__(self, address: Address, gathering: Gathering) -> None:
        """Binds to the address. Raises OSError if that fails.

        Only the signature of a request decides who may take part, not its address: learners behind
        NAT, in a tunnel or with several interfaces send from another address than their `ip`.

        Args:
          address: if the host is not this machine's own, because of NAT, binds to all addresses.
          gathering: answers the learners.
        """
        self.gathering = gathering
        settings = {"gathering": gathering, "key": address.key}
        handler = type("Handler", (_RendezvousHandler,), settings)
        try:
            self._server = _Server((address.host, address.port), handler)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            self._server = _Server(("0.0.0.0", address.port), handler)
        self.close = self._server.close


class StoreProxy:
    """Signs the requests of this machine's learner and forwards them to the rendezvous.

    Attributes:
      group: the name of the group that the learner is in.
      address: the address for HOROVOD_GLOO_RENDEZVOUS_ADDR. Horovod puts it before :PORT/SCOPE/KEY,
        so a path in it becomes that of all requests: it has a secret.
    """

    def __init__(self, rendezvous: Address) -> None:
        """Listens on a free port of 127.0.0.1."""
        self.group = ""
        handler = type("Proxy", (_ProxyHandler,), {"rendezvous": rendezvous, "proxy": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.port: int = self._server.server_address[1]
        secret = secrets.token_hex(16)
        self.address = f"127.0.0.1:{self.port}/{secret}"
        self.path = f"/{secret}:{self.port}"
        self.close = self._server.close


def ask(rendezvous: Address, path: str, message: dict[str, Any]) -> dict[str, Any]:
    """Posts `message` to a RendezvousServer and returns its answer.

    Raises:
      OSError: the server is unreachable or has another key.
      http.client.HTTPException: the server does not speak HTTP.
    """
    status, body = _request(rendezvous, "POST", path, json.dumps(message).encode())
    if status != 200:
        raise ConnectionRefusedError(
            f"{rendezvous.host}:{rendezvous.port} serves another run (status {status})"
        )
    return json.loads(body) if body else {}


def _request(rendezvous: Address, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(rendezvous.host, rendezvous.port, timeout=_REQUEST_S)
    try:
        connection.request("GET", _NONCE)
        nonce = connection.getresponse().read(_MAX_BODY_BYTES)
        signature = _signature(rendezvous.key, nonce, method, path, body)
        connection.request(method, path, body, {_SIGNATURE: signature})
        answer = connection.getresponse()
        return answer.status, answer.read(_MAX_BODY_BYTES + 1)
    finally:
        connection.close()


def _signature(key: bytes, nonce: bytes, method: str, path: str, body: bytes) -> str:
    text = nonce + f" {method} {path}\n".encode() + body
    return hmac.new(key, text, hashlib.sha256).hexdigest()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # with the default, 5, learners that start together wait for seconds

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._lock = threading.Lock()
        self._unsigned: dict[socket.socket, str] = {}  # {connection: host}, the oldest first
        candidates = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
        self.address_family = candidates[0][0]
        super().__init__(candidates[0][4][:2], handler)  # type: ignore[arg-type]
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()

    def close(self) -> None:
        """Stops serving."""
        self.shutdown()
        self.server_close()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Hangs up on a connection without a signed request, if there are too many.

        It is the oldest of the address that has the most. So strangers can neither exhaust this
        machine's threads nor keep a learner out.
        """
        with self._lock:
            self._unsigned[request] = client_address[0]
            if len(self._unsigned) > MAX_UNSIGNED:
                ((most, _),) = Counter(self._unsigned.values()).most_common(1)
                oldest = next(each for each, host in self._unsigned.items() if host == most)
                del self._unsigned[oldest]
                with contextlib.suppress(OSError):  # the connection has just ended
                    oldest.shutdown(socket.SHUT_RDWR)
        return True

    def trust(self, request: Any) -> None:
        """Remembers that a learner has opened this connection."""
        with self._lock:
            self._unsigned.pop(request, None)

    def shutdown_request(self, request: Any) -> None:
        """Called when a connection ends."""
        self.trust(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that hang up in the middle of a request."""


class _Handler(BaseHTTPRequestHandler):
    timeout = 30

    def _body(self) -> bytes:
        length = int(self.headers.get("Content-Length", 0))
        if not 0 <= length <= _MAX_BODY_BYTES:
            raise ValueError(f"body of {length} bytes; at most {_MAX_BODY_BYTES} are allowed")
        return self.rfile.read(length)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing: the store is polled many times a second."""


class _RendezvousHandler(_Handler):
    protocol_version = "HTTP/1.1"  # the request with a nonce comes over the same connection
    gathering: Gathering
    key: bytes
    nonce = b""

    def do_GET(self) -> None:
        if self.path == _NONCE:
            self._body()
            self.nonce = secrets.token_hex(16).encode()
            self._answer(200, self.nonce)
        elif self._checked_body() is not None:
            value = self.gathering.value(*self._group_and_path())
            self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        body = self._checked_body()
        if body is not None:
            try:
                self.gathering.put(*self._group_and_path(), body)
            except ValueError:
                return self._answer(507)
            self._answer(200)
        return None

    def do_DELETE(self) -> None:
        if self._checked_body() is not None:
            self._answer(200)  # the next attempt starts with an empty store anyway

    def do_POST(self) -> None:
        body = self._checked_body()
        if body is None:
            return
        message = json.loads(body)
        if self.path in ("/join", "/watch"):
            method = getattr(self.gathering, self.path[1:])
            answer = method(int(message["learner"]), str(message["attempt"]))
            self._answer(200, json.dumps(answer).encode())
        elif self.path == "/leave":
            self.gathering.leave(str(message["reason"]))
            self._answer(200)
        else:
            self._answer(404)

    def _group_and_path(self) -> tuple[str, str]:
        group, _, path = self.path.removeprefix(_GROUP).partition("/")
        return group, f"/{path}"

    def _checked_body(self) -> bytes | None:
        """Returns the body, or refuses the request and returns None."""
        body = self._body()
        nonce, self.nonce = self.nonce, b""
        expected = _signature(self.key, nonce, self.command, self.path, body)
        if not nonce or not hmac.compare_digest(self.headers.get(_SIGNATURE, ""), expected):
            self._answer(403)
            return None
        cast(_Server, self.server).trust(self.request)
        return body


class _ProxyHandler(_Handler):
    rendezvous: Address
    proxy: StoreProxy

    def do_GET(self) -> None:
        try:
            body = self._body()
            own, length = self.proxy.path.encode(), len(self.proxy.path)
            if not hmac.compare_digest(self.path[:length].encode(), own):
                return self._answer(403)
            path = f"{_GROUP}{self.proxy.group}{self.path[length:]}"
            status, body = _request(self.rendezvous, self.command, path, body)
        except (OSError, http.client.HTTPException):
            status, body = 502, b""
        return self._answer(status, body)

    do_PUT = do_DELETE = do_GET  # noqa: N815
