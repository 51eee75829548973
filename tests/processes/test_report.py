"""--mode=report: the page of real runs, as a browser shows it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import browser
from tests.helpers.logdirs import write_run
from tests.helpers.runs import Run

FLAGS = (
    "--level_name=CartPole-v1", "--total_environment_frames=20000", "--num_actors=1",
    "--envs_per_actor=8", "--batch_size=8", "--metrics_interval_s=0.2",
)  # fmt: skip
CHARTS = "[...document.querySelectorAll('.charts svg')].map(c => c.getBoundingClientRect().width)"
ROWS = "[...document.querySelectorAll('tbody tr')].map(r => r.innerText)"
# Resolves when the browser knows the video's size and length, or cannot play it.
VIDEOS = """Promise.all([...document.querySelectorAll('video')].map(v => new Promise(done => {
    const found = () => done([v.videoWidth, v.duration, v.error && v.error.message]);
    v.readyState > 0 || v.error ? found() : (v.onloadedmetadata = v.onerror = found);
})))"""


@pytest.mark.long
def test_a_browser_shows_the_report_of_real_runs(start: Any, tmp_path: Path) -> None:
    """Two agents are trained for some seconds; then the page is opened as it would be mailed."""
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

    with browser.opened() as page:
        for width, dark in ((1280, False), (390, True)):
            _check_page(page, tmp_path / "report.html", width, dark)
            page.screenshot(tmp_path / f"{width}.png")
            assert (tmp_path / f"{width}.png").stat().st_size > 20_000
        outside = {each for each in page.requests if not each.startswith("data:")}
        assert outside == {(tmp_path / "report.html").as_uri()}
        assert page.errors == []


def _check_page(page: browser.Page, path: Path, width: int, dark: bool) -> None:
    page.show(path, width, dark)
    assert page.value("document.documentElement.scrollWidth") == width  # nothing sticks out
    charts = page.value(CHARTS)
    assert len(charts) == 2 and all(0.7 * min(width, 500) < each < width for each in charts)
    first, second = page.value(ROWS)
    assert "MLPAgent" in first and "MLPLSTMAgent" in second
    videos = page.value(VIDEOS)
    assert len(videos) == 2
    for video_width, duration, error in videos:
        assert error is None and video_width >= 300 and 0 < duration <= 15.1


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
        "config.json", "metrics.csv", "status.json",
    ]  # fmt: skip


def test_unusable_folders_are_named_before_anything_is_written(
    run_here: Any, tmp_path: Path
) -> None:
    code, out, err = run_here("--mode=report", f"--logdir={tmp_path}/a,{tmp_path}/b")
    assert (code, out) == (2, "")
    assert err == f"run_experiment.py: --logdir={tmp_path}/a: no such folder\n"
