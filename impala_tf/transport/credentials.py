"""The two sides' TLS credentials, from the files of a run (see `machine.certificates`)."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import grpc

from impala_tf.config import ConfigError
from impala_tf.machine.certificates import ACTOR_FILES, LEARNER_FILES, REVOKED

READ_AGAIN_S = 2.0
"""Seconds between a learner's reads of the list of revoked certificates."""
_log = logging.getLogger("impala_tf.learner")


def server_credentials(directory: Path) -> grpc.ServerCredentials:
    """Returns the learner's credentials, which refuse clients without a certificate of this run.

    Raises: ConfigError naming a file that is missing, or a key that others can read.
    """
    ca, certificate, key = _read(directory, LEARNER_FILES)
    return grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=ca, require_client_auth=True
    )


def channel_credentials(directory: Path) -> grpc.ChannelCredentials:
    """Returns an actor's credentials, from ACTOR_FILES. Raises: as `server_credentials`."""
    ca, certificate, key = _read(directory, ACTOR_FILES)
    return grpc.ssl_channel_credentials(ca, private_key=key, certificate_chain=certificate)


class Revoked:
    """The names of revoked certificates. The file may change at any time."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / REVOKED
        self._names: frozenset[str] = frozenset()
        self._next_read_s = 0.0

    def __contains__(self, name: object) -> bool:
        now = time.monotonic()
        if now >= self._next_read_s:
            self._next_read_s = now + READ_AGAIN_S
            self._names = self._read()
        return name in self._names

    def _read(self) -> frozenset[str]:
        try:
            return frozenset(self._path.read_text().splitlines())
        except FileNotFoundError:
            return frozenset()
        except (OSError, ValueError) as error:
            _log.warning("%s: %s; the list as it was before stays in use", self._path, error)
            return self._names


def _read(directory: Path, names: tuple[str, ...]) -> list[bytes]:
    if missing := [name for name in names if not (directory / name).exists()]:
        raise ConfigError(
            f"{directory}: has no {', '.join(missing)}; start the learner first, which makes them."
            " On another machine, copy them there, or point --credentials at them"
        )
    for path in (directory / name for name in names):
        if path.suffix == ".key" and path.stat().st_mode & 0o077:
            raise ConfigError(
                f"{path}: other users can read this private key; run chmod 600 {path}, or if"
                " that changes nothing there, give a --credentials=FOLDER on a file system that"
                " keeps permissions"
            )
    try:
        return [(directory / name).read_bytes() for name in names]
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be read: {error.strerror}") from None
