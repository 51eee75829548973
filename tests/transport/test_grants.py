"""Which actors may act, and how many at once."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from simulate_scale import Constants, Result, Simulation, constants_of

from impala_tf.transport import GrantLimit, Grants
from impala_tf.transport.grants import FIRST_GRANTS
from tests.helpers.clock import Clock
from tests.helpers.wire import (
    Connect,
    FakeLearner,
    InThread,
    Serve,
    make_parameters,
    make_unroll,
)

ACTORS = [object() for _ in range(5)]


def run(
    test: Callable[[Grants, Clock], Awaitable[None]], limited: bool = True, hold_s: float = 60.0
) -> None:
    """Runs a test with two grants, or with any number of them."""

    async def in_loop() -> None:
        clock = Clock(0.0)
        await test(Grants(GrantLimit(2, first=2) if limited else None, clock, hold_s), clock)

    asyncio.run(in_loop())


async def pause() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_who_asks_first_is_first_when_an_unroll_is_in_the_queue() -> None:
    async def test(grants: Grants, clock: Clock) -> None:
        assert await grants.wait(ACTORS[0], 0)
        assert await grants.wait(ACTORS[1], 0)
        assert await grants.wait(ACTORS[1], 0)  # asked twice: the first answer was lost
        third, fourth = (asyncio.ensure_future(grants.wait(ACTORS[n], 7)) for n in (2, 3))
        await pause()
        assert not third.done()
        grants.arrived(ACTORS[0], 0)
        await pause()
        assert not third.done()  # it waits for room: the learner has enough
        grants.ended(ACTORS[0], 0, in_queue=True)
        await pause()
        assert third.done()
        assert third.result()
        assert not fourth.done()
        grants.ended(ACTORS[1], 0, in_queue=False)  # a refused unroll frees its place, too
        assert await fourth

    run(test)


def test_without_a_limit_nobody_waits() -> None:
    """Actors that wait for updates must all act, or there is no update."""

    async def test(grants: Grants, clock: Clock) -> None:
        assert all([await grants.wait(actor, 0) for actor in ACTORS])

    run(test, limited=False)


def test_the_grants_of_actors_that_have_gone_are_given_to_others() -> None:
    async def test(grants: Grants, clock: Clock) -> None:
        assert await grants.wait(ACTORS[0], 0)
        assert await grants.wait(ACTORS[1], 0)
        waiting = asyncio.ensure_future(grants.wait(ACTORS[2], 0))
        await pause()
        grants.lost(ACTORS[0])  # its connection was closed
        assert await waiting
        clock.now = 31.0  # the others hang: their connections are open, and nothing comes
        assert await grants.wait(ACTORS[3], 0)

    run(test)


def test_a_call_that_was_cancelled_gets_no_grant() -> None:
    async def test(grants: Grants, clock: Clock) -> None:
        assert await grants.wait(ACTORS[0], 0)
        assert await grants.wait(ACTORS[1], 0)
        gone, next_one = (asyncio.ensure_future(grants.wait(ACTORS[n], 0)) for n in (2, 3))
        await pause()
        gone.cancel()
        await pause()
        grants.ended(ACTORS[0], 0, in_queue=True)
        assert await next_one

    run(test)


def test_a_long_wait_ends() -> None:
    async def test(grants: Grants, clock: Clock) -> None:
        assert await grants.wait(ACTORS[0], 0)
        assert await grants.wait(ACTORS[1], 0)
        assert not await grants.wait(ACTORS[2], 0)

    run(test, hold_s=0.05)


def test_a_retry_keeps_its_place_when_the_call_before_it_ends() -> None:
    """The server may hold a call whose connection broke without its noticing."""

    async def test(grants: Grants, clock: Clock) -> None:
        assert await grants.wait(ACTORS[0], 0) and await grants.wait(ACTORS[1], 0)
        broken = asyncio.ensure_future(grants.wait(ACTORS[2], 0))
        await pause()
        retry = asyncio.ensure_future(grants.wait(ACTORS[2], 0))
        later = asyncio.ensure_future(grants.wait(ACTORS[3], 0))
        await pause()
        broken.cancel()
        await pause()
        grants.ended(ACTORS[0], 0, in_queue=True)
        assert await retry
        assert not later.done()
        grants.release()
        assert not await later

    run(test)


def test_every_wait_of_a_run_that_is_over_ends() -> None:
    async def test(grants: Grants, clock: Clock) -> None:
        assert await grants.wait(ACTORS[0], 0)
        assert await grants.wait(ACTORS[1], 0)
        waiting = asyncio.ensure_future(grants.wait(ACTORS[2], 0))
        await pause()
        grants.release()
        assert not await waiting

    run(test)


def simulated(actors: int, grants: bool = True, first_grants: float = FIRST_GRANTS) -> Result:
    """A learner that takes 4 unrolls a second, and actors that make one in a second."""
    constants = Constants(
        unroll_s=1.0, push_s=1e-3, fetch_s=1e-3, update_s=0.25, push_bytes=1e5,
        parameter_bytes=1e6, environments=8, batch_size=8, unroll_length=10, updates_per_batch=1,
        queue_capacity=8, learner_cores=2, bytes_per_s=1e9, parameter_lag=1,
    )  # fmt: skip
    return Simulation(constants, actors, grants=grants, first_grants=first_grants).run(400.0)


def test_however_many_actors_there_are_the_learner_is_busy_and_unrolls_are_new() -> None:
    few, many = simulated(8), simulated(400)
    assert min(few.updating, many.updating) > 0.97
    assert max(few.lag, many.lag) < 12
    assert simulated(400, grants=False).lag > 400  # what it would be


def test_more_cores_do_not_shorten_what_a_gradient_step_always_takes(tmp_path: Path) -> None:
    parts = [{"name": name, "core_us_per_step": 100.0}
             for name in ("environments", "inference", "transport", "updates")]  # fmt: skip
    speed = tmp_path / "speed.json"
    speed.write_text(json.dumps(
        {"parts": parts, "bytes_up": 100.0, "bytes_down": 1e4}
    ))  # fmt: skip
    flags = ["--level_name=CartPole-v1", "--batch_size=10", "--unroll_length=10",
             "--updates_per_batch=2"]  # fmt: skip
    took_s = [
        constants_of(speed, flags, argparse.Namespace(
            learner_cores=cores, learner_speedup=1.0, mbit=1e3, parameter_lag=1, fixed_update_ms=4.0
        )).update_s
        for cores in (1, 2, 1000)
    ]  # fmt: skip
    assert took_s == pytest.approx([0.01, 0.009, 0.008], rel=1e-3)


def test_where_the_learner_could_use_more_nobody_waits_for_long() -> None:
    """The limit starts low, and must not stay there."""
    unlimited, limited = simulated(3, grants=False), simulated(3, first_grants=2)
    assert limited.agent_steps_per_s > 0.97 * unlimited.agent_steps_per_s


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


def test_an_actor_that_had_to_wait_acts_with_the_newest_parameters(
    serve: Serve, connect: Connect, learner: FakeLearner
) -> None:
    """Over the wire: the first two unrolls have to be in the queue before a third one is made."""
    one = serve(learner, grants=Grants(GrantLimit(2, first=2)))
    first, second = (connect(one.port, f"actor-{n}") for n in (1, 2))
    learner.parameters.publish(0, make_parameters(0.0))
    for actor in (first, second):
        actor.handshake()
        assert actor.fetch_parameters(-1) is not None
    first.push(make_unroll(0))
    assert learner.reported(1) == [0]
    assert first.fetch_parameters(0) is None  # it gave its grant back, and takes the next one
    third = connect(one.port, "actor-3")
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
