"""What presets, level, algorithm and machine decide where a flag is not given."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from impala_tf import config as configs
from impala_tf.config import (
    ALGORITHMS,
    FLAGS,
    PRESETS,
    Config,
    ConfigError,
    Given,
    command_line,
    to_dict,
)
from impala_tf.types import ActionSpec, EnvironmentSpec, Kind, ObservationSpec
from tests.helpers.cores import pretend

KINDS: list[Kind] = ["atari", "procgen", "image", "vector"]
LOCAL = "--learner_hosts=127.0.0.1:8001 --actor_hosts=a"


def resolved(typed: str) -> Config:
    """Returns the config of a kind of level ("robots": vectors, continuous actions) and flags."""
    level, *words = typed.split()
    kind: Any = "vector" if level == "robots" else level
    given = command_line.parse(words, environment={})
    return configs.resolve(given, kind, continuous=level == "robots")


# The kind of level, the flags, and what follows from them; on two cores.
RESOLVED = """
atari | algorithm=appo preset=tuned num_actors=2 schedule_frames=8000000 core=feedforward layer_norm=False trace_lambda=0.95
atari --level_name=ALE/Pong-v5 --seed=3 | logdir=runs/ALE-Pong-v5-ShallowConvNetAgent-appo-3
atari --level_name=../../etc | logdir=runs/..-..-etc-ShallowConvNetAgent-appo-1
atari --agent_name=ResNetLSTMAgent | core=lstm
atari --protocol=sticky --noop_max=30 | repeat_action_probability=0.25 noop_max=30 terminal_on_life_loss=False
atari --learning_rate=0.007 --entropy_cost=0.5 | learning_rate_end=0.0014 entropy_cost_end=0.5
atari --total_environment_frames=1000 | schedule_frames=8000000
atari --preset=paper --total_environment_frames=1000 | schedule_frames=1000
atari --algorithm=dqn | learning_rate_end=0.0003 heads=q_values layer_norm=False n_step=3
atari --algorithm=dqn --learning_rate_schedule=linear | learning_rate_end=0.0
atari --algorithm=pqn | layer_norm=True heads=q_values trace_lambda=0.65
vector --algorithm=pqn | trace_lambda=0.9
atari --algorithm=ppo --preset=paper | trace_lambda=0.95
atari --num_actors=15 | batch_size=4 ring_batches=16
atari --num_actors=16 | batch_size=16 ring_batches=4
atari --algorithm=a3c --num_actors=3 --envs_per_actor=5 | batch_size=5
atari --algorithm=ppo --num_actors=3 --envs_per_actor=8 | batch_size=24 updates_per_batch=4 minibatches=6
atari --algorithm=ppo --envs_per_actor=8 --actor_hosts=a,b,c,d --learner_hosts=x:1,y:1 --job_name=learner | batch_size=16
vector --algorithm=ppo --num_actors=64 --minibatches=4 | minibatches=4
vector --algorithm=ppo --num_actors=64 | batch_size=2048 minibatches=128
vector --algorithm=ppo --num_actors=64 --batch_size=2048 | minibatches=128
robots --algorithm=ppo --num_actors=64 | batch_size=512 minibatches=256
vector --algorithm=pqn --num_actors=64 --synchronization=trajectory | minibatches=128
vector --algorithm=pqn --batch_size=2 | minibatches=2
vector --preset=paper | learning_rate=0.003 epsilon=1e-05 baseline_cost=0.05 observation_normalization=none
robots --preset=paper | learning_rate=0.003 observation_normalization=elementwise entropy_cost=0.0
"""  # noqa: E501  # a row is a line


def test_flags_follow_from_level_preset_algorithm_and_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, 2)
    for row in RESOLVED.strip().splitlines():
        typed, _, expected = row.partition(" | ")
        config = resolved(typed)
        configs.check_batches(config)
        flags = to_dict(config)
        found = [f"{name}={flags[name]}" for name in re.findall(r"(\w+)=\S*", expected)]
        assert found == expected.split(), typed


def test_every_flag_gets_a_value_and_given_ones_are_kept() -> None:
    """A flag that is still None would crash where it is first used."""
    derived = [name for name, flag in FLAGS.items() if flag.is_derived]
    others = [each for kinds in PRESETS.values() for each in kinds.values()]
    zeros = {name: 0.0 for name, value in others[0].items() if isinstance(value, float)}
    for preset, kind in itertools.product(PRESETS, KINDS):
        flags = to_dict(configs.resolve(Given({"preset": preset, "num_actors": 2}), kind))
        assert not [name for name in derived if flags[name] is None]
        for values in (*others, zeros):
            given = {**values, "schedule_frames": 45}
            kept = to_dict(configs.resolve(Given({**given, "preset": preset}), kind))
            assert {name: kept[name] for name in given} == given


def test_resolving_twice_changes_nothing() -> None:
    """A process started with all flags of a run resolves them again."""
    for kind, preset, algorithm, continuous in itertools.product(
        KINDS, PRESETS, (None, *ALGORITHMS), (False, True)
    ):
        once = configs.resolve(Given({"preset": preset, "algorithm": algorithm}), kind, continuous)
        assert configs.resolve(Given.of(once), kind, continuous) == once


PAPER = {
    "algorithm": "impala", "batch_size": 32, "unroll_length": 20, "updates_per_batch": 1,
    "discounting": 0.99, "trace_lambda": 1.0, "entropy_cost": 0.01, "entropy_cost_end": 0.01,
    "loss_reduction": "sum", "optimizer": "rmsprop", "decay": 0.99, "momentum": 0.0,
    "learning_rate_schedule": "linear", "learning_rate_end": 0.0, "gradients_clipping": 40.0,
    "observation_normalization": "none", "initialization": "default",
    "advantage_scaling": "none", "value_normalization": "none",
}  # fmt: skip


def test_the_preset_paper_is_table_g1_of_the_paper() -> None:
    """Results with it are compared with the paper's."""
    images = {"learning_rate": 6e-4, "epsilon": 0.01, "baseline_cost": 0.5}
    for kind in KINDS:
        expected = PAPER if kind == "vector" else {**PAPER, **images}
        flags = to_dict(configs.resolve(Given({"preset": "paper"}), kind))
        assert {name: flags[name] for name in expected} == expected, kind


