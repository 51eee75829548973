"""A checkpoint's folder: its name, its files, and whether it is complete.

ckpt-<learner updates> holds `variables.*` (TensorFlow's format), `state.json` (counters,
clocks) and `manifest.json` (size and SHA-256 of the other files).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.config import ConfigError
from impala_tf.logdir import open_regular, read_json

STATE, MANIFEST = "state.json", "manifest.json"
FORMAT = 1
"""The format of checkpoints. A change that other versions cannot read gives it another number."""


class DamagedError(Exception):
    """A checkpoint differs from what was written; the message says how."""


def folder_name(learner_updates: int) -> str:
    """Returns the name of the checkpoint after `learner_updates` updates."""
    return f"ckpt-{learner_updates:012d}"


@contextlib.contextmanager
def temporary(checkpoint: Path) -> Iterator[Path]:
    """Yields where a checkpoint is while it is written or deleted; removes that in the end."""
    name = f".tmp-{checkpoint.name.removeprefix('ckpt-')}-{os.getpid()}"
    folder = checkpoint.with_name(name)
    try:
        yield folder
    finally:
        if folder.exists():
            shutil.rmtree(folder)


def checkpoints(directory: Path) -> list[Path]:
    """Returns the checkpoints in a folder, oldest first, unchecked; [] if there is no folder."""
    paths = [path for path in directory.glob("ckpt-*") if re.fullmatch(r"ckpt-\d+", path.name)]
    return sorted(paths, key=lambda path: int(path.name.removeprefix("ckpt-")))


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Writes state.json, and then manifest.json for all files in the folder.

    Args:
      folder: the checkpoint's.
      state: what to save besides variables, JSON-able, with a "run_id".
    """
    (folder / STATE).write_text(json.dumps(state))
    fingerprints = {path.name: _fingerprint(path) for path in sorted(folder.iterdir())}
    manifest = {"format": FORMAT, "files": fingerprints}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))


def read_state(checkpoint: Path) -> Any:
    """Returns the state given to `write_state`, after comparing every file with the manifest.

    Raises:
      DamagedError: a file is missing, unreadable or changed.
      ConfigError: it has another format.
    """
    name = MANIFEST
    try:
        manifest = read_json(checkpoint / name)
        if (format_ := manifest["format"]) != FORMAT:
            raise ConfigError(
                f"{checkpoint / name}: has format {format_}, but this version of impala_tf reads"
                f" format {FORMAT}; use the version that wrote it"
            )
        for name, written in manifest["files"].items():
            if _fingerprint(checkpoint / Path(name).name) != written:
                raise DamagedError(f"{name} has changed since it was written")
        for path in checkpoint.iterdir():  # TensorFlow reads what the manifest lacks, too
            name = path.name
            open_regular(path).close()
        name = STATE
        state = read_json(checkpoint / name)
        # It is part of file names in a mirror, and somebody else may have written it.
        if not re.fullmatch(r"\w{1,64}", state["run_id"]):
            raise ValueError("run_id is no name")
    except ConfigError:
        raise
    except OSError as error:
        raise DamagedError(f"{name}: {error.strerror}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{name} is unreadable: {error}") from error
    return state


class Newest(NamedTuple):
    """The newest complete checkpoint."""

    path: Path
    state: Any  # as given to `write_state`
    damaged: dict[Path, str]  # newer checkpoints that are damaged, and why


def find(
    directory: Path, accept: Callable[[Path, Any], object] = lambda path, state: None
) -> Newest | None:
    """Returns the newest complete checkpoint; None only if there is no checkpoint at all.

    Args:
      directory: the folder of checkpoints.
      accept: called with the path and state of a complete one; if it raises DamagedError, the
        checkpoint counts as damaged. Other exceptions are not caught.

    Raises:
      ConfigError: there are checkpoints, but none is complete.
    """
    damaged: dict[Path, str] = {}
    for path in reversed(checkpoints(directory)):
        try:
            state = read_state(path)
            accept(path, state)
        except DamagedError as why:
            damaged[path] = str(why)
        else:
            return Newest(path, state, damaged)
    if damaged:
        lines = [f"{path}: is damaged ({why})" for path, why in damaged.items()]
        advice = "restore one from a copy, or start a new run with another --logdir"
        raise ConfigError([*lines, f"{directory}: no checkpoint is whole; {advice}"])
    return None


def damage_line(path: Path, reason: str, used: Path) -> str:
    """Returns the message about a damaged checkpoint."""
    return f"{path} is damaged ({reason}); using {used.name}"


def set_aside(checkpoint: Path) -> None:
    """Renames a damaged checkpoint, so that it no longer counts as a checkpoint."""
    target = checkpoint.with_name(f"damaged-{checkpoint.name}")
    if target.exists():
        shutil.rmtree(target)
    checkpoint.rename(target)


def remove_leftovers(directory: Path) -> None:
    """Removes temporary folders of killed processes. Call it before this process writes any."""
    for path in directory.glob(".tmp-*"):
        match = re.fullmatch(r"\.tmp-\d+-(\d+)", path.name)
        # In a container, the previous process often had the same id.
        if match and (match[1] == str(os.getpid()) or not Path("/proc", match[1]).exists()):
            shutil.rmtree(path)


def _fingerprint(path: Path) -> dict[str, Any]:
    """Returns the manifest's entry for a file."""
    with open_regular(path) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return {"size": file.tell(), "sha256": sha256}
