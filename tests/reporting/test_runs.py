"""Reports read the runs that people have: several folders, half-finished ones, several levels."""

from __future__ import annotations

from pathlib import Path

import pytest

from impala_tf.config import ConfigError
from impala_tf.reporting import runs
from impala_tf.reporting.runs import Run
from tests.helpers.logdirs import level_rows, rows, write_levels, write_run

EVALUATION = (
    "wall_time_s,environment_frames,level_name,played,episodes,policy,return_mean,"
    "normalized_return_mean"
)


def test_a_folder_stands_for_the_runs_below_it(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path / "many" / f"seed-{seed}", seed=seed)
    write_run(tmp_path / "one", seed=7)
    (tmp_path / "many" / "notes").mkdir()
    (tmp_path / "many" / "notes" / "config.json").write_text("[]")  # of something else
    found = runs.find(f"{tmp_path / 'many'},{tmp_path / 'one'}")
    assert [run.seed for run in found] == [1, 2, 7]


def test_a_runs_figures_are_those_of_its_metrics(tmp_path: Path) -> None:
    (run,) = runs.find(str(write_run(tmp_path)))
    assert run.curve.frames.tolist() == [0, 1000, 2000, 4000]
    assert run.curve.minutes.tolist() == [0, 1, 2, 4]
    assert (run.curve.last_return, run.frames, run.minutes, run.is_finished) == (20, 4000, 4, True)
    assert run.agent_steps_per_s == pytest.approx(1000 / 240)
    assert (run.learner_memory_mb, run.actor_memory_mb) == (704, 504)
    assert [run.reached(mean) for mean in (0, -10, 21)] == [(2000, 2), (1000, 1), (None, None)]


def test_a_run_that_still_trains_has_the_figures_so_far(tmp_path: Path) -> None:
    """A comparison may be looked at meanwhile, even before the first row."""
    write_run(tmp_path, [])
    (tmp_path / "status.json").unlink()
    (run,) = runs.find(str(tmp_path))
    assert (run.curve.last_return, run.agent_steps_per_s, run.is_finished) == (None, None, False)
    assert run.reached(0) == (None, None)
    path = write_run(tmp_path) / "metrics.csv"
    path.write_text(path.read_text() + "300,1100")  # a line that is being written
    assert runs.read(tmp_path).frames == 4000


def test_a_folder_that_holds_no_run_is_named(tmp_path: Path) -> None:
    for folder, problem in ((tmp_path / "gone", "no such folder"), (tmp_path, "holds no run")):
        with pytest.raises(ConfigError, match=f"--logdir={folder}: {problem}"):
            runs.find(str(folder))
    write_run(tmp_path / "run")
    (tmp_path / "run" / "metrics.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match=r"run/metrics\.csv"):
        runs.find(str(tmp_path))


def evaluated(folder: Path, *lines: str) -> Run:
    path = write_run(folder, eval_every=1000)
    (path / "evaluation.csv").write_text("\n".join([EVALUATION, *lines]) + "\n")
    return runs.read(path)


def test_evaluations_with_another_policy_are_left_out(tmp_path: Path) -> None:
    """A jump where greedy games begin would look like learning."""
    ways = ("10,sampled,5", "10,greedy,6", "50,greedy,7", "50,greedy,8")
    lines = (f"60,{1000 * n},a,unseen levels,{way}," for n, way in enumerate(ways, start=1))
    run = evaluated(tmp_path, *lines)
    assert run.evaluation.frames.tolist() == [3000, 4000]
    assert run.evaluation.returns.tolist() == [7, 8]
    assert run.played == "unseen levels (50 games, greedy actions)"


def test_games_of_several_levels_have_no_common_scale_but_a_normalised_one(tmp_path: Path) -> None:
    both = (
        "4,4000,Pong,other seeds,9,greedy,20,1.1",
        "4,4000,Breakout,other seeds,9,greedy,300,0.9",
    )
    assert evaluated(tmp_path / "both", *both).evaluation.last_return == pytest.approx(1.0)
    raw = ("4,4000,a,other seeds,9,greedy,20,", "4,4000,b,other seeds,9,greedy,30,")
    assert evaluated(tmp_path / "raw", *raw).evaluation.last_return == 25


def test_levels_whose_row_is_not_whole_yet_are_left_out(tmp_path: Path) -> None:
    """The levels' rows are written before that of all, and a run may be killed within a row."""
    metrics = rows((0, 0, 6), (4000, 4, 7))
    first, second = level_rows(0, 0, 5, 7), level_rows(4000, 4, 6, 8)
    write_run(tmp_path, metrics, level_name="PongNoFrameskip-v4,BreakoutNoFrameskip-v4")
    write_levels(tmp_path, [*first, second[0]])
    assert runs.read(tmp_path).curve.returns.tolist() == [6]
    write_levels(tmp_path, [*first, *second])
    assert runs.read(tmp_path).curve.returns.tolist() == [6, 7]
    file = tmp_path / "metrics-levels.csv"
    file.write_text(file.read_text()[:-4])
    assert runs.read(tmp_path).curve.returns.tolist() == [6]
