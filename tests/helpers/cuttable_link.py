"""A TCP link that a test cuts: neither side hears of it, as when a cable is pulled."""

from __future__ import annotations

import select
import socket
import threading
import time


class CuttableLink:
    """Forwards a port until `cut`; then nothing passes, not even the end of a connection.

    Connections that were open when the link was cut stay dead after `heal`; new ones pass.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port: int = self._listener.getsockname()[1]
        self._is_cut = threading.Event()
        self._closed = threading.Event()
        self._dead: list[socket.socket] = []
        self._passed_at = time.monotonic()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def idle_s(self) -> float:
        """How long nothing has passed."""
        return time.monotonic() - self._passed_at

    def cut(self) -> None:
        """Nothing passes from here on."""
        self._is_cut.set()

    def heal(self) -> None:
        """New connections pass again."""
        self._is_cut.clear()

    def close(self) -> None:
        """Closes everything."""
        self._closed.set()
        self._listener.close()
        for each in self._dead:
            each.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut.is_set():
                self._dead.append(here)  # The handshake of TCP is the kernel's; nobody answers.
                continue
            there = socket.create_connection(("127.0.0.1", self._target_port))
            threading.Thread(target=self._carry, args=(here, there), daemon=True).start()

    def _carry(self, here: socket.socket, there: socket.socket) -> None:
        others = {here: there, there: here}
        while True:
            ready, _, _ = select.select([here, there], [], [], 0.1)
            if self._is_cut.is_set() or self._closed.is_set():
                self._dead += [here, there]
                return
            for each in ready:
                try:
                    data = each.recv(1 << 16)
                    if data:
                        others[each].sendall(data)
                        self._passed_at = time.monotonic()
                        continue
                except OSError:
                    pass
                here.close()
                there.close()
                return
