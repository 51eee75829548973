"""Installs packages for this interpreter: `python -m impala_tf.frontend.install WHAT...`.

WHAT are the arguments of `pip install`. uv takes a fraction of pip's time. pip is used where uv
fails, and where pip is configured in a way that uv does not know. Standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from impala_tf.frontend import pip_settings
from impala_tf.frontend.project import CONSTRAINTS, ROOT

_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
_QUIET = ("install", "--quiet", "-c", str(ROOT / CONSTRAINTS))
_INDEXES = ("UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX")


def main(what: list[str]) -> int:
    """Installs packages in the pinned versions; returns the exit status."""
    try:
        reason = _with_uv(what)
    except (OSError, ValueError, SyntaxError) as error:
        reason = str(error)
    if not reason:
        return 0
    print(f"uv cannot install these packages ({reason}); pip takes longer", file=sys.stderr)
    return subprocess.run([*_PIP, *_QUIET, *what]).returncode


def _with_uv(what: list[str]) -> str:
    """Installs packages with uv; returns why that failed, or '' if it worked."""
    environment = {**os.environ, "PIP_QUIET": "0"}
    done = subprocess.run([*_PIP, "config", "list"], stdout=subprocess.PIPE, text=True,
                          env=environment)  # fmt: skip
    options = pip_settings.listed(done.stdout)
    if unknown := pip_settings.unknown(options):
        return f"pip is configured with {', '.join(sorted(unknown))}"
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        subprocess.run([*_PIP, *_QUIET, "uv"])
    if not uv.exists():
        return "there is no uv for this machine"
    settings = pip_settings.for_uv(options, os.environ)
    variables = dict(setting.partition("=")[::2] for setting in settings)
    if any(name in os.environ for name in _INDEXES):
        variables = {name: value for name, value in variables.items() if name not in _INDEXES}
    more = options.get(pip_settings.CONSTRAINT, "").split()
    command = [str(uv), "pip", *_QUIET, "--python", sys.executable, *pip_settings.flags(settings),
               *(word for path in more for word in ("-c", path)), *what]  # fmt: skip
    status = subprocess.run(command, env={**variables, **os.environ}).returncode
    return f"exit status {status}" if status else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
