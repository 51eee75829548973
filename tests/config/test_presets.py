"""What presets, level and algorithm decide where a flag is not given."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from impala_tf import config as configs
from impala_tf.config import (
    AGENTS,
    ALGORITHMS,
    PRESETS,
    ConfigError,
    Given,
    command_line,
    to_dict,
)
from impala_tf.types import ActionSpec, EnvironmentSpec, Kind, ObservationSpec
from tests.helpers.flags import DEFAULTS

KINDS: list[Kind] = ["atari", "procgen", "image", "vector"]


def changed(**flags: Any) -> Given:
    return Given(flags)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preset", PRESETS)
def test_preset_and_level_decide_the_flags_that_were_not_given(preset: str, kind: Kind) -> None:
    """A flag that is still None would crash where it is first used."""
    before = changed(level_name="ALE/Pong-v5", envs_per_actor=70, preset=preset, num_actors=2)
    resolved = to_dict(configs.resolve(before, kind))
    expected = configs.presets.values(preset, kind, None, actors=2)
    expected["schedule_frames"] = (
        expected["schedule_frames"] or expected["total_environment_frames"]
    )
    for name, value in expected.items():
        assert resolved[name] == (70 if name == "envs_per_actor" else value)
        assert DEFAULTS[name] is None
    alone = configs.resolve(before.replace(num_actors=None), kind)
    assert alone.process.num_actors == configs.cores_here()
    agent_name, algorithm = resolved["agent_name"], resolved["algorithm"]
    assert resolved["logdir"] == f"runs/ALE-Pong-v5-{agent_name}-{algorithm}-1"
    unresolved = {name for name, value in resolved.items() if value is None}
    paths = {"credentials", "workers_csv_path"}
    of_machines = {"min_actors", "min_learners", "max_hours", "idle_exit_minutes", "end_command"}
    of_runs = {"config", "stop_at_return", "video_every", "eval_every"}
    of_nodes = {
        "num_learners",
        "actors_per_node",
    }
    assert unresolved == {*paths, *of_machines, *of_runs, *of_nodes, "to"}


def test_given_flags_are_kept() -> None:
    """Whatever the preset: all flags, with the values that they have in others, or 0."""
    others = [flags for kinds in PRESETS.values() for flags in kinds.values()]
    zeros = {name: 0.0 for name, value in others[0].items() if isinstance(value, float)}
    for flags, preset, kind in itertools.product((*others, zeros), PRESETS, KINDS):
        given = {"core": "feedforward", **flags, "schedule_frames": 45}
        resolved = to_dict(configs.resolve(changed(**given, preset=preset), kind))
        assert {name: resolved[name] for name in given} == given


@pytest.mark.parametrize("name", list(AGENTS))
def test_an_agent_has_its_own_core_unless_another_one_is_given(name: str) -> None:
    """A given core that is the agent's own is the same network: checkpoints and actors fit."""
    own = AGENTS[name].core
    for given, expected in ((None, own), ("lstm", "lstm"), ("feedforward", "feedforward")):
        assert configs.resolve(changed(agent_name=name, core=given), "atari").agent.core == expected
    assert configs.resolve(changed(agent_name=name, core=own), "atari") == configs.resolve(
        changed(agent_name=name), "atari"
    )


def test_scaling_a_network_without_convolutions_is_refused() -> None:
    """It would be the same network, compared with itself."""
    configs.check_network(configs.resolve(changed(width_scale=2), "atari"))
    configs.check_network(configs.resolve(changed(), "vector"))
    with pytest.raises(ConfigError, match="^--width_scale=2: .* not MLPAgent; leave it out"):
        configs.check_network(configs.resolve(changed(width_scale=2), "vector"))


def test_layer_norm_is_pqns_default_and_cannot_change_an_own_torso() -> None:
    """It would be left out without a word, and Q-values could diverge."""
    for name in ALGORITHMS:
        assert configs.resolve(changed(algorithm=name), "atari").agent.layer_norm is (name == "pqn")
    own = changed(algorithm="pqn", agent_name="my_module:MyTorso")
    with pytest.raises(ConfigError, match="^--layer_norm: .* my_module:MyTorso; give --no_lay"):
        configs.check_network(configs.resolve(own, "atari"))
    configs.check_network(configs.resolve(own.replace(layer_norm=False), "atari"))


