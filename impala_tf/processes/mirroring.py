"""--mirror: copies of checkpoints elsewhere, from which a run resumes if its logdir is lost.

A mirror is a folder of any file system that fsspec knows. There, each checkpoint is a tar with all
files of the logdir that a resume needs. It gets its name when it is complete, and its name says how
far the run had come: ckpt-UPDATES-FRAMES-RUN.tar.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import shutil
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from impala_tf.checkpoint import files
from impala_tf.checkpoint.files import DamagedError
from impala_tf.config import Config, ConfigError, user_commands
from impala_tf.logdir import Logdir
from impala_tf.machine.process_lifetime import run_interruptibly
from impala_tf.monitoring.status_file import FOR_USER
from impala_tf.monitoring.storage import StorageWatch
from impala_tf.processes import provenance, run_folder
from impala_tf.types import EnvironmentSpec

_KEPT = 3
_ASIDE = ".mirror-"  # the prefix of temporary files in the logdir
_ANSWER_S, _RETRY_S, _POLL_S = 60.0, 10.0, 0.2
# How long a run that is done, or was stopped, waits for its last checkpoint to arrive. Supervisors
# kill a learner 60 s after they have stopped it.
_LAST_S, _LAST_OF_STOPPED_S = 120.0, 30.0
_PACKED = ("*", "best/**/*", "tensorboard/*", "wandb/run_id")  # besides the checkpoint
# Whoever wrote a mirror, it must name no other files than these.
_MEMBER = re.compile(
    r"(checkpoints|best)/ckpt-\d{1,19}/\w[\w.-]{,99}|best/best\.json|config\.(json|yaml)|wandb/run_id"
    r"|tensorboard/events[\w.-]{,199}|[a-z_]{,50}metrics(-[a-z]{,50})?\.csv|evaluation\.csv",
    re.ASCII,
)
_log = logging.getLogger("impala_tf.learner")


@contextlib.contextmanager
def _connected(mirror: str) -> Iterator[tuple[Any, str]]:
    """Yields the file system of a mirror, and the path there. What fails is an OSError."""
    import fsspec

    fsspec.register_implementation("sftp", "impala_tf.checkpoint.sftp.Sftp", clobber=True)
    settings = {"skip_instance_cache": True, "use_listings_cache": False}
    if "://" not in mirror:
        settings["auto_mkdir"] = True
    try:
        yield fsspec.core.url_to_fs(mirror, **settings)
    except (OSError, ConfigError):
        raise
    except Exception as error:  # file systems raise their own, such as botocore's
        raise OSError(f"{type(error).__name__}: {error}") from error


def _list_tars(place: Any, path: str) -> list[str]:
    """Returns the names of the checkpoints in a mirror, oldest first, after a test of writing."""
    with tempfile.NamedTemporaryFile() as empty:
        place.put_file(empty.name, f"{path}/mirror-of-impala_tf")
    names = (name.rpartition("/")[2] for name in place.ls(path, detail=False))
    return sorted(filter(re.compile(r"ckpt-\d{12}-\d{15}-\w+\.tar").fullmatch, names))


def _name_tar(state: Any) -> str:
    updates, frames = (state["counters"][n] for n in ("learner_updates", "environment_frames"))
    return f"ckpt-{updates:012d}-{frames:015d}-{state['run_id']}.tar"


def send(mirror: str, logdir: Logdir, checkpoint: Path) -> int:
    """Copies a checkpoint to the mirror, removes the oldest ones there; returns its frames.

    Raises OSError: the mirror cannot be written, and earlier checkpoints there stay; or the
    checkpoint is not whole: perhaps newer ones have replaced it. Raises ConfigError: another run or
    process has written there, such as this run on another machine.
    """
    try:
        state = files.read_state(checkpoint)
    except DamagedError as error:
        raise OSError(f"{checkpoint.name}: {error}") from error
    new = _name_tar(state)
    others = itertools.chain.from_iterable(map(logdir.path.glob, _PACKED))
    with (
        _connected(mirror) as (place, path),
        tempfile.TemporaryDirectory(prefix=_ASIDE, dir=logdir.path) as folder,
    ):
        there = _list_tars(place, path)
        if there and (there[-1] > new or not there[-1].endswith(f"-{state['run_id']}.tar")):
            raise ConfigError(f"another process has written {there[-1]}")
        with tarfile.open(f"{folder}/tar", "w") as tar:
            for each in (*checkpoint.iterdir(), *others):
                name = str(each.relative_to(logdir.path))
                if _MEMBER.fullmatch(name) and each.is_file():
                    tar.add(each, name)
        place.put_file(f"{folder}/tar", f"{path}/sending")
        place.mv(f"{path}/sending", f"{path}/{new}")
        for old in sorted({*there, new})[:-_KEPT]:
            place.rm_file(f"{path}/{old}")
    return int(state["counters"]["environment_frames"])


def check(name: str) -> None:
    """Raises ConfigError if --mirror does not name a place, or a package for it is missing."""
    if "://" not in name and re.match("[^/]+:", name):
        raise ConfigError(f"--mirror={name}: is no folder; for a machine, give sftp://HOST/PATH")
    try:
        import fsspec

        fsspec.get_filesystem_class(name.rpartition("://")[0] or "file")
    except (ImportError, ValueError) as error:
        install = user_commands.install_extra("mirror")
        raise ConfigError(f"--mirror={name}: {error}; s3:// needs {install}") from None


def bring_back(
    config: Config, spec: EnvironmentSpec, logdir: Logdir, say: Callable[[str], None]
) -> None:
    """Copies the newest checkpoint of --mirror to the logdir, if that has none or an older one.

    Afterwards the logdir has all files of the checkpoint, or is unchanged. A run with a checkpoint
    in its logdir goes on if its mirror cannot be used. No other process may use the logdir. Raises
    ConfigError: the mirror has another run, or cannot be used, or has no whole checkpoint.
    """
    name, here = config.run.mirror, None
    if not name:
        return
    with contextlib.suppress(ConfigError):  # none in the logdir is whole
        here = files.find(logdir.checkpoints)
    try:
        with _connected(name) as (place, path):
            tars = run_interruptibly(lambda: _list_tars(place, path), _ANSWER_S)  # may hang
            if tars and config.run.fresh:
                raise ConfigError(f"--mirror={name}: holds a run; --fresh needs another --mirror")
            if tars and here and not tars[-1].endswith(f"-{here.state['run_id']}.tar"):
                another = f"holds another run than --logdir={logdir.path}; give another --mirror"
                raise ConfigError(f"--mirror={name}: {another}")
            for tar in reversed(tars):
                if here and tar <= _name_tar(here.state):
                    return
                try:
                    _restore(place, f"{path}/{tar}", config, spec, logdir)
                    say(f"restored from {name}: checkpoint at {int(tar[18:33]):,} frames")
                    return
                except DamagedError as why:
                    say(f"{name}: {tar} is damaged ({why})")
                    place.mv(f"{path}/{tar}", f"{path}/damaged-{tar}")
        if tars and not here:
            raise ConfigError(f"--mirror={name}: no checkpoint is whole; give another --mirror")
    except OSError as error:
        line = f"--mirror={name}: cannot be used: {error.strerror or error}"
        if not here:
            raise ConfigError(f"{line}; name a place that can be written") from None
        _log.warning("%s; resuming from the checkpoint in the logdir", line, extra=FOR_USER)


def _restore(place: Any, tar: str, config: Config, spec: EnvironmentSpec, logdir: Logdir) -> None:
    logdir.path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=_ASIDE, dir=logdir.path) as folder:
        copy = Logdir(Path(folder))
        if place.info(tar)["type"] != "file":
            raise DamagedError("it is no regular file")
        place.get_file(tar, f"{folder}/tar")
        try:
            names = _unpack(Path(folder))
            (checkpoint,) = files.checkpoints(copy.checkpoints)
            described = provenance.read(copy)
        except OSError:
            raise
        except Exception as error:  # whoever wrote it
            raise DamagedError(f"{type(error).__name__}: {error}") from error
        files.read_state(checkpoint)
        if lines := run_folder.differences(described, config.run.mirror, config, spec, "mirror"):
            raise ConfigError(lines)
        for name in names:
            if not name.startswith("checkpoints/"):
                (logdir.path / name).parent.mkdir(parents=True, exist_ok=True)
                (copy.path / name).replace(logdir.path / name)
        # The checkpoint is last, because it makes the others valid.
        logdir.checkpoints.mkdir(exist_ok=True)
        if (final := logdir.checkpoints / checkpoint.name).exists():
            files.set_aside(final)
        checkpoint.rename(final)


def _unpack(folder: Path) -> list[str]:
    """Unpacks the file `tar` of a folder there; returns the names of the files."""
    tar = folder / "tar"
    names, left = [], tar.stat().st_size
    with tarfile.open(tar, "r:") as archive:
        for each in archive:
            left -= each.size  # files with holes may have more than the tar
            if not (_MEMBER.fullmatch(each.name) and each.isfile() and each.size >= 0 <= left):
                raise ValueError(f"{each.name!r} is no file that a run has")
            names.append(each.name)
        archive.extractall(folder)
    return names


class MirrorUploads:
    """Sends checkpoints to the mirror, in a thread: training never waits for the network.

    Meanwhile, only the newest checkpoint waits.
    """

    def __init__(self, mirror: str, logdir: Logdir, storage: StorageWatch) -> None:
        self._mirror, self._logdir, self._storage = mirror, logdir, storage
        self._what = f"checkpoints to {mirror}"
        self._asked = (0, Path())  # how often, and the last checkpoint
        self._sent, self._over = 0, False
        self._wake = threading.Event()
        for leftover in logdir.path.glob(f"{_ASIDE}*"):  # of a killed process
            shutil.rmtree(leftover)
        threading.Thread(target=self._run, name="mirror", daemon=True).start()

    def on_checkpoint(self, path: Path) -> None:
        """Makes the thread send this checkpoint next, or again, with later evaluations."""
        self._asked = (self._asked[0] + 1, path)
        self._wake.set()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint has not arrived yet."""
        return not self._over and self._sent < self._asked[0]

    def close(self, stopped: Callable[[], bool]) -> None:
        """Waits for the last checkpoint to arrive, shorter if `stopped` says that the run was."""
        began = time.monotonic()
        if self.busy:
            _log.info("waiting for the last checkpoint to reach %s", self._mirror)
        while self.busy:
            if time.monotonic() - began > (_LAST_OF_STOPPED_S if stopped() else _LAST_S):
                lacks = "%s: does not have the last checkpoint"
                _log.warning(lacks, self._mirror, extra=FOR_USER)
                break
            time.sleep(_POLL_S)
        self._over = True
        self._storage.forget(self._what)  # it does not make the run fail

    def _run(self) -> None:
        while not self._over:
            number, path = self._asked
            try:
                if number > self._sent:
                    with self._storage.attempt(self._what, proven=True):
                        frames = f"{send(self._mirror, self._logdir, path):,}"
                        self._sent = number
                        _log.info("%s: has the checkpoint at %s frames", self._mirror, frames)
            except ConfigError as error:
                self._over = True
                _log.error(
                    "%s: %s; is the run also running on another machine? No more checkpoints"
                    " are copied",
                    self._mirror,
                    error,
                    extra=FOR_USER,
                )
            self._wake.wait(_RETRY_S)
            self._wake.clear()
