"""--mode=report: the page of real runs."""

from __future__ import annotations

import base64
import csv
import io
import re
from pathlib import Path
from typing import Any

from tests.helpers.logdirs import write_run
from tests.helpers.runs import Run
from tests.helpers.videos import decode


def test_a_report_of_a_real_run_has_its_figures_and_a_film(start: Any, tmp_path: Path) -> None:
    training: Run = start(
        "--level_name=CartPole-v1", "--agent_name=MLPLSTMAgent", "--num_actors=1",
        "--envs_per_actor=8", "--batch_size=8", "--metrics_interval_s=0.2",
        "--total_environment_frames=6000", f"--logdir={tmp_path}",
    )  # fmt: skip
    code, out, err = training.wait()
    assert code == 0, err + out
    code, out, err = start("--mode=report", f"--logdir={tmp_path}").wait()
    assert code == 0, err
    assert f"written to {tmp_path}: report.html, report.md, report.csv" in out
    with (tmp_path / "report.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["agent_name"] == "MLPLSTMAgent"
    assert 200 < float(row["learner_memory_mb"]) < 4000
    assert 30 < float(row["actor_memory_mb"]) < 4000
    assert int(row["parameters"]) > 1000

    page = (tmp_path / "report.html").read_text()
    (film,) = re.findall(r'src="data:video/mp4;base64,([^"]+)"', page)
    stream, pictures = decode(io.BytesIO(base64.b64decode(film)))
    assert stream.width >= 300 and len(pictures) > 10


def test_a_run_without_a_checkpoint_has_a_report_without_a_video(
    run_here: Any, tmp_path: Path
) -> None:
    """What can be shown is shown, and the page says what is missing."""
    write_run(tmp_path / "run")
    code, out, err = run_here("--mode=report", f"--logdir={tmp_path / 'run'}", "--seed=3")
    assert (code, err) == (0, "")
    assert "holds no checkpoint" in out
    assert "no video: --logdir=" in (tmp_path / "run" / "report.html").read_text()
    text = (tmp_path / "run" / "report.md").read_text()
    assert "ShallowConvNetAgent ended with a mean return of 20.0." in text
    assert "](report-PongNoFrameskip-v4.svg)" in text
    assert (tmp_path / "run" / "report-PongNoFrameskip-v4.svg").exists()
