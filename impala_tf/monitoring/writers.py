"""Writers of metrics: CSV and TensorBoard. Importing this file does not import TensorFlow.

Writers can be rewound. A checkpoint stores the `position()` of each. A run that resumes from it
calls `rewind` with this position, which removes all later rows, or has TensorBoard hide them, so
that no row appears twice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import numbers
import os
import re
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from impala_tf.config import ConfigError
from impala_tf.logdir import NoLocksError, lock, os_error, sync
from impala_tf.monitoring.metrics import METRICS, Row, tag

_PUT_BACK = "restore the file that belongs to the checkpoint, or choose another --logdir"
_RESTART = ".restart"
_NO_CHECKPOINT = (
    "but there is no checkpoint to resume from; move it away or choose another --logdir"
)


class Writer(Protocol):
    """Writes rows of metrics."""

    def write(self, row: Row) -> None:
        """Adds a row."""

    def position(self) -> dict[str, int]:
        """Returns where the rows end so far, after flushing them to the disk."""

    def rewind(self, position: Mapping[str, int] | None) -> None:
        """Removes everything after `position`; None: starts a fresh run.

        A file that may start after the checkpoint also takes {}: it removes all rows.
        """

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

    def position(self) -> dict[str, int]:
        """Returns {"offset": bytes} after flushing the file to the disk."""
        descriptor = self._opened()
        os.fsync(descriptor)
        return {"offset": os.fstat(descriptor).st_size}

    def rewind(self, position: Mapping[str, int] | None) -> None:
        """Opens the file and truncates it to `position`.

        Args:
          position: what `position` returned; None: starts the file of a fresh run; {}: removes all
            rows, if there are any.

        Raises:
          ConfigError: the position does not belong to this file, or another process is writing it.
        """
        self.close()
        create = 0 if position else os.O_CREAT
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | create, 0o644)
        except FileNotFoundError:
            raise ConfigError(f"{self._path}: is missing; {_PUT_BACK}") from None
        self._lock()
        if position is None:
            self._begin()
        elif position:
            self._truncate(position["offset"])
        else:
            os.ftruncate(self._descriptor, 0)
            self._begin()

    def close(self) -> None:
        """Closes the file. The next call opens it for a fresh run."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _opened(self) -> int:
        if self._descriptor is None:
            self.rewind(None)
        assert self._descriptor is not None
        return self._descriptor

    def _lock(self) -> None:
        try:
            lock(self._opened(), self._path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise ConfigError(
                f"{self._path}: another process is writing it; is another run using this --logdir?"
            ) from None
        except NoLocksError as error:
            self.close()
            raise ConfigError(f"{self._path}: {error.strerror}") from None

    def _append(self, line: str) -> None:
        # One system call per line: a killed run leaves complete lines, and nothing is buffered.
        data, descriptor = line.encode(), self._opened()
        size = os.fstat(descriptor).st_size
        if os.write(descriptor, data) != len(data):
            os.ftruncate(descriptor, size)  # a partial line would corrupt the next one
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def _begin(self) -> None:
        descriptor = self._opened()
        # A run that was killed before its first row may have left part of a header.
        header = self._header.encode()
        if not header.startswith(os.pread(descriptor, len(header) + 1, 0)):
            self.close()
            raise ConfigError(f"{self._path}: holds the rows of a run, {_NO_CHECKPOINT}")
        os.ftruncate(descriptor, 0)
        self._append(self._header)
        sync(self._path.parent)

    def _truncate(self, offset: int) -> None:
        descriptor = self._opened()
        header = self._header.encode()
        size = os.fstat(descriptor).st_size
        problem = None
        if size < offset:
            problem = f"has {size:,} bytes, but had {offset:,} at the checkpoint; {_PUT_BACK}"
        elif os.pread(descriptor, len(header), 0) != header:
            problem = "has other columns than this version writes; choose another --logdir"
        elif os.pread(descriptor, 1, offset - 1) != b"\n":
            problem = f"was changed: no row ends at byte {offset:,}; {_PUT_BACK}"
        if problem:
            self.close()
            raise ConfigError(f"{self._path}: {problem}")
        os.ftruncate(descriptor, offset)


def _cell(value: float | int | str | None) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        text = " ".join(value.split())  # a row is a line
        return '"{}"'.format(text.replace('"', '""')) if re.search('[",]', text) else text
    return str(int(value)) if isinstance(value, numbers.Integral) else f"{float(value):.8g}"


class TensorBoardWriter:
    """Writes rows as TensorBoard curves over environment_frames, named by TENSORBOARD_TAGS."""

    def __init__(self, directory: Path) -> None:
        self._directory = Path(directory)
        self._writer: Any = None
        self._frames = 0

    def write(self, row: Row) -> None:
        """Adds a point to each curve that has a value, and flushes it for readers.

        Raises:
          OSError: the file cannot be written; the next row starts a new file.
        """
        import tensorflow as tf

        self._frames = int(row["environment_frames"] or 0)
        with self._failing():
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(str(self._directory))
            # Arrays, because TensorFlow caches every Python number that it converts, forever.
            with self._writer.as_default(step=np.asarray(row["environment_frames"], np.int64)):
                for name, value in row.items():
                    if value is not None:
                        point = np.asarray(value, np.float32)
                        meaning = METRICS.get(name, "")
                        tf.summary.scalar(tag(name), point, description=meaning)
            self._writer.flush()

    def add(
        self, values: Mapping[str, float], environment_frames: int, group: str = "callbacks"
    ) -> None:
        """Adds metrics that are not columns, as GROUP/NAME."""
        import tensorflow as tf

        if self._writer is None:
            return
        with self._failing(), self._writer.as_default(np.asarray(environment_frames, np.int64)):
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
        with self._failing():
            with self._writer.as_default():
                step = np.asarray(environment_frames, np.int64)
                tf.summary.experimental.write_raw_pb(summary, step)
            self._writer.flush()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Converts TensorFlow's errors to OSError. The next row starts a new file."""
        import tensorflow as tf

        try:
            yield
        except tf.errors.OpError as error:
            self._writer = None
            raise os_error(error.message, self._directory) from error

    def position(self) -> dict[str, int]:
        """Returns {"environment_frames": those of the last row}."""
        return {"environment_frames": self._frames}

    def rewind(self, position: Mapping[str, int] | None) -> None:
        """Makes TensorBoard hide points after `position`; None: a fresh run.

        Raises:
          ConfigError: a fresh run would add to another run's curves.
        """
        self.close()
        files = sorted(self._directory.glob("events.out.tfevents.*"))
        if position is None and files:
            raise ConfigError(f"{self._directory}: holds the events of a run, {_NO_CHECKPOINT}")
        self._frames = position["environment_frames"] if position else 0
        if not files:
            return
        import tensorflow as tf

        now = time.time()
        # TensorBoard reads files in the order of their names: this one after all others so far.
        path = files[-1].with_name(files[-1].name.removesuffix(_RESTART) + _RESTART)
        version = tf.compat.v1.Event(wall_time=now, file_version="brain.Event:2")
        session = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        restart = tf.compat.v1.Event(wall_time=now, step=self._frames + 1, session_log=session)
        with tf.io.TFRecordWriter(str(path)) as file:
            for event in (version, restart, restart):  # TensorBoard ignores the first start
                file.write(event.SerializeToString())

    def close(self) -> None:
        """Closes the event file. A later row starts a new one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
