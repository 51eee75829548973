"""--level_kwargs, --level_wrappers, and levels that a function or a class makes."""

from __future__ import annotations

import re

import pytest

from impala_tf.cluster import code
from impala_tf.config import ConfigError, Given, command_line
from impala_tf.environments import suites
from impala_tf.types import ObservationSpec
from tests.helpers.games import actions, environment_of
from tests.helpers.runs import PROJECT

EXAMPLES = PROJECT / "examples"
CART = "--level_name=CartPole-v1"
CORRIDOR = "--level_name=own_level:Corridor"
WRAPPER = "--level_wrappers=gymnasium.wrappers:"


@pytest.fixture(autouse=True)
def in_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(EXAMPLES)


def flags(*words: str) -> Given:
    return command_line.parse(words)


@pytest.mark.parametrize("processes", [["--environment_processes"], []])
def test_arguments_and_wrappers_reach_every_environment(processes: list[str]) -> None:
    given = flags(
        CORRIDOR, '--level_kwargs={"length": 3, "reward": 5}',
        "--level_wrappers=own_level:Impatient", *processes,
    )  # fmt: skip
    environment = environment_of(given.environment, num_envs=2)
    assert environment.reset().observation.shape == (2, 3)
    assert environment.step(actions(1, 0)).reward.tolist() == pytest.approx([-0.01, -0.01])
    output = environment.step(actions(1, 0))
    environment.close()
    assert output.reward.tolist() == pytest.approx([4.99, -0.01])
    assert output.terminated.tolist() == [True, False]
    spec = suites.spec(given.environment)
    named = 'own_level:Corridor {"length": 3, "reward": 5} wrapped by own_level:Imp'
    assert named in spec.protocol and "at most 100 frames" in spec.protocol
    assert spec.time_limit == 100  # the wrapper's


def test_a_wrapper_takes_arguments() -> None:
    """Many of Gymnasium's need some; another one may follow after a comma."""
    wrappers = (
        'gymnasium.wrappers:FrameStackObservation{"stack_size": 3, "padding_type": "zero"},'
        ' gymnasium.wrappers:TimeLimit{"max_episode_steps": 7}'
    )
    given = flags("--level_name=CartPole-v1", f"--level_wrappers={wrappers}")
    spec = suites.spec(given.environment)
    assert (spec.observation, spec.time_limit) == (ObservationSpec("vector", (12,)), 7)
    assert wrappers in spec.protocol
    assert suites.modules(given.environment) == ["gymnasium.wrappers"]  # whose code would run
    assert code.own_names(given)[1:] == [
        "gymnasium.wrappers:FrameStackObservation", "gymnasium.wrappers:TimeLimit",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([CORRIDOR, '--level_kwargs={"lenth": 3}'], "that fit (length, reward)"),
        ([CORRIDOR, '--level_kwargs={"length": 1}'], "raised ValueError: length must be 2 or more"),
        ([CORRIDOR, "--level_kwargs={x"], "is not JSON (Expecting property name"),
        ([CORRIDOR, "--level_wrappers=own_level:Impatien"], "has no Impatien; did you mean Impa"),
        ([CART, f"{WRAPPER}FrameStackObservation"], "'stack_size'; give its arguments as"),
        ([CART, f"{WRAPPER}NormalizeReward"], "NormalizeReward, .* --value_normalization=running"),
        (["--level_name=own_level:corridr"], "no such level; did you mean Corridor?"),
        (["--level_kwargs={}", "--level_wrappers=a:B"], "PongNoFrameskip-v4 runs in an emulator"),
    ],
)
def test_what_cannot_be_made_is_one_line(words: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        suites.spec(flags(*words).environment)
    (problem,) = raised.value.problems
    assert expected in problem or re.search(expected, problem), problem
    assert problem.count("--level_name") <= 1
