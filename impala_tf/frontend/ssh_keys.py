"""The user's keys for SSH: of the agent and of files, in the order in which they are offered."""

from __future__ import annotations

import base64
import binascii
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm

from impala_tf.frontend.inventory import Secret

_MAGIC = b"openssh-key-v1\0"
_PEM = "-----"
_ANSWER_S = 60.0


class Agent(paramiko.agent.AgentSSH):
    """An SSH agent at any socket; paramiko's own only takes SSH_AUTH_SOCK."""

    def __init__(self, path: str) -> None:
        """Raises OSError or paramiko.SSHException if no agent answers at `path`."""
        super().__init__()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_ANSWER_S)  # It may ask the user, who may be away.
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Ends the connection; the keys can no longer be used."""
        self._close()  # type: ignore[attr-defined]


class UserKeys:
    """Offers the user's keys one after the other."""

    def __init__(
        self,
        files: Sequence[Path],
        agent: str | None,
        identities_only: bool,
        ask: Callable[[str], Secret | None],
    ) -> None:
        """Reads nothing yet.

        Args:
          files: private keys, or public ones whose private half the agent has.
          agent: its socket, if there is one.
          identities_only: whether to use only those keys of the agent that are in `files`.
          ask: asks the user for a passphrase, or returns None.
        """
        self._files = files
        self._agent = agent
        self._identities_only = identities_only
        self._ask = ask
        self.agent_problem = ""
        """Why the agent cannot be used, if so."""

    def __iter__(self) -> Iterator[paramiko.PKey]:
        """Yields the keys: those of the files, then the agent's others, then encrypted files.

        A file whose key the agent has is not read, so nobody is asked for its passphrase.

        Raises:
          paramiko.AuthenticationException: if the user's passphrase is wrong.
        """
        with contextlib.ExitStack() as stack:
            of_agent = self._of_agent(stack)
            encrypted = []
            for path in self._files:
                known = of_agent.pop(public_blob(path) or b"", None)
                if known is not None:
                    yield known
                    continue
                try:
                    key = _read(path, None)
                except TypeError:
                    encrypted.append(path)
                    continue
                if key is not None:
                    yield key
            if not self._identities_only:
                yield from of_agent.values()
            for path in encrypted:
                key = self._decrypted(path)
                if key is not None:
                    yield key

    def _of_agent(self, stack: contextlib.ExitStack) -> dict[bytes, paramiko.PKey]:
        if self._agent is None:
            return {}
        try:
            agent = stack.enter_context(contextlib.closing(Agent(self._agent)))
        except (OSError, paramiko.SSHException) as error:
            self.agent_problem = f"no SSH agent answers at {self._agent} ({error})"
            return {}
        return {key.blob: key for key in agent.get_keys()}

    def _decrypted(self, path: Path) -> paramiko.PKey | None:
        passphrase = self._ask(f"passphrase of {path}")
        if passphrase is None:
            return None
        try:
            return _read(path, passphrase)
        except TypeError as error:
            raise paramiko.AuthenticationException(f"wrong passphrase of {path}") from error


def public_blob(path: Path) -> bytes | None:
    """Returns the public key that belongs to the private or public key file `path`, if it is known.

    As OpenSSH does: `path` itself, `path`.pub, or the public half in a private key, which is not
    encrypted in OpenSSH's format.
    """
    for each in (path, path.with_name(f"{path.name}.pub")):
        with contextlib.suppress(OSError, ValueError, IndexError, binascii.Error):
            text = each.read_text(encoding="ascii")
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


def _read(path: Path, passphrase: Secret | None) -> paramiko.PKey | None:
    """Returns a private key; None for a file of another kind, or one that only OpenSSH can use.

    Raises:
      TypeError: if it is encrypted and the passphrase is missing or wrong.
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
