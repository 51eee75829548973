"""--start_from: a new run begins with what another run has learned, as far as that fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.agents.agent import agent_of
from impala_tf.checkpoint import files
from impala_tf.checkpoint.checkpointer import Checkpointer
from impala_tf.checkpoint.compatibility import signature_of
from impala_tf.config import Config, ConfigError
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.moments import Moments
from impala_tf.learner.update import Learner
from impala_tf.logdir import Logdir
from impala_tf.processes import warm_start
from impala_tf.types import ActionSpec, EnvironmentSpec, NetworkOutput
from tests.helpers.samples import image_spec, resolved_config, steps, vector_spec
from tests.helpers.states import state

SPEC = vector_spec()
FRAMES = 1234
PLAIN = {
    "agent_name": "MLPAgent",
    "initialization": "orthogonal",
    "observation_normalization": "none",
}


class Run:
    """A learner with its config; two with equal flags differ in their initial weights."""

    def __init__(self, spec: EnvironmentSpec = SPEC, **flags: Any) -> None:
        self.spec = spec
        self.config: Config = resolved_config(**{**PLAIN, **flags})
        self.agent = agent_of(self.config.agent, spec)
        self.learner = Learner(self.agent, spec, self.config, LearnerGroup())

    @property
    def signature(self) -> dict[str, Any]:
        return signature_of(self.config, self.spec)

    def save(self, folder: Path) -> Path:
        counters = {**self.learner.counters(), "environment_frames": FRAMES}
        saved = state(identity=self.signature, counters=counters)
        return Checkpointer(folder, self.learner.trackables()).save(saved, 7)

    def start_from(self, checkpoint: Path) -> list[str]:
        logdir = Logdir(Path("/new/run"))
        source = warm_start.find_fitting(str(checkpoint), self.signature, logdir)
        assert source.state["counters"]["environment_frames"] == FRAMES
        return warm_start.take(self.learner, source, self.signature)

    def outputs(self) -> NetworkOutput:
        observed = steps(self.spec, (5,))
        return self.agent.step(observed, self.agent.initial_state(5))[0]

    def weights(self) -> dict[str, list[np.ndarray]]:
        """Returns the values of each part's variables."""
        found: dict[str, list[np.ndarray]] = {}
        for name, modules in self.agent.parts().items():
            part = tf.Module()
            part.modules = modules
            found[name] = [variable.numpy() for variable in part.trainable_variables]
        return found


