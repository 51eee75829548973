"""What presets, level and algorithm decide where a flag is not given."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from impala_tf import config as configs
from impala_tf.config import AGENTS, ALGORITHMS, PRESETS, ConfigError, Given, to_dict
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
    assert resolved["queue_capacity"] == 70
    agent_name, algorithm = resolved["agent_name"], resolved["algorithm"]
    assert resolved["logdir"] == f"runs/ALE-Pong-v5-{agent_name}-{algorithm}-1"
    unresolved = {name for name, value in resolved.items() if value is None}
    paths = {"credentials", "heartbeat_path", "workers_csv_path"}
    of_machines = {"min_actors", "min_learners", "max_hours", "idle_exit_minutes", "end_command"}
    of_runs = {"config", "stop_at_return", "video_every", "eval_every"}
    of_nodes = {"num_learners", "actors_per_node", "learner_threads"}
    assert unresolved == {*paths, "report_folder", *of_machines, *of_runs, *of_nodes, "to"}


# Not in the presets: the level or other flags decide them.
DERIVED = {
    "core": "feedforward",
    "schedule_frames": 45,
    "num_action_repeats": 2,
    "num_actors": 9,
    "queue_capacity": 5,
    "micro_batches": 1,
    "logdir": "somewhere",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preset", PRESETS)
def test_given_flags_are_kept(preset: str, kind: Kind) -> None:
    """All flags of a preset, with the values that they have in others, or 0."""
    others = [flags for kinds in PRESETS.values() for flags in kinds.values()]
    zeros = {name: 0.0 for name, value in others[0].items() if isinstance(value, float)}
    fixed = {n: v for n, v in DEFAULTS.items() if v not in (None, "auto") and n != "preset"}
    for flags in (*others, zeros):
        given = {**flags, **DERIVED}
        resolved = to_dict(configs.resolve(changed(**given, preset=preset), kind))
        expected = {**fixed, **given}
        assert {name: resolved[name] for name in expected} == expected


@pytest.mark.parametrize("name", list(AGENTS))
def test_an_agent_has_its_own_core_unless_another_one_is_given(name: str) -> None:
    """A given core that is the agent's own is the same network: checkpoints and actors fit."""
    own = AGENTS[name].core
    for given, expected in ((None, own), ("lstm", "lstm"), ("feedforward", "feedforward")):
        assert configs.resolve(changed(agent_name=name, core=given), "atari").agent.core == expected
    assert configs.resolve(changed(agent_name=name, core=own), "atari") == configs.resolve(
        changed(agent_name=name), "atari"
    )


def test_a_core_does_not_change_what_an_agent_sees() -> None:
    """Two cores could not be compared if one of them also saw the last action and reward."""
    for name, usual in AGENTS.items():
        for core in ("feedforward", "lstm"):
            changed_core = usual.with_core(core)
            for field in ("torso", "observes_last_action_and_reward"):
                assert getattr(changed_core, field) == getattr(usual, field), name


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
        "vtrace_lambda": 1.0,
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


def test_all_presets_hold_the_same_flags() -> None:
    """Otherwise a flag would have no value with one of them."""
    names = {frozenset(flags) for kinds in PRESETS.values() for flags in kinds.values()}
    assert len(names) == 1


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


def test_an_entropy_bonus_stays_where_the_preset_has_none() -> None:
    robots = configs.resolve(changed(entropy_cost=0.01), "vector", continuous=True)
    assert robots.loss.entropy_cost_end == 0.01


def test_robots_take_many_steps_on_small_batches_unless_another_algorithm_is_asked_for() -> None:
    """V-trace without a clipped surrogate is not stable with eight uses of a batch."""
    tuned = configs.resolve(Given(), "vector", continuous=True)
    assert tuned.optimizer.updates_per_batch == 8
    for flags in ({"algorithm": "impala"}, {"preset": "paper"}):
        assert configs.resolve(changed(**flags), "vector", True).optimizer.updates_per_batch < 8
    assert configs.resolve(Given(), "image", continuous=True).optimizer.updates_per_batch < 8


def test_impala_has_a_robots_network_and_learning_rate_but_not_in_the_papers_preset() -> None:
    """With those of CartPole, a rate of 2.5e-3 among them, a robot does not learn to run."""
    given = changed(algorithm="impala")
    robots = configs.resolve(given, "vector", continuous=True)
    assert robots.agent.agent_name == "SeparateMLPAgent"
    assert robots.optimizer.learning_rate == 7e-4
    assert robots.optimizer.batch_size * robots.optimizer.unroll_length == 256
    assert configs.resolve(given, "vector").agent.agent_name == "MLPAgent"
    paper = configs.resolve(changed(preset="paper"), "vector", continuous=True)
    assert configs.resolve(given.replace(preset="paper"), "vector", continuous=True) == paper


