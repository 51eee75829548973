"""A learner of a group that dies or stops: the others end, say whom they lost, and go on later."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frontend.group import gloo_environment
from frontend.process_state import Seat
from frontend.rendezvous import RendezvousServer
from tests.runs import Run, free_port, rows

pytestmark = pytest.mark.faults

HOROVODRUN = Path(sys.executable).with_name("horovodrun")
_LONG_S = 400.0  # a start and some training, on a machine that does other things as well
Start = Callable[..., Run]


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def start_run(*flags: str, **settings: object) -> Run:
        started.append(Run(*flags, **settings))  # type: ignore[arg-type]
        return started[-1]

    yield start_run
    for run in started:
        run.end()


def flags_of(logdir: Path, hosts: list[str], *more: str) -> tuple[str, ...]:
    return (
        f"--logdir={logdir}",
        f"--learner_hosts={','.join(hosts)}",
        "--level_name=CartPole-v1",
        "--envs_per_actor=8",
        "--metrics_interval_s=1",
        "--checkpoint_interval_s=1",
        *more,
    )


def learner(run: Run, rank: int) -> int:
    """Returns the process of a learner that horovodrun started."""
    for pid in run.alive():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if b"--job_name=learner" in words and f"HOROVOD_RANK={rank}".encode() in variables:
            return pid
    raise AssertionError(f"no learner of rank {rank}")


def checkpointed_frames(logdir: Path) -> int:
    checkpoint = json.loads((logdir / "status.json").read_text())["checkpoint"]
    return checkpoint["environment_frames"] if checkpoint else 0


def state(status: Path) -> str:
    return json.loads(status.read_text())["state"]


@pytest.mark.timeout(900)
def test_a_killed_learner_ends_the_group_and_a_relaunch_goes_on(start: Start, tmp_path: Path):
    hosts = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    flags = flags_of(tmp_path, hosts, "--total_environment_frames=100000")
    under_horovodrun = {"launcher": (str(HOROVODRUN), "-np", "2")}

    first = start(*flags, "--job_name=learner", **under_horovodrun)
    # With the credentials there, actors can be started.
    first.wait_until(lambda: (tmp_path / "status.json").exists(), _LONG_S)
    actors = [start(*flags, "--job_name=actor", f"--task={task}") for task in range(2)]
    first.wait_until(
        lambda: len(rows(tmp_path)) >= 2 and checkpointed_frames(tmp_path) > 0, _LONG_S
    )
    assert [state(tmp_path / name) for name in ("status.json", "status-1.json")] == ["training"] * 2
    killed_at = time.monotonic()
    os.kill(learner(first, rank=1), signal.SIGKILL)
    code, out, err = first.wait(60)
    assert time.monotonic() - killed_at < 60
    assert code != 0
    assert f"learner-0: lost learner-1 at {hosts[1]} (no answer)" in out, out + err
    assert first.alive() == []
    before = rows(tmp_path)
    assert int(before[-1]["environment_frames"]) < 100_000

    second = start(*flags, "--job_name=learner", **under_horovodrun)
    code, out, err = second.wait(_LONG_S)
    assert code == 0, out + err
    assert "resuming from" in out
    ends = dict(re.findall(r"(learner-\d): ends with parameters (\w+)", out))
    assert set(ends) == {"learner-0", "learner-1"}
    assert ends["learner-0"] == ends["learner-1"]
    frames = [int(row["environment_frames"]) for row in rows(tmp_path)]
    assert frames == sorted(frames)
    assert frames[0] == int(before[0]["environment_frames"])
    assert frames[-1] >= 100_000
    # The actors waited meanwhile, worked on, and were told the end.
    assert [actor.wait(60)[0] for actor in actors] == [0, 0]


@pytest.fixture
def pair(start: Start, tmp_path: Path) -> Iterator[tuple[list[str], list[Run]]]:
    """Two learners that nobody looks after, without a single actor."""
    hosts = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    port = free_port()
    server = RendezvousServer("127.0.0.1", port, "run", 2)
    runs = []
    for rank in range(2):
        seat = Seat(rank, 2, rank, 2, 0, 1, "127.0.0.1", "127.0.0.1", port)
        environment = {**gloo_environment(seat), "HOROVOD_GLOO_TIMEOUT_SECONDS": "10"}
        flags = flags_of(tmp_path, hosts, "--job_name=learner")
        runs.append(start(*flags, environment=environment))
    yield hosts, runs
    server.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("blow", "victim"), [(signal.SIGKILL, 0), (signal.SIGSTOP, 1)])
def test_who_has_no_batch_notices_a_loss_as_well(
    pair: tuple[list[str], list[Run]], blow: int, victim: int, tmp_path: Path
):
    """It waits for its actors, and would only find out in its next update, a minute later."""
    hosts, runs = pair
    statuses = tmp_path / "status.json", tmp_path / "status-1.json"
    survivor = runs[1 - victim]
    survivor.wait_until(lambda: all(path.exists() for path in statuses), _LONG_S)
    time.sleep(12.0)  # while it waits, it looks every 5 s who is there
    struck_at = time.monotonic()
    os.kill(runs[victim].process.pid, blow)
    code, out, err = survivor.wait(60)
    assert time.monotonic() - struck_at < 30  # 10 s for Gloo, 3 s for who is silent
    assert code == 1, out + err
    expected = f"learner-{1 - victim}: lost learner-{victim} at {hosts[victim]} (no answer); ends"
    assert expected in out
    assert "Traceback" not in out + err
