"""What `status` says about a process: everything that its user must know is in a cell."""

from pathlib import Path

import pytest

from impala_tf.config import Given
from impala_tf.frontend.inventory import Row
from impala_tf.frontend.node.state import NodeState
from impala_tf.frontend.plan import make_plan
from impala_tf.frontend.record import Record
from impala_tf.frontend.status import COLUMNS, Look, rows_of
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
    (row,) = rows_of(record, {record.plan.nodes[0].name: seen})
    assert dict(zip(COLUMNS, row, strict=True))["detail"] == told + LACKS
