"""Which run a logdir on this machine holds, and moving it aside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from impala_tf.logdir import moved_aside


def run_in(logdir: Path) -> dict[str, Any]:
    """Returns "flags" and "sources" of config.json; {} if there is none.

    What is damaged counts as none: the learner says what is wrong with it.
    """
    try:
        described = json.loads((logdir / "config.json").read_text(encoding="utf-8"))
        return {name: dict(described.get(name, {})) for name in ("flags", "sources")}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}


def set_aside(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Renames a logdir in which there is a run; see `impala_tf.logdir.moved_aside`.

    Args:
      asked: "logdir", absolute.

    Returns:
      "moved": its new path, or ''.
    """
    return {"moved": str(moved_aside(Path(asked["logdir"])) or "")}
