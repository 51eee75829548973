"""--track=wandb: also writes the metrics, the config and videos to Weights & Biases.

With WANDB_MODE=offline, nothing leaves the machine; `wandb sync` uploads it later. Its other
variables work as well: WANDB_PROJECT, WANDB_RUN_GROUP, WANDB_TAGS.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from impala_tf.config import ConfigError, user_commands
from impala_tf.logdir import write_atomically
from impala_tf.monitoring.metrics import Row, tag
from impala_tf.monitoring.status_file import FOR_USER

_log = logging.getLogger("impala_tf.monitoring")


class WandbWriter:
    """Writes the rows of metrics.csv as points over environment_frames.

    Args:
      logdir: the run's folder. Its folder `wandb` holds the run's id in W&B, and what is not
        uploaded yet.
      flags: {flag: value}, shown as the run's config.
    """

    def __init__(self, logdir: Path, flags: Mapping[str, Any]) -> None:
        check_installed()
        self._logdir = Path(logdir)
        self._flags = dict(flags)
        self._run: Any = None

    def write(self, row: Row) -> None:
        """Adds a point to each curve that has a value."""
        points = {tag(name): value for name, value in row.items() if value is not None}
        self._opened().log(points, step=int(row["environment_frames"] or 0))

    def add(self, values: Mapping[str, float], environment_frames: int) -> None:
        """Adds other metrics, at the frames of the last row: W&B drops older points."""
        self._opened().log(dict(values), step=environment_frames)

    def add_video(
        self, name: str, path: Path, environment_frames: int, caption: str | None = None
    ) -> None:
        """Adds an mp4 file, at the frames of the last row: W&B drops older points."""
        import wandb

        film = wandb.Video(str(path), caption=caption, format="mp4")
        self._opened().log({name: film}, step=environment_frames)

    def rewind(self, environment_frames: int | None) -> None:
        """Continues the W&B run of this logdir; None: starts a new one. Uploads cannot be undone.

        If a run resumes while the server is unreachable, further rows are stored for `wandb sync`:
        a restarted learner must not end the run.

        Raises:
          ConfigError: a new run cannot log in, or cannot reach the server.
        """
        self.close()
        if environment_frames is None:
            _id_file(self._logdir).unlink(missing_ok=True)
        try:
            self._opened()
        except ConfigError as error:
            if environment_frames is None:
                raise
            what = "%s; until the next restart, `wandb sync` uploads what is kept"
            _log.warning(what, error, extra=FOR_USER)
            self._run = _start(self._logdir, self._flags, "offline")
        if self._run.offline:
            folder = shlex.quote(str(self._logdir / "wandb"))
            sync = f"{user_commands.installed('wandb', 'sync')} {folder}/offline-run-*"
            _log.info(
                "W&B is offline: it writes to %s; to upload: %s", folder, sync, extra=FOR_USER
            )

    def close(self) -> None:
        """Ends the upload."""
        if self._run is not None:
            self._run.finish()
            self._run = None

    def _opened(self) -> Any:
        if self._run is None:
            self._run = _start(self._logdir, self._flags)
        return self._run


def check_installed() -> None:
    """Raises ConfigError if the package is missing."""
    if importlib.util.find_spec("wandb") is None:
        raise ConfigError(
            f"--track=wandb: needs the extra wandb: {user_commands.install_extra('wandb')}"
        )


def _start(logdir: Path, flags: Mapping[str, Any], mode: Literal["offline"] | None = None) -> Any:
    import wandb

    file = _id_file(logdir)
    if not file.exists():
        write_atomically(file, secrets.token_hex(4))
    try:
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT", "impala_tf"),
            name=Path(logdir).name,
            id=file.read_text(),
            resume="allow",
            dir=str(logdir),
            mode=mode,
            config=dict(flags),
            settings=wandb.Settings(silent=True, console="off"),
        )
    except wandb.Error as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(
            f"--track=wandb: {reason}; log in with {user_commands.installed('wandb', 'login')}, or"
            " set WANDB_MODE=offline"
        ) from error


def _id_file(logdir: Path) -> Path:
    return Path(logdir) / "wandb" / "run_id"
