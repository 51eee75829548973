"""What an exported folder of someone else may have: each problem is one line, nothing starts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import impala_tf as impala
from impala_tf.config import ConfigError, Given, command_line
from impala_tf.evaluation import exported
from impala_tf.processes.trained_flags import as_exported
from tests.helpers.games import BROKEN_WORLDS
from tests.helpers.runs import PROJECT

EXAMPLE = PROJECT / "examples" / "cartpole"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return shutil.copytree(EXAMPLE, tmp_path / "shared")


def changed(shared: Path, **values: Any) -> None:
    content = json.loads((shared / "agent.json").read_text())
    (shared / "agent.json").write_text(json.dumps({**content, **values}))


def problem_of(use: Callable[..., Any], *arguments: Any, **flags: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        use(*arguments, **flags)
    (line,) = caught.value.problems
    assert line.isprintable()
    return line


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"format": 2}, "{folder}/agent.json: has format 2, but this version of impala_tf reads"),
        ({"odd": 1}, "{folder}/agent.json: is not an exported agent's agent.json"),
        ({"flags": []}, "{folder}/agent.json: is not an exported agent's agent.json (flags: [])"),
        ({"core_state": [["a"]]}, "{folder}/agent.json: is not an exported agent's agent.json (co"),
        ({"core_state": [[10**12]]}, "{folder}/agent.json: is not an exported agent's agent.json"),
        ({"core_state": [[256]]}, "{folder}/model.tflite: is not this agent's model: it computes"),
        ({"flags": {"level_kwargs": "[" * 10**5}}, "{folder}/agent.json: level_kwargs=[[["),
        ({"flags": {"end_command": "rm"}}, "{folder}/agent.json: end_command: is no flag of a"),
        ({"flags": {"level_name": "Acrobot-v1"}}, "logdir={folder}: its agent learned a level"),
        (
            {"flags": {"level_name": "someones_levels:make"}},
            "logdir={folder}: it imports the Python module someones_levels, whose code would run"
            " here; if you trust it, add trust_level_module=True",
        ),
    ],
)
def test_a_wrong_agent_json_is_named(shared: Path, values: dict[str, Any], problem: str) -> None:
    changed(shared, **values)
    assert problem_of(impala.load, shared).startswith(problem.format(folder=shared))


def test_a_folder_without_its_model_or_with_a_broken_one_is_named(shared: Path) -> None:
    (shared / "model.tflite").write_bytes(b"no model")
    assert problem_of(impala.load, shared).startswith(f"{shared}/model.tflite: is not this agent's")
    (shared / "model.tflite").unlink()
    assert problem_of(impala.load, shared) == (
        f"logdir={shared}: is an exported agent without its model.tflite"
    )
    for content in ("no JSON", "[" * 10**5, "[]", '{"format": 1}'):
        (shared / "agent.json").write_text(content)
        assert "is not an exported agent's agent.json" in problem_of(impala.load, shared)


def test_a_trusted_module_is_imported_from_beside_the_agent(shared: Path) -> None:
    """Levels of notebooks travel with their agent."""
    changed(shared, flags={"level_name": "level_beside_agent:make"})
    code = "import gymnasium\nmake = lambda: gymnasium.make('CartPole-v1', max_episode_steps=9)\n"
    (shared / "level_beside_agent.py").write_text(code)
    assert "level_beside_agent" in problem_of(impala.evaluate, shared, 1)
    played = impala.evaluate(shared, 1, trust_level_module=True)
    assert played.lengths == (9,)
    assert len(str(played)) < 100 and f"mean {played.mean:.2f}" in str(played)


@pytest.mark.parametrize("protocol", ["classic", "sticky"])
@pytest.mark.parametrize(
    "flags",
    [{}, {"noop_max": 30, "terminal_on_life_loss": True}, {"repeat_action_probability": 0.0},
     {"noop_max": 0}],
)  # fmt: skip
def test_an_agent_plays_the_protocol_that_it_was_trained_on(
    shared: Path, protocol: str, flags: dict[str, Any]
) -> None:
    """A flag may differ from --protocol and be the built-in value."""
    given = Given({"level_name": "PongNoFrameskip-v4", "protocol": protocol, **flags})
    written = json.loads(json.dumps(exported.level_flags(given.environment)))
    found = as_exported(Given({"logdir": str(shared)}), written)
    assert found.environment == given.environment


def test_an_agent_that_sees_the_last_reward_asks_for_it(shared: Path) -> None:
    """Without it, the agent would see other inputs than in training, and nobody would know."""
    agent, observation = impala.load(shared), np.zeros(4, np.float32)
    agent.act(observation)
    agent.act(observation)
    changed(shared, agent_name="MLPLSTMAgent")
    agent = impala.load(shared)
    agent.act(observation)  # where an episode begins, there is no reward
    agent.act(observation, reward=1.0)
    with pytest.raises(ValueError, match="^reward: MLPLSTMAgent sees the reward of its last act"):
        agent.act(observation)


def test_an_evaluation_in_python_writes_the_video_that_it_is_asked_for(shared: Path) -> None:
    changed(shared, flags={"level_name": "CartPole-v1", "level_kwargs": '{"max_episode_steps": 9}'})
    assert impala.evaluate(shared, 1, video=True).lengths == (9,)
    assert (shared / "replay.mp4").stat().st_size > 1000


@pytest.mark.parametrize(("fault", "processes"), [("end", False), ("inf", True)])
def test_rewards_that_are_not_finite_end_an_evaluation_with_one_line(
    shared: Path, fault: str, processes: bool
) -> None:
    kwargs = json.dumps({"fault": fault})
    name = f"{BROKEN_WORLDS}:FaultyCartPole-v1"
    changed(shared, flags={"level_name": name, "level_kwargs": kwargs})
    flags = {"trust_level_module": True, "environment_processes": processes}
    line = problem_of(impala.evaluate, shared, 3, **flags)
    assert line.startswith(f"level_name={name}: a game had NaN or infinite rewards after "), line
    assert line.endswith(" of 3 games")


def test_nothing_trains_or_exports_there(shared: Path) -> None:
    """Others may have the agent by now."""
    before = sorted(shared.iterdir())
    line = problem_of(impala.train, "CartPole-v1", logdir=shared, fresh=True)
    assert line.startswith(f"logdir={shared}: holds an exported agent")
    from impala_tf.main import run

    words = [f"--logdir={shared}", "--mode=export"]
    line = problem_of(run, command_line.parse(words))
    assert line.startswith(f"--logdir={shared}: holds an exported agent")
    assert sorted(shared.iterdir()) == before


@pytest.mark.parametrize("flags", [{"checkpoint": "best"}, {"core": "lstm"}])
def test_flags_that_would_change_the_agent_are_refused(shared: Path, flags: dict[str, str]) -> None:
    (flag,) = flags
    line = problem_of(impala.evaluate, shared, 1, **flags)
    assert line == f"{flag}: {shared} is an exported agent, which is fixed; leave the flag out"
