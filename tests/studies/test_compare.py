"""`impala compare` trains variants with the same seeds, resumes, and says how they compare."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from impala_tf.config import ConfigError, command_line
from impala_tf.machine.process_lifetime import StopRequest
from impala_tf.studies import child_runs, compare_main
from impala_tf.studies.compare_main import _parse, compare, main, measure_idle_share, tabulate
from tests.helpers.logdirs import rows, write_run
from tests.helpers.runs import PROJECT

CARTPOLE = "--level_name=CartPole-v1"


def test_variants_train_once_and_are_compared(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first variant has been trained before, so that only the second one trains."""
    done = write_run(tmp_path / "CartPole-v1" / "as-given" / "seed-3", level_name="CartPole-v1")
    words = [CARTPOLE, "--seeds=3", f"--to={tmp_path}", "--jobs=2", "--num_actors=1",
             "--total_environment_frames=2000", "--", "--unroll_length=7"]  # fmt: skip
    assert main(words) == 0
    assert "run 1 of 1: " in capfd.readouterr().out
    with (tmp_path / "comparison.csv").open() as file:
        table = [row for row in csv.DictReader(file) if row["measure"] == "last fifth of frames"]
    first, second = table
    assert (first["variant"], second["variant"]) == ("as given", "unroll_length=7")
    assert float(second["mean"]) > 0 and first["seeds"] == "1"
    trained = tmp_path / "CartPole-v1" / "unroll_length-7" / "seed-3" / "config.json"
    assert json.loads(trained.read_text())["flags"]["unroll_length"] == 7
    assert (tmp_path / "report.csv").exists()

    study = done.parent / "study.json"
    study.write_text(json.dumps({**json.loads(study.read_text()), "commit": "an older one"}))
    with pytest.raises(ConfigError, match="differs in: commit, flags"):
        main(["--batch_size=4", *words])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([CARTPOLE, "--", "unroll_length=7"], "unroll_length=7"),
        ([CARTPOLE, "--logdir=x"], "--logdir=x"),
        ([CARTPOLE, "--"], "same flags"),
        ([CARTPOLE, "--seeds=a"], "--seeds"),
    ],
)
def test_what_is_wrong_is_said_before_anything_trains(
    tmp_path: Path, words: list[str], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        main([f"--to={tmp_path / 'runs'}", *words])
    assert not (tmp_path / "runs").exists()


def test_wrong_flags_of_a_variant_are_said_before_anything_trains(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([f"--to={tmp_path / 'runs'}", CARTPOLE, "--", "--unrol_length=7"])
    (line,) = capfd.readouterr().err.splitlines()
    assert "--unrol_length" in line
    assert not (tmp_path / "runs").exists()


def test_a_file_and_the_command_line_together_are_a_trial(tmp_path: Path) -> None:
    """Seeds of the command line win, so that the next round of a trial needs no other file."""
    trial = tmp_path / "trial.yaml"
    trial.write_text(
        "level_name: [CartPole-v1, Acrobot-v1]\nseeds: [1]\nflags: {precision: float32}\n"
        "variants: [{core: lstm, terminal_on_life_loss: false}]\n"
    )
    given = ["--level_name=Taxi-v4", "--seeds=1,2", "--unroll_length=7", "--", "--algorithm=ppo"]
    options, groups = _parse([f"--trial={trial}", *given])
    assert options.level_name == ["CartPole-v1", "Acrobot-v1", "Taxi-v4"]
    assert options.seeds == [1, 2]
    expected = [["--precision=float32", "--unroll_length=7"],
                ["--core=lstm", "--no_terminal_on_life_loss"], ["--algorithm=ppo"]]  # fmt: skip
    assert groups == expected
    for wrong in ("variants: 7", "levels: [CartPole-v1]", "- CartPole-v1", "{", "flags: [a]"):
        trial.write_text(wrong)
        with pytest.raises(ConfigError, match=str(trial)):
            _parse([f"--trial={trial}"])
    with pytest.raises(ConfigError, match="missing: No such file"):
        _parse([f"--trial={tmp_path / 'missing'}"])


def test_the_eight_games_are_a_trial_whose_flags_exist() -> None:
    options, (common, *variants) = _parse([f"--trial={PROJECT / 'sandbox' / 'eight_games.yaml'}"])
    assert len(options.level_name) == 8
    for flags in variants:
        command_line.parse([*common, *flags])


def write_runs(folder: Path, *finals: float, minutes: float) -> None:
    """Writes a variant's runs, whose returns go from 0 to these within 1,000 of 4,000 frames."""
    for seed, final in enumerate(finals, 1):
        metrics = rows((0, 0, 0), (1000, minutes / 4, final), (4000, minutes, final))
        write_run(folder / f"seed-{seed}", metrics, seed=seed)


def test_variants_are_compared_by_frames_by_minutes_and_over_levels(tmp_path: Path) -> None:
    """On A, the variant has twice the returns, but takes sixteen times as long; on B, it loses."""
    write_runs(tmp_path / "A" / "as-given", 10, 11, 12, minutes=1)
    write_runs(tmp_path / "A" / "x-1", 20, 22, 24, minutes=16)
    write_runs(tmp_path / "B" / "as-given", -1, -2, -3, minutes=1)
    write_runs(tmp_path / "B" / "x-1", -20, -22, -24, minutes=1)
    words = ["--level_name=A", "--level_name=B", f"--to={tmp_path}"]
    titles, *lines = tabulate(_parse(words)[0], ["as given", "x=1"])
    cells = {tuple(line[:3]): dict(zip(titles, line, strict=True)) for line in lines}

    def ratio(level: str, measure: str) -> float:
        return float(cells[level, measure, "x=1"]["log ratio"])

    assert ratio("A", "last fifth of frames") == pytest.approx(math.log(2), abs=0.01)
    assert ratio("A", "all frames") == pytest.approx(math.log(2), abs=0.01)
    # The first one ends after a minute; until then, the variant has a quarter of its rise.
    assert ratio("A", "last fifth of minutes") == pytest.approx(math.log(2 * 0.9 / 4), abs=0.01)
    assert ratio("A", "steps/s") == pytest.approx(math.log(1 / 16), abs=0.01)
    assert cells["B", "last fifth of frames", "x=1"]["mean"] == "-22"
    # From the lowest return of both, -24: 2 and 22.
    assert cells["B", "all frames", "x=1"]["P(better)"] == "0.00"
    assert cells["all levels", "all frames", "x=1"]["P(better)"] == "0.50"
    small = (tmp_path / "A" / "x-1" / "seed-1.csv").read_text().splitlines()
    assert small[0] == "wall_time_s,environment_frames,episode_return_mean"
    assert small[-1] == "960,4000,20"


def test_runs_beside_other_work_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_runs(tmp_path / "A" / "as-given", 10, 11, 12, minutes=1)
    busy = tmp_path / "A" / "as-given" / "seed-2"
    (busy / "idle.txt").write_text("0.7\n")
    words = ["--level_name=A", f"--to={tmp_path}"]
    for more, seeds in ((["--allow_busy"], "3"), ([], "2")):
        assert capsys.readouterr().out == ""
        table = tabulate(_parse([*words, *more])[0], ["as given"])
        assert {row[3] for row in table[1:]} == {seeds}
    assert str(busy) in capsys.readouterr().out


def test_a_run_waits_until_the_machine_is_idle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept with it is the lower one of the shares before and after it."""
    shares = iter([0.5, 0.6, 0.97, 0.95])
    monkeypatch.setattr(compare_main, "measure_idle_share", lambda: next(shares))
    monkeypatch.setattr(child_runs, "start", lambda *_: subprocess.Popen(["true"]))
    options, _ = _parse(["--level_name=A", f"--to={tmp_path}"])
    assert compare_main._train({tmp_path / "seed-1": []}, options, StopRequest())
    assert capsys.readouterr().out.count("the machine is 50% idle") == 1
    assert (tmp_path / "seed-1" / "idle.txt").read_text() == "0.950\n"


def test_the_idle_share_falls_with_other_work() -> None:
    """No test can know what else the machine does, but a process of its own takes a core."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            share = measure_idle_share(0.5)
        finally:
            busy.kill()
    assert 0 <= share <= 1 - 0.5 / (os.cpu_count() or 1)


def test_a_comparison_is_the_log_ratio_of_means_with_its_interval() -> None:
    pair = [12.0, 11.0, 13.0], [10.0, 9.0, 11.0]
    ratio, low, high, better = compare([pair])
    assert float(ratio) == pytest.approx(math.log(12 / 10), abs=1e-3)
    assert float(low) < float(ratio) < float(high)
    assert float(better) == pytest.approx((1 + 1 + 1 + 1 + 1 + 0.5 + 1 + 1 + 1) / 9, abs=0.01)
    assert compare([pair, pair])[0] == ratio, "the mean over levels"
    narrower = [float(end) for end in compare([pair] * 4)[1:3]]
    assert float(low) < narrower[0] < float(ratio) < narrower[1] < float(high)
    assert compare([([12.0], [10.0])])[1:3] == ["-", "-"], "one seed has no interval"
    assert compare([([-3.0, 1.0], [2.0, 1.0])])[0] == "-", "returns below 0 have no logarithm"
