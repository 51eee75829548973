"""--mirror: training never waits for it, a lost disk is no lost run, and misuse is refused."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from impala_tf.checkpoint.mirror import Mirror
from impala_tf.checkpoint.targets import Folder
from impala_tf.logdir import Logdir
from impala_tf.monitoring.notes import Notes
from impala_tf.monitoring.storage import StorageWatch
from impala_tf.processes import mirroring
from impala_tf.processes.mirroring import MirrorUploads
from tests.helpers import mirrored
from tests.helpers.mirrored import brought_back
from tests.helpers.runs import rows
from tests.helpers.waiting import wait_until

CARTPOLE = ("--level_name=CartPole-v1", "--num_actors=1", "--metrics_interval_s=1",
            "--checkpoint_interval_s=1")  # fmt: skip


class Share(Folder):
    """A share that can be slow, or gone."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.answers = threading.Event()
        self.answers.set()
        self.gone = False

    def put(self, source: Path, name: str) -> None:
        self.answers.wait(30)
        if self.gone:
            raise OSError("no route to host")
        super().put(source, name)

    def notes(self) -> list[int]:
        return sorted(int(path.stem[5:]) for path in (self.path / "mirrored").glob("ckpt-*.json"))


class Copied:
    """A run and what mirrors it."""

    def __init__(self, folder: Path) -> None:
        self.run = mirrored.Run(folder / "run")
        self.share = Share(folder / "share")
        self.storage = StorageWatch()
        mirror = Mirror("SHARE", self.share)
        self.uploads = MirrorUploads(mirror, self.run.logdir, self.storage)
        self.notes = Notes()

    def checkpoint(self, updates: int) -> None:
        self.uploads.on_checkpoint(self.run.checkpoint(updates))


@pytest.fixture
def copied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Copied]:
    caplog.set_level(logging.INFO, "impala_tf.learner")
    made = Copied(tmp_path)
    logging.getLogger("impala_tf").addHandler(made.notes)
    yield made
    logging.getLogger("impala_tf").removeHandler(made.notes)
    made.share.answers.set()
    made.uploads.close(lambda: True, may_wait=False)


def test_training_does_not_wait_and_the_newest_checkpoint_is_next(copied: Copied) -> None:
    copied.share.answers.clear()
    began = time.monotonic()
    for updates in (1, 2, 3):
        copied.checkpoint(updates)
        if updates == 1:
            wait_until(lambda: copied.uploads._sending)
    assert time.monotonic() - began < 20
    copied.share.answers.set()
    wait_until(lambda: not copied.uploads.busy)
    assert copied.share.notes() == [1, 3]


def test_an_evaluation_after_the_last_checkpoint_arrives_too(copied: Copied) -> None:
    """Its games are played when training is over, and are the ones that people quote."""
    copied.checkpoint(1)
    wait_until(lambda: not copied.uploads.busy)
    copied.run.logdir.evaluations.write_text("environment_frames,return_mean\n9,7.0\n")
    copied.uploads.send_again()
    copied.uploads.close(lambda: False)
    assert (copied.share.path / "evaluation.csv").read_text().endswith("9,7.0\n")
    assert copied.share.notes() == [1]
    (manifest,) = Mirror("SHARE", copied.share).manifests()
    assert "evaluation.csv" in manifest.files


def test_a_share_that_is_gone_is_named_once_and_gets_what_it_missed(
    copied: Copied, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirroring, "_RETRY_S", 0.05)
    copied.share.gone = True
    copied.checkpoint(1)
    wait_until(lambda: copied.storage.trouble() is not None)
    copied.checkpoint(2)
    time.sleep(0.3)
    trouble = copied.storage.trouble()
    assert trouble is not None
    assert trouble["text"] == "cannot write checkpoints to SHARE: no route to host"
    copied.share.gone = False
    wait_until(lambda: copied.share.notes() == [2])
    wait_until(lambda: copied.storage.trouble() is None)
    wait_until(lambda: "can be written again" in caplog.text)
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if "no route" in line]) == 1
    assert said[-1] == "checkpoints to SHARE: can be written again"