def test_resolving_twice_changes_nothing() -> None:
    """Every process of a run resolves its flags again."""
    for kind, preset, algorithm, continuous in itertools.product(
        KINDS, PRESETS, (None, *ALGORITHMS), (False, True)
    ):
        once = configs.resolve(changed(preset=preset, algorithm=algorithm), kind, continuous)
        assert configs.resolve(Given.of(once), kind, continuous) == once


@pytest.mark.parametrize("kind", KINDS)
def test_the_preset_paper_is_table_g1_of_the_paper(kind: Kind) -> None:
    """Results with it are compared with the paper's."""
    flags = to_dict(configs.resolve(changed(preset="paper"), kind))
    common = {
        "algorithm": "impala",
        "batch_size": 32,
        "unroll_length": 20,
        "updates_per_batch": 1,
        "discounting": 0.99,
        "trace_lambda": 1.0,
        "entropy_cost": 0.01,
        "entropy_cost_end": 0.01,
        "loss_reduction": "sum",
        "optimizer": "rmsprop",
        "decay": 0.99,
        "momentum": 0.0,
        "learning_rate_schedule": "linear",
        "learning_rate_end": 0.0,
        "gradients_clipping": 40.0,
        "observation_normalization": "none",
        "initialization": "default",
        "advantage_scaling": "none",
        "value_normalization": "none",
    }
    images = {"learning_rate": 6e-4, "epsilon": 0.01, "baseline_cost": 0.5}
    vectors = {"learning_rate": 3e-3, "epsilon": 1e-5, "baseline_cost": 0.05}
    expected = {**common, **(vectors if kind == "vector" else images)}
    assert {name: flags[name] for name in expected} == expected


def test_schedules_end_at_the_presets_share_of_a_given_start() -> None:
    """A small learning rate must not rise to the preset's end."""
    usual = to_dict(configs.resolve(Given(), "atari"))
    given = changed(learning_rate=usual["learning_rate"] / 100, entropy_cost=0.5)
    flags = to_dict(configs.resolve(given, "atari"))
    for end, start in (
        ("learning_rate_end", "learning_rate"),
        ("entropy_cost_end", "entropy_cost"),
    ):
        assert flags[end] / flags[start] == pytest.approx(usual[end] / usual[start])


def test_impala_has_a_robots_network_but_not_in_the_papers_preset() -> None:
    given = changed(preset="paper")
    paper = configs.resolve(given, "vector", continuous=True)
    assert configs.resolve(given.replace(algorithm="impala"), "vector", True) == paper
    assert paper.agent.observation_normalization == "elementwise"
    assert configs.resolve(given, "vector").agent.observation_normalization == "none"


def test_ppo_has_its_own_defaults_and_a_batch_of_every_environment() -> None:
    """Its actors wait for each other: a larger batch would never be complete."""
    given = changed(algorithm="ppo", num_actors=3, envs_per_actor=8)
    config = configs.resolve(given, "atari")
    assert config.optimizer.batch_size == 24
    assert (config.optimizer.updates_per_batch, config.optimizer.minibatches) == (4, 6)
    cluster = given.replace(actor_hosts="a,b,c,d", learner_hosts="x:1,y:1")
    assert configs.resolve(cluster, "atari").optimizer.batch_size == 2 * 8


@pytest.mark.parametrize(
    ("kind", "continuous", "steps"),
    [("vector", False, 2048), ("vector", True, 256), ("atari", False, 1024)],
)
def test_ppos_minibatches_stay_as_large_as_they_were_measured(
    kind: Kind, continuous: bool, steps: int
) -> None:
    """With 4 parts of the batch of 64 cores, CartPole would have 92 gradient steps in all."""
    for actors in (1, 2, 3, 16, 64):
        config = configs.resolve(changed(algorithm="ppo", num_actors=actors), kind, continuous)
        configs.check_batches(config)
        optimizer = config.optimizer
        batch = optimizer.batch_size * optimizer.unroll_length
        measured = configs.resolve(changed(algorithm="ppo", num_actors=2), kind, continuous)
        assert batch / optimizer.minibatches == (steps if actors > 1 else steps / 2)
        assert actors > 2 or optimizer.minibatches == measured.optimizer.minibatches
    launched = changed(algorithm="ppo", batch_size=config.optimizer.batch_size, num_actors=64)
    assert configs.resolve(launched, kind, continuous).optimizer == config.optimizer


