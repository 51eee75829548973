"""Starts a learner under a host name that is its address: `python -m frontend.own_name IP COMMAND`.

Horovod 0.28.1 heeds HOROVOD_GLOO_IFACE for its first Gloo context, but not for the one of the
global process set (GlooContext::InitializeForProcessSet reads its own, empty gloo_iface_): that one
listens where the machine's own name points. On many machines that is loopback (Debian puts
127.0.1.1 into /etc/hosts), where no other learner gets through. So the learner, and it alone, is
given a UTS namespace, whose host name is the very address. Standard library only; Linux.
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
    """Returns why Gloo will not listen on `address` in this process; '' where it will."""
    name = socket.gethostname()
    try:
        found = {info[4][0] for info in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)}
        wanted = {info[4][0] for info in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)}
    except OSError as error:
        return f"{name} or {address} is not known here ({error.strerror})"
    if found and found <= wanted:
        return ""
    return f"this machine's name, {name}, means {', '.join(sorted(map(str, found)))} here"


def take(address: str) -> None:
    """Gives this process, which must have a single thread, the host name `address`.

    Raises: OSError where the kernel does not allow it.
    """
    is_root = os.geteuid() == 0
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUTS if is_root else _CLONE_NEWUTS | _CLONE_NEWUSER) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"unshare: {os.strerror(error)}")
    if not is_root:
        # Everybody may do this in a user namespace of their own; it keeps who they are.
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    socket.sethostname(address)


def ensure(address: str) -> str:
    """Sees to it that Gloo listens on `address`; returns '', or why it will not and what helps."""
    why = trouble(address)
    if not why:
        return ""
    try:
        take(address)
    except OSError as error:
        return f"{why}; add '{address} {socket.gethostname()}' to /etc/hosts ({error.strerror})"
    return trouble(address)


def main(arguments: list[str]) -> int:
    """Becomes COMMAND under the name; without one, only says whether that can be done."""
    address, *command = arguments
    why = ensure(address)
    if not command:
        print(why)
        return 1 if why else 0
    if why:
        print(f"the other learners may not reach this one: {why}", file=sys.stderr, flush=True)
    return os.execvp(command[0], command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
