"""Which addresses are this machine's, and names at which other machines do not find it."""

import socket

import pytest

from impala_tf.machine.local_addresses import is_here, is_loopback_name


def test_which_addresses_are_this_machines():
    assert all(is_here(host) for host in ("127.0.0.1", "127.0.9.1", "localhost", "0.0.0.0"))
    assert not any(is_here(host) for host in ("198.51.100.7", "2001:db8::7", "no such host"))


@pytest.mark.parametrize(
    ("host", "addresses", "expected"),
    [
        ("node1", ["127.0.1.1"], True),
        ("node1", ["::1", "127.0.1.1"], True),
        ("node1", ["127.0.1.1", "10.0.0.1"], False),
        ("node1", [], False),
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