def test_minibatches_are_as_given_and_never_empty() -> None:
    def parts(**flags: Any) -> int:
        config = configs.resolve(changed(num_actors=64, **flags), "vector")
        configs.check_batches(config)
        return int(config.optimizer.minibatches)

    assert parts(algorithm="ppo", minibatches=4) == 4
    assert parts(algorithm="ppo", envs_per_actor=1) == 64
    assert parts(algorithm="pqn") == 4  # its actors do not wait
    assert parts(algorithm="pqn", synchronization="trajectory") == 128


SPEC = EnvironmentSpec(
    "Level-v0", "vector", ObservationSpec("vector", (3,)), ActionSpec("discrete", (4,)), 0, 1, ""
)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("algorithm=dqn agent_name=MLPLSTMAgent", "--core=feedforward"),
        ("algorithm=dqn synchronization=trajectory", "--synchronization=trajectory"),
        ("algorithm=dqn inference=learner", "--inference=learner"),
        ("algorithm=a3c inference=learner", "--inference=learner"),
        ("algorithm=a3c synchronization=trajectory", "--synchronization=trajectory"),
        ("algorithm=dqn heads=policy", "--heads=policy"),
        ("algorithm=pqn inference=learner", "--inference=learner"),
        ("algorithm=pqn learning_rate_schedule=kl", "--learning_rate_schedule=kl"),
        ("heads=dueling", "--heads=dueling"),
        ("algorithm=dqn target_update_interval=0", "--target_update_interval=0"),
        ("algorithm=dqn replay_capacity=100", "--replay_capacity=100"),
        ("algorithm=dqn replay_start_steps=300000", "--replay_start_steps=300000"),
    ],
)
def test_what_an_algorithm_cannot_learn_is_refused(flags: str, named: str) -> None:
    given = command_line.parse([f"--{flag}" for flag in flags.split()])
    with pytest.raises(ConfigError, match=named):
        configs.check_algorithm(configs.resolve(given, "vector"), SPEC)


def test_q_values_are_of_discrete_actions() -> None:
    robots = SPEC._replace(actions=ActionSpec("continuous", (2,)))
    for algorithm in ("dqn", "pqn"):
        with pytest.raises(ConfigError, match=f"--algorithm={algorithm}: .*continuous"):
            configs.check_algorithm(configs.resolve(changed(algorithm=algorithm), "vector"), robots)
    for each in (
        changed(),
        changed(algorithm="dqn"),
        changed(algorithm="dqn", heads="dueling"),
        changed(algorithm="pqn", agent_name="MLPLSTMAgent", heads="dueling"),
    ):
        configs.check_algorithm(configs.resolve(each, "vector"), SPEC)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"num_actors": 1, "envs_per_actor": 4, "minibatches": 8}, "--minibatches=8: .* 4 "),
        ({"num_actors": 2, "envs_per_actor": 8, "batch_size": 17}, "--batch_size=17: .* 16 "),
    ],
)
def test_a_batch_that_ppo_cannot_fill_or_split_is_refused(
    flags: dict[str, Any], named: str
) -> None:
    """Empty minibatches have a gradient of NaN; a batch that is too large is never full."""
    with pytest.raises(ConfigError, match=named):
        configs.check_batches(configs.resolve(changed(algorithm="ppo", **flags), "atari"))
    for fine in (changed(algorithm="ppo"), changed(batch_size=1000)):
        configs.check_batches(configs.resolve(fine, "atari"))


def test_the_source_of_every_value_is_known() -> None:
    """config.json tells them apart, so that a run can be understood later."""
    given = changed(learning_rate=0.5, seed=3, num_actors=7, gradients_clipping=1.5)
    found = configs.sources(configs.resolve(given, "atari"), "atari")
    expected = {
        "learning_rate": "given",
        "gradients_clipping": "given",
        "seed": "given",
        "num_actors": "given",
        "learning_rate_end": "derived",
        "logdir": "derived",
        "batch_size": "preset",
        "algorithm": "preset",
        "decay": "default",
        "credentials": "default",
    }
    assert {name: found[name] for name in expected} == expected
    assert set(found) == set(DEFAULTS)
