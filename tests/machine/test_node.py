"""The processes of a run on one machine: learners stop first, and nothing is left running."""

import functools
from pathlib import Path

import pytest

from impala_tf.machine.node import Node
from impala_tf.machine.supervision import Command
from tests.helpers.waiting import wait_until

STOPS = "trap 'sleep .5; exit 0' TERM; echo up; sleep 1000 & wait"


@pytest.fixture
def started(tmp_path):
    """Starts a node with processes that run shell scripts; stops it when the test ends."""
    nodes: list[Node] = []

    def start(node: Node, **scripts: str) -> Node:
        nodes.append(node)
        for name, script in scripts.items():
            log = tmp_path / name
            command = Command(
                name.replace("_", "-"), ("sh", "-c", script), str(tmp_path), str(log),
                stop_timeout_s=5.0,
            )  # fmt: skip
            node.add(command).start()
            wait_until(functools.partial(is_up, log))
        return node

    yield start
    for node in nodes:
        node.close()


def is_up(log: Path) -> bool:
    return log.exists() and "up\n" in log.read_text()


def make_node(max_hours: float | None = None, **settings: float) -> Node:
    return Node(lambda command, text: None, max_hours, **settings)


def states(node: Node) -> list[str]:
    return [state.state for state in node.states.values()]


def tick_until(node: Node, condition) -> None:
    def done():
        node.tick()
        return condition()

    wait_until(done)


def test_actors_are_stopped_when_no_learner_runs_any_more(started):
    node = started(make_node(), actor_0=STOPS, learner_0=STOPS, learner_1=STOPS)
    tick_until(node, lambda: states(node) == ["running"] * 3)
    node.stop()
    tick_until(node, lambda: node.over)
    ends = {name: state.ended_unix_s for name, state in node.states.items()}
    assert ends["actor-0"] > max(ends["learner-0"], ends["learner-1"])
    assert states(node) == ["stopped"] * 3


def test_max_hours_end_the_learner_and_leave_its_actors_time_to_exit(started):
    node = started(make_node(1.0, ran_s=3600.0), actor_0=STOPS, learner_0=STOPS)
    assert node.is_late
    tick_until(node, lambda: node.processes["learner-0"].over)
    node.tick()
    assert states(node) == ["running", "stopped"]
    assert node.states["learner-0"].detail == "--max_hours=1 have passed"
    later = started(make_node(1.0, ran_s=3600.0 + 121.0), actor_0=STOPS)
    tick_until(later, lambda: later.over)
    assert not make_node(1.0, ran_s=3590.0).is_late
    assert not make_node(None, ran_s=1e9).is_late
