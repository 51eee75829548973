"""Files of metrics: whole rows, cut back to the checkpoint, never mixed with another run."""

import csv
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from impala_tf.config import ConfigError
from impala_tf.monitoring.metrics import METRICS, TENSORBOARD_TAGS
from impala_tf.monitoring.rows import EpisodeWindow
from impala_tf.monitoring.writers import CsvWriter, TensorBoardWriter
from tests.helpers.runs import PROJECT


def row(frames: int, **values: float | None) -> dict[str, float | int | None]:
    return {"environment_frames": frames, **values}


def frames_in(path: Path) -> list[int]:
    """Returns the frames column of a file; every line must be whole."""
    text = path.read_text()
    assert text.endswith("\n")
    rows = list(csv.DictReader(text.splitlines()))
    assert all(set(found) == set(METRICS) and None not in found.values() for found in rows)
    return [int(found["environment_frames"]) for found in rows]


def curve(directory: Path, tag: str) -> list[tuple[int, float]]:
    """Returns the points that TensorBoard shows, in order."""
    events = EventAccumulator(str(directory)).Reload()
    return [
        (point.step, float(tf.make_ndarray(point.tensor_proto))) for point in events.Tensors(tag)
    ]


def test_a_missing_value_is_an_empty_cell(tmp_path):
    writer = CsvWriter(tmp_path / "metrics.csv")
    writer.write({**row(640, loss_total=-1.5, entropy=math.nan), **EpisodeWindow().row()})
    numpys: dict[str, Any] = {"policy_lag_max": np.float32(3), "agent_steps": np.int64(2**40)}
    writer.write(row(1280, **numpys))
    first, second = csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines())
    assert (first["episodes"], first["episode_return_mean"], first["learning_rate"]) == (
        "0", "", "",
    )  # fmt: skip
    assert (first["loss_total"], first["entropy"]) == ("-1.5", "nan")
    assert (second["policy_lag_max"], second["agent_steps"]) == ("3", str(2**40))


def test_a_resumed_file_has_the_rows_of_its_checkpoint_and_goes_on(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text(",".join(METRICS)[:30])  # of a run that was killed before its first row
    for frames, written in ((None, [100, 200, 300]), (200, [250]), (240, [])):
        writer = CsvWriter(path)
        writer.rewind(frames)
        for each in written:
            writer.write(row(each))
        writer.close()
        with path.open("a") as file:
            file.write("12.5,torn")  # by a kill
    CsvWriter(path).rewind(240)
    assert frames_in(path) == [100, 200]
    path.unlink()  # a file may be newer than the checkpoint, such as that of a new flag
    CsvWriter(path).rewind(240)
    assert frames_in(path) == []


@pytest.mark.parametrize(
    ("columns", "frames", "problem"),
    [
        (list(METRICS), None, "holds the rows of a run, but there is no"),
        (["agent_steps", "entropy"], 10, "has other columns"),
    ],
)
def test_a_run_does_not_add_to_the_file_of_another_run(tmp_path, columns, frames, problem):
    path = tmp_path / "metrics.csv"
    before = f"{','.join(columns)}\n{'1,' * (len(columns) - 1)}1\n"
    path.write_text(before)
    with pytest.raises(ConfigError, match=rf"metrics\.csv: {problem}"):
        CsvWriter(path).rewind(frames)
    assert path.read_text() == before


def test_tensorboard_has_every_metric_over_frames_and_is_of_one_run(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    values = {name: float(index) for index, name in enumerate(METRICS)}
    writer.write({**values, "environment_frames": 5_000_000_000})
    writer.write({"environment_frames": 6_000_000_000, "episode_return_mean": None})
    writer.add({"mine": 1.0}, 5_000_000_000)
    writer.close()
    for name, value in values.items():
        if name != "environment_frames":
            assert curve(tmp_path, TENSORBOARD_TAGS[name]) == [(5_000_000_000, value)]
    assert len(curve(tmp_path, "progress/environment_frames")) == 2
    assert curve(tmp_path, "callbacks/mine") == [(5_000_000_000, 1.0)]
    with pytest.raises(ConfigError, match="holds the events of a run, but there is no checkpoint"):
        TensorBoardWriter(tmp_path).rewind(None)


def test_tensorboard_has_the_flags_and_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["impala", "train", "--seed=3"])
    writer = TensorBoardWriter(tmp_path, {"learning_rate": 0.25, "level_name": "x", "seed": None})
    writer.write(row(1, loss_total=1.0))
    writer.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    texts = [tf.make_ndarray(events.Tensors(name)[0].tensor_proto) for name in ("flags", "command")]
    assert b"learning_rate" in texts[0].item() and b"--seed=3" in texts[1].item()
    assert any("hparams" in tag for tag in events.summary_metadata)


KILLED_WRITERS = """
import os, signal, sys
from pathlib import Path
import tensorflow
from impala_tf.monitoring.writers import CsvWriter, TensorBoardWriter

folder = Path(sys.argv[1])

def write(all_frames, checkpoint):
    writers = CsvWriter(folder / "metrics.csv"), TensorBoardWriter(folder / "tensorboard")
    for writer in writers:
        writer.rewind(checkpoint)
    for frames in all_frames:
        for writer in writers:
            writer.write({"environment_frames": frames, "loss_total": frames / 2})
    os.kill(os.getpid(), signal.SIGKILL)

for all_frames, checkpoint in (([5, 10, 15], None), ([12], 10), ([14, 20], 10)):
    pid = os.fork()
    if pid == 0:
        write(all_frames, checkpoint)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
"""


def test_curves_have_no_repeated_point_after_kills_and_resumes(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WRITERS, str(tmp_path)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    whole = [5, 10, 14, 20]
    assert frames_in(tmp_path / "metrics.csv") == whole
    assert curve(tmp_path / "tensorboard", "loss/total") == [(n, n / 2) for n in whole]
