"""The user's SSH keys, from the agent and from files, in the order in which they are offered."""

from __future__ import annotations

import base64
import binascii
import contextlib
import copy
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm

from impala_tf.frontend.errors import said_by
from impala_tf.frontend.inventory import Secret

_MAGIC = b"openssh-key-v1\0"
_PEM = "-----"
_CERTIFICATE = b"-cert-v01@openssh.com"
_ANSWER_S = 60.0


class Agent(paramiko.agent.AgentSSH):
    """An SSH agent at any socket; paramiko's own only takes SSH_AUTH_SOCK."""

    def __init__(self, path: str) -> None:
        """Raises OSError or paramiko.SSHException if no agent answers at `path`."""
        super().__init__()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_ANSWER_S)  # the agent may ask the user, who may be away
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Ends the connection; the keys can no longer be used."""
        self._close()  # type: ignore[attr-defined]


class AgentKey(paramiko.AgentKey):
    """A key of an agent, alone or with a certificate, which paramiko's own class does not offer."""

    def __init__(self, key: paramiko.AgentKey, certificate: bytes | None = None) -> None:
        """Takes a key or a certificate from the agent, and optionally a certificate of that key."""
        super().__init__(key.agent, key.blob)
        self.public_blob = _public_blob(certificate or key.blob)  # type: ignore[assignment]

    def asbytes(self) -> bytes:
        """Returns the blob by which the agent identifies the key to sign with."""
        return self.blob


class UserKeys:
    """Offers the user's keys, one after another."""

    def __init__(
        self,
        files: Sequence[Path],
        certificates: Sequence[Path],
        agent: str | None,
        identities_only: bool,
        ask: Callable[[str], Secret | None],
    ) -> None:
        """Reads nothing yet.

        Args:
          files: private keys, or public keys whose private half the agent has; FILE-cert.pub may
            be a certificate of the key.
          certificates: certificates of any of the keys.
          agent: the agent's socket, if there is an agent.
          identities_only: whether to use only those of the agent's keys that are in `files`.
          ask: asks the user for a passphrase, or returns None.
        """
        self._files = files
        self._certificates = certificates
        self._agent = agent
        self._identities_only = identities_only
        self._ask = ask
        self.agent_problem = ""
        """Why the agent cannot be used; '' if it can."""

    def __iter__(self) -> Iterator[paramiko.PKey]:
        """Yields the keys: those of the files, then the agent's other keys, then encrypted files.

        A file whose key the agent has is not read, so nobody is asked for its passphrase. A key
        is offered with each of its certificates, and alone. As in OpenSSH, the agent's keys with
        a certificate come first, because machines hang up after a few keys.

        Raises:
          paramiko.AuthenticationException: the user's passphrase is wrong.
        """
        with contextlib.ExitStack() as stack:
            blobs = {path: public_blob(path) or b"" for path in self._files}
            of_agent = self._of_agent(stack, [*blobs.values()])
            certificates = self._known_certificates()
            for certificate in certificates:
                for key in [*of_agent.values()]:
                    if _is_of(certificate, key.blob):
                        of_agent.pop(certificate, None)
                        yield AgentKey(key, certificate)
            encrypted = []
            for path, blob in blobs.items():
                of_file = [
                    candidate
                    for candidate in of_agent
                    if candidate == blob or _is_of(candidate, blob)
                ]
                if of_file:
                    yield from (of_agent.pop(candidate) for candidate in of_file)
                    continue
                try:
                    read = _read(path, None)
                except TypeError:
                    encrypted.append(path)
                    continue
                yield from _with_certificates(read, certificates)
            yield from of_agent.values()
            for path in encrypted:
                yield from _with_certificates(self._decrypted(path), certificates)

    def _known_certificates(self) -> list[bytes]:
        beside = (path.with_name(f"{path.name}-cert") for path in self._files)
        blobs = (public_blob(path) for path in (*self._certificates, *beside))
        return list(dict.fromkeys(blob for blob in blobs if blob is not None))

    def _of_agent(
        self, stack: contextlib.ExitStack, files: Sequence[bytes]
    ) -> dict[bytes, AgentKey]:
        """Returns {public key or certificate: key}; `files` are the files' public keys."""
        if self._agent is None:
            return {}
        try:
            agent = stack.enter_context(contextlib.closing(Agent(self._agent)))
        except (OSError, paramiko.SSHException) as error:
            self.agent_problem = f"no SSH agent answers at {self._agent} ({said_by(error)})"
            return {}
        return {
            key.blob: AgentKey(key) for key in agent.get_keys()
            if not self._identities_only
            or any(key.blob == file or _is_of(key.blob, file) for file in files)
        }  # fmt: skip

    def _decrypted(self, path: Path) -> paramiko.PKey | None:
        passphrase = self._ask(f"passphrase of {path}")
        if passphrase is None:
            return None
        try:
            return _read(path, passphrase)
        except TypeError as error:
            raise paramiko.AuthenticationException(f"wrong passphrase of {path}") from error


