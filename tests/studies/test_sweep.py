"""`impala sweep` trains real trials, resumes, and says what is best."""

from __future__ import annotations

import subprocess
import sys

import pytest

SWEEP = [sys.executable, "-m", "impala_tf", "sweep"]


def sweep(folder, *words):
    """Returns status, output and errors."""
    done = subprocess.run([*SWEEP, f"--to={folder}", *words], capture_output=True, text=True,
                          timeout=500)  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--search=learning_rate"], "--search=learning_rate: must be NAME=A..B"),
        (["--search=n_step=1..2.5"], "--search=n_step=1..2.5: the flag takes whole numbers"),
        (["--search=learning_rat=1..2"], "--learning_rat: no such flag"),
        (["--search=seed=1|2", "--search=seed=3|4"], "--search: names a flag twice"),
        (["--search=optimizer=adam|rmsprop|rmsprp"], "--optimizer=rmsprp: must be one of"),
        (["--search=learning_rate=-0.1..0.1"], "--learning_rate=-0.1: must be greater than 0"),
        (["--search=learning_rate_end=0..0.1", "--search=discounting=0.9..1.1"],
         "--discounting=1.1: must be"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_anything_trains(tmp_path, words, problem):
    status, _, err = sweep(tmp_path / "sweep", *words)
    assert status == 2
    assert problem in err
    assert not (tmp_path / "sweep").exists()


def break_trial(folder, number):
    """Makes a trial fail at once, though its flags are right."""
    logdir = folder / "trials" / str(number)
    logdir.mkdir(parents=True)
    (logdir / "config.json").write_text("{")


def test_a_sweep_that_fails_and_resumes_does_not_try_the_same_again(tmp_path):
    """With a line that names the trial's output, and not Optuna's traceback."""
    search = ["--trials=1", "--search=learning_rate=1e-4..1e-2"]
    for trials in (1, 2):  # what failed does not count
        break_trial(tmp_path, trials - 1)
        status, out, err = sweep(tmp_path, *search, "--", "--level_name=CartPole-v1")
        assert status == 1 and "best:" not in out
        output = f"{tmp_path}/trials/{trials - 1}/output.txt"
        assert err == f"sweep: trial {trials - 1} failed; see {output}\n"
        table = (tmp_path / "trials.csv").read_text().splitlines()
        assert len(table) == 1 + trials
    assert len({line.split(",")[3] for line in table[1:]}) == 2


def test_a_sweep_finds_flags_and_resumes(tmp_path):
    search = ["--search=learning_rate=log:1e-4..1e-2", "--search=unroll_length=1.6e1..32"]
    flags = ["--", "--level_name=CartPole-v1", "--total_environment_frames=2e4",
             "--num_actors=1", "--metrics_interval_s=1"]  # fmt: skip
    for trials in (1, 2):
        status, out, err = sweep(tmp_path, f"--trials={trials}", *search, *flags)
        assert status == 0, f"{out}{err}"
        table = (tmp_path / "trials.csv").read_text().splitlines()
        assert table[0] == "trial,state,return,learning_rate,unroll_length"
        assert [line.split(",")[1] for line in table[1:]] == ["complete"] * trials
    best = (tmp_path / "best.yaml").read_text()
    assert "learning_rate: 0.0" in best
    assert 'level_name: "CartPole-v1"' in best, "alone, it would train another level"
    run = [sys.executable, "-m", "impala_tf", "train", f"--config={tmp_path / 'best.yaml'}"]
    assert subprocess.run([*run, "--dry_run"], capture_output=True).returncode == 0
