"""Copies of checkpoints elsewhere (--mirror), from which a run resumes if its own folder is lost.

A mirror is laid out as a logdir, and a mirror that is a folder can be read as one. Besides, it has
`mirrored/ckpt-N.json`: sizes and SHA-256 of all files that belong to a checkpoint. That file is
written last, so a checkpoint without it counts as absent. Files that are appended to (metrics) may
be longer than it says: what follows belongs to later checkpoints.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.checkpoint import files
from impala_tf.checkpoint.files import DamagedError
from impala_tf.checkpoint.targets import Target
from impala_tf.config import ConfigError
from impala_tf.logdir import MIRRORED, Logdir, write_atomically

FORMAT = 1
_KEPT = 3  # checkpoints
_ASIDE = ".mirror-"  # how folders in the logdir begin that hold what is being copied
# Replaced as a whole now and then, so older checkpoints must not depend on the newest one's.
_TEXTS = ("config.json", "config.yaml", "best/best.json", "wandb/run_id")
# What may be removed from a mirror once no checkpoint needs it. Nothing else ever is.
_OURS = re.compile(r"(checkpoints|best)/ckpt-\d+/[^/.][^/]*|mirrored/ckpt-\d+\.json(\.part)?")
_FILES = re.compile(
    r"((checkpoints|best)/ckpt-\d+|tensorboard)/[^/.][^/]*|[a-z_]*metrics(-[a-z]+)?\.csv|evaluation\.csv"
)
_README = "Checkpoints of a run of impala_tf (--mirror). Older ones are removed from here.\n{}\n"


class StrangerError(Exception):
    """Another process has written to the mirror meanwhile."""


class Manifest(NamedTuple):
    """What belongs to a checkpoint; as JSON, it is the checkpoint's file in `mirrored`."""

    learner_updates: int
    environment_frames: int
    run_id: str
    texts: dict[str, str]
    """Small files, whole: {name: content}."""
    files: dict[str, dict[str, Any]]
    """{name: {"size", "sha256"}} of the first `size` bytes."""

    @property
    def note(self) -> str:
        """The name of its file."""
        return f"{MIRRORED}/{files.folder_name(self.learner_updates)}.json"


class Snapshot(NamedTuple):
    """A checkpoint and what belongs to it, as they are now, whatever the run does next."""

    checkpoint: Path
    texts: dict[str, str]
    sources: dict[str, tuple[Path, int]]
    """{name: (file, bytes of it)}."""
    aside: Path

    def discard(self) -> None:
        """Removes its links."""
        shutil.rmtree(self.aside, ignore_errors=True)


def snapshot(logdir: Logdir, checkpoint: Path) -> Snapshot:
    """Takes a snapshot: files that the run will remove are linked. Takes milliseconds.

    Raises:
      OSError: it cannot be taken.
    """
    aside = Path(tempfile.mkdtemp(prefix=_ASIDE, dir=logdir.path))
    try:
        return _snapshot(logdir, checkpoint, aside)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _snapshot(logdir: Logdir, checkpoint: Path, aside: Path) -> Snapshot:
    sources = {}
    for folder in (checkpoint, *(path for path in logdir.best.glob("ckpt-*") if path.is_dir())):
        for path in sorted(folder.iterdir()):
            name = str(path.relative_to(logdir.path))
            link = aside / name
            link.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, link)
            except OSError:  # there are file systems without links
                shutil.copyfile(path, link)
            sources[name] = link, link.stat().st_size
    growing = (logdir.metrics, logdir.learner_metrics, logdir.level_metrics, logdir.evaluations,
               logdir.callback_metrics, *sorted(logdir.tensorboard.glob("events.*")))  # fmt: skip
    for path in filter(Path.exists, growing):
        sources[str(path.relative_to(logdir.path))] = path, path.stat().st_size
    found = (name for name in _TEXTS if (logdir.path / name).exists())
    texts = {name: (logdir.path / name).read_text(encoding="utf-8") for name in found}
    return Snapshot(aside / "checkpoints" / checkpoint.name, texts, sources, aside)


def remove_leftovers(logdir: Logdir) -> None:
    """Removes what killed processes left. Call it before the first `snapshot`."""
    for path in logdir.path.glob(f"{_ASIDE}*"):
        shutil.rmtree(path, ignore_errors=True)


