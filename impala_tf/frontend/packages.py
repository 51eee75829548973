"""The packages of a machine: where they come from, and which are missing."""

from __future__ import annotations

import configparser
import shlex
from collections.abc import Mapping, Sequence

from impala_tf.frontend.connection import CommandRunner
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.preflight import run_probe

# uv reads no configuration of pip, but a machine's package index is usually written there. All
# versions are pinned, so the one that is found first on any index is the right one.
_PIP_TO_UV = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX",
              "find-links": "UV_FIND_LINKS", "trusted-host": "UV_INSECURE_HOST",
              "cert": "SSL_CERT_FILE"}  # fmt: skip


# Not in the words of a command: an address may hold a password, and `ps` shows words to everybody.
_FILE = ".uv/index"
_WRITE = 'mkdir -p .uv && umask 077 && rm -f -- "$0" && cat > "$0"'
_READ = 'set -a; . "./$0"; exec "$@"'


def with_settings(runner: CommandRunner, settings: Sequence[str]) -> list[str]:
    """Leaves variables on a machine; returns words before a command that give them to it.

    Args:
      runner: the machine.
      settings: NAME=VALUE.
    """
    pairs = (setting.partition("=")[::2] for setting in settings)
    lines = "".join(f"{name}={shlex.quote(value)}\n" for name, value in pairs)
    done = runner.run(["sh", "-c", _WRITE, _FILE], lines.encode())
    if done.status != 0:
        raise ClusterError(f"{runner.node.name}: {done.last_line}")
    return ["sh", "-c", _READ, _FILE]


def index_settings(runner: CommandRunner) -> list[str]:
    """Returns variables that let uv use the package indexes that a machine's pip is told to use."""
    of_pip = _pip_settings(runner).items()
    return ["UV_INDEX_STRATEGY=unsafe-best-match",
            *(f"{_PIP_TO_UV[name]}={value}" for name, value in of_pip)]  # fmt: skip


def wrong(runner: CommandRunner, pins: Mapping[str, str]) -> list[str]:
    """Returns a line for each package whose version is not the pinned one."""
    versions = run_probe(runner, "look", {"packages": list(pins), "folder": "/"})["versions"]
    return [f"{name} {versions[name] or 'missing'} instead of {version}"
            for name, version in pins.items() if versions[name] != version]  # fmt: skip


def check_compiler(runner: CommandRunner) -> None:
    """Raises ClusterError if what compiles Horovod is missing: before minutes of downloads."""
    node = runner.node
    missing = [tool for tool in ("cmake", "g++") if runner.run([tool, "--version"]).status != 0]
    header = (
        "import pathlib, sysconfig as s; pathlib.Path(s.get_path('include'), 'Python.h').stat()"
    )
    if runner.run([node.python, "-c", header]).status != 0:
        missing.append("python3-dev")
    if missing:
        raise ClusterError(
            f"{node.name}: Horovod, which several learners need, cannot be compiled without "
            f"{', '.join(missing)}; on Debian: apt-get install {' '.join(missing)}"
        )


def _pip_settings(runner: CommandRunner) -> dict[str, str]:
    """Returns what a machine's pip is told about package indexes: {option: value}."""
    files = '/etc/pip.conf "$HOME/.pip/pip.conf" "$HOME/.config/pip/pip.conf"'
    done = runner.run(["sh", "-c", f'cat {files} 2>/dev/null; printf "\\0"; env'])
    written, _, variables = done.text.partition("\0")
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(written)
    except configparser.Error as error:
        why = " ".join(str(error).split())
        raise ClusterError(f"{runner.node.name}: its pip.conf cannot be read: {why}") from None
    environment = dict(line.partition("=")[::2] for line in variables.splitlines())
    settings = {}
    for name in _PIP_TO_UV:
        value = environment.get(f"PIP_{name.replace('-', '_').upper()}")
        for section in ("install", "global"):
            value = value or parser.get(section, name, fallback=None)
        if value:
            settings[name] = " ".join(value.split())
    return settings
