"""--track=wandb: metrics, results and videos go to Weights & Biases, too."""

from __future__ import annotations

import functools
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from impala_tf.config import ConfigError, user_commands
from impala_tf.logdir import write_atomically
from impala_tf.monitoring.metrics import Row, tag
from impala_tf.monitoring.status_file import FOR_USER

_log = logging.getLogger("impala_tf.monitoring")


class WandbWriter:
    """A `Writer` of points over environment_frames. LOGDIR/wandb/run_id has the run's id there."""

    def __init__(self, logdir: Path, flags: Mapping[str, Any]) -> None:
        self._logdir, self._flags = logdir, dict(flags)
        self._run: Any = None

    def write(self, row: Row) -> None:
        """Adds a point to each curve that has a value."""
        points = {tag(name): value for name, value in row.items() if value is not None}
        self.log(points, int(row["environment_frames"] or 0))

    def log(self, values: Mapping[str, Any], environment_frames: int) -> None:
        """Adds values at the frames of the last row: W&B drops older ones."""
        self._run.log(dict(values), step=environment_frames)

    def rewind(self, environment_frames: int | None) -> None:
        """Continues the run of this logdir, offline if the server cannot be reached.

        None starts a new one. Raises ConfigError if that cannot log in.
        """
        import wandb

        folder = self._logdir / "wandb"
        if environment_frames is None or not (folder / "run_id").exists():
            write_atomically(folder / "run_id", secrets.token_hex(4))
        settings = {
            "project": os.environ.get("WANDB_PROJECT", "impala_tf"),
            "run_id": (folder / "run_id").read_text(),
            "resume": "allow",
            "root_dir": str(self._logdir),
            "silent": True,
            "console": "off",
        }
        begin = functools.partial(wandb.init, name=self._logdir.name, config=self._flags)
        try:
            self._run = begin(settings=settings)
        except wandb.Error as error:
            problem = f"--track=wandb: {' '.join(str(error).split()).rstrip('.')}"
            if environment_frames is None:
                login = f"log in with {user_commands.installed('wandb', 'login')}"
                raise ConfigError(f"{problem}; {login}, or set WANDB_MODE=offline") from error
            _log.warning("%s; W&B goes on offline", problem, extra=FOR_USER)
            self._run = begin(settings=settings, mode="offline")
        if self._run.offline:
            sync = user_commands.installed("wandb", "sync", str(folder))
            _log.info("W&B is offline; to upload: %s/offline-run-*", sync, extra=FOR_USER)

    def close(self) -> None:
        """Ends the upload."""
        if self._run is not None:
            self._run.finish()
            self._run = None
