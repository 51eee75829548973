"""The two sides' TLS credentials, from the files of a run (see `machine.certificates`)."""

from __future__ import annotations

import datetime
import logging
import time
from pathlib import Path

import grpc
from cryptography import x509

from impala_tf.config import ConfigError
from impala_tf.machine.certificates import ACTOR_FILES, LEARNER_FILES, REVOKED

READ_AGAIN_S = 2.0
"""Seconds between a learner's reads of the list of revoked certificates."""
_log = logging.getLogger("impala_tf.learner")
CLOCK_S = 60.0  # less than a supervisor waits for a process to stop
"""Seconds to wait for certificates to become valid: after a boot, the clock may be set late."""


class ClockError(ConfigError):
    """By this machine's clock, certificates are not valid yet. The clock may be wrong."""


def server_credentials(directory: Path) -> grpc.ServerCredentials:
    """Returns the learner's credentials, which refuse clients without a certificate of this run.

    Raises: ConfigError naming a file that is missing, unreadable, expired or readable by others,
      or a clock by which the certificates are not valid yet.
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
    contents: list[bytes] = []
    problems: list[str] = []
    missing: list[str] = []
    until_s = time.monotonic() + CLOCK_S
    for name in names:
        path = directory / name
        try:
            content = path.read_bytes()
            if name.endswith(".key") and path.stat().st_mode & 0o077:
                problems.append(
                    f"{path}: other users can read this private key; run chmod 600 {path}, or if"
                    " that changes nothing there, give a --credentials=FOLDER on a file system that"
                    " keeps permissions"
                )
            elif name.endswith(".pem"):
                problems += _certificate_problems(path, content, until_s)
            contents.append(content)
        except FileNotFoundError:
            missing.append(name)
        except OSError as error:
            problems.append(f"{path}: cannot be read: {error.strerror}")
    if missing:
        problems.append(
            f"{directory}: has no {', '.join(missing)}; start the learner first, which makes them."
            " On another machine, copy them there, or point --credentials at them"
        )
    if problems:
        raise ConfigError(problems)
    return contents


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _certificate_problems(path: Path, content: bytes, until_s: float) -> list[str]:
    try:
        certificate = x509.load_pem_x509_certificate(content)
    except ValueError:
        return [f"{path}: not a certificate; copy the run's credentials again"]
    since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if (now := _now()) < since and time.monotonic() < until_s:
        _log.warning("%s: not valid yet; waiting for this machine's clock to be set", path)
    while now < since and time.monotonic() < until_s:
        time.sleep(1.0)
        now = _now()
    if now < since:
        raise ClockError(
            f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC, but the run's certificates are"
            f" valid from {since:%Y-%m-%d %H:%M} UTC on: set the clock"
        )
    if until < now:
        return [f"{path}: expired on {until:%Y-%m-%d}; delete {path.parent} and restart the run"]
    return []
