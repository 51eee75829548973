"""Copies of checkpoints elsewhere (--mirror), from which a run resumes if its logdir is lost.

A mirror has the layout of a logdir, and a mirror in a folder can be read as one. In addition, it
has `mirrored/ckpt-N.json`: sizes and SHA-256 of all files that belong to a checkpoint. This file is
written last, so a checkpoint without it counts as absent. Files that grow (metrics) may be longer
than it says: the rest belongs to later checkpoints.
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
_ASIDE = ".mirror-"  # the prefix of temporary folders in the logdir
# These files are replaced as a whole, so each checkpoint needs its own content of them.
_TEXTS = ("config.json", "config.yaml", "best/best.json", "wandb/run_id")
# Files that may be removed from a mirror once no checkpoint needs them. No others ever are.
_OURS = re.compile(r"(checkpoints|best)/ckpt-\d+/[^/.][^/]*|mirrored/ckpt-\d+\.json(\.part)?")
_FILES = re.compile(
    r"((checkpoints|best)/ckpt-\d+|tensorboard)/[^/.][^/]*|[a-z_]*metrics(-[a-z]+)?\.csv|evaluation\.csv"
)
_README = "Checkpoints of a run of impala_tf (--mirror). Older ones are removed from here.\n{}\n"


class StrangerError(Exception):
    """Another process has also written to the mirror."""


class Manifest(NamedTuple):
    """The files of a checkpoint. As JSON, it is the checkpoint's file in `mirrored`."""

    learner_updates: int
    environment_frames: int
    run_id: str
    texts: dict[str, str]
    """Small files: {name: content}."""
    files: dict[str, dict[str, Any]]
    """{name: {"size", "sha256"}} of the first `size` bytes."""

    @property
    def note(self) -> str:
        """The name of its file in the mirror."""
        return f"{MIRRORED}/{files.folder_name(self.learner_updates)}.json"


class Snapshot(NamedTuple):
    """A checkpoint and the files that belong to it, which the run cannot change any more."""

    checkpoint: Path
    texts: dict[str, str]
    sources: dict[str, tuple[Path, int]]
    """{name: (file, how many of its bytes)}."""
    aside: Path

    def discard(self) -> None:
        """Removes the snapshot's links."""
        shutil.rmtree(self.aside, ignore_errors=True)


