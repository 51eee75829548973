"""Scripts read the same curve of an agent of several levels as a report does."""

from __future__ import annotations

from pathlib import Path

import many_runs
import pytest
import reproduce

from tests.helpers.logdirs import level_rows, rows, write_levels, write_run


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """A run whose games are mostly those of its second level."""
    path = write_run(
        tmp_path / "run", rows((0, 0, 1), (4000, 4, 18)),
        level_name="PongNoFrameskip-v4,BreakoutNoFrameskip-v4",
    )  # fmt: skip
    write_levels(path, [*level_rows(0, 0, 1, 3), *level_rows(4000, 4, 100, 10)])
    return path


def test_the_value_of_a_trial_is_the_mean_over_its_levels(logdir: Path) -> None:
    assert many_runs.mean_return(logdir) == 55
    (logdir / "metrics-levels.csv").unlink()
    assert many_runs.mean_return(logdir) == 18
    assert many_runs.mean_return(logdir / "none") is None


def test_seeds_are_compared_with_a_band_by_the_mean_over_the_levels(logdir: Path) -> None:
    curve = reproduce.read_curve(1, logdir)
    assert (curve.agent_steps.tolist(), curve.returns.tolist()) == ([0, 1000], [2, 55])
    text = reproduce.table("two levels", "", [], [curve], None)
    assert "\nreturn: mean over the levels of their mean returns\n" in text
