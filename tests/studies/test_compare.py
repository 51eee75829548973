"""`impala compare` trains variants with the same seeds, resumes, and says how they compare."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from pathlib import Path

import pytest

from impala_tf.studies.compare_main import compare

COMPARE = [sys.executable, "-m", "impala_tf", "compare"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMPARE, *words], capture_output=True, text=True, timeout=500)


@pytest.mark.long
def test_variants_train_once_and_are_compared(tmp_path: Path) -> None:
    words = [
        "--level_name=CartPole-v1",
        "--seeds=3",
        f"--to={tmp_path}",
        "--jobs=2",
        "--num_actors=1",
        "--total_environment_frames=4000",
        "--",
        "--unroll_length=7",
    ]
    done = run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "comparison.csv").open() as file:
        first, second = csv.DictReader(file)
    assert (first["variant"], second["variant"]) == ("as given", "unroll_length=7")
    assert float(second["last fifth"]) > 0 and first["seeds"] == "1"
    lengths = {
        path.parent.parent.name: "unroll_length: 7" in path.read_text().replace('"', "")
        for path in tmp_path.glob("level-00/*/seed-3/config.json")
    }
    assert lengths == {"variant-00": False, "variant-01": True}
    assert (tmp_path / "report.csv").exists()

    again = run(*words)
    assert again.returncode == 0 and "run 1 of" not in again.stdout, "all of them were done"
    other = run(*words, "--batch_size=4")
    assert other.returncode == 2 and "variants" in other.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--level_name=CartPole-v1", "--", "--unrol_length=7"], "--unrol_length"),
        (["--level_name=CartPole-v1", "--", "unroll_length=7"], "unroll_length=7"),
        (["--level_name=CartPole-v1", "--logdir=x"], "--logdir=x"),
        (["--level_name=CartPole-v1", "--", "--seed=7"], "--seed=7"),
        (["--level_name=CartPole-v1", "--"], "same flags"),
    ],
)
def test_what_is_wrong_is_said_before_anything_trains(
    tmp_path: Path, words: list[str], problem: str
) -> None:
    done = run(f"--to={tmp_path / 'runs'}", *words)
    assert done.returncode == 2 and problem in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_comparison_is_the_log_ratio_of_means_with_its_interval() -> None:
    ratio, low, high, better = compare([12.0, 11.0, 13.0], [10.0, 9.0, 11.0])
    assert float(ratio) == pytest.approx(math.log(12 / 10), abs=1e-3)
    assert float(low) < float(ratio) < float(high)
    assert float(better) == pytest.approx((1 + 1 + 1 + 1 + 1 + 0.5 + 1 + 1 + 1) / 9, abs=0.01)
    assert compare([12.0], [10.0])[1:3] == ["-", "-"], "one seed has no interval"
    assert compare([-3.0, 1.0], [2.0, 1.0])[0] == "-", "returns below 0 have no logarithm"
