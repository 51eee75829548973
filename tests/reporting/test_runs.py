"""Reports read the runs that people have: several folders, half-finished ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from impala_tf.config import ConfigError
from impala_tf.reporting import runs
from tests.helpers.logdirs import rows, write_run


def test_a_folder_stands_for_the_runs_below_it_in_their_natural_order(tmp_path: Path) -> None:
    for seed in (1, 2, 10):
        write_run(tmp_path / "many" / f"seed-{seed}", seed=seed)
    write_run(tmp_path / "one", seed=7)
    (tmp_path / "many" / "notes").mkdir()
    (tmp_path / "many" / "notes" / "config.json").write_text("[]")  # of something else
    found = runs.find(f"{tmp_path / 'many'},{tmp_path / 'one'},{tmp_path / 'many' / 'seed-2'}")
    assert [run.seed for run in found] == [1, 2, 10, 7]  # each once


def test_a_runs_figures_are_those_of_its_metrics(tmp_path: Path) -> None:
    (run,) = runs.find(str(write_run(tmp_path)))
    assert run.curve.frames.tolist() == [0, 1000, 2000, 4000]
    assert run.curve.minutes.tolist() == [0, 1, 2, 4]
    assert (run.final_return, run.frames, run.minutes, run.share) == (20, 4000, 4, 1)
    assert run.agent_steps_per_s == pytest.approx(1000 / 240)
    assert (run.learner_memory_mb, run.actor_memory_mb) == (704, 504)
    assert run.reached(0) == (2000, 2)
    assert run.reached(-10) == (1000, 1)
    assert run.reached(21) == (None, None)


def test_a_run_that_has_just_begun_has_no_figures(tmp_path: Path) -> None:
    """A comparison may be looked at while it trains."""
    write_run(tmp_path, [])
    (tmp_path / "status.json").unlink()
    (run,) = runs.find(str(tmp_path))
    assert (run.final_return, run.agent_steps_per_s, run.share) == (None, None, 0)
    assert run.reached(0) == (None, None)


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    write_run(tmp_path)
    path = tmp_path / "metrics.csv"
    path.write_text(path.read_text() + "300,1100")
    (run,) = runs.find(str(tmp_path))
    assert run.frames == 4000


def test_a_run_that_moved_names_all_its_machines(tmp_path: Path) -> None:
    """Its minutes and agent steps/s are of both."""
    write_run(tmp_path)
    path = tmp_path / "config.json"
    described = json.loads(path.read_text())
    starts = [{"git_commit": "of a version without it"}, {"machine": "A"}, {"machine": "B, GPU"}]
    path.write_text(json.dumps({**described, "machine": "B, GPU", "history": starts}))
    (run,) = runs.find(str(tmp_path))
    assert run.machine == "A, then B, GPU"


def test_every_problem_has_its_line(tmp_path: Path) -> None:
    write_run(tmp_path / "broken")
    (tmp_path / "broken" / "config.json").write_text("{")
    write_run(tmp_path / "strange", rows((0, 0, 0)))
    (tmp_path / "strange" / "metrics.csv").write_text("a,b\n1,2\n")
    folders = [str(tmp_path / name) for name in ("missing", "broken", "strange")]
    with pytest.raises(ConfigError) as caught:
        runs.find(",".join(folders))
    missing, broken, strange = caught.value.problems
    assert missing == f"--logdir={folders[0]}: no such folder"
    assert broken.startswith(f"{folders[1]}/config.json: is not a run's config.json (")
    assert strange.startswith(f"{folders[2]}: config.json, metrics.csv, metrics-levels.csv or")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Among many runs of a report, a traceback does not say whose file it is."""
    path = write_run(tmp_path) / "metrics.csv"
    path.unlink()
    path.mkdir()
    expected = f"{path}: cannot be read: Is a directory"
    with pytest.raises(ConfigError, match=expected):
        runs.find(str(tmp_path))
    with pytest.raises(ConfigError, match=expected):
        runs.read_csv(path, seed=1)


def test_a_folder_without_a_run_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "agent.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds an exported agent; give the logdir of its run"):
        runs.find(str(tmp_path))
    (tmp_path / "agent.json").unlink()
    with pytest.raises(ConfigError, match="holds no run"):
        runs.find(str(tmp_path))
    with pytest.raises(ConfigError, match=f"--logdir=gone: no such folder in {Path.cwd()}"):
        runs.find("gone")


def evaluated(folder: Path, *lines: str) -> runs.Run:
    path = write_run(folder, eval_every=1000)
    header = "wall_time_s,environment_frames,level_name,played,return_mean,normalized_return_mean"
    (path / "evaluation.csv").write_text("\n".join([header, *lines]) + "\n")
    (run,) = runs.find(str(folder))
    return run


def test_an_old_evaluation_is_not_that_of_the_end(tmp_path: Path) -> None:
    """The last one may have been killed, or its process have failed."""
    old = evaluated(tmp_path / "old", "1,1000,a,other seeds,5,", "2,2000,a,other seeds,7,")
    assert (old.evaluation.last_return, old.last_evaluation) == (7, None)
    new = evaluated(tmp_path / "new", "1,1000,a,other seeds,5,", "3,3000,a,other seeds,7,")
    assert new.last_evaluation == 7


def test_evaluations_before_another_policy_are_left_out(tmp_path: Path) -> None:
    """A jump where greedy games begin would look like learning."""
    path = write_run(tmp_path, eval_every=1000)
    header = "wall_time_s,environment_frames,level_name,played,return_mean,episodes,policy"
    games = [(1000, 5, "10,sampled"), (2000, 6, "10,greedy"), (3000, 7, "50,greedy"),
             (4000, 8, "50,greedy")]  # fmt: skip
    lines = [
        f"60,{frames},{level},{played},{mean},{way}"
        for frames, mean, way in games
        for level, played in (("a", "unseen levels"), ("b", "other seeds"))
    ]
    (path / "evaluation.csv").write_text("\n".join([header, *lines]) + "\n")
    (run,) = runs.find(str(path))
    assert run.evaluation.frames.tolist() == [3000, 4000]
    assert run.evaluation.returns.tolist() == [7, 8]
    assert "50 games, greedy actions" in run.played


def test_games_of_several_levels_have_no_common_scale_but_a_normalised_one(tmp_path: Path) -> None:
    run = evaluated(
        tmp_path / "both", "4,4000,Pong,other seeds,20,1.1", "4,4000,Breakout,other seeds,300,0.9"
    )
    assert run.last_evaluation == pytest.approx(1.0)
    run = evaluated(tmp_path / "raw", "4,4000,a,other seeds,20,", "4,4000,b,other seeds,30,")
    assert run.last_evaluation == 25


def test_an_evaluation_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    """A level may return NaN; its run can still be reported."""
    lines = ("3,3000,a,other seeds,7,", "4,4000,a,other seeds,,", "4,4001,a,other seeds,nan,")
    assert evaluated(tmp_path, *lines).evaluation.returns.tolist() == [7]
