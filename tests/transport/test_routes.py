"""An actor calls its own learner, another one while that is away, and its own when it is back."""

from __future__ import annotations

from collections import Counter

import pytest

from impala_tf.transport import route as routes
from impala_tf.transport.route import Route, order_learners
from tests.helpers.clock import Clock
from tests.helpers.ports import free_port
from tests.helpers.waiting import wait_until
from tests.helpers.wire import FakeLearner, make_parameters, make_unroll


def test_the_actors_of_a_learner_that_is_away_are_spread_over_the_others() -> None:
    actors, learners = 24, 4
    orders = [order_learners(task, learners) for task in range(actors)]
    assert all(sorted(order) == list(range(learners)) for order in orders)
    assert [order[0] for order in orders] == [task % learners for task in range(actors)]
    for members, each in (((0, 1, 2, 3), 6), ((0, 1, 3), 8), ((2,), 24)):
        served = Counter(next(n for n in order if n in members) for order in orders)
        assert served == dict.fromkeys(members, each)


def test_a_learner_that_stays_away_is_left_after_a_while() -> None:
    clock = Clock()
    route = Route([(1, "b:1"), (2, "c:1"), (0, "a:1")], clock=clock)

    def addresses(seconds: int) -> str:
        """Calls every second; returns the first letters of where."""
        called = ""
        for _ in range(seconds):
            called += route.address[0]
            route.note_failure("away", is_unreachable=True)
            clock.now += 1.0
        return called

    # Its own for 20 s; then each of the others for 5 s, and its own again.
    assert addresses(45) == 21 * "b" + 6 * "c" + 6 * "a" + 6 * "b" + 6 * "c"
    # One that is named is waited for, and one that answers is called on.
    for _ in range(2):
        route.go_to(1)
    assert addresses(20) == 20 * "b"
    route.note_answer()
    assert addresses(20) == 20 * "b"
    with pytest.raises(KeyError):
        route.go_to(7)


def test_an_actor_acts_for_another_learner_until_its_own_is_back(
    learner: FakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learner 1 is away; then the group starts again, with both."""
    monkeypatch.setattr(routes, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(routes, "LONGEST_PAUSE_S", 0.1)
    monkeypatch.setattr(routes, "PATIENCE_S", 0.5)
    monkeypatch.setattr(routes, "NEXT_S", 0.5)
    first, second = learner.another(), learner.another()
    for learner in (first, second):
        learner.parameters.publish(1, make_parameters(1.0))
    ports = [free_port(), free_port()]
    route = Route([(number, f"127.0.0.1:{ports[number]}") for number in (1, 0)])
    alone = first.serve(ports[0], number=0, members=(0,))
    actor = learner.connect(route)
    actor.handshake()
    actor.push(make_unroll(1))
    actor.push(make_unroll(2))
    assert first.reported(2) == [1, 2]
    wait_until(lambda: len(alone.service.sessions.shown()) == 1)

    # Time for the answer to the last push: without it, the actor would wait for learner 1.
    alone.stop(1)
    again = first.serve(ports[0], number=0, members=(0, 1))
    actor.push(make_unroll(3))  # to learner 0, which sends the actor to learner 1
    own = second.serve(ports[1], number=1, members=(0, 1))
    assert second.reported(1) == [3]
    assert again.service.sessions.shown() == [], "learner 0 counts an actor that it has sent away"
    actor.push(make_unroll(4))
    assert second.reported(1) == [4]
    assert first.reports.empty()
    assert [each.actor_id for each in own.service.sessions.shown()] == ["actor-0"]