@pytest.mark.parametrize("stopped", [True, False])
def test_the_end_waits_for_the_last_checkpoint_but_not_for_ever(
    copied: Copied, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    monkeypatch.setattr(mirroring, "_LAST_OF_STOPPED_S", 0.3)
    copied.share.answers.clear()
    copied.checkpoint(1)
    if not stopped:

        def answer_late() -> None:
            wait_until(lambda: "waiting for the last checkpoint" in caplog.text)
            copied.share.answers.set()

        threading.Thread(target=answer_late).start()
    copied.uploads.close(lambda: stopped)
    assert copied.share.notes() == ([] if stopped else [1])
    last = caplog.records[-1].getMessage()
    assert "waiting for the last checkpoint to reach SHARE" in caplog.text
    assert ("does not have the last checkpoint" in last) == stopped
    assert copied.storage.trouble() is None, "it would look like a run that failed"
    lacking = "SHARE: does not have the last checkpoint; it has nothing"
    assert copied.notes.lines == ([lacking] if stopped else []), "--end_command may switch it off"


def test_a_mirror_that_another_process_writes_is_left_alone(
    copied: Copied, caplog: pytest.LogCaptureFixture
) -> None:
    copied.checkpoint(1)
    wait_until(lambda: not copied.uploads.busy)
    Mirror("", Folder(copied.share.path)).upload(copied.run.snapshot(2))
    copied.checkpoint(3)
    wait_until(lambda: "No more checkpoints are copied" in caplog.text)
    copied.checkpoint(4)
    assert copied.share.notes() == [1, 2]
    (line,) = copied.notes.lines
    assert line.endswith("No more checkpoints are copied"), "it is for days, and in no other place"


def test_an_unusable_mirror_is_refused_before_anything_starts(
    run_here: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    logdir = tmp_path / "run"
    for mirror, problem in {
        tmp_path / "file": "cannot be used: Not a directory",
        tmp_path / "full": "holds files that do not belong to a mirror, such as thesis.tex",
        logdir / "mirror": f"must not be in --logdir={logdir}, nor around it",
        "nobody@127.0.0.1:runs/x": "cannot be used:",
    }.items():
        code, _, err = run_here(*CARTPOLE, f"--logdir={logdir}", f"--mirror={mirror}")
        assert code == 2
        assert err.startswith(f"run_experiment.py: --mirror={mirror}: {problem}"), err
        assert err.count("\n") == 1
    assert not logdir.exists()


def test_a_run_to_start_from_is_looked_for_though_a_mirror_may_have_the_run(
    run_here: Any, tmp_path: Path
) -> None:
    """If the mirror has none, the learner found out, after everything had been started."""
    code, _, err = run_here(
        *CARTPOLE, f"--logdir={tmp_path / 'run'}", f"--mirror={tmp_path / 'mirror'}",
        f"--start_from={tmp_path / 'nowhere'}",
    )  # fmt: skip
    assert code == 2
    assert f"--start_from={tmp_path / 'nowhere'}: there is no such folder" in err
    assert err.count("\n") == 1 and not (tmp_path / "run" / "processes").exists()


def test_a_launch_with_fresh_and_a_mirror_is_refused(run_here: Any, tmp_path: Path) -> None:
    code, _, err = run_here(*CARTPOLE, "--workers_csv_path=w.csv", "--fresh", "--mirror=/mnt/x")
    assert code == 2
    assert err.endswith("--fresh: a launch does not rename the mirror; give another --mirror\n")


def test_a_restarted_learner_goes_on_without_its_mirror(
    build: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    share = tmp_path / "share"
    parts = build(mirror=str(share))
    parts.run_state.save()
    parts.logdir.config.write_text(json.dumps({"flags": {"mirror": str(share)}, "sources": {}}))
    parts.uploads.close(lambda: True, may_wait=False)
    shutil.rmtree(share)
    share.write_text("not a folder")
    parts = build(mirror=str(share))
    assert parts.resumed
    assert "cannot be used: Not a directory; name a place that can be written; resum" in caplog.text
    parts.uploads.close(lambda: True, may_wait=False)


@pytest.mark.end_to_end
@pytest.mark.long
def test_a_run_whose_machine_is_lost_goes_on_elsewhere(start: Any, tmp_path: Path) -> None:
    logdir, share = tmp_path / "run", tmp_path / "share"
    flags = (*CARTPOLE, f"--logdir={logdir}", f"--mirror={share}")
    run = start(*flags, "--total_environment_frames=1000000000", "--schedule_frames=40000")
    run.wait_until(lambda: len(list(share.glob("mirrored/*.json"))) >= 2)
    run.end()
    shutil.rmtree(logdir)
    kept = [int(row["environment_frames"]) for row in rows(share)]
    frames = kept[-1] + 5000
    more = (f"--total_environment_frames={frames}", "--schedule_frames=40000")
    code, out, err = start(*flags, *more).wait()
    assert code == 0, err + out
    assert f"restored from {share}: checkpoint at " in out
    assert f"resuming from {logdir}/checkpoints/ckpt-" in out
    seen = [int(row["environment_frames"]) for row in rows(logdir)]
    assert seen == sorted(set(seen)) and seen[0] == kept[0] and seen[-1] >= frames
    assert len(json.loads((logdir / "config.json").read_text())["history"]) == 2
    assert "mirror" not in (logdir / "config.yaml").read_text()
    assert brought_back(Logdir(share)) == brought_back(Logdir(logdir))


@pytest.mark.long
def test_fresh_moves_the_mirror_aside_too(start: Any, tmp_path: Path) -> None:
    logdir, share = tmp_path / "run", tmp_path / "share"
    flags = (*CARTPOLE, f"--logdir={logdir}", f"--mirror={share}",
             "--total_environment_frames=5000")  # fmt: skip
    for more in ((), ("--fresh", "--learning_rate=0.1")):
        code, out, err = start(*flags, *more).wait()
        assert code == 0, err + out
    assert f"the run that was in {share} is now in {share}.1" in out
    assert "restored from" not in out
    assert brought_back(Logdir(tmp_path / "share.1")) == brought_back(Logdir(tmp_path / "run.1"))
    code, out, err = start(*flags, "--seed=2", f"--logdir={tmp_path / 'other'}").wait()
    assert code == 2
    assert f"--mirror={share}: holds a run with --seed=1" in err
