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

FLAGS = (
    "--level_name=CartPole-v1",
    "--total_environment_frames=6000",
    "--num_actors=1",
    "--envs_per_actor=8",
    "--batch_size=8",
    "--metrics_interval_s=0.2",
)


def test_a_report_of_real_runs_has_their_figures_and_films(start: Any, tmp_path: Path) -> None:
    for agent in ("MLPAgent", "MLPLSTMAgent"):
        code, _, err = start(*FLAGS, f"--agent_name={agent}", f"--logdir={tmp_path / agent}").wait()
        assert code == 0, err
    reporting: Run = start("--mode=report", f"--logdir={tmp_path}")
    code, out, err = reporting.wait()
    assert code == 0, err
    assert f"written to {tmp_path}: report.html, report.md, report.csv" in out
    with (tmp_path / "report.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["agent_name"] for row in rows] == ["MLPAgent", "MLPLSTMAgent"]
    for row in rows:
        assert 200 < float(row["learner_memory_mb"]) < 4000
        assert 30 < float(row["actor_memory_mb"]) < 4000
        assert int(row["parameters"]) > 1000

    page = (tmp_path / "report.html").read_text()
    films = re.findall(r'src="data:video/mp4;base64,([^"]+)"', page)
    assert len(films) == 2
    for film in films:
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


def test_a_report_of_several_runs_goes_where_it_is_told(run_here: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, seed=ord(name))
    flags = [f"--logdir={tmp_path / name}" for name in ("a", "b")]
    folder = tmp_path / "new" / "folder"
    code, _, err = run_here("--mode=report", *flags, f"--to={folder}")
    assert (code, err) == (0, "")
    with (folder / "report.csv").open(newline="") as file:
        assert [row["final_return"] for row in csv.DictReader(file)] == ["20.0", "20.0"]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "config.json",
        "metrics.csv",
        "status.json",
    ]


def test_unusable_folders_are_named_before_anything_is_written(
    run_here: Any, tmp_path: Path
) -> None:
    code, out, err = run_here("--mode=report", f"--logdir={tmp_path}/a,{tmp_path}/b")
    assert (code, out) == (2, "")
    assert err == f"run_experiment.py: --logdir={tmp_path}/a: no such folder\n"
