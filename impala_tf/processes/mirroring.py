"""--mirror: learner 0 keeps a copy of every checkpoint elsewhere; a run resumes from there.

A thread sends them one at a time, so that training never waits for the network. Meanwhile, only
the newest checkpoint waits. See `checkpoint.mirror` for the files of a mirror.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from impala_tf.callbacks import Callback
from impala_tf.checkpoint import files, targets
from impala_tf.checkpoint import mirror as mirrors
from impala_tf.checkpoint.files import DamagedError
from impala_tf.checkpoint.mirror import Mirror, Snapshot, StrangerError
from impala_tf.checkpoint.targets import Folder, Target
from impala_tf.config import Config, ConfigError
from impala_tf.logdir import Logdir, in_use
from impala_tf.machine.process_lifetime import run_interruptibly
from impala_tf.monitoring.notes import FOR_USER
from impala_tf.monitoring.storage import StorageWatch
from impala_tf.processes import provenance, run_folder
from impala_tf.types import EnvironmentSpec

_ANSWER_S = 60.0
_RETRY_S = 10.0
_LAST_S = 120.0  # how long a finished run waits for its last checkpoint to arrive
_LAST_OF_STOPPED_S = 30.0  # how long a stopped run waits: supervisors kill it after 60 s
_POLL_S = 0.2

_log = logging.getLogger("impala_tf.learner")


def opened(config: Config, logdir: Logdir) -> Mirror | None:
    """Returns the mirror of --mirror after writing a small file there; None without --mirror.

    Raises:
      ConfigError: the mirror cannot be used, or holds other files.
    """
    name = config.run.mirror
    if not name:
        return None
    target = targets.of(name)
    _check_apart(name, target, logdir)
    mirror = Mirror(name, target)
    try:
        other = run_interruptibly(mirror.begin, _ANSWER_S)  # shares may hang
    except OSError as error:
        raise _unusable(name, error) from error
    if other:
        raise ConfigError(
            f"--mirror={name}: holds files that do not belong to a mirror, such as {other}; give a"
            " folder of its own"
        )
    return mirror


def bring_back(
    mirror: Mirror | None,
    config: Config,
    spec: EnvironmentSpec,
    logdir: Logdir,
    say: Callable[[str], None],
) -> None:
    """Gets the mirror's newest checkpoint if it is newer than the logdir's.

    Args:
      mirror: the mirror. With None, nothing is done.
      config, spec, logdir: the run's; no other process may use the logdir.
      say: called with lines for the user.

    Raises:
      ConfigError: the mirror belongs to another run, is damaged, or cannot be read.
    """
    if mirror is None:
        return
    try:
        if manifests := mirror.manifests():
            described = json.loads(manifests[-1].texts.get("config.json", "{}"))
            lines = run_folder.differences(described, mirror.name, config, spec, "mirror")
            if lines:
                raise ConfigError(lines)
        mirrors.bring_back(mirror, logdir, say)
    except OSError as error:
        raise _unusable(mirror.name, error) from error


def move_aside(mirror: Mirror | None) -> str:
    """Renames the mirror if it holds a run, for --fresh; returns its new name, or ''.

    Raises:
      ConfigError: the mirror cannot be renamed.
    """
    try:
        return "" if mirror is None else mirror.move_aside()
    except OSError as error:
        assert mirror is not None
        raise ConfigError(
            f"--fresh: cannot rename --mirror={mirror.name}: {_reason(error)}; give another"
            " --mirror"
        ) from None


def for_learner(config: Config, spec: EnvironmentSpec, logdir: Logdir) -> Mirror | None:
    """Returns the mirror of learner 0, after `bring_back`; None without --mirror.

    A restarted learner with a checkpoint here continues even if its mirror cannot be used; each
    new checkpoint is another try.

    Raises:
      ConfigError: see `opened` and `bring_back`.
    """
    if config.run.mirror and in_use(logdir.metrics):
        raise run_folder.used_by_another(logdir)
    try:
        mirror = opened(config, logdir)
        bring_back(mirror, config, spec, logdir, lambda line: _log.info("%s", line))
    except ConfigError as error:
        if not _was_used(config, logdir) or not isinstance(error.__cause__, OSError):
            raise
        message = "%s; resuming from the checkpoint in the logdir"
        _log.warning(message, error.problems[0], extra=FOR_USER)
        return Mirror(config.run.mirror, targets.of(config.run.mirror))
    return mirror


class MirrorUploads(Callback):
    """Sends checkpoints to the mirror, in a thread of its own.

    Args:
      mirror: the run's mirror.
      logdir: the run's folder.
      storage: learns what cannot be written, so that the display shows it.
    """

    def __init__(self, mirror: Mirror, logdir: Logdir, storage: StorageWatch) -> None:
        self._mirror = mirror
        self._logdir = logdir
        self._storage = storage
        self._what = f"checkpoints to {mirror.name}"
        self._links = f"links of checkpoints for {mirror.name}"
        self._changed = threading.Condition()
        self._waiting: Snapshot | None = None
        self._sending = False
        self._over = False
        self._last: Path | None = None
        self._sent_frames: int | None = None
        self._failure: Exception | None = None
        mirrors.remove_leftovers(logdir)
        for what in (self._what, self._links):  # both work now: `opened` has written there
            with storage.attempt(what):
                pass
        threading.Thread(target=self._guarded, name="mirror", daemon=True).start()

    def on_checkpoint(self, path: Path) -> None:
        """Makes the thread send this checkpoint next."""
        if self._failure is not None:
            raise self._failure
        if self._over:
            return
        self._last = path
        with self._storage.attempt(self._links):
            taken = mirrors.snapshot(self._logdir, path)
            with self._changed:
                old, self._waiting = self._waiting, taken
                self._changed.notify_all()
            if old is not None:
                old.discard()

    def send_again(self) -> None:
        """Sends the last checkpoint's files again, with later additions such as evaluations."""
        if self._last is not None and not self._over:
            self.on_checkpoint(self._last)

    @property
    def busy(self) -> bool:
        """Whether a checkpoint has not arrived yet."""
        with self._changed:
            return not self._over and (self._sending or self._waiting is not None)

    def close(self, stopped: Callable[[], bool], may_wait: bool = True) -> None:
        """Waits a limited time for the last checkpoint to arrive, and ends the thread.

        Args:
          stopped: whether the run was asked to stop; then the wait is shorter.
          may_wait: whether to wait at all.
        """
        began = time.monotonic()

        def left_s() -> float:
            limit_s = _LAST_OF_STOPPED_S if stopped() else _LAST_S
            return began + limit_s - time.monotonic()

        if may_wait and self.busy:
            _log.info("waiting for the last checkpoint to reach %s, for at most %.0f s",
                      self._mirror.name, left_s())  # fmt: skip
            while self.busy and left_s() > 0:
                time.sleep(_POLL_S)
        arrived = "nothing" if self._sent_frames is None else f"{self._sent_frames:,} frames"
        if self.busy:
            lacks = "does not have the last checkpoint; it has"
            _log.warning("%s: %s %s", self._mirror.name, lacks, arrived, extra=FOR_USER)
        elif not self._over:
            _log.info("%s: has the last checkpoint, %s", self._mirror.name, arrived)
        with self._changed:
            self._over = True
            self._changed.notify_all()
        for what in (self._what, self._links):
            self._storage.forget(what)  # it does not make the run fail

    def _guarded(self) -> None:
        try:
            self._send_all()
        except StrangerError as error:
            _log.error("%s: %s; is the run also running on another machine? No more checkpoints are"
                       " copied", self._mirror.name, error, extra=FOR_USER)  # fmt: skip
        except Exception as error:  # the next `on_checkpoint` raises it
            self._failure = error
        with self._changed:
            self._over, self._sending = True, False

    def _send_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._over or self._waiting is not None)
                if self._over or self._waiting is None:
                    mirrors.remove_leftovers(self._logdir)
                    return
                taken, self._waiting, self._sending = self._waiting, None, True
            sent = self._send(taken)
            with self._changed:
                self._sending = False
                if not sent and self._waiting is None and not self._over:
                    self._waiting = taken
                    self._wait_to_retry(taken)
                    continue
            taken.discard()

    def _wait_to_retry(self, taken: Snapshot) -> None:
        """Waits, but sends a newer checkpoint at once."""
        self._changed.wait_for(lambda: self._over or self._waiting is not taken, _RETRY_S)

    def _send(self, taken: Snapshot) -> bool:
        with self._storage.attempt(self._what):
            try:
                manifest = self._mirror.upload(taken)
            except DamagedError as error:
                raise OSError(f"{taken.checkpoint.name} is damaged: {error}") from error
            except OSError:
                if self._over:
                    return False  # the run no longer waits for it
                raise
            if self._sent_frames is None:
                _log.info("%s: has the checkpoint of %s frames; the next ones follow",
                          self._mirror.name, f"{manifest.environment_frames:,}")  # fmt: skip
            self._sent_frames = manifest.environment_frames
            return True
        return False


def _was_used(config: Config, logdir: Logdir) -> bool:
    """Whether the run here has a checkpoint and has used this mirror before."""
    flags = provenance.read(logdir).get("flags", {})
    paths = files.checkpoints(logdir.checkpoints)
    return bool(paths) and flags.get("mirror") == config.run.mirror


def _check_apart(name: str, target: Target, logdir: Logdir) -> None:
    if not isinstance(target, Folder):
        return
    own, other = logdir.path.resolve(), target.path.resolve()
    if own == other or own in other.parents or other in own.parents:
        raise ConfigError(f"--mirror={name}: must not be in --logdir={logdir.path}, nor around it")


def _unusable(name: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"--mirror={name}: cannot be used: {_reason(error)}; name a place that can be written"
    )


def _reason(error: OSError) -> str:
    return " ".join(str(error.strerror or error).split()) or type(error).__name__
