"""OpenSSH's own configuration of a machine, so that login works wherever `ssh HOST` does."""

from __future__ import annotations

import getpass
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.inventory import SSH_PORT
from impala_tf.frontend.plan import NodeSpec

_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_TOKEN = re.compile("%(.)")
"""Tokens in IdentityFile, CertificateFile and ProxyCommand; `ssh -G` replaces all others."""
_PROXY = re.compile(r"^\s*(ProxyJump|ProxyCommand)\b", re.IGNORECASE | re.MULTILINE)
# OpenSSH's "no" also accepts machines whose key has changed, which this launcher never does.
_ACCEPT_NEW = ("accept-new", "no", "off", "false")
_NOWHERE = (Path(os.devnull),)
_RESOLVE_S = 30.0
_SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"


class SshSettings(NamedTuple):
    """How to reach a machine and log in."""

    hostname: str
    port: int
    username: str
    key_filenames: tuple[Path, ...]
    """Existing files: private keys, or public keys whose private half the agent has."""
    certificates: tuple[Path, ...]
    """The files of CertificateFile."""
    agent: str | None
    """The socket of the SSH agent."""
    identities_only: bool
    """Whether to use only those of the agent's keys that are in `key_filenames`, or their
    certificates."""
    known_hosts: tuple[Path, ...]
    """New keys are added to the first one."""
    accepts_new: bool
    """Whether to trust machines that no file names (StrictHostKeyChecking)."""
    host_key_name: str
    """The machine's name in known_hosts."""
    proxy_jump: str | None
    """[USER@]HOST[:PORT] of the hops before the machine, separated by commas."""
    proxy_command: str | None
    control_path: str | None
    """The socket of a connection that OpenSSH shares."""
    control_persist: str
    """Seconds, 'yes', or 'no'."""


def settings_of(node: NodeSpec) -> SshSettings:
    """Returns the settings for a machine of the CSV, whose columns win over ~/.ssh/config.

    Raises:
      ClusterError: the configuration or the CSV's key cannot be used.
    """
    configured = lookup(node.ssh_host, node.ssh_port, node.ssh_username, node.name)
    if node.key_filename is None:
        return configured
    key = Path(node.key_filename).expanduser()
    if not key.is_file():
        raise ClusterError(f"{node.name}: key_filename {key}: no such file")
    return configured._replace(key_filenames=(key, *configured.key_filenames))


def lookup(host: str, port: int | None, username: str | None, name: str) -> SshSettings:
    """Returns the settings for a host name or alias, as OpenSSH itself resolves them.

    Args:
      host: address, host name, or alias.
      port: None for the one in the configuration.
      username: None for the one in the configuration.
      name: the machine's name in errors.

    Raises:
      ClusterError: the configuration cannot be used.
    """
    given = _ask_openssh(host, port, username, name)
    home = Path.home()

    def first(key: str, default: str) -> str:
        return given.get(key, [default])[0]

    def paths(key: str, default: list[str]) -> tuple[Path, ...]:
        words = [word for line in given.get(key, default) for word in line.split()]
        return tuple(Path(word).expanduser() for word in words if word != "none")

    tokens = {
        "%": "%", "d": str(home), "h": first("hostname", host), "i": str(os.getuid()), "n": host,
        "p": first("port", ""), "r": first("user", ""), "u": getpass.getuser(),
    }  # fmt: skip

    def expanded(text: str) -> str:
        return _TOKEN.sub(lambda each: tokens.get(each[1], each[0]), text)

    def files(key: str, default: Sequence[str]) -> list[Path]:
        return [Path(expanded(text)).expanduser() for text in given.get(key, default)]

    default_keys = [str(home / ".ssh" / key) for key in _DEFAULT_KEYS]
    real_port = int(first("port", str(port or SSH_PORT)))
    hostname = first("hostname", host)
    alias = first("hostkeyalias", "")
    jump, command = first("proxyjump", "none"), first("proxycommand", "none")
    return SshSettings(
        hostname=hostname,
        port=real_port,
        username=first("user", username or getpass.getuser()),
        key_filenames=tuple(filter(_is_key, files("identityfile", default_keys))),
        certificates=tuple(files("certificatefile", ())),
        agent=_agent_socket(first("identityagent", "SSH_AUTH_SOCK")),
        identities_only=first("identitiesonly", "no") == "yes",
        known_hosts=(
            *(paths("userknownhostsfile", [str(home / ".ssh" / "known_hosts")]) or _NOWHERE),
            *paths("globalknownhostsfile", [_SYSTEM_KNOWN_HOSTS]),
        ),
        accepts_new=first("stricthostkeychecking", "ask") in _ACCEPT_NEW,
        host_key_name=alias or (hostname if real_port == SSH_PORT else f"[{hostname}]:{real_port}"),
        proxy_jump=None if jump == "none" else jump,
        proxy_command=None if command == "none" else expanded(command),
        control_path=first("controlpath", "none").replace("none", "") or None,
        control_persist=first("controlpersist", "no"),
    )


def _is_key(path: Path) -> bool:
    return path.name != "none" and (path.is_file() or Path(f"{path}.pub").is_file())


def _agent_socket(setting: str) -> str | None:
    """Returns the socket that IdentityAgent means; see ssh_config(5)."""
    if setting == "none":
        return None
    if setting == "SSH_AUTH_SOCK" or setting.startswith("$"):
        return os.environ.get(setting.removeprefix("$")) or None
    return str(Path(setting).expanduser())


def openssh() -> list[str]:
    """Returns the command `ssh`, with the user's configuration file."""
    if is_openssh_home():
        return ["ssh"]
    own = Path.home() / ".ssh" / "config"
    return ["ssh", "-F", str(own) if own.is_file() else "/dev/null"]


def is_openssh_home() -> bool:
    """Returns whether $HOME is the folder that OpenSSH uses, which ignores $HOME."""
    return Path.home() == _home()


def _home() -> Path:
    return Path(pwd.getpwuid(os.geteuid()).pw_dir)


def _ask_openssh(
    host: str, port: int | None, username: str | None, name: str
) -> dict[str, list[str]]:
    """Returns {option: its values} from `ssh -G`; {} if OpenSSH is not installed."""
    if shutil.which("ssh") is None:
        own = Path.home() / ".ssh" / "config"
        if own.is_file() and (match := _PROXY.search(own.read_text(errors="replace"))):
            raise ClusterError(
                f"{name}: ~/.ssh/config has {match[1]}, which needs the command ssh, and there is "
                "none here; install openssh-client"
            )
        return {}
    command = [*openssh(), "-G"]
    command += ["-p", str(port)] if port else []
    command += ["-l", username] if username else []
    try:
        done = subprocess.run(
            [*command, "--", host], capture_output=True, text=True, timeout=_RESOLVE_S
        )
    except subprocess.TimeoutExpired as error:
        slow = f"ssh -G {host} takes longer than {_RESOLVE_S:g} s; is a Match exec slow?"
        raise ClusterError(f"{name}: ~/.ssh/config: {slow}") from error
    if done.returncode != 0:
        reason = (done.stderr.strip() or f"ssh -G {host} failed").splitlines()[-1]
        raise ClusterError(f"{name}: ~/.ssh/config: {reason}")
    options: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        option, _, value = line.partition(" ")
        options.setdefault(option, []).append(value)
    if not is_openssh_home():
        for option in ("userknownhostsfile", "identityagent"):
            values = options.get(option, [])
            values[:] = [value.replace(str(_home()), str(Path.home()), 1) for value in values]
    return options
