"""Which actors may act, and how many at once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from impala_tf.transport import GrantLimit, Grants
from tests.helpers.clock import Clock
from tests.helpers.wire import (
    FakeLearner,
    InThread,
    make_parameters,
    make_unroll,
)

ACTORS = [object() for _ in range(5)]


def run(test: Callable[[Grants], Awaitable[None]]) -> None:
    """Runs a test in which actors 0 and 1 have the two grants that there are."""

    async def in_loop() -> None:
        grants = Grants(GrantLimit(2, first=2), Clock(0.0))
        for actor in (0, 1):
            await grants.wait(ACTORS[actor], 0)
        await test(grants)

    asyncio.run(in_loop())


async def ask(grants: Grants, *actors: int) -> list[asyncio.Future[None]]:
    """Returns the answers to more actors, which may have to wait."""
    waiting: list[asyncio.Future[None]] = [
        asyncio.ensure_future(grants.wait(ACTORS[n], 0)) for n in actors
    ]
    await pause()
    return waiting


async def pause() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_who_asks_first_is_first_when_an_unroll_is_in_the_queue() -> None:
    async def test(grants: Grants) -> None:
        await grants.wait(ACTORS[1], 0)  # asked twice: the first answer was lost
        third, fourth = await ask(grants, 2, 3)
        grants.arrived(ACTORS[0], 0)
        await pause()
        assert not third.done()  # it waits for room: the learner has enough
        grants.ended(ACTORS[0], 0, in_queue=True)
        await third
        await pause()
        assert not fourth.done()
        grants.ended(ACTORS[1], 0, in_queue=False)  # a refused unroll frees its place, too
        await fourth

    run(test)


def test_the_grants_of_actors_that_have_gone_are_given_to_others() -> None:
    async def test(grants: Grants) -> None:
        gone, waiting = await ask(grants, 2, 3)
        gone.cancel()  # it has not had one yet
        await pause()
        grants.lost(ACTORS[0])  # its connection was closed
        await waiting

    run(test)


def test_an_unroll_that_has_arrived_keeps_its_grant() -> None:
    """Else surplus actors act while a learner is slow, and the policy lag grows."""

    async def test(grants: Grants) -> None:
        for actor in (0, 1):
            grants.arrived(ACTORS[actor], 0)
        grants.lost(ACTORS[0])  # its connection was closed
        (waiting,) = await ask(grants, 2)
        assert not waiting.done()
        waiting.cancel()

    run(test)


def test_an_actor_cannot_make_unrolls_take_less_than_no_time() -> None:
    """What it says of its waits counts: the limit would fall to its minimum for all."""
    limit = GrantLimit(2, first=10)

    async def test() -> None:
        clock = Clock(0.0)
        grants = Grants(limit, clock)
        await grants.wait(ACTORS[0], 0)
        clock.now = 5.0
        grants.arrived(ACTORS[0], 0)
        grants.ended(ACTORS[0], 0, in_queue=True, blocked_s=1e9)

    asyncio.run(test())
    assert limit.unroll_s == 0.0


class Simulated(NamedTuple):
    updates: int
    lag: float  # the last unroll's, in updates


def simulated(actors: int, limit: GrantLimit | None) -> Simulated:
    """Simulates 400 s of a learner that takes 4 unrolls a second; an actor makes one in 1 s."""
    updates, lag, now, next_update_s = 0, 0.0, 0.0, 0.0
    acting: deque[tuple[float, int]] = deque()  # (when it is done, version of its parameters)
    arrived: deque[tuple[float, int]] = deque()
    queue: deque[int] = deque()
    while now < 400:
        now += 0.05
        while acting and acting[0][0] <= now:
            arrived.append(acting.popleft())
        while arrived and len(queue) < 16:
            done_s, version = arrived.popleft()
            queue.append(version)
            if limit is not None:
                limit.observe(1.0, now - done_s, more_wanted=len(acting) + len(arrived) < actors)
        if queue and now >= next_update_s:
            lag = updates - queue.popleft()
            updates, next_update_s = updates + 1, now + 0.25
        may_act = actors if limit is None else min(actors, int(limit.limit))
        while len(acting) + len(arrived) < may_act:
            acting.append((now + 1.0, updates))
    return Simulated(updates, lag)


def test_however_many_actors_there_are_the_learner_is_busy_and_unrolls_are_new() -> None:
    few, many = (simulated(actors, GrantLimit(3)) for actors in (8, 400))
    unlimited = simulated(400, None)
    assert min(few.updates, many.updates) > 0.97 * unlimited.updates
    assert max(few.lag, many.lag) < 30 < 300 < unlimited.lag


def test_where_the_learner_could_use_more_nobody_waits_for_long() -> None:
    """The limit starts low, and must not stay there."""
    unlimited, limited = simulated(3, None), simulated(3, GrantLimit(2, first=2))
    assert limited.updates > 0.97 * unlimited.updates


def test_the_limit_never_falls_below_what_a_batch_needs() -> None:
    limit = GrantLimit(5, first=2)
    for _ in range(500):
        limit.observe(unroll_s=1.0, waited_s=60.0, more_wanted=True)
    assert limit.limit == 5
    for _ in range(100):
        limit.observe(unroll_s=1.0, waited_s=0.0, more_wanted=False)
    assert limit.limit == 5
    for _ in range(300):
        limit.observe(unroll_s=1.0, waited_s=0.0, more_wanted=True)
    assert limit.limit > 50


def test_an_actor_that_had_to_wait_acts_with_the_newest_parameters(learner: FakeLearner) -> None:
    """Over the wire: the first two unrolls have to be in the queue before a third one is made."""
    one = learner.serve(grants=Grants(GrantLimit(2, first=2)))
    first, second = (learner.connect(one.port, f"actor-{n}") for n in (1, 2))
    learner.parameters.publish(0, make_parameters(0.0))
    for actor in (first, second):
        actor.handshake()
        assert actor.fetch_parameters(-1) is not None
    first.push(make_unroll(0))
    assert learner.reported(1) == [0]
    assert first.fetch_parameters(0) is None  # it gave its grant back, and takes the next one
    third = learner.connect(one.port, "actor-3")
    third.handshake()
    waiting = InThread(lambda: third.fetch_parameters(-1))
    time.sleep(0.3)
    assert waiting.blocked
    learner.parameters.publish(5, make_parameters(5.0))
    second.push(make_unroll(1))
    got = waiting.wait()
    assert got is not None
    assert got[0] == 5
    third.push(make_unroll(5))
    assert sorted(learner.reported(2)) == [1, 5]
