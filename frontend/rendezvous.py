"""The rendezvous of a group of learners: they start together and exchange their addresses here.

Horovod's Gloo controller finds its peers through a key-value store over HTTP. The store's keys do
not say which attempt they belong to, so a learner that restarts early would find stale addresses of
the previous attempt. Therefore the supervisors gather first. Each of them polls `join` while its
learner is *not* running. Once all of them do, no learner is running anywhere, so the store is
emptied and all learners start.

Standard library only. Binds to learner 0's own address. The store speaks the protocol of
horovod.runner.http.http_server (0.28.1): GET, PUT and DELETE of /scope/key.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_FRESH_S = 10.0
"""A member that has not polled for this long is no longer waiting."""
_MAX_BYTES = 1 << 20


class Gathering:
    """Lets the members of a group start together, attempt after attempt. Thread-safe."""

    def __init__(self, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`size`: the number of members."""
        self._size = size
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[str, float]] = {}
        self._released: set[str] = set()
        self._over = ""
        self.store: dict[str, bytes] = {}
        """{path: value} of the current attempt."""

    def join(self, rank: int, attempt: str) -> dict[str, Any]:
        """Registers a waiting member, and returns what it is to do.

        Args:
          rank: of the member.
          attempt: a unique name of this start of the member.

        Returns:
          {"go": whether to start, "over": why the group is over, or "", "missing": ranks of the
          members that are not waiting}.
        """
        with self._lock:
            now = self._clock()
            if attempt not in self._released:
                self._waiting[rank] = attempt, now
            here = {r: a for r, (a, at) in self._waiting.items() if now - at < _FRESH_S}
            if len(here) == self._size:
                self._released = set(here.values())
                self._waiting.clear()
                self.store.clear()
            return {
                "go": attempt in self._released,
                "over": self._over,
                "missing": [r for r in range(self._size) if r not in here],
            }

    def leave(self, reason: str) -> None:
        """Ends the group, because a member will not start again. The first reason counts."""
        with self._lock:
            self._over = self._over or reason


class RendezvousServer:
    """Serves a Gathering and its store until it is closed."""

    def __init__(self, host: str, port: int, run_id: str, size: int) -> None:
        """Binds to host:port. Raises OSError if that fails."""
        self.gathering = Gathering(size)
        handler = type("Handler", (_Handler,), {"gathering": self.gathering, "run_id": run_id})
        self._server = _Server((host, port), handler)
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
        self.address_family = found[0][0]
        super().__init__(found[0][4][:2], handler)  # type: ignore[arg-type]

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that hang up in the middle of a request."""


class _Handler(BaseHTTPRequestHandler):
    gathering: Gathering
    run_id: str
    timeout = 30

    def do_GET(self) -> None:
        value = self.gathering.store.get(self.path)
        self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        self.gathering.store[self.path] = self._body()
        self._answer(200)

    def do_DELETE(self) -> None:
        self._answer(200)  # The store is emptied when the next attempt starts.

    def do_POST(self) -> None:
        message = json.loads(self._body())
        if message.get("run_id") != self.run_id:
            self._answer(403)
        elif self.path == "/join":
            answer = self.gathering.join(int(message["rank"]), str(message["attempt"]))
            self._answer(200, json.dumps(answer).encode())
        else:
            self.gathering.leave(str(message["reason"]))
            self._answer(200)

    def _body(self) -> bytes:
        length = int(self.headers.get("Content-Length", 0))
        if not 0 <= length <= _MAX_BYTES:
            raise ValueError(f"body of {length} bytes; at most {_MAX_BYTES} are allowed")
        return self.rfile.read(length)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing: the store is polled many times a second."""


def ask(host: str, port: int, path: str, message: dict[str, Any]) -> dict[str, Any]:
    """Sends `message` to a RendezvousServer and returns its answer.

    Raises:
      OSError: if the server is unreachable or serves another run.
      http.client.HTTPException: if what answers does not speak HTTP.
    """
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("POST", path, json.dumps(message).encode())
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise ConnectionRefusedError(f"{host}:{port} serves another run")
        return json.loads(body) if body else {}
    finally:
        connection.close()