def test_ppo_takes_many_steps_on_robots_too() -> None:
    """With those of CartPole, a rate of 2.5e-3 among them, a robot does not learn to run."""
    robots = configs.resolve(changed(algorithm="ppo", num_actors=2), "vector", continuous=True)
    assert (robots.optimizer.updates_per_batch, robots.optimizer.minibatches) == (10, 8)
    assert (robots.optimizer.learning_rate, robots.optimizer.batch_size) == (3e-4, 16)
    assert robots.agent.agent_name == "SeparateMLPAgent"
    cartpole = configs.resolve(changed(algorithm="ppo"), "vector")
    assert cartpole.agent.agent_name == "MLPAgent"


@pytest.mark.parametrize("algorithm", [None, *ALGORITHMS])
def test_who_learns_a_policy_sees_whole_rewards_where_their_size_is_unknown(
    algorithm: str | None,
) -> None:
    """Those of Procgen reach 10. Algorithms that were not tried with them clip them."""
    for kind in KINDS[:3]:
        loss = configs.resolve(changed(algorithm=algorithm), kind).loss
        found = loss.reward_clipping, loss.value_normalization
        whole = kind != "atari" and algorithm in (None, "appo", "impala", "ppo")
        assert found == (("none", "running") if whole else ("abs_one", "none"))


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


DISCRETE, CONTINUOUS = ActionSpec("discrete", (4,)), ActionSpec("continuous", (2,))


@pytest.mark.parametrize(
    ("flags", "actions", "problem"),
    [
        ({"algorithm": "dqn"}, CONTINUOUS, "--algorithm=dqn: .*Level-v0 has 2 continuous actions"),
        (
            {"algorithm": "dqn", "agent_name": "MLPLSTMAgent"},
            DISCRETE,
            "lstm of MLPLSTMAgent cannot learn from; add --core=feedforward",
        ),
        (
            {"algorithm": "dqn", "synchronization": "trajectory"},
            DISCRETE,
            "--synchronization=trajectory: dqn learns from old steps anyway",
        ),
        ({"algorithm": "dqn", "inference": "learner"}, DISCRETE, "--inference=learner: dqn's"),
        ({"algorithm": "a3c", "inference": "learner"}, DISCRETE, "--inference=learner: a3c's"),
        (
            {"algorithm": "a3c", "synchronization": "trajectory"},
            DISCRETE,
            "--synchronization=trajectory: a3c is asynchronous",
        ),
        ({"algorithm": "dqn", "heads": "policy"}, DISCRETE, "--heads=policy: dqn learns Q-values"),
        ({"algorithm": "pqn"}, CONTINUOUS, "--algorithm=pqn: .*Level-v0 has 2 continuous actions"),
        ({"algorithm": "pqn", "inference": "learner"}, DISCRETE, "--inference=learner: pqn's"),
        ({"algorithm": "pqn", "heads": "policy"}, DISCRETE, "--heads=policy: pqn learns Q-values"),
        (
            {"algorithm": "pqn", "learning_rate_schedule": "kl"},
            DISCRETE,
            "--learning_rate_schedule=kl: pqn has no policy",
        ),
        ({"heads": "dueling"}, DISCRETE, "--heads=dueling: appo learns a policy; leave the flag"),
        (
            {"algorithm": "dqn", "target_update_interval": 0},
            DISCRETE,
            "--target_update_interval=0: dqn needs a target network",
        ),
        (
            {"algorithm": "dqn", "replay_capacity": 100},
            DISCRETE,
            "--replay_capacity=100: a batch of 4 unrolls already has 256 agent steps",
        ),
        (
            {"algorithm": "dqn", "replay_start_steps": 300_000},
            DISCRETE,
            "--replay_start_steps=300000: the replay holds only 200000 agent steps",
        ),
    ],
)
def test_what_an_algorithm_cannot_learn_is_refused(
    flags: dict[str, Any], actions: ActionSpec, problem: str
) -> None:
    spec = EnvironmentSpec(
        "Level-v0", "vector", ObservationSpec("vector", (3,)), actions, 0, 1, "made up"
    )
    with pytest.raises(ConfigError, match=problem):
        configs.check_algorithm(configs.resolve(changed(**flags), "vector"), spec)
    fine = spec._replace(actions=DISCRETE)
    for each in (
        changed(),
        changed(algorithm="dqn"),
        changed(algorithm="dqn", heads="dueling"),
        changed(algorithm="pqn", agent_name="MLPLSTMAgent", heads="dueling"),
    ):
        configs.check_algorithm(configs.resolve(each, "vector"), fine)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (
            {"num_actors": 1, "envs_per_actor": 4, "minibatches": 8},
            "--minibatches=8: a batch has only 4 unrolls",
        ),
        (
            {"num_actors": 2, "envs_per_actor": 8, "batch_size": 17},
            "--batch_size=17: .* one unroll of each of their 16 environments",
        ),
    ],
)
def test_a_batch_that_ppo_cannot_fill_or_split_is_refused(
    flags: dict[str, Any], problem: str
) -> None:
    """Empty minibatches have a gradient of NaN; a batch that is too large is never full."""
    with pytest.raises(ConfigError, match=problem):
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
