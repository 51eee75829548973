"""sandbox/reproduce.py says whether the default command still learns; so it must notice if not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import reproduce

from impala_tf.studies import compare_main
from tests.helpers.logdirs import rows, write_run
from tests.helpers.runs import PROJECT

FLAGS = ("--total_environment_frames=20000", "--num_actors=1", "--metrics_interval_s=1")


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "sandbox/reproduce.py", "CartPole-v1", "--seeds=1,2", *FLAGS),
            *(f"--to={folder / 'runs'}", f"--band={folder}/band.csv", *arguments),
        ],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=500,
    )


def test_seeds_are_trained_drawn_and_compared_with_a_band(tmp_path: Path) -> None:
    first = call(tmp_path, "--write_band")
    assert first.returncode == 0, first.stderr
    assert "every seed is inside the band" in first.stdout
    report = (tmp_path / "runs" / "report.html").read_text()
    assert "<svg" in report and "Gymnasium CartPole-v1, " in report  # the protocol
    band = (tmp_path / "band.csv").read_text().splitlines()
    assert band[:2] == [f"# flags: {' '.join(FLAGS)}", "agent_steps,minimum_return"]


def test_a_seed_below_the_band_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare_main, "main", lambda words: 0)  # trains nothing
    for seed in (1, 2):
        curve = rows((0, 0, 20), (5000, 1, 400), (10000, 2, 450 + 20 * seed), steps_per_frame=1)
        write_run(tmp_path / "CartPole-v1" / "as-given" / f"seed-{seed}", curve)
    band = tmp_path / "band.csv"
    words = ["CartPole-v1", f"--to={tmp_path}", f"--band={band}"]
    band.write_text("# flags: --seed=1\nagent_steps,minimum_return\n5000,399\n10000,480.5\n")
    assert reproduce.main(words) == 1
    said = capsys.readouterr().out
    assert "seed-1, 10,000 agent steps: 470.00; the band starts at 480.5" in said
    assert "seed-2" not in said
    band.write_text(band.read_text().replace("10000", "20000"))
    assert reproduce.main(words) == 1
    assert "seed-2, 20,000 agent steps: ended before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "flags", "problem"),
    [
        (None, (), "band.csv: is not a band"),
        ("# flags: \nagent_steps,minimum_return\n", (), "band.csv: is not a band"),
        (None, ("--write_band", "--batch_sze=3"), "--batch_sze: no such flag"),
        (None, ("--write_band", "--agent_name=ResNetAgent"), "--agent_name=ResNetAgent: takes"),
    ],
)
def test_what_is_wrong_is_said_before_anything_trains(
    tmp_path: Path, text: str | None, flags: tuple[str, ...], problem: str
) -> None:
    """A band that compares nothing would pass; seeds would leave folders with wrong flags."""
    if text is not None:
        (tmp_path / "band.csv").write_text(text)
    done = call(tmp_path, *flags)
    assert done.returncode == 2
    assert problem in done.stderr
    assert not (tmp_path / "runs").exists()
