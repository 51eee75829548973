"""Examines a machine: `python -c SOURCE look|listen|reach JSON`. Needs only Python there.

Standard library only, because its text is sent to machines without the project, after that of
`this_machine`.
"""

import errno
import importlib.metadata
import json
import os
import pathlib
import shutil
import socket
import sys
import threading
import time

if "cores_here" not in globals():  # imported, and not sent
    from impala_tf.config.this_machine import cores_here, memory_here


def look(asked: dict) -> dict:
    """Returns the machine's versions, cores, memory, disk space and time.

    asked: {"packages": names, "folder": where the run writes}.
    """
    versions: dict = {}
    for name in asked["packages"]:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    folder = pathlib.Path(asked["folder"])
    while not _is_dir(folder):
        folder = folder.parent
    return {
        "python": list(sys.version_info[:3]),
        "versions": versions,
        "cores": cores_here(),
        "memory_bytes": memory_here(),
        "disk_bytes": shutil.disk_usage(folder).free,
        "writable": os.access(folder, os.W_OK),
        "folder": str(folder),
        "tmux": shutil.which("tmux") is not None,
        "unix_s": time.time(),
    }


def _is_dir(path: pathlib.Path) -> bool:
    try:
        return path.is_dir()
    except PermissionError:  # of a folder above it
        return False


def listen(asked: dict) -> list:
    """Listens on the "addresses" ([[host, port], ...]) and sends "token" to every client.

    Port 0 is any free port. If a host is not this machine's, because of NAT, binds to all
    addresses.

    Returns [[host, port, why it cannot listen there, or ""], ...]. The program prints that, and
    listens until it is killed.
    """
    answers = []
    for host, port in asked["addresses"]:
        try:
            server = _bound(host, port)
            threading.Thread(target=_serve, args=(server, asked["token"]), daemon=True).start()
            answers.append([host, server.getsockname()[1], ""])
        except OSError as error:
            answers.append([host, port, error.strerror or str(error)])
    return answers


def _bound(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    server = socket.socket(family, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        server.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
    server.listen(64)
    return server


def _serve(server: socket.socket, token: str) -> None:
    while True:
        client, _ = server.accept()
        client.sendall(token.encode())
        client.close()


def reach(asked: dict) -> dict:
    """Returns {"host:port": why it is unreachable, or ""} for the "addresses"; see `listen`."""
    troubles = {}
    for host, port in asked["addresses"]:
        try:
            with socket.create_connection((host, port), timeout=5) as client:
                answer = client.makefile("rb").read()
            troubles[f"{host}:{port}"] = (
                "" if answer == asked["token"].encode() else "another program answers"
            )
        except OSError as error:
            troubles[f"{host}:{port}"] = error.strerror or str(error)
    return troubles


if __name__ == "__main__":
    task = {"look": look, "listen": listen, "reach": reach}[sys.argv[-2]]
    print(json.dumps(task(json.loads(sys.argv[-1]))), flush=True)
    if task is listen:
        threading.Event().wait()
