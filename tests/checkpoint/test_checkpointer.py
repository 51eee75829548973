"""Damaged checkpoints are found: a run resumes from a whole one or says why it cannot."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from impala_tf.checkpoint.checkpointer import Checkpointer
from impala_tf.checkpoint.compatibility import check_compatible
from impala_tf.checkpoint.files import checkpoints, write_state
from impala_tf.config import ConfigError
from tests.helpers.states import state


class Run:
    """A small network with an optimizer that has slots, like a learner's."""

    def __init__(self, directory: Path, outputs: int = 3, keep: int = 3) -> None:
        self.network = snt.Linear(outputs)
        self.network(tf.zeros([1, 2]))
        self.optimizer = snt.optimizers.RMSProp(tf.Variable(0.1), momentum=0.5)
        self.train(0.0)  # creates the slots
        self.checkpointer = Checkpointer(
            directory, {"agent": self.network, "optimizer": self.optimizer}, keep=keep
        )

    def train(self, gradient: float = 1.0) -> None:
        variables = self.network.trainable_variables
        self.optimizer.apply([gradient * tf.ones_like(v) for v in variables], variables)

    def values(self) -> list[np.ndarray]:
        return [v.numpy() for v in (*self.network.variables, *self.optimizer.variables)]


def assert_same(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def saved_run(directory: Path, steps: int) -> dict[int, list[np.ndarray]]:
    run = Run(directory)
    values = {}
    for step in range(1, steps + 1):
        run.train(step)
        run.checkpointer.save(state(step), step)
        values[step] = run.values()
    return values


def test_a_resumed_run_continues_exactly_as_if_it_had_not_stopped(tmp_path):
    run = Run(tmp_path)
    run.train()
    run.checkpointer.save(state(1, rows=[1.5, None]), 1)
    run.train()

    resumed = Run(tmp_path)
    assert resumed.checkpointer.restore() == state(1, rows=[1.5, None])
    assert resumed.checkpointer.latest == tmp_path / "ckpt-000000000001"
    resumed.train()
    assert_same(resumed.values(), run.values())


@pytest.mark.parametrize("name", ["[sweep] lr=1", "a\\b", "*?"])
def test_the_name_of_a_folder_is_no_pattern(tmp_path, name):
    """To TensorFlow, `[` and a backslash are one when it reads, but not when it writes."""
    values = saved_run(tmp_path / name, 1)
    run = Run(tmp_path / name)
    assert run.checkpointer.restore() == state(1)
    assert_same(run.values(), values[1])


def test_a_checkpoint_without_another_update_writes_nothing(tmp_path):
    """As while a replay fills."""
    run = Run(tmp_path)
    first = run.checkpointer.save(state(frames=1), 7)
    before = first.stat()
    assert run.checkpointer.save(state(frames=2), 7) == first
    assert first.stat() == before
    assert Run(tmp_path).checkpointer.restore() == state(frames=1)


def test_what_is_renamed_is_on_the_disk_and_so_is_its_name_then(tmp_path, monkeypatch):
    """Otherwise the newest checkpoint may be empty or missing after a power cut."""
    done: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def note_fsync(descriptor):
        done.append(("fsync", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        fsync(descriptor)

    def note_rename(source, target, **_):
        done.append(("rename", Path(target).name))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    checkpoint = Run(tmp_path / "checkpoints").checkpointer.save(state(), 1)
    *flushed, renamed, folder = done
    assert renamed == ("rename", checkpoint.name)
    assert folder == ("fsync", "checkpoints")
    names = {name for what, name in flushed if what == "fsync"}
    assert names > {path.name for path in checkpoint.iterdir()}  # and the temporary folder


DATA = "variables.data-00000-of-00001"
NO_FILES = '{"format": 1, "files": {}}'


def flip_a_bit(folder: Path) -> None:
    data = bytearray((folder / DATA).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / DATA).write_bytes(data)


def forge_the_manifest(folder: Path) -> None:
    """Damage that only TensorFlow can find, because the manifest does not list the file."""
    flip_a_bit(folder)
    (folder / "manifest.json").write_text(NO_FILES)


def text(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def foreign_run(folder: Path) -> None:
    """Mirrors name their files by it."""
    (folder / "manifest.json").unlink()
    write_state(folder, state(run_id="../x"))


def fifo(folder: Path) -> None:
    """TensorFlow would wait for somebody to write there."""
    (folder / DATA).unlink()
    os.mkfifo(folder / DATA)
    (folder / "manifest.json").write_text(NO_FILES)


def endless(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").symlink_to("/dev/zero")


DEEP = '{"format": 1, "files": {}, "state": ' + 100_000 * "["
DAMAGES = {
    "a FIFO": (fifo, "data-00000-of-00001: is no regular file"),
    "a device": (endless, "manifest.json: is no regular file"),
    "deep JSON": (text("manifest.json", DEEP), "manifest.json is unreadable"),
    "no files": (
        text("manifest.json", '{"format": 1, "files": [1]}'),
        "manifest.json is unreadable",
    ),
    "a run_id that is a path": (foreign_run, "state.json is unreadable: run_id is no name"),
    "a file is shorter": (
        lambda folder: os.truncate(folder / DATA, 9),
        "data-00000-of-00001 has changed",
    ),
    "a bit is flipped": (flip_a_bit, "data-00000-of-00001 has changed"),
    "no index": (lambda folder: (folder / "variables.index").unlink(), "index: No such file"),
    "an empty manifest": (text("manifest.json", ""), "manifest.json is unreadable"),
    "a forged manifest": (forge_the_manifest, "[Cc]hecksum does not match"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_used(tmp_path, caplog, damage):
    values = saved_run(tmp_path, 3)
    spoil, said = DAMAGES[damage]
    spoil(tmp_path / "ckpt-000000000003")
    run = Run(tmp_path)
    assert run.checkpointer.restore() == state(2)
    assert_same(run.values(), values[2])
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    message = record.getMessage()
    assert message.startswith(f"{tmp_path / 'ckpt-000000000003'} is damaged (")
    assert message.endswith("; using ckpt-000000000002")
    assert re.search(said, message)


def test_a_damaged_checkpoint_does_not_count_among_the_three(tmp_path, caplog):
    run = Run(tmp_path)
    for step in (10, 20, 30):
        run.checkpointer.save(state(step), step)
    flip_a_bit(tmp_path / "ckpt-000000000030")
    resumed = Run(tmp_path)
    assert resumed.checkpointer.restore() == state(20)
    for step in (21, 22, 23):
        resumed.checkpointer.save(state(step), step)
    assert [path.name[-2:] for path in checkpoints(tmp_path)] == ["21", "22", "23"]
    assert (tmp_path / "damaged-ckpt-000000000030").is_dir()
    caplog.clear()
    assert Run(tmp_path).checkpointer.restore() == state(23)
    assert caplog.records == []


def test_an_evaluation_changes_nothing_in_the_folder(tmp_path):
    saved_run(tmp_path, 2)
    flip_a_bit(tmp_path / "ckpt-000000000002")
    (tmp_path / ".tmp-000000000003-1").mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    Run(tmp_path).checkpointer.restore(partial=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_temporary_folders_of_running_processes_are_kept(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for pid in (ended.pid, os.getpid(), os.getppid()):
        (tmp_path / f".tmp-000000000001-{pid}").mkdir()
    Run(tmp_path).checkpointer.save(state(), 2)
    assert [p.name for p in tmp_path.glob(".tmp-*")] == [f".tmp-000000000001-{os.getppid()}"]


def test_an_evaluation_restores_only_the_agent(tmp_path):
    values = saved_run(tmp_path, 1)
    network = Run(tmp_path).network
    checkpointer = Checkpointer(tmp_path, {"agent": network})
    with pytest.raises(ConfigError, match="does not fit.*optimizer"):
        checkpointer.restore()
    assert checkpointer.restore(partial=True) == state(1)
    assert_same([v.numpy() for v in network.variables], values[1][:2])


def test_a_checkpoint_of_another_shape_or_without_a_variable_is_refused(tmp_path):
    saved_run(tmp_path, 1)
    with pytest.raises(ConfigError, match=r"ckpt-000000000001: does not fit .*shape"):
        Run(tmp_path, outputs=4).checkpointer.restore()
    network = Run(tmp_path).network
    with pytest.raises(ConfigError, match="does not fit"):
        extra = {"agent": network, "extra": tf.Variable(1.0)}
        Checkpointer(tmp_path, extra).restore(partial=True)


def test_another_format_is_refused_in_one_line_and_not_called_damage(tmp_path):
    saved_run(tmp_path, 2)
    file = tmp_path / "ckpt-000000000002" / "manifest.json"
    file.write_text(NO_FILES.replace("1", "2"))
    with pytest.raises(ConfigError) as refusal:
        Run(tmp_path).checkpointer.restore()
    (line,) = refusal.value.problems
    assert line.startswith(f"{file}: has format 2, but") and "reads format 1" in line


PONG = {"level_name": "PongNoFrameskip-v4", "num_actions": 6, "observation_shape": [84, 84, 4]}


def test_another_level_is_refused_before_any_variable_changes(tmp_path):
    run = Run(tmp_path)
    run.checkpointer.save(state(identity=PONG), 1)
    assert run.checkpointer.restore(check=lambda saved: check_compatible(saved["identity"], PONG))
    other = Run(tmp_path, outputs=18)
    before = other.values()
    breakout = {**PONG, "level_name": "BreakoutNoFrameskip-v4", "num_actions": 4}
    with pytest.raises(ConfigError) as refusal:
        other.checkpointer.restore(
            check=lambda saved: check_compatible(saved["identity"], breakout, "runs/x")
        )
    level, actions = refusal.value.problems
    for line, values in ((level, ("Pong", "Breakout")), (actions, ("num_actions 6", " 4"))):
        assert line.startswith("--logdir=runs/x: ")
        assert all(value in line for value in values)
    assert_same(other.values(), before)
