"""`impala sweep` trains real trials, resumes, and says what is best."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

from impala_tf.config import ConfigError, command_line

SWEEP = [sys.executable, "-m", "impala_tf", "sweep"]


def sweep(folder: Path, *words: str) -> tuple[int, str, str]:
    """Returns status, output and errors."""
    done = subprocess.run([*SWEEP, f"--to={folder}", *words], capture_output=True, text=True,
                          timeout=500)  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--search=learning_rate"], "--search=learning_rate: must be NAME=A..B"),
        (["--search=n_step=1..2.5"], "--search=n_step=1..2.5: the flag takes whole numbers"),
        (["--search=seed=1|2", "--search=seed=3|4"], "--search: names a flag twice"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, words: list[str], problem: str) -> None:
    from impala_tf.studies.sweep_main import main  # imports Optuna

    with pytest.raises(ConfigError, match=re.escape(problem)):
        main([f"--to={tmp_path / 'sweep'}", *words])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--search=optimizer=adam|rmsprop|rmsprp"], "--optimizer=rmsprp: must be one of"),
        (["--search=learning_rate_end=0..0.1", "--search=discounting=0.9..1.1"],
         "--discounting=1.1: must be"),
    ],
)  # fmt: skip
def test_each_end_and_choice_is_tried_before_anything_trains(
    tmp_path: Path, words: list[str], problem: str
) -> None:
    status, _, err = sweep(tmp_path / "sweep", *words)
    assert status == 2
    assert problem in err
    assert not (tmp_path / "sweep").exists()


def test_a_sweep_whose_first_trial_fails_resumes_and_finds_flags(tmp_path: Path) -> None:
    """A line names the trial's output, not Optuna's traceback, and other values are tried next."""
    broken = tmp_path / "trials" / "0" / "config.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    words = ["--trials=1", "--search=learning_rate=log:1e-4..1e-2", "--search=unroll_length=16..32",
             "--", "--level_name=CartPole-v1", "--total_environment_frames=4e3", "--num_actors=1",
             "--metrics_interval_s=1"]  # fmt: skip
    status, out, err = sweep(tmp_path, *words)
    assert status == 1 and "best:" not in out
    assert err == f"sweep: trial 0 failed; see {tmp_path}/trials/0/output.txt\n"

    status, out, err = sweep(tmp_path, *words)
    assert status == 0, f"{out}{err}"
    with (tmp_path / "trials.csv").open(newline="") as file:
        best, failed = csv.DictReader(file)  # what failed does not count as one of --trials
    assert (best["state"], failed["state"]) == ("complete", "fail")
    assert best["learning_rate"] != failed["learning_rate"]
    given = command_line.parse([f"--config={tmp_path / 'best.yaml'}"])
    assert given["level_name"] == "CartPole-v1", "alone, it would train another level"
    assert given["learning_rate"] == pytest.approx(float(best["learning_rate"]))
