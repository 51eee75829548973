"""--mirror: a lost logdir comes back whole, from the newest checkpoint that arrived whole."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from impala_tf.checkpoint import files
from impala_tf.checkpoint import mirror as mirrors
from impala_tf.checkpoint.mirror import Mirror, StrangerError
from impala_tf.checkpoint.targets import Folder
from impala_tf.config import ConfigError
from impala_tf.logdir import Logdir
from tests.helpers.mirrored import Run, brought_back

# Each kill happens in a fork: in the middle of a file, at every file of the third upload.
KILLED_UPLOADS = """
import os, pathlib, shutil, signal, sys
from impala_tf.checkpoint import targets
from impala_tf.checkpoint.mirror import Mirror
from tests.helpers.mirrored import Run

folder = pathlib.Path(sys.argv[1])
kill_at = 0
while True:
    pid = os.fork()
    if pid == 0:
        here = folder / str(kill_at)
        here.mkdir()
        run, mirror = Run(here / "run"), Mirror("", targets.Folder(here / "mirror"))
        for updates in (1, 2):
            mirror.upload(run.snapshot(updates))
        count, copy = 0, shutil.copyfile

        def half_a_copy(source, target):
            global count
            if count == kill_at:
                pathlib.Path(target).write_bytes(pathlib.Path(source).read_bytes()[:3])
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return copy(source, target)

        shutil.copyfile = half_a_copy
        mirror.upload(run.snapshot(3))
        os._exit(0)
    if not os.WIFSIGNALED(os.waitpid(pid, 0)[1]):
        break
    kill_at += 1
print(kill_at)
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    return Mirror("MIRROR", Folder(tmp_path / "mirror"))


def again(tmp_path: Path) -> Mirror:
    """Returns the mirror as another process sees it."""
    return Mirror("MIRROR", Folder(tmp_path / "mirror"))


def bring_back(tmp_path: Path, logdir: Logdir) -> list[str]:
    said: list[str] = []
    mirrors.bring_back(again(tmp_path), logdir, said.append)
    assert not list(logdir.path.glob(".mirror-*"))
    return said


def test_a_lost_logdir_comes_back_as_it_was_at_the_newest_checkpoint(tmp_path, run, mirror):
    run.checkpoint(1)
    best = run.logdir.best / "ckpt-000000000001"
    shutil.copytree(run.logdir.checkpoints / best.name, best)
    (run.logdir.best / "best.json").write_text("{}")
    run.logdir.evaluations.write_text("environment_frames\n20\n")
    taken = run.snapshot(2)
    with run.logdir.metrics.open("a") as file:
        file.write("a later row\n")  # while it is sent
    shutil.rmtree(run.logdir.checkpoints / "ckpt-000000000002")  # as if it had taken very long
    mirror.upload(taken)
    lost = run.logdir.path.rename(tmp_path / "lost")
    assert bring_back(tmp_path, run.logdir) == ["restored from MIRROR: checkpoint at 20 frames"]
    assert brought_back(run.logdir) == 2
    assert run.rows() == ["10", "20"]
    for name in ("config.json", "config.yaml", "evaluation.csv", "best/best.json",
                 f"best/{best.name}/state.json",
                 "tensorboard/events.out.tfevents.1"):  # fmt: skip
        assert (run.logdir.path / name).read_bytes() == (lost / name).read_bytes(), name


def test_what_is_older_or_the_same_stays_there(tmp_path, run, mirror):
    mirror.upload(run.snapshot(1))
    mirrors.remove_leftovers(run.logdir)
    run.checkpoint(2)
    before = run.logdir.metrics.stat()
    assert bring_back(tmp_path, run.logdir) == []
    assert run.logdir.metrics.stat() == before
    mirror.upload(run.snapshot(3))
    mirrors.remove_leftovers(run.logdir)
    shutil.rmtree(run.logdir.checkpoints / "ckpt-000000000003")
    assert bring_back(tmp_path, run.logdir) == ["restored from MIRROR: checkpoint at 30 frames"]
    assert brought_back(run.logdir) == 3


