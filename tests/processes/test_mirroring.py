"""--mirror: a lost disk is no lost run, training never waits for it, and misuse is refused."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from impala_tf.config import ConfigError, Given
from impala_tf.logdir import Logdir
from impala_tf.monitoring.storage import StorageWatch
from impala_tf.processes import mirroring
from impala_tf.processes.common import resolve
from impala_tf.processes.mirroring import MirrorUploads, send
from tests.helpers.mirrored import Run, brought_back
from tests.helpers.runs import rows
from tests.helpers.sshd import Sshd
from tests.helpers.waiting import wait_until

CARTPOLE = ("--level_name=CartPole-v1", "--num_actors=1", "--metrics_interval_s=1",
            "--checkpoint_interval_s=1")  # fmt: skip


def bring_back(mirror: object, logdir: Logdir, fresh: bool = False) -> list[str]:
    """Returns what the user is told."""
    said: list[str] = []
    flags = {"level_name": "CartPole-v1", "mirror": str(mirror), "logdir": str(logdir.path),
             "fresh": fresh}  # fmt: skip
    mirroring.bring_back(*resolve(Given(flags)), logdir, said.append)
    assert not list(logdir.path.glob(".mirror-*"))
    return said


def frames_in(mirror: Path) -> list[int]:
    """Returns after how many frames each checkpoint in a folder was sent."""
    return sorted(int(tar.name.split("-")[2]) for tar in mirror.glob("ckpt-*.tar"))


@pytest.fixture(scope="module")
def s3() -> Iterator[None]:
    """Runs an S3 server with a bucket "runs"."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            environment.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="runs")
        yield
    server.stop()


@pytest.fixture
def box(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A machine that only ~/.ssh/config knows, also as "shared", with another user."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(
        "Host shared\n  User nobody\n"
        f"Host box shared\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User root\n"
        f"  IdentityFile {sshd.user_key}\n"
    )
    shutil.copy(sshd.known_hosts, tmp_path / ".ssh" / "known_hosts")
    return "box"


