"""Whether a model answers as its agent: rounded weights do, other weights are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from impala_tf.agents.agent import agent_of
from impala_tf.config import ConfigError, Given
from impala_tf.evaluation.exported import MODEL, About, ExportedAgent, seen
from impala_tf.learner.conversion import whole_file
from impala_tf.processes.common import resolve
from impala_tf.processes.trained_agent import TrainedAgent
from impala_tf.sharing.faithful import difference
from tests.helpers.games import BROKEN_WORLDS
from tests.helpers.samples import randomize

pytestmark = pytest.mark.slow

# The largest difference of the logits that rounding explains, and the bytes of a weight.
LIMITS = {"float16": (5e-3, 2), "int8": (0.1, 1)}


def trained(**flags: Any) -> TrainedAgent:
    config, spec = resolve(Given({"level_name": "CartPole-v1", **flags}))
    agent = agent_of(config.agent, spec)
    randomize(agent)
    return TrainedAgent(config, spec, agent, Path("ckpt-1"), 1, {})


def exported(folder: Path, trained: TrainedAgent, precision: Any) -> ExportedAgent:
    (folder / MODEL).write_bytes(whole_file(trained.agent, trained.spec, precision))
    about = About({}, seen(trained.spec), "MLPLSTMAgent", "appo", precision, 1, [[256]] * 2, False)
    return ExportedAgent(folder, about, trained.spec)


@pytest.mark.parametrize("precision", LIMITS)
def test_rounded_weights_answer_nearly_as_the_agent(tmp_path: Path, precision: str) -> None:
    """With its memory, whose rounding must not add up from step to step."""
    mine = trained(agent_name="MLPLSTMAgent")
    found = difference(mine, exported(tmp_path, mine, precision), precision)
    limit, bytes_each = LIMITS[precision]
    assert found.observations == 1000
    assert found.largest <= limit * max(1.0, found.largest_logit)
    assert found.same_choice > 0.97
    parameters = sum(variable.shape.num_elements() for variable in mine.agent.variables)
    assert (tmp_path / MODEL).stat().st_size < bytes_each * parameters + 60_000


def test_a_model_of_other_weights_is_refused(tmp_path: Path) -> None:
    """Nobody shall publish an agent that plays otherwise than what was trained."""
    mine = trained(agent_name="MLPLSTMAgent")
    model = exported(tmp_path, mine, "int8")
    for variable in mine.agent.variables:
        variable.assign(-variable)
    with pytest.raises(ConfigError, match=r"^--export_precision=int8: on 1,000 .* too much"):
        difference(mine, model, "int8")


@pytest.mark.parametrize(("processes", "steps"), [("auto", "0"), ("never", r"[1-9]\d*")])
def test_a_level_that_breaks_is_one_line(tmp_path: Path, processes: str, steps: str) -> None:
    """Also while its steps are timed, which decides where it runs: an export was a traceback."""
    faulty = f"{BROKEN_WORLDS}:FaultyCartPole-v1"
    mine = trained(
        agent_name="MLPLSTMAgent",
        level_name=faulty,
        level_kwargs='{"fault": "raise"}',
        environment_processes=processes,
    )
    model = exported(tmp_path, mine, "float32")
    broken = f"--level_name={faulty}: raised RuntimeError: the pole is broken at broken_worlds.py"
    with pytest.raises(ConfigError, match=rf"^{broken}:\d+ after {steps} steps of play with the"):
        difference(mine, model, "float32")
