"""The packages of a machine: where they come from, and which are missing."""

from __future__ import annotations

import configparser
import hashlib
import platform
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from frontend.connection import CommandRunner
from frontend.errors import ClusterError
from frontend.preflight import run_probe

_MIB = 1 << 20
# uv reads no configuration of pip, but a machine's package index is usually written there. All
# versions are pinned, so the one that is found first on any index is the right one.
_PIP_TO_UV = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX",
              "find-links": "UV_FIND_LINKS", "trusted-host": "UV_INSECURE_HOST",
              "cert": "SSL_CERT_FILE"}  # fmt: skip
_BUILD_TOOLS = ("setuptools", "wheel", "packaging", "pyyaml", "psutil", "cloudpickle")
"""What frontend/install_horovod.sh installs first."""


def index_settings(runner: CommandRunner) -> list[str]:
    """Returns variables that let uv use the package indexes that a machine's pip is told to use."""
    of_pip = _pip_settings(runner).items()
    return ["UV_INDEX_STRATEGY=unsafe-best-match",
            *(f"{_PIP_TO_UV[name]}={value}" for name, value in of_pip)]  # fmt: skip


def download(wanted: list[str], with_horovod: bool, root: Path) -> Path:
    """Downloads packages and what they need; returns their folder, which later calls use again.

    Args:
      wanted: requirements; constraints.txt pins their versions.
      with_horovod: whether to include Horovod's source and what builds it.
      root: the project.

    Raises:
      ClusterError: if pip cannot get a package.
    """
    constraints = root / "constraints.txt"
    key = "\n".join([*wanted, constraints.read_text(), platform.python_version()])
    digest = hashlib.sha256(key.encode()).hexdigest()
    folder = Path.home() / ".cache" / "impala_tf" / f"wheels-{digest[:12]}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "-d", str(folder),
           "-c", str(constraints)]  # fmt: skip
    _call([*pip, *wanted, "pip", *(_BUILD_TOOLS if with_horovod else ())])
    if with_horovod:
        _call([*pip, "--no-deps", "--no-binary=horovod", "--no-build-isolation", "horovod"])
    return folder


def archive(
    folder: Path, present: Collection[str], progress: Callable[[float, int], None]
) -> Iterator[bytes]:
    """Yields a tar file with the files of a folder, but those that are `present` already.

    `progress` is called with the share that has been read, 0 to 1, and with how many MiB that is.
    """
    paths = [path for path in sorted(folder.iterdir()) if path.name not in present]
    total = sum(path.stat().st_size for path in paths) or 1
    sent = 0
    for path in paths:
        header = tarfile.TarInfo(path.name)
        header.size = path.stat().st_size
        yield header.tobuf()
        with path.open("rb") as file:
            while chunk := file.read(_MIB):
                sent += len(chunk)
                progress(sent / total, sent // _MIB)
                yield chunk
        yield b"\0" * (-header.size % tarfile.BLOCKSIZE)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


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


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise ClusterError(f"{shlex.join(command[:4])}: {lines[-1] if lines else 'failed'}")


def _pip_settings(runner: CommandRunner) -> dict[str, str]:
    """Returns what a machine's pip is told about package indexes: {option: value}."""
    files = '/etc/pip.conf "$HOME/.pip/pip.conf" "$HOME/.config/pip/pip.conf"'
    done = runner.run(["sh", "-c", f'cat {files} 2>/dev/null; printf "\\0"; env'])
    written, _, variables = done.text.partition("\0")
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read_string(written)
    environment = dict(line.partition("=")[::2] for line in variables.splitlines())
    settings = {}
    for name in _PIP_TO_UV:
        value = environment.get(f"PIP_{name.replace('-', '_').upper()}")
        for section in ("install", "global"):
            value = value or parser.get(section, name, fallback=None)
        if value:
            settings[name] = " ".join(value.split())
    return settings
