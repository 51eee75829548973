"""Writers of metrics: CSV and TensorBoard. Importing this file does not import TensorFlow.

A run that resumes from a checkpoint rewinds its writers to the frames of this checkpoint: later
rows are removed, or TensorBoard hides them, so that no row appears twice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import numbers
import os
import re
import shlex
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from impala_tf.config import ConfigError
from impala_tf.logdir import NoLocksError, lock, os_error
from impala_tf.monitoring.metrics import METRICS, Row, tag

_RESTART = ".restart"
_NO_CHECKPOINT = (
    "but there is no checkpoint to resume from; move it away or choose another --logdir"
)


class Writer(Protocol):
    """Writes rows of metrics."""

    def write(self, row: Row) -> None:
        """Adds a row."""

    def rewind(self, environment_frames: int | None) -> None:
        """Removes the rows after a checkpoint with so many frames; None: starts a fresh run."""

    def close(self) -> None:
        """Closes what is open."""


class CsvWriter:
    """Writes a CSV file: a header, then one line per row. A missing value is an empty cell.

    Args:
      path: the path of the file, such as metrics.csv.
      columns: {name: meaning} of the columns, in order.
    """

    def __init__(self, path: Path, columns: Mapping[str, str] = METRICS) -> None:
        self._path = Path(path)
        self._columns = columns
        self._header = ",".join(columns) + "\n"
        self._descriptor: int | None = None

    def write(self, row: Row) -> None:
        """Appends a row. Raises KeyError for a name that is not a column."""
        for name in row:
            self._columns[name]
        self._append(",".join(_cell(row.get(name)) for name in self._columns) + "\n")

    def rewind(self, environment_frames: float | None) -> None:
        """Opens the file, and removes the rows after a checkpoint; None: a fresh run has none yet.

        Raises ConfigError: it holds another run's rows or other columns, or another process writes
        it.
        """
        self.close()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            self._cut(self._descriptor, environment_frames)
        except ConfigError as error:
            self.close()
            raise ConfigError(f"{self._path}: {error}") from None

    def _cut(self, descriptor: int, environment_frames: float | None) -> None:
        """Locks the file and removes rows; see `rewind`. Raises ConfigError without the path."""
        try:
            lock(descriptor, self._path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                "another process is writing it; is another run using this --logdir?"
            ) from None
        except NoLocksError as error:
            raise ConfigError(str(error.strerror)) from None
        header, data = self._header.encode(), self._path.read_bytes()
        if header.startswith(data):  # a run that was killed may have left part of the header
            os.ftruncate(descriptor, 0)
            self._append(self._header)
            return
        if environment_frames is None:
            raise ConfigError(f"holds the rows of a run, {_NO_CHECKPOINT}")
        if not data.startswith(header):
            raise ConfigError("has other columns than this version writes; choose another --logdir")
        end, column = len(header), list(self._columns).index("environment_frames")
        for row in data[end:].splitlines(keepends=True):
            is_torn = not row.endswith(b"\n")  # by a kill
            if is_torn or float(row.split(b",")[column]) > environment_frames:
                break
            end += len(row)
        os.ftruncate(descriptor, end)

    def close(self) -> None:
        """Closes the file. The next call opens it for a fresh run."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, line: str) -> None:
        if self._descriptor is None:
            self.rewind(None)
        assert self._descriptor is not None
        # One system call per line: a killed run leaves complete lines, and nothing is buffered.
        data, size = line.encode(), os.fstat(self._descriptor).st_size
        if os.write(self._descriptor, data) != len(data):
            os.ftruncate(self._descriptor, size)  # a partial line would corrupt the next one
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))


def _cell(value: float | int | str | None) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        text = " ".join(value.split())  # a row is a line
        return '"{}"'.format(text.replace('"', '""')) if re.search('[",]', text) else text
    return str(int(value)) if isinstance(value, numbers.Integral) else f"{float(value):.8g}"


