"""Rows of metrics: written whole, cut off at a checkpoint, and never mixed with another run's."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.util.event_pb2 import Event

from impala_tf.config import ConfigError
from impala_tf.monitoring.metrics import METRICS, TENSORBOARD_TAGS, EpisodeWindow, Rates
from impala_tf.monitoring.writers import CsvWriter, TensorBoardWriter
from impala_tf.types import Episode

REPOSITORY = Path(__file__).parents[1]
# fmt: off
CONTRACT = [
    "wall_time_s", "agent_steps", "environment_frames", "learner_updates", "agent_steps_per_s",
    "frames_per_s", "episodes", "episode_return_mean", "episode_length_mean", "loss_total",
    "loss_policy_gradient", "loss_baseline", "entropy", "gradient_norm", "learning_rate",
    "policy_lag_mean", "policy_lag_max", "rho_clip_fraction", "queue_size", "learner_idle_fraction",
]
# fmt: on


def row(frames: int, **values: float | None) -> dict[str, float | int | None]:
    return {"environment_frames": frames, **values}


def frames_in(path: Path) -> list[int]:
    """The frames column of a file whose every line must be whole."""
    text = path.read_text()
    assert text.endswith("\n")
    rows = list(csv.DictReader(text.splitlines()))
    assert all(set(found) == set(METRICS) and None not in found.values() for found in rows)
    return [int(found["environment_frames"]) for found in rows]


def curve(directory: Path, tag: str) -> list[tuple[int, float]]:
    """Every point in the event files, in their order; a torn one is an error."""
    files = sorted(str(path) for path in directory.glob("events.out.tfevents.*"))
    events = [Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(files)]
    return [
        (event.step, float(tf.make_ndarray(value.tensor)))
        for event in events
        for value in event.summary.value
        if value.tag == tag
    ]


def test_columns_that_others_read_by_name_are_all_there():
    assert [name for name in METRICS if name in CONTRACT] == CONTRACT
    assert set(TENSORBOARD_TAGS) == set(METRICS)
    assert len(set(TENSORBOARD_TAGS.values())) == len(METRICS)
    assert TENSORBOARD_TAGS["episode_return_mean"] == "episode/return_mean"


def test_importing_the_metrics_does_not_import_tensorflow():
    code = "import sys, impala_tf.monitoring.writers; print('tensorflow' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert result.stdout == "False\n"


def test_a_value_that_does_not_exist_yet_is_an_empty_cell(tmp_path):
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


def test_a_misspelt_metric_is_an_error_and_not_a_lost_column(tmp_path):
    with pytest.raises(KeyError, match="episode_returns"):
        CsvWriter(tmp_path / "metrics.csv").write(row(1, episode_returns=3.0))


def test_rows_after_the_checkpoint_are_cut_off_and_the_file_goes_on(tmp_path):
    path = tmp_path / "metrics.csv"
    writer = CsvWriter(path)
    writer.write(row(100))
    position = json.loads(json.dumps(writer.position()))
    writer.write(row(200))
    writer.close()
    with path.open("a") as file:
        file.write("12.5,torn")

    resumed = CsvWriter(path)
    resumed.rewind(position)
    resumed.write(row(250))
    assert frames_in(path) == [100, 250]


KILLED_WRITER = """
import json, os, signal, sys
from pathlib import Path
from impala_tf.monitoring.writers import CsvWriter, TensorBoardWriter

folder, position = Path(sys.argv[1]), json.loads(sys.argv[2])
writers = CsvWriter(folder / "metrics.csv"), TensorBoardWriter(folder / "tensorboard")
for writer, its_position in zip(writers, position or (None, None)):
    writer.rewind(its_position)
