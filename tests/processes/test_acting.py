"""What actors act with: LiteRT by default, or TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.ports import free_port
from tests.helpers.runs import Run, status, words_of
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.end_to_end

ENDLESS = (
    "--level_name=tests.helpers.worlds:CalmCartPole-v1",
    "--metrics_interval_s=1",
    "--total_environment_frames=1000000000",
)


def has_tensorflow(pid: int) -> bool:
    return "libtensorflow" in Path(f"/proc/{pid}/maps").read_text()


def trains(logdir: Path) -> bool:
    return bool(status(logdir).get("agent_steps"))


@pytest.mark.parametrize("acting", ["auto", "tensorflow"])
def test_actors_import_tensorflow_only_if_they_act_with_it(
    start: Callable[..., Run], tmp_path: Path, acting: str
) -> None:
    """It takes seconds and hundreds of MB of each, and a cheap machine has little of both."""
    run = start(*ENDLESS, f"--acting={acting}", "--num_actors=2", f"--logdir={tmp_path}")
    run.wait_until(lambda: trains(tmp_path) and len(status(tmp_path)["actors"]) == 2)
    actors = [pid for pid in run.alive() if "--job_name=actor" in words_of(pid)]
    assert [has_tensorflow(pid) for pid in actors] == 2 * [acting == "tensorflow"]


@pytest.fixture
def by_hand(start: Callable[..., Run], tmp_path: Path) -> tuple[str, ...]:
    """Starts a learner that converts no network; returns the flags of its actors."""
    flags = (*ENDLESS, f"--logdir={tmp_path}", f"--learner_hosts=127.0.0.1:{free_port()}")
    start(*flags, "--job_name=learner", "--acting=tensorflow")
    wait_until((tmp_path / "credentials" / "actor.key").exists)
    return (*flags, "--job_name=actor")


def test_an_actor_acts_with_tensorflow_if_its_learner_converts_no_network(
    start: Callable[..., Run], by_hand: tuple[str, ...], tmp_path: Path
) -> None:
    """Started by hand, the two may have different flags."""
    actor = start(*by_hand)
    wait_until(lambda: trains(tmp_path))
    assert has_tensorflow(actor.process.pid)
    actor.process.terminate()
    code, out, err = actor.wait()
    assert code == 0
    assert "acting with TensorFlow: the learner was started with --acting=tensorflow" in out + err


@pytest.mark.parametrize("acting", ["litert", "tensorflow"])
def test_an_actor_that_needs_tensorflow_says_where_it_is_missing(
    start: Callable[..., Run], by_hand: tuple[str, ...], acting: str
) -> None:
    """Machines that only have actors are set up without it."""
    without = "import sys; sys.modules['tensorflow'] = None; import run_experiment as run"
    script = ["-c", f"{without}; sys.exit(run.main())"]
    code, _, err = start(*by_hand, f"--acting={acting}", script=script).wait()
    assert code == 2
    assert "needs TensorFlow, but this machine has none" in err.splitlines()[-1]
    assert "Traceback" not in err
