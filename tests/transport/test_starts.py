"""Which start of an actor it is, over real gRPC."""

from __future__ import annotations

from impala_tf.transport import ActorClient
from tests.helpers.wire import Connect, FakeLearner, Serve


def start_of(client: ActorClient) -> tuple[int, int]:
    return client.run_steps, client.restarts


def test_an_actor_is_told_which_start_it_is(serve: Serve, connect: Connect) -> None:
    """Its seeds depend on it. It is the same actor when its learner was restarted."""
    one = serve(FakeLearner())
    actor, other = connect(one.port), connect(one.port, "actor-1")
    for client in (actor, other, actor):
        client.handshake()
        assert start_of(client) == (0, 0)
    for restarts in (1, 2):
        actor.close()
        actor = connect(one.port)
        actor.handshake()
        assert start_of(actor) == (0, restarts)
    port = one.port
    one.stop(0)
    serve(FakeLearner(), port, run_steps=500)
    for client in (actor, other):
        client.handshake()
    assert (start_of(actor), start_of(other)) == ((0, 2), (0, 0))
    for restarts in (1, 2):
        actor.close()
        actor = connect(port)
        actor.handshake()
        assert start_of(actor) == (500, restarts)