def assert_equal_outputs(one: Run, other: Run) -> None:
    for mine, theirs in zip(one.outputs(), other.outputs(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def observe(run: Run, mean: float, count: float) -> None:
    """Gives a run statistics of `count` observations with a deviation of 2."""
    shape = run.agent.observation_normalizer.mean.shape
    moments = Moments(
        tf.constant([count]), tf.fill((1, *shape), mean), tf.fill((1, *shape), 4.0 * count)
    )
    run.learner.trackables()["observation_statistics"].parts["observation"].add(moments)


@pytest.mark.parametrize(
    ("spec", "flags"),
    [
        (SPEC, {}),
        (SPEC, {"agent_name": "MLPLSTMAgent"}),
        (SPEC, {"agent_name": "SeparateMLPAgent"}),
        (SPEC, {"algorithm": "dqn", "heads": "dueling"}),
        (SPEC._replace(actions=ActionSpec("continuous", (2,))), {}),
        (image_spec((20, 24, 3)), {"agent_name": "ImpoolaAgent", "width_scale": 2}),
    ],
)
def test_a_new_run_acts_and_values_as_the_other_run(spec, flags, tmp_path):
    old, new = Run(spec, **flags), Run(spec, **flags)
    assert not np.allclose(old.outputs().policy_logits, new.outputs().policy_logits)
    assert new.start_from(old.save(tmp_path))
    assert_equal_outputs(old, new)
    assert new.learner.learner_updates == new.learner.environment_frames == 0
    if (target := new.learner.trackables().get("target_agent")) is not None:
        for mine, theirs in zip(new.agent.variables, target.variables, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("flags", "spec", "taken"),
    [
        ({}, vector_spec(num_actions=5), "torso baseline"),
        ({}, SPEC._replace(tasks=("One-v0", "Two-v0")), "torso policy"),
        ({"core": "lstm"}, SPEC, "torso"),
        ({"algorithm": "dqn", "heads": "q_values"}, SPEC, "torso"),
        ({"agent_name": "SeparateMLPAgent"}, SPEC, "torso"),
        ({"algorithm": "ppo", "optimizer": "adam"}, SPEC, "torso policy baseline"),
    ],
)
def test_what_does_not_fit_stays_new(flags, spec, taken, tmp_path):
    old, new = Run(), Run(spec, **flags)
    before = new.weights()
    found = new.start_from(old.save(tmp_path))
    assert found == taken.split()
    for part, weights in new.weights().items():
        wanted = old.weights() if part in found else before
        for mine, theirs in zip(weights, wanted[part], strict=True):
            np.testing.assert_array_equal(mine, theirs, part)


@pytest.mark.parametrize("normalizes", ["none", "running"])
def test_values_keep_their_size_whatever_unit_the_other_run_had(normalizes, tmp_path):
    old, new = Run(value_normalization="running"), Run(value_normalization=normalizes)
    for variable in old.learner.trackables()["value_moments"].variables:
        name = variable.name.partition("/")[2].removesuffix(":0")
        variable.assign({"weight": 1.0, "mean": 30.0, "variance": 40.0}[name])
    old.learner.synchronize()  # sets the unit of values
    (bias,) = (v for v in old.agent.trainable_variables if v.name.endswith("baseline/b:0"))
    bias.assign([2.0])
    assert float(np.mean(old.outputs().baseline)) > 20
    new.start_from(old.save(tmp_path))
    assert_equal_outputs(old, new)
    new.learner.synchronize()  # as every learner does before it begins
    assert_equal_outputs(old, new)


def test_statistics_of_observations_come_along_but_soon_follow_a_new_level(tmp_path):
    old, new = (Run(observation_normalization="elementwise") for _ in range(2))
    observe(old, 100.0, 10_000_000.0)
    new.start_from(old.save(tmp_path))
    assert_equal_outputs(old, new)
    observe(new, 200.0, 50_000.0)
    np.testing.assert_allclose(new.agent.observation_normalizer.mean, 150.0, rtol=1e-3)


def test_another_torso_is_refused_with_the_flags_that_would_fit(tmp_path):
    images = image_spec((84, 84, 4), stacked_frames=4)
    checkpoint = Run(images, agent_name="ShallowConvNetAgent", width_scale=2).save(tmp_path)
    other = image_spec((42, 42, 4), stacked_frames=4)
    with pytest.raises(ConfigError) as caught:
        Run(other, agent_name="NatureAgent", layer_norm=True).start_from(checkpoint)
    named = (
        "--width_scale=2",
        "--no_layer_norm",
        "--agent_name=ShallowConvNetAgent",
        "[84, 84, 4]",
    )
    for line, name in zip(caught.value.problems, named, strict=True):
        assert line.startswith(f"--start_from={checkpoint}: ") and name in line


SIGNATURE = signature_of(resolved_config(**PLAIN), SPEC)


def write(folder: Path, updates: int, identity: Any = SIGNATURE, **others: Any) -> Path:
    checkpoint = folder / files.folder_name(updates)
    checkpoint.mkdir(parents=True)
    files.write_state(checkpoint, state(updates, identity=identity, **others))
    return checkpoint


def test_a_run_means_its_newest_checkpoint_and_other_paths_mean_what_they_name(tmp_path):
    run = tmp_path / "run"
    older, newest = (write(run / "checkpoints", updates) for updates in (3, 5))
    best = write(run / "best", 4)
    found = {
        path: warm_start.find(str(path)).path
        for path in (run, run / "checkpoints", run / "best", older)
    }
    assert found == {
        run: newest, run / "checkpoints": newest, run / "best": best, older: older
    }  # fmt: skip
    assert warm_start.find(str(older)).state["counters"]["environment_frames"] == 30


def test_what_holds_no_whole_checkpoint_is_refused_in_one_line(tmp_path):
    older, newest = (write(tmp_path / "checkpoints", updates) for updates in (3, 5))
    (newest / "state.json").write_text("{")
    assert warm_start.find(str(tmp_path)).path == older
    for path in (newest, tmp_path / "missing", tmp_path / "checkpoints" / older / "x"):
        with pytest.raises(ConfigError) as caught:
            warm_start.find(str(path))
        (problem,) = caught.value.problems
        assert problem.startswith(f"--start_from={path}: ")


@pytest.mark.parametrize(
    "state",
    [
        {"identity": [1]},
        {"identity": SIGNATURE | {"agent_name": ["MLPAgent"]}},
        {"identity": SIGNATURE | {"level_name": "\x1b[2J"}},
    ],
    ids=str,
)
def test_a_state_that_is_no_runs_is_damage(state, tmp_path):
    """It may be a stranger's, written on purpose, and whole."""
    older, newest = write(tmp_path, 3), write(tmp_path, 5, **state)
    assert warm_start.find(str(tmp_path)).path == older
    with pytest.raises(ConfigError, match=r"state\.json"):
        warm_start.find_fitting(str(newest), SIGNATURE, Logdir(Path("/new/run")))


@pytest.mark.parametrize("part", ["", "best", "checkpoints/ckpt-000000000003"])
def test_a_run_cannot_start_from_itself(part, tmp_path):
    path = tmp_path / part
    with pytest.raises(ConfigError, match=r"is the run in --logdir=.* itself; leave --start_from"):
        warm_start.find_fitting(str(path), {}, Logdir(tmp_path))