@pytest.mark.parametrize("kind", ["folder", "ssh", "s3"])
def test_a_lost_logdir_comes_back_from_each_place_as_it_was(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    if kind == "ssh":
        request.getfixturevalue("box")
        mirror = f"sftp://root@shared{tmp_path}/there/a run"  # not as the user in ~/.ssh/config
    elif kind == "s3":
        request.getfixturevalue("s3")
        mirror = f"s3://runs/{tmp_path.name}/run"
    else:
        mirror = str(tmp_path / "a share" / "run")
    run, lost = Run(tmp_path / "run"), tmp_path / "lost"
    assert bring_back(mirror, run.logdir) == []
    best = run.logdir.best / run.checkpoint(1).name
    shutil.copytree(run.logdir.checkpoints / best.name, best)
    (run.logdir.best / "best.json").write_text("{}")
    (run.logdir.path / "processes").mkdir()
    for updates in range(2, 6):
        send(mirror, run.logdir, last := run.checkpoint(updates))
    run.logdir.evaluations.write_text("environment_frames\n20\n")
    assert send(mirror, run.logdir, last) == 50, "again, with an evaluation of it"

    run.logdir.path.rename(lost)
    assert bring_back(mirror, run.logdir) == [f"restored from {mirror}: checkpoint at 50 frames"]
    assert brought_back(run.logdir) == 5
    assert run.rows() == ["10", "20", "30", "40", "50"]
    for name in ("config.json", "config.yaml", "evaluation.csv", "best/best.json",
                 f"best/{best.name}/state.json",
                 "tensorboard/events.out.tfevents.1"):  # fmt: skip
        assert (run.logdir.path / name).read_bytes() == (lost / name).read_bytes(), name
    assert not (run.logdir.path / "processes").exists()
    if kind == "folder":
        assert frames_in(Path(mirror)) == [30, 40, 50], "as many as the run keeps"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


@pytest.fixture
def share(tmp_path: Path) -> Path:
    """A mirror with nothing."""
    (tmp_path / "share").mkdir()
    return tmp_path / "share"


def test_an_upload_that_breaks_off_leaves_the_checkpoints_before(
    run: Run, share: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(str(share), run.logdir, run.checkpoint(1))

    def put_half(self: object, source: str, target: str) -> None:
        Path(target).write_bytes(Path(source).read_bytes()[:3000])
        if target.endswith("sending"):
            raise OSError("no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(LocalFileSystem, "put_file", put_half)
        for updates in (2, 3):
            with pytest.raises(OSError):
                send(str(share), run.logdir, run.checkpoint(updates))
    assert len([path for path in share.iterdir() if path.stat().st_size]) == 2
    assert bring_back(share, back := Logdir(tmp_path / "back")) != []
    assert brought_back(back) == 1
    send(str(share), run.logdir, run.checkpoint(4))
    assert frames_in(share) == [10, 40]
    run.checkpoint(5)
    assert bring_back(share, run.logdir) == [], "what is older stays there"


def add(tar: Path, name: str, kind: bytes = tarfile.REGTYPE) -> None:
    with tarfile.open(tar, "a") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc"
        archive.addfile(member, io.BytesIO())


def add_hole(tar: Path) -> None:
    with tarfile.open(tar, "a") as archive:
        member = tarfile.TarInfo("evaluation.csv")
        member.pax_headers = {"GNU.sparse.size": str(2**50), "GNU.sparse.map": "0,1"}
        member.size = 1
        archive.addfile(member, io.BytesIO(b"1"))


def zip_up(tar: Path) -> None:
    tar.write_bytes(gzip.compress(tar.read_bytes()))


def make_fifo(tar: Path) -> None:
    tar.unlink()
    os.mkfifo(tar)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a hole": add_hole,
    "compressed": zip_up,
    "a FIFO": make_fifo,
    "short": lambda tar: tar.write_bytes(tar.read_bytes()[:3000]),
    "changed": lambda tar: tar.write_bytes(re.sub(rb"\d \d \d", b"7 7 7", tar.read_bytes())),
    "outside": lambda tar: add(tar, "../metrics.csv"),
    "a program": lambda tar: add(tar, "level.py"),
    "a link": lambda tar: add(tar, "metrics.csv", tarfile.SYMTYPE),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_tar_is_not_taken(
    run: Run, share: Path, tmp_path: Path, damage: str
) -> None:
    for updates in (1, 2):
        send(str(share), run.logdir, run.checkpoint(updates))
    older, newest = sorted(share.glob("ckpt-*.tar"))
    DAMAGES[damage](newest)
    first, second = bring_back(share, back := Logdir(tmp_path / "back"))
    assert first.startswith(f"{share}: {newest.name} is damaged (")
    assert second == f"restored from {share}: checkpoint at 10 frames"
    assert brought_back(back) == 1
    assert not (tmp_path / "metrics.csv").exists()
    resumed = Run(tmp_path / "resumed")
    send(str(share), resumed.logdir, resumed.checkpoint(2))  # the place of the damaged one is free
    DAMAGES[damage](older)
    newest.unlink()
    with pytest.raises(ConfigError, match="no checkpoint is whole"):  # it would begin silently
        bring_back(share, Logdir(tmp_path / "again"))


def test_the_mirror_of_another_run_is_refused(run: Run, share: Path, tmp_path: Path) -> None:
    send(str(share), run.logdir, run.checkpoint(1))
    other = Run(tmp_path / "other", run_id="another")
    checkpoint = other.checkpoint(5)
    with pytest.raises(ConfigError, match="holds another run than --logdir=.*other"):
        bring_back(share, other.logdir)
    with pytest.raises(ConfigError, match="another process has written ckpt-"):
        send(str(share), other.logdir, checkpoint)
    with pytest.raises(ConfigError, match="--fresh needs another --mirror"):
        bring_back(share, Logdir(tmp_path / "new"), fresh=True)
    assert frames_in(share) == [10]


class Copied:
    """A run and what mirrors it to a share that can be slow, or gone."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run, self.share = Run(folder / "run"), folder / "share"
        self.answers, self.gone = threading.Event(), False
        self.answers.set()
        self.storage = StorageWatch()
        monkeypatch.setattr(mirroring, "send", self._send)
        monkeypatch.setattr(mirroring, "_RETRY_S", 0.05)
        self.uploads = MirrorUploads(str(self.share), self.run.logdir, self.storage)

    def _send(self, mirror: str, logdir: Logdir, checkpoint: Path) -> int:
        self.answers.wait(30)
        if self.gone:
            raise OSError("no route to host")
        return send(mirror, logdir, checkpoint)

    def checkpoint(self, updates: int) -> None:
        self.uploads.on_checkpoint(self.run.checkpoint(updates))


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Copied]:
    made = Copied(tmp_path, monkeypatch)
    yield made
    made.answers.set()
    made.uploads.close(lambda: True)


def test_training_does_not_wait_for_a_share_that_is_slow_or_gone(
    copied: Copied, caplog: pytest.LogCaptureFixture
) -> None:
    """The newest checkpoint is next. What is wrong is named once."""
    copied.answers.clear()
    copied.checkpoint(1)
    time.sleep(0.3)  # the thread waits for the share
    for updates in (2, 3):
        copied.checkpoint(updates)
    copied.answers.set()
    wait_until(lambda: not copied.uploads.busy)
    assert frames_in(copied.share) == [10, 30]
    copied.gone = True
    copied.checkpoint(4)
    wait_until(lambda: copied.storage.trouble() is not None)
    copied.checkpoint(5)
    time.sleep(0.3)
    trouble = copied.storage.trouble()
    assert trouble is not None
    assert str(copied.share) in trouble["text"] and "no route to host" in trouble["text"]
    copied.gone = False
    wait_until(lambda: copied.storage.trouble() is None)
    assert frames_in(copied.share) == [10, 30, 50]
    assert caplog.text.count("no route") == 1


@pytest.mark.parametrize("stopped", [True, False])
def test_the_end_waits_for_the_last_checkpoint_but_not_for_ever(
    copied: Copied, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    monkeypatch.setattr(mirroring, "_LAST_OF_STOPPED_S", 0.3)
    copied.answers.clear()
    copied.checkpoint(1)
    if not stopped:
        threading.Timer(1.0, copied.answers.set).start()
    copied.uploads.close(lambda: stopped)
    assert frames_in(copied.share) == ([] if stopped else [10])
    assert copied.storage.trouble() is None, "it would look like a run that failed"
    assert ("does not have the last checkpoint" in caplog.text) == stopped


def test_an_unusable_mirror_is_refused_before_anything_starts(
    run_here: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    logdir = tmp_path / "run"
    for mirror in (
        f"{tmp_path}/file/run",
        "nobody@127.0.0.1:runs/x",
        "sftp://nobody@127.0.0.1:9/runs/x",
        "ftpx://host/runs",
    ):
        code, _, err = run_here(*CARTPOLE, f"--logdir={logdir}", f"--mirror={mirror}")
        assert code == 2
        assert err.startswith(f"run_experiment.py: --mirror={mirror}: "), err
        assert err.count("\n") == 1
    assert not (logdir / "config.json").exists()


def test_a_machine_whose_key_is_not_known_gets_nothing(box: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / ".ssh" / "known_hosts").write_text("")
    with pytest.raises(OSError, match="not found in known_hosts"):
        send(f"sftp://{box}{tmp_path}/there", run.logdir, run.checkpoint(1))
    assert not (tmp_path / "there").exists()


def test_a_restarted_learner_goes_on_without_its_mirror(
    build: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    share = tmp_path / "share"
    parts = build(mirror=str(share))
    parts.run_state.save()
    parts.logdir.config.write_text(json.dumps({"flags": {}, "sources": {}}))
    shutil.rmtree(share)
    share.write_text("not a folder")
    parts = build(mirror=str(share))
    assert parts.resumed
    assert f"--mirror={share}: cannot be used: " in caplog.text
    assert "resuming from the checkpoint in the logdir" in caplog.text


def test_a_run_whose_machine_is_lost_goes_on_elsewhere(start: Any, tmp_path: Path) -> None:
    logdir, share = tmp_path / "run", tmp_path / "share"
    flags = (*CARTPOLE, f"--logdir={logdir}", f"--mirror={share}")
    run = start(*flags, "--total_environment_frames=1000000000", "--schedule_frames=40000")
    run.wait_until(lambda: len(frames_in(share)) >= 2)
    run.end()
    shutil.rmtree(logdir)
    kept = frames_in(share)[-1]
    frames = kept + 5000
    more = (f"--total_environment_frames={frames}", "--schedule_frames=40000")
    code, out, err = start(*flags, *more).wait()
    assert code == 0, err + out
    assert f"restored from {share}: checkpoint at {kept:,} frames" in out
    assert f"resuming from {logdir}/checkpoints/ckpt-" in out
    seen = [int(row["environment_frames"]) for row in rows(logdir)]
    assert seen == sorted(set(seen)) and seen[0] < kept and seen[-1] >= frames
    assert len(json.loads((logdir / "config.json").read_text())["history"]) == 2
    assert "mirror" not in (logdir / "config.yaml").read_text()
    assert frames_in(share)[-1] >= frames, "the last checkpoint"
