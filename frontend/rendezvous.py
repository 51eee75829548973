"""Where the learners of a group meet before each start, and exchange their addresses.

Horovod's Gloo controller finds its peers through a key-value store over HTTP, whose keys carry no
trace of which attempt they belong to: a learner that restarts early would meet the ghosts of the
attempt before. So the supervisors gather first. Each polls `join` while its learner is *not*
running; once all of them are there, no learner runs anywhere, the store is emptied, and all start.

Standard library only. Binds to learner 0's own address. The wire format of the store is that of
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
"""Who has not polled for so long is not waiting any more."""
_MAX_BYTES = 1 << 20


class Gathering:
    """Lets a group's members start together, attempt by attempt. Thread-safe."""

    def __init__(self, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`size`: members of the group."""
        self._size = size
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[str, float]] = {}
        self._released: set[str] = set()
        self._over = ""
        self.store: dict[str, bytes] = {}
        """path -> value, of the attempt under way."""

    def join(self, rank: int, attempt: str) -> dict[str, Any]:
        """Says that a member waits, and returns what it is to do.

        Args:
          rank: the member.
          attempt: a name of this start of it that no other start has.

        Returns:
          {"go": bool, "over": reason or "", "missing": ranks that are not here}.
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
        """Says that a member will not come any more, which ends the group."""
        with self._lock:
            self._over = self._over or reason


class RendezvousServer:
    """Serves a Gathering and its store until closed."""

    def __init__(self, host: str, port: int, run_id: str, size: int) -> None:
        """Binds to host:port. Raises OSError where that cannot be."""
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
        """A client that hangs up in the middle harms nobody and is told nothing."""


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
        self._answer(200)  # The store is emptied when the next attempt begins.

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
            raise ValueError(f"a body of {length} bytes")
        return self.rfile.read(length)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """The store is polled many times a second; nobody wants to read that."""


def ask(host: str, port: int, path: str, message: dict[str, Any]) -> dict[str, Any]:
    """Sends `message` to a RendezvousServer and returns its answer.

    Raises: OSError or http.client.HTTPException where it cannot be reached.
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
