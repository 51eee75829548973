"""Installs packages for this interpreter: `python -m impala_tf.frontend.install WHAT...`.

WHAT is what follows `pip install`. uv does it in a fraction of pip's time. If uv cannot, pip does:
it knows more ways to reach an index. Standard library only.
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


def main(what: list[str]) -> int:
    """Installs packages, of the versions that are pinned; returns the exit status."""
    if _with_uv(what):
        return 0
    print("uv could not install the packages; pip tries it, which takes longer", file=sys.stderr)
    return subprocess.run([*_PIP, *_QUIET, *what]).returncode


def _with_uv(what: list[str]) -> bool:
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists() and subprocess.run([*_PIP, *_QUIET, "uv"]).returncode != 0:
        return False  # There is no uv for this kind of machine.
    told = dict(setting.partition("=")[::2] for setting in _settings())
    command = [str(uv), "pip", *_QUIET, "--python", sys.executable, *what]
    return subprocess.run(command, env={**told, **os.environ}).returncode == 0


def _settings() -> list[str]:
    listed = subprocess.run([*_PIP, "config", "debug"], capture_output=True, text=True).stdout
    # "  FILE, exists: True", in the order in which pip reads them.
    lines = (line.strip().removesuffix(", exists: True") for line in listed.splitlines())
    files = [Path(line) for line in lines if line.startswith("/")]
    texts = [path.read_text() for path in files if path.is_file()]
    return pip_settings.for_uv("\n".join(texts), os.environ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