for frames in map(int, sys.argv[3].split(",")):
    for writer in writers:
        writer.write({"environment_frames": frames, "loss_total": frames / 2})
    if frames % 10 == 0:  # as a checkpoint would
        print(json.dumps([writer.position() for writer in writers]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.faults
def test_curves_go_on_without_a_repeated_point_after_kills(tmp_path):
    position = "null"
    for frames in ("5,10,15", "12", "14,20"):
        result = subprocess.run(
            [sys.executable, "-c", KILLED_WRITER, str(tmp_path), position, frames],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )
        assert result.returncode == -signal.SIGKILL, result.stderr
        position = (result.stdout.splitlines() or [position])[-1]
    whole = [5, 10, 14, 20]
    assert frames_in(tmp_path / "metrics.csv") == whole
    assert curve(tmp_path / "tensorboard", "loss/total") == [(n, n / 2) for n in whole]


def test_a_fresh_run_does_not_add_to_another_runs_file(tmp_path):
    path = tmp_path / "metrics.csv"
    other = CsvWriter(path)
    other.write(row(100))
    other.close()
    before = path.read_bytes()
    with pytest.raises(
        ConfigError, match=r"metrics\.csv: holds the rows of a run, but there is no"
    ):
        CsvWriter(path).rewind(None)
    assert path.read_bytes() == before


def test_a_run_killed_before_its_first_row_can_be_started_again(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text(",".join(METRICS)[:30])
    writer = CsvWriter(path)
    writer.rewind(None)
    writer.write(row(100))
    assert frames_in(path) == [100]


def test_two_runs_cannot_write_one_file(tmp_path):
    path = tmp_path / "metrics.csv"
    first = CsvWriter(path)
    first.rewind(None)
    with pytest.raises(ConfigError, match=r"metrics\.csv: another process is writing it"):
        CsvWriter(path).rewind(None)
    first.close()
    CsvWriter(path).rewind(None)


def test_a_lost_or_shortened_file_is_named(tmp_path):
    path = tmp_path / "metrics.csv"
    writer = CsvWriter(path)
    writer.write(row(100))
    position = writer.position()
    writer.close()
    os.truncate(path, position["offset"] - 1)
    with pytest.raises(ConfigError, match=r"metrics\.csv: has [\d,]+ bytes, but had [\d,]+ at"):
        CsvWriter(path).rewind(position)
    path.unlink()
    with pytest.raises(ConfigError, match=r"metrics\.csv: is missing"):
        CsvWriter(path).rewind(position)
    assert not path.exists()


def test_an_edited_file_is_not_cut_in_the_middle_of_a_row(tmp_path):
    path = tmp_path / "metrics.csv"
    writer = CsvWriter(path)
    writer.write(row(100))
    position = writer.position()
    writer.close()
    path.write_text(path.read_text().replace("100", "100000") + "more\n")
    with pytest.raises(ConfigError, match=r"metrics\.csv: was changed: no row ends at byte"):
        CsvWriter(path).rewind(position)


def test_columns_of_another_version_are_named(tmp_path):
    path = tmp_path / "metrics.csv"
    columns = ["old_column", *(name for name in METRICS if name != "queue_size")]
    path.write_text(",".join(columns) + "\n")
    with pytest.raises(ConfigError, match=r"different columns \(old_column, queue_size\); choose"):
        CsvWriter(path).rewind({"offset": path.stat().st_size})


def test_tensorboard_shows_every_metric_over_frames(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    values = {name: float(index) for index, name in enumerate(METRICS)}
    writer.write({**values, "environment_frames": 5_000_000_000})
    writer.write({"environment_frames": 6_000_000_000, "episode_return_mean": None})
    for name, value in values.items():
        if name != "environment_frames":
            assert curve(tmp_path, TENSORBOARD_TAGS[name]) == [(5_000_000_000, value)]
    assert [step for step, _ in curve(tmp_path, "progress/environment_frames")] == [
        5_000_000_000, 6_000_000_000,
    ]  # fmt: skip


def test_tensorboard_refuses_a_foreign_or_lost_event_file(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer.write(row(1, loss_total=1.0))
    position = writer.position()
    writer.close()
    (name,) = position
    with pytest.raises(ConfigError, match="holds the events of a run, but there is no checkpoint"):
        TensorBoardWriter(tmp_path).rewind(None)
    os.truncate(tmp_path / name, position[name] - 1)
    with pytest.raises(ConfigError, match=rf"{name}: is missing or shorter"):
        TensorBoardWriter(tmp_path).rewind(position)
    (tmp_path / name).unlink()
    with pytest.raises(ConfigError, match=rf"{name}: is missing or shorter"):
        TensorBoardWriter(tmp_path).rewind(position)


def test_the_window_averages_the_last_hundred_games_and_counts_all():
    window = EpisodeWindow()
    assert window.row() == {
        "episodes": 0, "episode_return_mean": None, "episode_length_mean": None,
    }  # fmt: skip
    for game in range(150):
        window.add(Episode(episode_return=float(game), episode_length=10 * game))
    wanted = {"episodes": 150, "episode_return_mean": 99.5, "episode_length_mean": 995.0}
    assert window.row() == wanted

    resumed = EpisodeWindow()
    resumed.restore(json.loads(json.dumps(window.state())))
    assert resumed.row() == wanted
    numpy_return: Any = np.float32(1000.0)
    for each in (window, resumed):
        each.add(Episode(numpy_return, 0))
    assert resumed.row() == window.row()
    assert window.row()["episode_return_mean"] == pytest.approx(99.5 + (1000 - 50) / 100)
    json.dumps(window.state())


def test_rates_are_of_the_last_interval_and_do_not_count_restored_steps():
    now = [50.0]
    rates = Rates(1000, 4000, clock=lambda: now[0])
    now[0] = 60.0
    assert rates.row(1500, 6000) == {"agent_steps_per_s": 50.0, "frames_per_s": 200.0}
    now[0] = 62.0
    assert rates.row(1600, 6400) == {"agent_steps_per_s": 50.0, "frames_per_s": 200.0}
    assert rates.row(1600, 6400) == {"agent_steps_per_s": None, "frames_per_s": None}