SPEC = EnvironmentSpec(
    "Level-v0", "vector", ObservationSpec("vector", (3,)), ActionSpec("discrete", (4,)), 0, 1, ""
)
ROBOT = SPEC._replace(actions=ActionSpec("continuous", (2,)))


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("vector --algorithm=dqn --agent_name=MLPLSTMAgent", "--core=feedforward"),
        ("vector --algorithm=dqn --synchronization=trajectory", "--synchronization=trajectory"),
        ("vector --algorithm=dqn --inference=learner", "--inference=learner"),
        ("vector --heads=dueling", "--heads=dueling"),
        ("vector --algorithm=dqn --replay_capacity=100", "--replay_capacity=100"),
        ("robots --algorithm=dqn", "--algorithm=dqn: .*continuous"),
        ("vector --width_scale=2", "--width_scale=2: .* not MLPAgent; leave it out"),
        # It would be left out without a word, and Q-values could diverge.
        ("vector --algorithm=pqn --agent_name=my_module:MyTorso", "--layer_norm: .*my_module"),
        # Empty minibatches have a gradient of NaN; a batch that is too large is never full.
        ("atari --algorithm=ppo --num_actors=1 --envs_per_actor=4 --minibatches=8",
         "--minibatches=8: .* 4 "),
        ("atari --algorithm=ppo --num_actors=2 --envs_per_actor=8 --batch_size=17",
         "--batch_size=17: .* 16 "),
        ("vector --algorithm=pqn --agent_name=MLPLSTMAgent --heads=dueling", ""),
        ("vector --algorithm=pqn --agent_name=my_module:MyTorso --no_layer_norm", ""),
        ("atari --width_scale=2 --batch_size=1000", ""),
    ],
)  # fmt: skip
def test_what_cannot_be_learned_is_refused(typed: str, named: str) -> None:
    config, problems = resolved(typed), []
    for check in (
        lambda: configs.check_algorithm(config, ROBOT if typed.startswith("robots") else SPEC),
        lambda: configs.check_network(config),
        lambda: configs.check_batches(config),
    ):
        try:
            check()
        except ConfigError as error:
            problems += error.problems
    assert bool(problems) == bool(named)
    assert re.search(named, "".join(problems[:1])), problems


def test_the_source_of_every_value_is_known() -> None:
    """config.json tells them apart, so that a run can be understood later."""
    given = Given({"learning_rate": 0.5, "seed": 3, "num_actors": 7, "gradients_clipping": 1.5})
    found = configs.sources(configs.resolve(given, "atari"), "atari")
    assert found == {name: "given" if name in given else "default" for name in FLAGS}


