"""Decides whether a machine shows the right host key."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import paramiko

from impala_tf.frontend.host_certificates import PrefersCertificates, authority, matches, problem

_DAMAGED = (paramiko.SSHException, paramiko.hostkeys.InvalidHostKey, ValueError, AssertionError)
_file_lock = threading.Lock()


class HostKeyError(paramiko.SSHException):
    """The machine's host key must not be trusted; the message says why and what to do."""


class HostKeys(paramiko.MissingHostKeyPolicy):
    """The host keys that a machine may have: the CSV's, or those of the known_hosts files."""

    def __init__(
        self, known_hosts: Sequence[Path], name: str, from_csv: str | None, accept_new: bool
    ) -> None:
        """Reads nothing yet.

        Args:
          known_hosts: files in OpenSSH's format; new keys are added to the first one.
          name: the machine's name in those files: HOST, or [HOST]:PORT.
          from_csv: 'TYPE BASE64' or 'SHA256:...'. With it, the files can only revoke keys.
          accept_new: whether to trust and remember a machine that no file names.
        """
        self._known_hosts = known_hosts
        self._from_csv = from_csv
        self._accept_new = accept_new
        self.name = name
        self._hostname = re.sub(r"^\[(.*)\]:\d+$", r"\1", name)
        self._revoked: set[str] = set()
        self._authorities: set[str] = set()
        self._known: list[paramiko.PKey] = []
        self._known_on_any_port: list[paramiko.PKey] = []

    def prepare(self, client: paramiko.SSHClient) -> None:
        """Makes a client check the machine's key; for a bad one, it raises HostKeyError or
        paramiko.BadHostKeyException.
        """  # noqa: D205
        client.set_missing_host_key_policy(self)
        for path in self._known_hosts:
            self._load(path)
        if self._from_csv is not None:
            for entries in (self._authorities, self._known, self._known_on_any_port):
                entries.clear()
            if not self._from_csv.startswith("SHA256:"):
                entry = paramiko.hostkeys.HostKeyEntry.from_line(f"{self.name} {self._from_csv}")
                if entry is None or entry.key is None:
                    raise HostKeyError("host_key: a key of a type that is not supported")
                client.get_host_keys().add(self.name, entry.key.get_name(), entry.key)

    def transport(self, *arguments: Any, **settings: Any) -> paramiko.Transport:
        """Returns a new connection, which asks for types of keys that can be checked."""
        make = PrefersCertificates if self._authorities else paramiko.Transport
        connection = make(*arguments, **settings)
        keys = self._known or self._known_on_any_port
        types = {key.get_name().replace("ssh-rsa", "rsa-sha2-512") for key in keys}
        options = connection.get_security_options()
        options.key_types = sorted(options.key_types, key=lambda name: name not in types)
        return connection

    def _load(self, path: Path) -> None:
        """Reads what a file says about the machine.

        paramiko's own reader fails at lines that begin with '@', does not know patterns, and keeps
        only one key of each type for a machine.
        """
        if not path.exists():
            return
        for line in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(*_DAMAGED):
                self._read(line.split())

    def _read(self, words: list[str]) -> None:
        if len(words) >= 4 and words[0] == "@revoked":
            self._revoked.add(words[3])
        elif len(words) >= 4 and words[0] == "@cert-authority":
            if matches(words[1], self.name, self._hostname):
                self._authorities.add(words[3])
        elif len(words) >= 3 and not words[0].startswith(("#", "@")):
            if matches(words[0], self.name):
                into = self._known
            elif matches(words[0], self._hostname):
                into = self._known_on_any_port
            else:
                return
            entry = paramiko.hostkeys.HostKeyEntry.from_line(" ".join(words[:3]))
            if entry is not None and entry.key is not None:
                into.append(entry.key)

    def check_revoked(self, key: paramiko.PKey) -> None:
        """Raises HostKeyError if known_hosts revokes a key or its signer."""
        if key.get_base64() in self._revoked:
            raise HostKeyError(f"its host key {key.fingerprint} is @revoked in known_hosts")
        if self._authorities and authority(key) in self._revoked:
            raise HostKeyError("the authority of its host certificate is @revoked in known_hosts")

    def _certificate_problem(self, key: paramiko.PKey) -> str:
        """Returns why no authority of known_hosts vouches for a key; '' if one does."""
        signer = authority(key)
        if signer is None:
            return "it shows no host certificate"
        if signer not in self._authorities:
            return "its host certificate is by another authority"
        return problem(key, self._hostname)

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        """Called by paramiko, unless the CSV has the machine's whole key."""
        about = f"{key.get_name()} {key.fingerprint}"
        if self._from_csv is not None:
            if self._from_csv.rstrip("=") != key.fingerprint.rstrip("="):
                raise HostKeyError(
                    f"it shows the host key {about}, not the CSV's host_key {self._from_csv}; "
                    "somebody may be intercepting the connection"
                )
            return
        reason = self._certificate_problem(key) if self._authorities else ""
        if key in self._known or (self._authorities and not reason):
            return
        if not self._known and key in self._known_on_any_port:
            return  # as in OpenSSH; but another key is not refused: it may be a container's
        if self._known:
            same_kind = [
                known_key for known_key in self._known if known_key.get_name() == key.get_name()
            ]
            raise paramiko.BadHostKeyException(hostname, key, (same_kind or self._known)[0])
        why_not = f" ({reason}; known_hosts has a @cert-authority for it)" if reason else ""
        if not self._accept_new:
            raise HostKeyError(
                f"unknown host key {about}{why_not}; check that it is the machine's, then log in "
                "there once with ssh, or pass --accept_new_host_keys"
            )
        self.check_revoked(key)
        line = str(paramiko.hostkeys.HostKeyEntry([hostname], key).to_line())
        path = self._known_hosts[0]
        try:
            _append(path, line)
        except OSError as error:
            print(f"{hostname}: trusting its host key {about} this time; {path}: {error.strerror}",
                  file=sys.stderr)  # fmt: skip
        else:
            if path != Path(os.devnull):  # with /dev/null, this would be printed every time
                print(f"{hostname}: trusting its host key {about} from now on", file=sys.stderr)


def _append(path: Path, line: str) -> None:
    with _file_lock:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        before = path.read_bytes()
        with path.open("a", encoding="utf-8") as file:
            file.write(("" if not before or before.endswith(b"\n") else "\n") + line)
