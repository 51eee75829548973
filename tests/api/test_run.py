"""What a `Run` says once its processes have ended; they are a stand-in here."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import impala_tf as impala
from impala_tf.config import Config
from impala_tf.logdir import Logdir
from impala_tf.monitoring import status_file
from tests.helpers.statuses import a_status


def ended_run(folder: Path, failure: str = "") -> impala.Run:
    """Returns a run whose processes have ended; the learner told nothing of that."""
    logdir = Logdir(folder)
    status_file.write_status(logdir.status(), a_status(state="training"))
    training = mock.Mock(logdir=logdir, is_complete=False, end_reason="", config=Config())
    training.follow.return_value = failure
    return impala.Run(training, show=False)


def test_a_run_that_is_over_never_says_that_it_trains(tmp_path: Path) -> None:
    """Who waits for another state would wait for ever: a killed learner leaves the last one."""
    run = ended_run(tmp_path)
    assert run.wait()  # a second interrupt killed it
    assert run.progress.state == "stopped"
    run = ended_run(tmp_path, "the learner failed: killed by SIGKILL")
    with pytest.raises(impala.RunFailed, match="killed by SIGKILL"):
        run.wait()
    assert run.progress.state == "failed"
    assert repr(run) == f"Run({str(tmp_path)!r}, failed)"


def test_metrics_and_evaluations_are_tables_with_and_without_pandas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pandas = pytest.importorskip("pandas")
    run = ended_run(tmp_path)
    assert run.evaluations() is None
    head = "environment_frames,episode_return_mean"
    (tmp_path / "metrics.csv").write_text(f"{head}\n200,\n400,9.5\n12")  # is being written
    rows = "environment_frames,played,return_mean\n200,unseen levels,9.5\n"
    (tmp_path / "evaluation.csv").write_text(rows)
    table = run.metrics()
    assert isinstance(table, pandas.DataFrame)
    assert table["environment_frames"].tolist() == [200, 400]
    assert table["episode_return_mean"].dropna().tolist() == [9.5]
    assert list(run.evaluations()["played"]) == ["unseen levels"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    plain = run.metrics()
    assert isinstance(plain, np.recarray)
    np.testing.assert_array_equal(plain.episode_return_mean, [np.nan, 9.5])