def snapshot(logdir: Logdir, checkpoint: Path) -> Snapshot:
    """Takes a snapshot, in milliseconds, by linking the files that the run may remove.

    Raises:
      OSError: the snapshot cannot be taken.
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
            except OSError:  # some file systems have no links
                shutil.copyfile(path, link)
            sources[name] = link, link.stat().st_size
    growing = (logdir.metrics, logdir.learner_metrics, logdir.level_metrics, logdir.evaluations,
               logdir.callback_metrics, *sorted(logdir.tensorboard.glob("events.*")))  # fmt: skip
    for path in filter(Path.exists, growing):
        sources[str(path.relative_to(logdir.path))] = path, path.stat().st_size
    names = (name for name in _TEXTS if (logdir.path / name).exists())
    texts = {name: (logdir.path / name).read_text(encoding="utf-8") for name in names}
    return Snapshot(aside / "checkpoints" / checkpoint.name, texts, sources, aside)


def remove_leftovers(logdir: Logdir) -> None:
    """Removes snapshots of killed processes. Call it before the first `snapshot`."""
    for path in logdir.path.glob(f"{_ASIDE}*"):
        shutil.rmtree(path, ignore_errors=True)


class Mirror:
    """Copies of one run's checkpoints in one place. Not thread-safe.

    Args:
      name: the value of --mirror, for messages.
      target: the place that holds the copies.
    """

    def __init__(self, name: str, target: Target) -> None:
        self.name = name
        self._target = target
        self._kept: list[Manifest] | None = None  # of the checkpoints there, oldest first
        self._notes: set[str] = set()  # manifests that were there, or that this process has written

    def begin(self) -> str:
        """Writes a file that marks the place as a mirror, and reads it back.

        Returns:
          '', or the name of a file that no mirror wrote: then the place is not used.

        Raises:
          OSError: the place cannot be used.
        """
        names = list(self._target.sizes())
        if names and not any(name.startswith(f"{MIRRORED}/") for name in names):
            return min(names)
        name, text = f"{MIRRORED}/README.txt", _README.format(os.urandom(8).hex())
        with tempfile.TemporaryDirectory() as folder:
            sent, received = Path(folder, "sent"), Path(folder, "received")
            sent.write_text(text)
            self._target.put(sent, name)
            self._target.get(name, received)
            if received.read_text() != text:
                raise OSError("a file came back changed")
        return ""

    def move_aside(self) -> str:
        """Renames the mirror if it holds a run; returns its new name, or ''."""
        if not self.manifests():
            return ""
        self._kept = None
        return self._target.move_aside()

    def manifests(self) -> list[Manifest]:
        """Returns the manifests of all complete checkpoints in the mirror, oldest first.

        Files that are not valid manifests are left out. Raises OSError.
        """
        if self._kept is None:
            self._notes = _notes(self._target.sizes())
            manifests = [self._read(name) for name in self._notes]
            valid = (manifest for manifest in manifests if manifest is not None)
            self._kept = sorted(valid, key=lambda manifest: manifest.learner_updates)
        return self._kept

    def upload(self, taken: Snapshot) -> Manifest:
        """Copies a checkpoint to the mirror, then removes the oldest ones there.

        Raises:
          OSError: the mirror cannot be written; earlier checkpoints there stay.
          StrangerError: another process has written there, such as this run on another machine.
          DamagedError: the checkpoint differs from what was written.
        """
        kept = self.manifests()
        there = self._target.sizes()
        if strangers := _notes(there) - self._notes:
            raise StrangerError(f"another process has written {max(strangers)}")
        if kept and kept[-1].learner_updates > _updates(taken.checkpoint):
            raise StrangerError(f"it has {kept[-1].note}, which is later than what is here")
        self._remove_unneeded(there)  # files of failed uploads may fill the place
        new = self._described(taken)
        before = kept[-1].files if kept else {}
        if new.note in there and self._is_replaced(new):
            self._target.remove(new.note)  # so it counts as absent until all files have arrived
        for name, wanted in new.files.items():
            if before.get(name) != wanted or there.get(name, -1) < wanted["size"]:
                self._target.put(taken.sources[name][0], name)
        there = self._target.sizes()
        for name, wanted in new.files.items():
            if there.get(name, -1) < wanted["size"]:
                raise OSError(f"{name}: {there.get(name, 0):,} of {wanted['size']:,} bytes arrived")
        self._notes.add(new.note)
        self._put_text(json.dumps({"format": FORMAT, **new._asdict()}), new.note)
        older = [manifest for manifest in kept if manifest.learner_updates < new.learner_updates]
        self._kept = [*older, new][-_KEPT:]
        self._remove_unneeded(there)
        for name, text in taken.texts.items():  # for reading the folder as a logdir
            self._put_text(text, name)
        return new

    def forget(self, damaged: Manifest) -> None:
        """Makes the next `upload` remove a damaged checkpoint."""
        self._kept = [manifest for manifest in self.manifests() if manifest != damaged]

    def download(self, manifest: Manifest, folder: Path) -> None:
        """Copies all files of a checkpoint into a folder, and checks them.

        Raises:
          OSError: the mirror cannot be read.
          DamagedError: a file is missing there, or differs from what was written.
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
        """Returns whether the mirror holds an older checkpoint with equally many updates."""
        manifests = self.manifests()
        old = next((manifest.files for manifest in manifests if manifest.note == new.note), {})
        return any(
            name.startswith("checkpoints/") and new.files.get(name) != written
            for name, written in old.items()
        )

    def _remove_unneeded(self, there: Iterable[str]) -> None:
        kept = self._kept or []
        needed = {manifest.note for manifest in kept}.union(*(manifest.files for manifest in kept))
        # Manifests first: a manifest without its files would be a damaged checkpoint.
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
    """Copies the mirror's newest complete checkpoint to the logdir if that has only older ones.

    Afterwards the logdir has all files of the checkpoint, or is unchanged.

    Args:
      mirror: the run's mirror.
      logdir: the run's logdir, which may not exist.
      say: called with lines for the user.

    Raises:
      OSError: the mirror cannot be read, or the logdir cannot be written.
      ConfigError: the mirror belongs to another run, or neither the mirror nor the logdir has a
        complete checkpoint.
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
                frames = f"{manifest.environment_frames:,} frames"
                say(f"{mirror.name}: its checkpoint at {frames} is damaged ({why})")
                continue
            _install(Path(folder), manifest, logdir)
        frames = f"{manifest.environment_frames:,} frames"
        say(f"restored from {mirror.name}: checkpoint at {frames}")
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
    except ConfigError:  # none is complete
        return None


def _install(folder: Path, manifest: Manifest, logdir: Logdir) -> None:
    """Moves downloaded files into the logdir. The checkpoint is last, because it validates them."""
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
    """Returns the format of a manifest's file, and the manifest; None if it is not valid."""
    try:
        content = json.loads(text)
        written_by = int(content.pop("format"))
        if written_by > FORMAT:
            return written_by, None
        manifest = Manifest(**content)
        # Whoever wrote this, it must not name files outside the logdir.
        is_safe = set(manifest.texts) <= set(_TEXTS) and all(map(_FILES.fullmatch, manifest.files))
        prints = [(int(file["size"]), str(file["sha256"])) for file in manifest.files.values()]
        return written_by, manifest if is_safe and prints else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return 0, None


def _checkpoint_in(folder: Path, manifest: Manifest) -> Path:
    return folder / "checkpoints" / files.folder_name(manifest.learner_updates)


def _updates(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("ckpt-"))


def _notes(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.startswith(f"{MIRRORED}/") and name.endswith(".json")}
