"""What `status` says about a process: everything that its user must know is in a cell."""

from pathlib import Path

import pytest

from impala_tf.cluster.inventory import Row
from impala_tf.cluster.node.state import NodeState
from impala_tf.cluster.plan import make_plan
from impala_tf.cluster.record import Record
from impala_tf.cluster.status import COLUMNS, Look, progress, rows_of, run_of
from impala_tf.config import Given
from impala_tf.machine.supervision import ProcessState
from tests.helpers.statuses import a_status

LACKS = "SHARE: does not have the last checkpoint; it has 4,000 frames"


def launched(folder, state, told, *notes):
    """Returns the record of a run with one learner, and a look at its machine."""
    given = Given().replace(level_name="CartPole-v1", logdir=str(folder / "logs"))
    plan = make_plan(given, [Row(2, "learner", "localhost", 8001)], "/py")
    record = Record("id", 0.0, str(Path("w.csv")), (), plan, end_command="")
    process = ProcessState("learner-0", state, detail=told.rstrip("; "))
    node = NodeState("id", "0", 1, 1, "boot", 0.0, 0.0, {"learner-0": process})
    return record, Look(node, False, 0.0, {0: a_status(notes=list(notes))})


@pytest.mark.parametrize(("state", "told"), [("running", ""), ("finished", "done; ")])
def test_what_a_learner_tells_its_user_is_shown_while_it_runs_and_after(tmp_path, state, told):
    """It was only in the learner's log: the copy of the last checkpoint was missing for good."""
    record, seen = launched(tmp_path, state, told, LACKS)
    (row,) = rows_of(run_of(record, {record.plan.nodes[0].name: seen}))
    assert dict(zip(COLUMNS, row, strict=True))["detail"] == told + LACKS


def test_a_runs_progress_says_what_limits_and_what_ended_it():
    """Only the display of an attached launcher did."""
    waits = {"learner_idle_fraction": 0.02, "actor_environment_fraction": 0.3,
             "actor_inference_fraction": 0.2, "actor_wait_fraction": 0.5}  # fmt: skip
    row = {**waits, "episode_return_mean": 1.5}
    status = {"state": "training", "environment_frames": 1000, "total_environment_frames": 9000}
    assert progress(status, True) == "training: 1,000 of 9,000 frames"
    said = progress({**status, "row": row}, True)
    assert "; mean return 1.50; limited by updates (" in said
    said = progress({**status, "row": row, "state": "done", "end_reason": "enough"}, False)
    assert said == "done: 1,000 of 9,000 frames; mean return 1.50; enough"
    assert progress(status, False).startswith("was training")
