"""Which addresses are this machine's, and names at which other machines do not find it."""

import socket
import subprocess
import sys

import pytest

from impala_tf.machine.local_addresses import is_here, is_loopback_name
from tests.helpers.runs import PROJECT


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.0.9.1", True), ("localhost", True), ("0.0.0.0", True),
     ("198.51.100.7", False), ("2001:db8::7", False), ("no such host", False)],
)  # fmt: skip
def test_which_addresses_are_this_machines(host, expected):
    assert is_here(host) is expected


@pytest.mark.parametrize(
    ("host", "addresses", "expected"),
    [
        ("node1", ["127.0.1.1"], True),
        ("node1", ["::1", "127.0.1.1"], True),
        ("node1", ["127.0.1.1", "10.0.0.1"], False),
        ("node1", [], False),
        ("127.0.0.1", ["127.0.0.1"], False),
        ("localhost", ["127.0.0.1"], False),
    ],
)
def test_only_a_name_that_means_loopback_here_is_one(host, addresses, expected, monkeypatch):
    """For `localhost` and 127.0.0.1 the user means this machine."""

    def found(*_, **__):
        if not addresses:
            raise socket.gaierror
        return [(None, None, 0, "", (each, 0)) for each in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    assert is_loopback_name(host) is expected


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("family", "own", "other"), [("4", "10.0.0.1", "10.0.0.2"), ("6", "fd00::1", "fd00::2")]
)
def test_an_address_that_could_be_bound_is_not_this_machines(family, own, other):
    """Machines of a keepalived or HAProxy pair may bind to addresses that they do not have."""
    ask = "from impala_tf.machine.local_addresses import is_here"
    ask += f"; print(is_here('{own}'), is_here('{other}'))"
    shell = (
        f"ip link set lo up && ip address add {own} dev lo"
        f' && echo 1 > /proc/sys/net/ipv{family}/ip_nonlocal_bind && exec $0 -c "{ask}"'
    )
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", shell, sys.executable],
        cwd=PROJECT, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.stdout == "True False\n", done.stderr
