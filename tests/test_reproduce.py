"""sandbox/reproduce.py says whether the default command still learns; so it must notice if not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.runs import PROJECT

FLAGS = ("--total_environment_frames=20000", "--num_actors=1", "--metrics_interval_s=1")


def reproduce(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "sandbox/reproduce.py", "CartPole-v1", "--seeds=2", *FLAGS),
            *(f"--folder={folder}", f"--band={folder}/band.csv", *arguments),
        ],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_seeds_are_trained_drawn_and_compared_with_a_band(tmp_path: Path) -> None:
    first = reproduce(tmp_path, "--write_band")
    assert first.returncode == 0, first.stderr
    assert "every seed is inside the band" in first.stdout
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    text = (tmp_path / "table.md").read_text()
    assert "| agent steps | seed 1 | seed 2 | band |" in text
    assert "\nGymnasium CartPole-v1, " in text  # the protocol
    band = (tmp_path / "band.csv").read_text().splitlines()
    assert band[:2] == [f"# flags: {' '.join(FLAGS)}", "agent_steps,minimum_return"]

    # Complete runs are kept: only the band is new, and the seeds are below it.
    metrics = (tmp_path / "seed-1" / "metrics.csv").read_bytes()
    (tmp_path / "band.csv").write_text("\n".join([*band[:2], "10000,480.5", "20000,490"]) + "\n")
    second = reproduce(tmp_path)
    assert second.returncode == 1, second.stderr
    assert "seed 2, 10,000 agent steps: " in second.stdout
    assert "the band starts at 480.5" in second.stdout
    assert (tmp_path / "seed-1" / "metrics.csv").read_bytes() == metrics

    other = reproduce(tmp_path, "--learning_rate=0.1")
    assert other.returncode == 2
    assert f"--folder={tmp_path}: holds runs of" in other.stderr


@pytest.mark.parametrize(
    ("text", "flags", "problem"),
    [
        (None, (), "band.csv: no such file"),
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
    done = reproduce(tmp_path, *flags)
    assert done.returncode == 2
    assert problem in done.stderr
    assert not (tmp_path / "seed-1").exists() and not (tmp_path / "runs_of.json").exists()