def public_blob(path: Path) -> bytes | None:
    """Returns the public key of a private or public key file, if it is known.

    As in OpenSSH, it is in `path`, in `path`.pub, or in the private key, where OpenSSH's format
    does not encrypt the public half.
    """
    for file in (path, path.with_name(f"{path.name}.pub")):
        with contextlib.suppress(OSError, ValueError, IndexError, binascii.Error):
            text = file.read_text(encoding="ascii")
            if not text.startswith(_PEM):
                return base64.b64decode(text.split()[1], validate=True)
    with contextlib.suppress(OSError, ValueError, paramiko.SSHException, binascii.Error):
        lines = path.read_text(encoding="ascii").splitlines()
        data = base64.b64decode("".join(line for line in lines if not line.startswith(_PEM)))
        if data.startswith(_MAGIC):
            message = paramiko.Message(data[len(_MAGIC) :])
            for _ in range(3):
                message.get_binary()  # cipher, key derivation, its options
            message.get_int()  # how many keys: always one
            return message.get_binary()
    return None


def _is_of(certificate: bytes, key: bytes) -> bool:
    """Returns whether a blob is a certificate of a public key."""
    if _CERTIFICATE not in certificate[:64] or not key:
        return False
    certified, plain = paramiko.Message(certificate), paramiko.Message(key)
    kind, name = certified.get_binary(), plain.get_binary().partition(b"@")[0]
    certified.get_binary()  # a nonce; the same fields as in the plain key follow
    return kind == name + _CERTIFICATE and certified.get_remainder().startswith(
        plain.get_remainder()
    )


def _public_blob(blob: bytes) -> paramiko.pkey.PublicBlob | None:
    """Returns a certificate as paramiko's type; None for a plain key."""
    if _CERTIFICATE not in blob[:64]:
        return None
    return paramiko.pkey.PublicBlob.from_message(paramiko.Message(blob))


def _with_certificates(
    key: paramiko.PKey | None, certificates: Sequence[bytes]
) -> Iterator[paramiko.PKey]:
    """Yields a private key with each of its certificates, and alone."""
    if key is None:
        return
    own = [certificate for certificate in certificates if _is_of(certificate, key.asbytes())]
    for blob in (*map(_public_blob, own), None):
        offered = copy.copy(key)
        offered.public_blob = blob
        yield offered


def _read(path: Path, passphrase: Secret | None) -> paramiko.PKey | None:
    """Returns a private key; None for other files, and for keys that only OpenSSH can use.

    Raises:
      TypeError: the key is encrypted, and the passphrase is missing or wrong.
    """
    password = passphrase.reveal().encode() if passphrase is not None else None
    try:
        return paramiko.PKey.from_path(path, password)  # type: ignore[arg-type]
    except TypeError:
        raise
    except (ValueError, OSError, UnsupportedAlgorithm, paramiko.SSHException) as error:
        if passphrase is not None:
            raise TypeError(str(error)) from error
        return None
    except paramiko.pkey.UnknownKeyType:
        return None
