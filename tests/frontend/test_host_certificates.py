"""Host keys that an authority vouches for (@cert-authority in known_hosts), with a real sshd."""

import subprocess

import pytest

from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.host_certificates import matches
from impala_tf.frontend.ssh import SshRunner
from impala_tf.frontend.ssh_login import SshConnector
from tests.helpers.sshd import make_key, public_key, running_sshd

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return make_key(tmp_path_factory.mktemp("authority") / "ca")


def certified(folder, authority, *options, kind="ecdsa"):
    """Makes a host key with a certificate; returns the sshd settings for it.

    The server has an ed25519 key without a certificate, too.
    """
    key = folder / "certified"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(key)], check=True)
    command = ["ssh-keygen", "-q", "-s", str(authority), "-I", "id", *options, f"{key}.pub"]
    subprocess.run(command, check=True)
    return (
        f"HostKey {folder}/sshd/host_key", f"HostKey {key}", f"HostCertificate {key}-cert.pub",
    )  # fmt: skip


def login(sshd, known_hosts, accept=False):
    runner = SshRunner(sshd.node(), SshConnector({}, accept, known_hosts, lambda prompt: None))
    try:
        return runner.run(["echo", "in"]).text
    finally:
        runner.close()


def written(tmp_path, *lines):
    path = tmp_path / "known"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture
def server(tmp_path, authority):
    """A server whose certificate is for 127.0.0.1."""
    settings = certified(tmp_path, authority, "-h", "-n", "127.0.0.1", "-V", "-1h:+1h")
    with running_sshd(tmp_path / "sshd", *settings) as sshd:
        yield sshd


def test_a_machine_that_an_authority_vouches_for_is_trusted(server, authority, tmp_path):
    """The launcher called its key unknown, where `ssh HOST` logged in."""
    for host in ("127.0.0.*", f"[127.0.0.1]:{server.port}", "*,!other"):
        known = written(tmp_path, f"@cert-authority {host} {public_key(authority)}")
        before = known.read_text()
        assert login(server, known) == "in\n"
        assert known.read_text() == before


def test_an_authority_is_not_trusted_for_other_machines(server, authority, tmp_path):
    for host in ("127.0.0.2", "*,!127.0.0.1"):
        known = written(tmp_path, f"@cert-authority {host} {public_key(authority)}")
        with pytest.raises(ClusterError, match="unknown host key"):
            login(server, known)


def test_a_key_that_known_hosts_has_needs_no_certificate(server, tmp_path):
    other = make_key(tmp_path / "other")
    name = f"[127.0.0.1]:{server.port}"
    for_all = f"@cert-authority * {public_key(other)}"
    right, wrong = public_key(server.folder.parent / "certified"), public_key(other)
    assert login(server, written(tmp_path, for_all, f"{name} {right}")) == "in\n"
    with pytest.raises(ClusterError, match="the host key has CHANGED"):
        login(server, written(tmp_path, for_all, f"{name} {wrong}"), accept=True)


def test_a_machine_without_a_certificate_can_be_known_by_its_key(sshd, authority, tmp_path):
    for_all = f"@cert-authority * {public_key(authority)}"
    key = f"[127.0.0.1]:{sshd.port} {public_key(sshd.host_key)}"
    assert login(sshd, written(tmp_path, for_all, key)) == "in\n"
    with pytest.raises(ClusterError, match="it shows no host certificate; known_hosts has a @cert"):
        login(sshd, written(tmp_path, for_all))


def test_a_revoked_authority_is_refused(server, authority, tmp_path):
    key = public_key(authority)
    known = written(tmp_path, f"@cert-authority * {key}", f"@revoked * {key}")
    with pytest.raises(ClusterError, match="the authority of its host certificate is @revoked"):
        login(server, known, accept=True)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("-h", "-n", "other.example.com"), "is for other.example.com, not for 127.0.0.1"),
        (("-h", "-n", "127.0.0.1", "-V", "-2h:-1h"), "has expired or is not valid yet"),
        (("-h", "-n", "127.0.0.1", "-V", "+1h:+2h"), "has expired or is not valid yet"),
        (("-n", "127.0.0.1"), "is for users, not for hosts"),
    ],
)
def test_a_certificate_that_is_not_for_this_machine_now_is_refused(
    tmp_path, authority, options, reason
):
    settings = certified(tmp_path, authority, *options)
    known = written(tmp_path, f"@cert-authority * {public_key(authority)}")
    refused = pytest.raises(ClusterError, match=f"node1: unknown host key .*{reason}")
    with running_sshd(tmp_path / "sshd", *settings) as sshd, refused:
        login(sshd, known)


@pytest.mark.parametrize("kind", ["rsa", "ed25519"])
@pytest.mark.parametrize("algorithm", ["rsa-sha2-512", "ssh-rsa", "ecdsa"])
def test_authorities_of_all_kinds_but_not_with_sha1(tmp_path, kind, algorithm):
    ca = tmp_path / "ca"
    ca_kind = "ecdsa" if algorithm == "ecdsa" else "rsa"
    subprocess.run(["ssh-keygen", "-q", "-t", ca_kind, "-N", "", "-f", str(ca)], check=True)
    how = () if algorithm == "ecdsa" else ("-t", algorithm)
    _, *settings = certified(tmp_path, ca, *how, "-h", kind=kind)
    known = written(tmp_path, f"@cert-authority * {public_key(ca)}")
    with running_sshd(tmp_path / "sshd", *settings) as sshd:
        if algorithm != "ssh-rsa":
            assert login(sshd, known) == "in\n"
            return
        with pytest.raises(ClusterError, match="is signed with SHA-1"):
            login(sshd, known)


def test_a_damaged_line_of_known_hosts_is_skipped(sshd, tmp_path):
    right = f"[127.0.0.1]:{sshd.port} {public_key(sshd.host_key)}"
    damaged = [
        f"[127.0.0.1]:{sshd.port} ssh-ed25519 AAA", "@cert-authority *", "x ssh-rsa A=A",
        "|1|YWJj|YWJj ssh-ed25519 AAAA", "@cert-authority |1|a|b ssh-ed25519 AAAA",
    ]  # fmt: skip
    assert login(sshd, written(tmp_path, *damaged, right)) == "in\n"


def test_patterns_of_known_hosts():
    assert matches("*.example.com,host?", "a.EXAMPLE.com")
    assert matches("*.example.com,host?", "host1")
    assert not matches("*.example.com,!b.example.com", "b.example.com")
    assert not matches("a.example.com", "aXexample.com")