@pytest.mark.slow
def test_an_upload_that_is_killed_anywhere_leaves_the_checkpoints_before(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED_UPLOADS, str(tmp_path)],
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    kills = int(done.stdout)
    assert kills >= 9, "files of a checkpoint"
    for number in range(kills):
        here = tmp_path / str(number)
        back = Logdir(here / "back")
        mirrors.bring_back(Mirror("", Folder(here / "mirror")), back, print)
        arrived = (here / "mirror" / "mirrored" / "ckpt-000000000003.json").exists()
        assert brought_back(back) == (3 if arrived else 2)
        assert (back.path / "metrics.csv").read_text().endswith("30\n" if arrived else "20\n")
        # The same run on this machine goes on, and mirrors over what was left.
        run = Run(here / "next")
        run.checkpoint(1)
        run.checkpoint(2)
        run.checkpoint(3)
        target = Folder(here / "mirror")
        Mirror("", target).upload(run.snapshot(4))
        assert not [name for name in target.sizes() if name.endswith(".part")]


@pytest.mark.parametrize("damage", ["size", "digest", "gone", "note"])
def test_a_damaged_checkpoint_is_not_taken(tmp_path, run, mirror, damage):
    for updates in (1, 2):
        mirror.upload(run.snapshot(updates))
    there = tmp_path / "mirror" / "checkpoints" / "ckpt-000000000002" / "variables.data"
    text = there.read_text()
    if damage == "size":
        there.write_text(text[:-1])
    elif damage == "digest":
        there.write_text(text.replace("2", "3"))
    elif damage == "gone":
        there.unlink()
    else:
        (tmp_path / "mirror" / "mirrored" / "ckpt-000000000002.json").write_text("{")
    back = Logdir(tmp_path / "back")
    said = bring_back(tmp_path, back)
    assert said[-1] == "restored from MIRROR: checkpoint at 10 frames"
    if damage != "note":
        assert said[0].startswith("MIRROR: its checkpoint at 20 frames is damaged (")
    assert brought_back(back) == 1


def test_a_run_never_starts_silently_from_the_beginning(tmp_path, run, mirror):
    mirror.upload(run.snapshot(1))
    (tmp_path / "mirror" / "metrics.csv").write_text("?")
    with pytest.raises(ConfigError, match="no checkpoint is whole"):
        bring_back(tmp_path, Logdir(tmp_path / "back"))


def test_a_resume_from_less_replaces_the_damaged_newer_checkpoint(tmp_path, run, mirror):
    for updates in (1, 2):
        mirror.upload(run.snapshot(updates))
    (tmp_path / "mirror" / "checkpoints" / "ckpt-000000000002" / "variables.data").write_text("?")
    shutil.rmtree(run.logdir.path)
    resumed = again(tmp_path)
    mirrors.bring_back(resumed, run.logdir, print)
    resumed.upload(run.snapshot(2))
    assert brought_back(run.logdir) == 2
    back = Logdir(tmp_path / "back")
    bring_back(tmp_path, back)
    assert brought_back(back) == 2


def test_as_many_stay_as_the_run_keeps_and_nothing_else_is_removed(tmp_path, run, mirror):
    for updates in range(1, 6):
        mirror.upload(run.snapshot(updates))
    other = tmp_path / "mirror" / "notes.txt"
    other.write_text("mine")
    mirror.upload(run.snapshot(6))
    assert mirror.begin() == ""
    for folder in ("checkpoints", "mirrored"):
        names = sorted(p.stem for p in (tmp_path / "mirror" / folder).glob("ckpt-*"))
        assert names == [f"ckpt-{updates:012d}" for updates in (4, 5, 6)]
    assert other.exists()


def test_uploads_that_fail_leave_nothing_that_fills_the_place(tmp_path, run, mirror, monkeypatch):
    mirror.upload(run.snapshot(1))
    put = Folder.put

    def fails(target, source, name):
        if name.endswith("variables.index"):
            raise OSError("no space left on device")
        put(target, source, name)

    monkeypatch.setattr(Folder, "put", fails)
    for updates in (2, 3):
        with pytest.raises(OSError):
            mirror.upload(run.snapshot(updates))
    names = sorted(path.name for path in (tmp_path / "mirror" / "checkpoints").iterdir())
    assert names == ["ckpt-000000000001", "ckpt-000000000003"]


