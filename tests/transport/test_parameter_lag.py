"""--parameter_lag: actors go on with parameters that are new enough."""

from __future__ import annotations

from pathlib import Path

from impala_tf.transport import ActorClient, LearnerServer, LearnerService, Pushes
from tests.helpers.wire import RUN, Connect, FakeLearner, make_parameters


def test_parameters_that_are_new_enough_are_not_sent_again(
    directory: Path, connect: Connect, learner: FakeLearner
) -> None:
    service = LearnerService(Pushes(RUN, learner.put), learner.parameters, parameter_lag=4)
    one = LearnerServer("127.0.0.1:0", directory, service)
    one.start()
    try:
        actor = connect(one.port)
        learner.parameters.publish(0, make_parameters(0.0))
        assert fetched_version(actor, -1) == 0
        for version, expected in ((1, None), (3, None), (4, 4), (7, None)):
            learner.parameters.publish(version, make_parameters(float(version)))
            assert fetched_version(actor, 4 if version > 4 else 0) == expected
        learner.parameters.publish(2, make_parameters(2.0))  # restarted from a checkpoint
        assert fetched_version(actor, 4) == 2
    finally:
        one.stop(0)


def fetched_version(actor: ActorClient, known: int) -> int | None:
    found = actor.fetch_parameters(known)
    return None if found is None else found[0]
