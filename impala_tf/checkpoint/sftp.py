"""--mirror=sftp://HOST/PATH: fsspec's file system of a machine, found and trusted as ssh does."""

from __future__ import annotations

from pathlib import Path

import paramiko
from fsspec.implementations.sftp import SFTPFileSystem

_CONNECT_S, _SILENCE_S = 20.0, 60.0


class Sftp(SFTPFileSystem):
    """Uses ~/.ssh/config, known hosts and the agent's keys; refuses unknown hosts, never asks."""

    def _connect(self) -> None:
        file = Path.home() / ".ssh" / "config"
        config = paramiko.SSHConfig.from_text(file.read_text() if file.is_file() else "")
        options = config.lookup(self.host)
        self.client = paramiko.SSHClient()
        self.client.load_system_host_keys()
        self.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        self.client.connect(
            options["hostname"],
            int(self.ssh_kwargs.get("port") or options.get("port", 22)),
            self.ssh_kwargs.get("username") or options.get("user"),
            key_filename=options.get("identityfile"),
            timeout=_CONNECT_S,
            auth_timeout=_CONNECT_S,
        )
        self.ftp = self.client.open_sftp()
        self.ftp.get_channel().settimeout(_SILENCE_S)  # type: ignore[union-attr]