def test_an_upload_that_ends_while_it_replaces_a_checkpoint_leaves_no_damaged_one(
    tmp_path, run, mirror, monkeypatch
):
    """A replay that fills makes such ones. With a damaged one alone, the run would not resume."""
    mirror.upload(run.snapshot(1))
    folder = run.logdir.checkpoints / "ckpt-000000000001"
    (folder / "variables.data").write_text("later")
    (folder / "manifest.json").unlink()
    files.write_manifest(folder)
    put = Folder.put

    def fails(target, source, name):
        if name.endswith("manifest.json"):
            raise OSError("the link is down")
        put(target, source, name)

    with monkeypatch.context() as broken:
        broken.setattr(Folder, "put", fails)
        for _ in range(2):
            with pytest.raises(OSError, match="the link is down"):
                mirror.upload(mirrors.snapshot(run.logdir, folder))
        assert bring_back(tmp_path, Logdir(tmp_path / "meanwhile")) == []
    mirror.upload(mirrors.snapshot(run.logdir, folder))
    back = Logdir(tmp_path / "back")
    bring_back(tmp_path, back)
    assert brought_back(back) == 1
    assert (back.checkpoints / folder.name / "variables.data").read_text() == "later"


def test_a_folder_with_checkpoints_that_no_mirror_wrote_is_not_taken(tmp_path, run, mirror):
    """They would be removed after the first upload."""
    shutil.copytree(run.checkpoint(1), tmp_path / "mirror" / "checkpoints" / "ckpt-000000000001")
    assert mirror.begin() == "checkpoints/ckpt-000000000001/manifest.json"
    assert not (tmp_path / "mirror" / "mirrored").exists()


def test_what_has_not_changed_is_sent_once(tmp_path, run, mirror):
    """TensorBoard's complete files would otherwise travel with each checkpoint."""
    complete = run.logdir.tensorboard / "events.out.tfevents.0"
    complete.write_text("complete")
    mirror.upload(run.snapshot(1))
    there = tmp_path / "mirror" / "tensorboard" / complete.name
    before = there.stat()
    mirror.upload(run.snapshot(2))
    again(tmp_path).upload(run.snapshot(3))
    assert there.stat() == before


def test_two_processes_never_share_a_mirror(tmp_path, run, mirror):
    """Such as a machine that was taken for lost: it would remove what its successor learned."""
    mirror.upload(run.snapshot(1))
    successor = again(tmp_path)
    successor.upload(run.snapshot(2))
    with pytest.raises(StrangerError, match=r"ckpt-000000000002\.json"):
        mirror.upload(run.snapshot(3))
    with pytest.raises(StrangerError, match="later than what is here"):
        again(tmp_path).upload(
            mirrors.snapshot(run.logdir, run.logdir.checkpoints / "ckpt-000000000001")
        )
    assert len(again(tmp_path).manifests()) == 2


def test_the_mirror_of_another_run_is_refused(tmp_path, run, mirror):
    mirror.upload(run.snapshot(1))
    other = Run(tmp_path / "other", run_id="another")
    other.checkpoint(5)
    with pytest.raises(ConfigError, match="holds another run than --logdir=.*other"):
        bring_back(tmp_path, other.logdir)
    assert brought_back(other.logdir) == 5


def test_a_mirror_cannot_write_outside_the_logdir(tmp_path, run, mirror):
    note = tmp_path / "mirror" / mirror.upload(run.snapshot(1)).note
    note.write_text(note.read_text().replace("metrics.csv", "../metrics.csv"))
    assert again(tmp_path).manifests() == []


def test_a_newer_versions_mirror_is_refused(tmp_path, run, mirror):
    note = tmp_path / "mirror" / mirror.upload(run.snapshot(1)).note
    note.write_text(json.dumps({**json.loads(note.read_text()), "format": 99}))
    with pytest.raises(ConfigError, match="a newer version of impala_tf wrote it"):
        again(tmp_path).manifests()
