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

FLAGS = ["--seed=1"]


@pytest.fixture
def seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two seeds that were trained; the words of a call that compares them with a band."""
    monkeypatch.setattr(compare_main, "main", lambda words: 0)  # trains nothing
    for seed in (1, 2):
        curve = rows((0, 0, 20), (5000, 1, 400), (10000, 2, 450 + 20 * seed), steps_per_frame=1)
        write_run(tmp_path / "CartPole-v1" / "as-given" / f"seed-{seed}", curve)
    return ["CartPole-v1", f"--to={tmp_path}", f"--band={tmp_path / 'band.csv'}"]


def test_a_written_band_is_a_little_below_its_seeds(
    tmp_path: Path, seeds: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce.main([*seeds, "--write_band", *FLAGS]) == 0
    assert "every seed is inside the band" in capsys.readouterr().out
    first, head, *lines = (tmp_path / "band.csv").read_text().splitlines()
    assert (first, head) == ("# flags: --seed=1", "agent_steps,minimum_return")
    assert lines[3] == "4900,329.5"  # 400, less 15 % of what they gained, 470
    assert reproduce.main(seeds) == 0


def test_a_seed_below_the_band_is_named(
    tmp_path: Path, seeds: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    band = tmp_path / "band.csv"
    band.write_text("# flags: --seed=1\nagent_steps,minimum_return\n5000,399\n10000,480.5\n")
    assert reproduce.main(seeds) == 1
    said = capsys.readouterr().out
    assert "seed-1, 10,000 agent steps: 470.00; the band starts at 480.5" in said
    assert "seed-2" not in said
    band.write_text(band.read_text().replace("10000", "20000"))
    assert reproduce.main(seeds) == 1
    assert "seed-2, 20,000 agent steps: ended before" in capsys.readouterr().out


def test_wrong_flags_are_named_before_anything_trains(tmp_path: Path) -> None:
    """Seeds would leave folders with wrong flags."""
    options = (f"--to={tmp_path / 'runs'}", f"--band={tmp_path}/band.csv", "--write_band")
    command = [sys.executable, "sandbox/reproduce.py", "CartPole-v1", *options, "--batch_sze=3"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 2
    assert "--batch_sze: no such flag" in done.stderr
    assert not (tmp_path / "runs").exists()
