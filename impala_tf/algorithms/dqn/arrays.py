"""Storage of a replay buffer's arrays: in memory, or in files that outlive the process."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from impala_tf.config import ConfigError
from impala_tf.logdir import write_atomically

_HEADER = "replay.json"

MakeArray = Callable[[str, tuple[int, ...], np.dtype], np.ndarray]
"""Makes an array of zeros: (name, shape, dtype) -> array. If it exists, it keeps its values."""


def in_memory(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Makes an array. The system allocates its memory when it is written to."""
    del name
    return np.zeros(shape, dtype)


def in_files(folder: Path, header: dict[str, Any], nbytes: int) -> MakeArray:
    """Returns a function that makes arrays as memory-mapped files in a folder.

    Written values survive even if the process is killed. Disk space is allocated at once, because
    writing to a mapped file on a full disk would end the process.

    Args:
      folder: the folder; it is created if necessary.
      header: JSON-able; files that were made with a different header are replaced.
      nbytes: the size of all arrays together, for the error message.

    Raises:
      ConfigError: the folder cannot be used, or (when an array is made) the disk is too small.
    """
    try:
        if _read(folder / _HEADER) != header:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / _HEADER, json.dumps(header) + "\n")
    except OSError as error:
        raise ConfigError(f"--save_replay: {folder}: {error.strerror}") from None

    def make(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        path = folder / _file_name(name)
        size = int(np.prod(shape)) * dtype.itemsize
        try:
            _reserve(path, size)
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink()
            raise ConfigError(_refusal(path, error, nbytes)) from None
        return np.memmap(path, dtype, "r+", shape=shape)

    return make


def _file_name(name: str) -> str:
    """Returns the file name of an array. Parts of observations may have any name.

    The suffixes differ, so that a name with a slash cannot collide with one without.
    """
    if "/" not in name:
        return f"{name}.bin"
    return f"{name.replace('%', '%25').replace('/', '%2F')}.part"


def _refusal(path: Path, error: OSError, nbytes: int) -> str:
    advice = "give another --logdir, or leave --save_replay out"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = (
            f"the replay needs {nbytes / 1e9:.1f} GB on the disk: give a smaller --replay_capacity,"
            " or leave --save_replay out"
        )
    return f"--save_replay: {path}: {error.strerror}; {advice}"


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _reserve(path: Path, size: int) -> None:
    with path.open("ab") as file:
        if file.tell() != size:
            os.ftruncate(file.fileno(), 0)
            os.posix_fallocate(file.fileno(), 0, size)
