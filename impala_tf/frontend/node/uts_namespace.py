"""Runs a command with an IP address as its host name: `python uts_namespace.py IP COMMAND`.

Horovod 0.28.1 uses HOROVOD_GLOO_IFACE for its first Gloo context, but not for the one of the global
process set: GlooContext::InitializeForProcessSet reads its own gloo_iface_, which is empty. That
context listens on the address of the machine's host name. On many machines that is loopback (Debian
puts 127.0.1.1 into /etc/hosts), where learners on other machines cannot connect. So each learner
gets its own UTS namespace, in which the host name is the address itself. The rest of the machine
keeps its name. Linux only; standard library only.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from pathlib import Path

_CLONE_NEWUTS = 0x04000000  # linux/sched.h
_CLONE_NEWUSER = 0x10000000


def trouble(address: str) -> str:
    """Returns why Gloo would not listen on `address` in this process, or '' if it would."""
    name = socket.gethostname()
    try:
        own = [str(info[4][0]) for info in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)]
        wanted = {info[4][0] for info in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)}
    except OSError as error:
        return f"cannot resolve {name} or {address} ({error.strerror})"
    if own and own[0] in wanted:  # Gloo takes the first one
        return ""
    addresses = ", ".join(own)
    return f"this machine's name {name} resolves to {addresses}, not {address}"


def take(address: str) -> None:
    """Makes `address` the host name of this process, which must have only one thread.

    Raises:
      OSError: if the kernel does not allow it.
    """
    is_root = os.geteuid() == 0
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUTS if is_root else _CLONE_NEWUTS | _CLONE_NEWUSER) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"unshare: {os.strerror(error)}")
    if not is_root:
        # Any user may do this inside a new user namespace. The maps keep the user and the group.
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    socket.sethostname(address)


def ensure(address: str) -> str:
    """Makes Gloo listen on `address`. Returns '', or why it will not and how to fix that."""
    why = trouble(address)
    if not why:
        return ""
    try:
        take(address)
    except OSError as error:
        return f"{why}; add '{address} {socket.gethostname()}' to /etc/hosts ({error.strerror})"
    return trouble(address)


def main(arguments: list[str]) -> int:
    """Runs COMMAND in place of this process. Without one, only reports whether that would work."""
    address, *command = arguments
    why = ensure(address)
    if not command:
        print(why)
        return 1 if why else 0
    if why:
        print(
            f"learners on other machines may not reach this one: {why}", file=sys.stderr, flush=True
        )
    return os.execvp(command[0], command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