class TensorBoardWriter:
    """Writes rows as TensorBoard curves over environment_frames, named by TENSORBOARD_TAGS.

    Args:
      directory: the folder of the event files.
      flags: {flag: value}, shown as a text and as hyperparameters, beside the command.
    """

    def __init__(self, directory: Path, flags: Mapping[str, Any] | None = None) -> None:
        self._directory = Path(directory)
        self._flags = flags or {}
        self._writer: Any = None

    def write(self, row: Row) -> None:
        """Adds a point to each curve that has a value, and flushes it for readers.

        Raises OSError: the file cannot be written; the next row starts a new file.
        """
        import tensorflow as tf

        with self._at(row["environment_frames"]):
            for name, value in row.items():
                if value is not None:
                    point, meaning = np.asarray(value, np.float32), METRICS.get(name, "")
                    tf.summary.scalar(tag(name), point, description=meaning)

    @contextlib.contextmanager
    def _at(self, environment_frames: float | None) -> Iterator[None]:
        """Lets `tf.summary` write at a step, then flushes. TensorFlow's errors become OSError."""
        import tensorflow as tf

        try:
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(str(self._directory))
                if self._flags:
                    self._describe()
            # Arrays, because TensorFlow caches every Python number that it converts, forever.
            with self._writer.as_default(step=np.asarray(environment_frames, np.int64)):
                yield
            self._writer.flush()
        except tf.errors.OpError as error:
            self._writer = None
            raise os_error(error.message, self._directory) from error

    def _describe(self) -> None:
        import tensorflow as tf
        from tensorboard.plugins.hparams import summary_v2  # not api, which imports Keras: 80 MB

        table = "".join(f"|`{name}`|`{value}`|\n" for name, value in self._flags.items())
        with self._writer.as_default(step=0):
            tf.summary.text("flags", f"|flag|value|\n|-|-|\n{table}")
            tf.summary.text("command", f"    {shlex.join(sys.argv)}")
            shown = {
                name: value if isinstance(value, int | float) else str(value)
                for name, value in self._flags.items()
                if value is not None
            }
            summary_v2.hparams(shown)

    def add(
        self, values: Mapping[str, float], environment_frames: int, group: str = "callbacks"
    ) -> None:
        """Adds metrics that are not columns, as GROUP/NAME."""
        import tensorflow as tf

        if self._writer is None:
            return
        with self._at(environment_frames):
            for name, value in values.items():
                tf.summary.scalar(f"{group}/{name}", np.asarray(value, np.float32))

    def add_gif(self, name: str, gif: bytes, environment_frames: int) -> None:
        """Adds an animated GIF to the images."""
        import tensorflow as tf

        if self._writer is None:
            return
        width, height = struct.unpack("<HH", gif[6:10])  # in its header
        image = tf.compat.v1.Summary.Image(
            encoded_image_string=gif, width=width, height=height, colorspace=3
        )
        values = [tf.compat.v1.Summary.Value(tag=name, image=image)]
        summary = tf.compat.v1.Summary(value=values).SerializeToString()
        with self._at(environment_frames):
            tf.summary.experimental.write_raw_pb(summary)

    def rewind(self, environment_frames: int | None) -> None:
        """Makes TensorBoard hide the points after a checkpoint's frames; None: a fresh run.

        Raises ConfigError: a fresh run would add to another run's curves.
        """
        self.close()
        files = sorted(self._directory.glob("events.out.tfevents.*"))
        if not files:
            return
        if environment_frames is None:
            raise ConfigError(f"{self._directory}: holds the events of a run, {_NO_CHECKPOINT}")
        import tensorflow as tf

        now = time.time()
        # TensorBoard reads files in the order of their names: this one after all others so far.
        path = files[-1].with_name(files[-1].name.removesuffix(_RESTART) + _RESTART)
        version = tf.compat.v1.Event(wall_time=now, file_version="brain.Event:2")
        session = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        restart = tf.compat.v1.Event(
            wall_time=now, step=environment_frames + 1, session_log=session
        )
        with tf.io.TFRecordWriter(str(path)) as file:
            for event in (version, restart, restart):  # TensorBoard ignores the first start
                file.write(event.SerializeToString())

    def close(self) -> None:
        """Closes the event file. A later row starts a new one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