class Mirror:
    """The checkpoints of one run in one place. Not thread-safe.

    Args:
      name: the value of --mirror, for messages.
      target: the place.
    """

    def __init__(self, name: str, target: Target) -> None:
        self.name = name
        self._target = target
        self._kept: list[Manifest] | None = None  # that are there, oldest first
        self._notes: set[str] = set()  # all that were there, or that this process has written

    def begin(self) -> str:
        """Writes a file that marks the place as a mirror, and reads it; not among other files.

        Returns:
          a file there that no mirror wrote, which is a reason not to begin; or ''.

        Raises:
          OSError: the place cannot be used.
        """
        names = list(self._target.sizes())
        if names and not any(name.startswith(f"{MIRRORED}/") for name in names):
            return min(names)
        name, text = f"{MIRRORED}/README.txt", _README.format(os.urandom(8).hex())
        with tempfile.TemporaryDirectory() as folder:
            sent, back = Path(folder, "sent"), Path(folder, "back")
            sent.write_text(text)
            self._target.put(sent, name)
            self._target.get(name, back)
            if back.read_text() != text:
                raise OSError("a file came back changed")
        return ""

    def move_aside(self) -> str:
        """Renames the mirror if it holds a run; returns its new name, or ''."""
        if not self.manifests():
            return ""
        self._kept = None
        return self._target.move_aside()

    def manifests(self) -> list[Manifest]:
        """Returns those of all whole checkpoints that are there, oldest first.

        A file that is no manifest is left out: its checkpoint is not whole. Raises OSError.
        """
        if self._kept is None:
            self._notes = _notes(self._target.sizes())
            read = [self._read(name) for name in self._notes]
            found = (manifest for manifest in read if manifest is not None)
            self._kept = sorted(found, key=lambda manifest: manifest.learner_updates)
        return self._kept

    def upload(self, taken: Snapshot) -> Manifest:
        """Copies a checkpoint to the mirror; then removes the oldest ones there.

        Raises:
          OSError: it cannot be written; the checkpoints before stay.
          StrangerError: this run, on another machine, has written there meanwhile.
          DamagedError: the checkpoint is not as it was written.
        """
        kept = self.manifests()
        there = self._target.sizes()
        if strangers := _notes(there) - self._notes:
            raise StrangerError(f"another process has written {max(strangers)}")
        if kept and kept[-1].learner_updates > _updates(taken.checkpoint):
            raise StrangerError(f"it has {kept[-1].note}, which is later than what is here")
        self._remove_unneeded(there)  # of uploads that failed: they may fill the place
        new = self._described(taken)
        before = kept[-1].files if kept else {}
        if new.note in there and self._is_replaced(new):
            self._target.remove(new.note)  # absent, and not damaged, until all of it has arrived
        for name, wanted in new.files.items():
            if before.get(name) != wanted or there.get(name, -1) < wanted["size"]:
                self._target.put(taken.sources[name][0], name)
        there = self._target.sizes()
        for name, wanted in new.files.items():
            if there.get(name, -1) < wanted["size"]:
                raise OSError(f"{name}: {there.get(name, 0):,} of {wanted['size']:,} bytes arrived")
        self._notes.add(new.note)
        self._put_text(json.dumps({"format": FORMAT, **new._asdict()}), new.note)
        past = [each for each in kept if each.learner_updates < new.learner_updates]
        self._kept = [*past, new][-_KEPT:]
        self._remove_unneeded(there)
        for name, text in taken.texts.items():  # for readers of the folder; not for a resume
            self._put_text(text, name)
        return new

    def forget(self, damaged: Manifest) -> None:
        """Lets the next `upload` remove a checkpoint."""
        self._kept = [manifest for manifest in self.manifests() if manifest != damaged]

    def download(self, manifest: Manifest, folder: Path) -> None:
        """Copies a checkpoint and what belongs to it into a folder, and checks all of it.

        Raises:
          OSError: the mirror cannot be read.
          DamagedError: a file is missing there, or is not as it was written.
        """
        for name, wanted in manifest.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._target.get(name, path)
            except FileNotFoundError:
                raise DamagedError(f"{name} is missing") from None
            os.truncate(path, min(path.stat().st_size, wanted["size"]))
            files.compare(path, name, wanted)
        for name, text in manifest.texts.items():
            write_atomically(folder / name, text)

    def _read(self, name: str) -> Manifest | None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "note")
            self._target.get(name, path)
            written_by, manifest = _parsed(path.read_bytes())
        if written_by > FORMAT:
            raise ConfigError(
                f"--mirror={self.name}: a newer version of impala_tf wrote it; use that version"
            )
        return manifest if manifest is not None and manifest.note == name else None

    def _described(self, taken: Snapshot) -> Manifest:
        state = files.read_state(taken.checkpoint)
        return Manifest(
            learner_updates=_updates(taken.checkpoint),
            environment_frames=int(state["counters"]["environment_frames"]),
            run_id=state["run_id"],
            texts=taken.texts,
            files={name: files.fingerprint(*source) for name, source in taken.sources.items()},
        )

    def _is_replaced(self, new: Manifest) -> bool:
        """Whether the mirror holds an earlier checkpoint after as many updates."""
        old = next((each.files for each in self.manifests() if each.note == new.note), {})
        return any(
            name.startswith("checkpoints/") and new.files.get(name) != written
            for name, written in old.items()
        )

    def _remove_unneeded(self, there: Iterable[str]) -> None:
        kept = self._kept or []
        needed = {manifest.note for manifest in kept}.union(*(each.files for each in kept))
        # A checkpoint's note first: without its files, it would be damaged.
        for name in sorted(there, key=lambda name: not name.startswith(MIRRORED)):
            if name not in needed and _OURS.fullmatch(name):
                with contextlib.suppress(FileNotFoundError):
                    self._target.remove(name)

    def _put_text(self, text: str, name: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "text")
            path.write_text(text, encoding="utf-8")
            self._target.put(path, name)


