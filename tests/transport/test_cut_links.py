"""A link is cut without a word: both sides notice, and the actor rejoins when it is healed."""

from __future__ import annotations

import logging
import time

import pytest

from impala_tf.transport import route
from tests.helpers.cuttable_link import CuttableLink
from tests.helpers.waiting import wait_until
from tests.helpers.wire import (
    FakeLearner,
    InThread,
    make_parameters,
    make_unroll,
)

pytestmark = pytest.mark.faults
NOTICED_S = 45.0
REJOINED_S = 30.0
CUT_S = 10.0


@pytest.mark.parametrize(
    "in_the_middle_of_a_push", [False, pytest.param(True, marks=pytest.mark.always)]
)
def test_a_cut_link_is_noticed_and_the_actor_rejoins(
    learner: FakeLearner,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    in_the_middle_of_a_push: bool,
) -> None:
    monkeypatch.setattr(route, "FIRST_REPORT_S", 0.0)
    caplog.set_level(logging.INFO, "impala_tf.transport.sessions")
    caplog.set_level(logging.INFO, "impala_tf.actor")
    one = learner.serve()
    learner.parameters.publish(0, make_parameters(0.0))
    link = CuttableLink(one.port)
    request.addfinalizer(link.close)
    actor = learner.connect(link.port)
    actor.push(make_unroll(0))
    assert learner.reported(1) == [0]
    wait_until(lambda: one.service.num_acting() == 1)
    wait_until(lambda: link.idle_s > 0.5)  # the answer is not on its way any more
    if in_the_middle_of_a_push:
        learner.has_room.clear()
        actor.push(make_unroll(1))
        learner.wait_for_put()
    link.cut()
    learner.has_room.set()
    began = time.monotonic()
    if not in_the_middle_of_a_push:
        actor.push(make_unroll(1))
    second = InThread(lambda: actor.push(make_unroll(2)))
    wait_until(lambda: one.service.num_acting() == 0, NOTICED_S, what="word of it at the learner")
    left_s = max(1.0, began + NOTICED_S - time.monotonic())
    wait_until(lambda: "without the learner" in caplog.text, left_s, what="word of it at the actor")
    time.sleep(CUT_S)  # retries fail now
    link.heal()
    wait_until(lambda: learner.versions()[-1] == 2, REJOINED_S)
    second.wait()
    assert learner.versions() == [0, 1, 2], "an unroll was lost, or trained on twice"
    wait_until(lambda: one.service.num_acting() == 1)
    assert len(one.service.sessions.shown()) == 1
    assert "reconnected" not in caplog.text, "the name was given to a new session"