COLUMNS = (
    "agent_name", "discounting", "learning_rate", "learning_rate_schedule", "epsilon", "batch_size",
    "unroll_length", "updates_per_batch", "minibatches", "reward_clipping", "value_normalization",
    "observation_normalization",
)  # fmt: skip
# Kind of level ("robots": vectors with continuous actions), algorithm, and the columns; two actors.
MEASURED = """
atari impala ShallowConvNetAgent 0.99 0.0005 linear 1e-05 16 32 2 1 abs_one none elementwise
atari appo ShallowConvNetAgent 0.99 0.00035 linear 1e-05 4 32 2 1 abs_one none elementwise
atari ppo ShallowConvNetAgent 0.99 0.0005 linear 1e-05 32 128 4 4 abs_one none elementwise
atari a3c ShallowConvNetAgent 0.99 0.0005 linear 1e-05 4 32 1 1 abs_one none none
atari dqn ShallowConvNetAgent 0.99 0.0003 constant 0.00015 4 64 2 1 abs_one none elementwise
atari pqn ShallowConvNetAgent 0.99 0.0005 linear 1e-05 32 32 2 8 abs_one none elementwise
procgen impala ResNetAgent 0.99 0.0005 linear 1e-05 16 32 2 1 none running elementwise
procgen appo ResNetAgent 0.99 0.00035 linear 1e-05 4 32 2 1 none running elementwise
procgen ppo ResNetAgent 0.99 0.0005 linear 1e-05 16 128 4 4 none running elementwise
procgen a3c ResNetAgent 0.99 0.001 linear 1e-05 4 32 1 1 abs_one none none
procgen dqn ResNetAgent 0.99 0.0003 constant 0.00015 4 64 2 1 abs_one none elementwise
procgen pqn ResNetAgent 0.99 0.0005 linear 1e-05 16 32 2 4 abs_one none elementwise
image appo ShallowConvNetAgent 0.99 0.00035 linear 1e-05 4 32 2 1 none running elementwise
vector impala MLPAgent 0.99 0.0025 linear 1e-05 16 20 2 1 none running elementwise
vector appo MLPAgent 0.99 0.0025 kl 1e-05 16 20 2 1 none running elementwise
vector ppo MLPAgent 0.99 0.0025 linear 1e-05 64 128 4 4 none running elementwise
vector a3c MLPAgent 0.99 0.003 linear 1e-05 8 20 1 1 none none none
vector dqn MLPAgent 0.99 0.0025 linear 0.00015 4 64 2 1 none running elementwise
vector pqn MLPAgent 0.99 0.001 linear 1e-05 16 32 2 4 none running elementwise
robots impala SeparateMLPAgent 0.993 0.0007 linear 1e-05 4 64 2 1 none running elementwise
robots appo SeparateMLPAgent 0.993 0.0007 linear 1e-05 8 64 8 1 none running elementwise
robots ppo SeparateMLPAgent 0.99 0.0003 linear 1e-05 16 128 10 8 none running elementwise
robots a3c MLPAgent 0.99 0.003 linear 1e-05 8 20 1 1 none none none
"""


def test_the_tuned_defaults_are_those_that_were_measured() -> None:
    """Who changes one by mistake makes every default run learn worse, and no other test sees it."""
    for row in MEASURED.strip().splitlines():
        level, algorithm, *expected = row.split()
        kind: Any = "vector" if level == "robots" else level
        flags = Given({"algorithm": algorithm, "num_actors": 2})
        found = to_dict(configs.resolve(flags, kind, level == "robots"))
        assert [str(found[name]) for name in COLUMNS] == expected, row


@pytest.mark.parametrize(
    ("flags", "threads"),
    [
        ("", 4),
        ("--agent_name=NatureAgent", 8),
        ("--inference=learner", 8),
        ("--learner_hosts=10.0.0.1:8001", 8),
        ("--learner_hosts=h:1,[::1]:1 --task=1", 4),
        ("--algorithm=ppo", 8),
        ("--num_actors=2", 8),
    ],
)
def test_a_learner_leaves_cores_to_the_actors_beside_it_if_that_is_faster(
    monkeypatch: pytest.MonkeyPatch, flags: str, threads: int
) -> None:
    """Its threads would wait for each other while actors have the cores; see docs/speed.md."""
    pretend(monkeypatch, 8)
    config = resolved(f"atari --job_name=learner {LOCAL} {flags}")
    assert configs.learner_threads(config) == threads