def bring_back(mirror: Mirror, logdir: Logdir, say: Callable[[str], None]) -> None:
    """Gets the mirror's newest whole checkpoint if it is newer than the logdir's.

    The logdir has it and all that belongs to it, or is as before.

    Args:
      mirror: of the run.
      logdir: of the run; may be missing.
      say: called with lines for the user.

    Raises:
      OSError: the mirror cannot be read, or the logdir not be written.
      ConfigError: the mirror belongs to another run, or no checkpoint there is whole, and none
        here.
    """
    here = _newest_here(logdir)
    manifests = mirror.manifests()
    _check_same_run(mirror, here, logdir)
    damaged = {}
    for manifest in reversed(manifests):
        if here is not None and manifest.learner_updates <= _updates(here.path):
            return
        logdir.path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=_ASIDE, dir=logdir.path) as folder:
            try:
                mirror.download(manifest, Path(folder))
                files.read_state(_checkpoint_in(Path(folder), manifest))
            except DamagedError as why:
                damaged[manifest.note] = str(why)
                mirror.forget(manifest)
                say(f"{mirror.name}: the checkpoint of {manifest.environment_frames:,} frames"
                    f" there is damaged ({why})")  # fmt: skip
                continue
            _install(Path(folder), manifest, logdir)
        frames = f"{manifest.environment_frames:,} frames"
        say(f"brought back from {mirror.name}: checkpoint of {frames}")
        return
    if damaged and here is None:
        raise ConfigError(
            [f"--mirror={mirror.name}: {note}: {why}" for note, why in damaged.items()]
            + [f"--mirror={mirror.name}: no checkpoint is whole; give --fresh or another --mirror"]
        )


def _check_same_run(mirror: Mirror, here: files.Newest | None, logdir: Logdir) -> None:
    manifests = mirror.manifests()
    if here is not None and manifests and here.state["run_id"] != manifests[-1].run_id:
        raise ConfigError(
            f"--mirror={mirror.name}: holds another run than --logdir={logdir.path}; give another"
            " --mirror"
        )


def _newest_here(logdir: Logdir) -> files.Newest | None:
    try:
        return files.find(logdir.checkpoints)
    except ConfigError:  # none is whole
        return None


def _install(folder: Path, manifest: Manifest, logdir: Logdir) -> None:
    """Moves what was brought back into the logdir, the checkpoint last: it makes the rest count."""
    checkpoint = _checkpoint_in(folder, manifest)
    final = logdir.checkpoints / checkpoint.name
    if (folder / "best").exists():
        shutil.rmtree(logdir.best, ignore_errors=True)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and checkpoint not in path.parents:
            target = logdir.path / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
    logdir.checkpoints.mkdir(exist_ok=True)
    if final.exists():
        files.set_aside(final)
    checkpoint.rename(final)


def _parsed(text: bytes) -> tuple[int, Manifest | None]:
    """Returns the format of a manifest's file, and what it holds; None if that is no manifest."""
    try:
        content = json.loads(text)
        written_by = int(content.pop("format"))
        if written_by > FORMAT:
            return written_by, None
        manifest = Manifest(**content)
        # Nothing may be written outside the logdir, whoever wrote this.
        good = set(manifest.texts) <= set(_TEXTS) and all(map(_FILES.fullmatch, manifest.files))
        prints = [(int(each["size"]), str(each["sha256"])) for each in manifest.files.values()]
        return written_by, manifest if good and prints else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return 0, None


def _checkpoint_in(folder: Path, manifest: Manifest) -> Path:
    return folder / "checkpoints" / files.folder_name(manifest.learner_updates)


def _updates(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("ckpt-"))


def _notes(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.startswith(f"{MIRRORED}/") and name.endswith(".json")}
