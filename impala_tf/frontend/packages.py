"""A machine's packages: where they come from, and which are missing."""

from __future__ import annotations

import configparser
import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence

from impala_tf.frontend import pip_settings
from impala_tf.frontend.connection import PYTHONS_OWN_FIRST, CommandRunner
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.preflight import run_probe

# Later files win.
_FILES = '/etc/xdg/pip/pip.conf /etc/pip.conf "$HOME/.pip/pip.conf" "$HOME/.config/pip/pip.conf"'
_CONFIGURATION = f'for f in {_FILES}; do cat "$f" 2>/dev/null; printf "\\0"; done; env'

# Not in a command's words, which `ps` shows to everybody: an address may contain a password.
_FILE = ".uv/index"
_WRITE = 'mkdir -p .uv && umask 077 && rm -f -- "$0" && cat > "$0"'
_READ = 'set -a; . "./$0"; exec "$@"'


@contextlib.contextmanager
def with_settings(runner: CommandRunner, settings: Sequence[str]) -> Iterator[list[str]]:
    """Stores variables on a machine for a while; yields the words that a command needs in front.

    Args:
      runner: the machine.
      settings: NAME=VALUE.
    """
    pairs = (setting.partition("=")[::2] for setting in settings)
    lines = "".join(f"{name}={shlex.quote(value)}\n" for name, value in pairs)
    done = runner.run(["sh", "-c", _WRITE, _FILE], lines.encode())
    if done.status != 0:
        raise ClusterError(f"{runner.node.name}: {done.last_line}")
    try:
        yield ["sh", "-c", _READ, _FILE]
    finally:
        with contextlib.suppress(ClusterError):
            runner.run(["rm", "-f", "--", _FILE])


def index_settings(runner: CommandRunner) -> list[str]:
    """Returns variables that make uv use the package indexes of a machine's pip."""
    return pip_settings.for_uv(*_of_pip(runner))


def untold(runner: CommandRunner) -> str:
    """Returns which pip options uv does not know, and what helps; '' if there are none."""
    unknown = set[str]()
    with contextlib.suppress(ClusterError):  # the connection may have failed
        unknown = pip_settings.unknown(_of_pip(runner)[0])
    if not unknown:
        return ""
    return (
        f"; pip there is configured with {', '.join(sorted(unknown))}, which uv is not told; "
        "--wheelhouse takes the packages from here"
    )


def _of_pip(runner: CommandRunner) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the options of a machine's pip, and the machine's environment."""
    *files, variables = runner.run(["sh", "-c", _CONFIGURATION]).text.split("\0")
    environment = dict(line.partition("=")[::2] for line in variables.splitlines())
    try:
        return pip_settings.written(files, environment), environment
    except configparser.Error as error:  # its text quotes the file, where a password may be
        why = f"is malformed ({type(error).__name__}); `pip config list` there says where"
        raise ClusterError(f"{runner.node.name}: its pip.conf {why}") from None


def wrong(runner: CommandRunner, pins: Mapping[str, str]) -> list[str]:
    """Returns a line for each package that has another version, or lacks its patch."""
    versions = run_probe(runner, "look", {"packages": list(pins), "folder": "/"})["versions"]
    lines = [f"{name} {versions[name] or 'missing'} instead of {version}"
             for name, version in pins.items() if versions[name] != version]  # fmt: skip
    if "horovod" in pins and versions["horovod"] == pins["horovod"]:
        program = f"{PYTHONS_OWN_FIRST}import horovod; horovod.built_for"
        if runner.run([runner.node.python, "-c", program]).status != 0:
            lines.append(f"horovod {pins['horovod']} without the patch of install_horovod.sh")
    return lines


def check_compiler(runner: CommandRunner) -> None:
    """Raises ClusterError, before minutes of downloads, if what compiles Horovod is missing."""
    node = runner.node
    missing = [tool for tool in ("cmake", "g++") if runner.run([tool, "--version"]).status != 0]
    header = PYTHONS_OWN_FIRST + (
        "import pathlib, sysconfig as s; pathlib.Path(s.get_path('include'), 'Python.h').stat()"
    )
    if runner.run([node.python, "-c", header]).status != 0:
        missing.append("python3-dev")
    if missing:
        raise ClusterError(
            f"{node.name}: Horovod, which several learners need, cannot be compiled without "
            f"{', '.join(missing)}; on Debian: apt-get install {' '.join(missing)}"
        )
