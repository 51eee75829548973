"""Which start of an actor it is, over real gRPC."""

from __future__ import annotations

from impala_tf.transport import Start
from tests.helpers.wire import Connect, FakeLearner, Serve


def test_an_actor_is_told_which_start_it_is(serve: Serve, connect: Connect) -> None:
    """Its seeds depend on it. It is the same actor when its learner was restarted."""
    one = serve(FakeLearner())
    actor, other = connect(one.port), connect(one.port, "actor-1")
    for client in (actor, other, actor):
        client.handshake()
        assert client.start == Start(0, 0)
    for restarts in (1, 2):
        actor.close()
        actor = connect(one.port)
        actor.handshake()
        assert actor.start == Start(0, restarts)
    port = one.port
    one.stop(0)
    serve(FakeLearner(), port, run_steps=500)
    for client in (actor, other):
        client.handshake()
    assert (actor.start, other.start) == (Start(0, 2), Start(0, 0))
    for restarts in (1, 2):
        actor.close()
        actor = connect(port)
        actor.handshake()
        assert actor.start == Start(500, restarts)
