"""Checkpoints of earlier versions: their names and order of variables, which are never changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from impala_tf.agents.agent import agent_of
from impala_tf.agents.normalization import ObservationNormalizer
from impala_tf.checkpoint.checkpointer import Checkpointer
from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.policy import ValueNormalizer, value_moments
from impala_tf.learner.statistics import Moments, PartStatistics
from impala_tf.learner.update import Learner
from impala_tf.types import EnvironmentSpec
from tests.helpers.agents import make_agent
from tests.helpers.samples import image_spec, resolved_config, vector_spec

# Variables as commit 9e2dd4a wrote them. The order is that of the optimizer's slots, which are
# numbered. All levels have 4 actions.
Layout = list[tuple[str, tuple[int, ...]]]


def layer(path: str, *weights: int) -> Layout:
    """Returns a layer's biases and weights."""
    return [(f"{path}/b", weights[-1:]), (f"{path}/w", weights)]


def heads(features: int) -> Layout:
    return [*layer("_heads/_baseline", features, 1), *layer("_heads/_policy", features, 4)]


def lstm(features: int) -> Layout:
    names = (("_w_h", (256, 1024)), ("_w_i", (features, 1024)))
    return [*((f"_core/_lstm/{name}", shape) for name, shape in names), ("_core/_lstm/b", (1024,))]


def sections() -> Iterator[tuple[str, tuple[int, ...]]]:
    before = 3
    for number, channels in enumerate((16, 32, 32)):
        path = f"_torso/_sections/{number}"
        yield from layer(f"{path}/0", 3, 3, before, channels)
        for block, conv in np.ndindex(2, 2):
            yield from layer(f"{path}/1/{block}/_convs/{conv}", 3, 3, channels, channels)
        before = channels


def normalizer(*shape: int) -> Layout:
    return [(f"observation_normalizer/{name}", shape) for name in ("inverse_std", "mean")]


SHALLOW = [
    *heads(256),
    *layer("_torso/_convs/0", 8, 8, 4, 16),
    *layer("_torso/_convs/1", 4, 4, 16, 32),
    *layer("_torso/_linear", 9 * 9 * 32, 256),
    *normalizer(84, 84, 4),
]
# 16x16 images have 2x2 positions after three poolings.
RESNET_LSTM = [
    *lstm(256 + 4 + 1),
    *heads(256),
    *layer("_torso/_linear", 2 * 2 * 32, 256),
    *sections(),
]
IMPOOLA = [*heads(256), *layer("_torso/_linear", 32, 256), *sections()]
MLP_LSTM = [
    *lstm(64 + 4 + 1),
    *heads(256),
    *layer("_torso/_mlp/_layers/0", 3, 64),
    *layer("_torso/_mlp/_layers/1", 64, 64),
]


def tree(values: dict[str, Any]) -> tf.train.Checkpoint:
    """Returns an object whose checkpoint has these variables at these paths."""
    children: dict[str, Any] = {}
    for path, value in values.items():
        name, _, rest = path.partition("/")
        if rest:
            children.setdefault(name, {})[rest] = value
        else:
            children[name] = tf.Variable(value)
    return tf.train.Checkpoint(
        **{
            name: tree(child) if isinstance(child, dict) else child
            for name, child in children.items()
        }
    )


@pytest.mark.parametrize(
    ("agent_name", "spec", "normalization", "layout"),
    [
        ("ShallowConvNetAgent", image_spec((84, 84, 4), stacked_frames=4), "elementwise", SHALLOW),
        ("ResNetLSTMAgent", image_spec((16, 16, 3)), "none", RESNET_LSTM),
        ("ImpoolaAgent", image_spec((16, 16, 3)), "none", IMPOOLA),
        ("MLPLSTMAgent", vector_spec(), "none", MLP_LSTM),
    ],
)
def test_an_agent_still_reads_the_checkpoints_of_earlier_versions(
    tmp_path: Path, agent_name: str, spec: EnvironmentSpec, normalization: str, layout: Layout
) -> None:
    """A renamed attribute would make runs of weeks unreadable."""
    saved = {
        path: np.full(shape, number, np.float32) for number, (path, shape) in enumerate(layout)
    }
    Checkpointer(tmp_path, {"agent": tree(saved)}).save({"learner_updates": 1}, 1)

    agent = make_agent(agent_name, spec, observation_normalization=normalization)
    assert Checkpointer(tmp_path, {"agent": agent}).restore() == {"learner_updates": 1}

    for variable, expected in zip(agent.variables, saved.values(), strict=True):
        np.testing.assert_array_equal(variable, expected)


class OldPartStatistics(snt.Module):
    """Sums over observations, as checkpoints before `statistics.FORMAT` 2 held them."""

    def __init__(self, normalizer: ObservationNormalizer, seen: np.ndarray) -> None:
        super().__init__()
        self._normalizer = normalizer
        self._count = tf.Variable(float(len(seen)))
        self._sums = tf.Variable(seen.sum(0))
        self._squares = tf.Variable(np.square(seen).sum(0))


class OldRunningMoments(snt.Module):
    """Weighted means, as checkpoints before `statistics.FORMAT` 2 held them."""

    def __init__(self, weight: float, mean: float, square: float) -> None:
        super().__init__()
        self._weight, self._mean, self._square = map(tf.Variable, (weight, mean, square))


def test_a_run_with_statistics_of_an_earlier_version_resumes(tmp_path: Path) -> None:
    settings = resolved_config(
        observation_normalization="elementwise", advantage_scaling="rms", optimizer="adam"
    )
    spec = vector_spec()
    made = [Learner(agent_of(settings.agent, spec), spec, settings, LearnerGroup()) for _ in "12"]
    first, second = made
    normalizer = first.agent.observation_normalizer
    seen = np.random.default_rng(0).normal(3, 2, size=(100, 3)).astype(np.float32)
    old = {
        **first.trackables(),
        "observation_statistics": OldPartStatistics(normalizer, seen),
        "advantage_moments": OldRunningMoments(0.5, 0.0, 0.5 * 9.0),
    }
    counters = first.counters()
    del counters["statistics_format"]
    Checkpointer(tmp_path, old).save(counters, 0)

    state = Checkpointer(tmp_path, second.trackables()).restore()
    assert state is not None
    second.restore_counters(state)
    statistics = second.trackables()["observation_statistics"]
    assert isinstance(statistics, PartStatistics)
    more = np.array([[20.0, -20.0, 0.0]], np.float32)
    (moments,) = statistics.moments(tf.constant(more[None]))
    statistics.add([Moments(*(part[None] for part in moments))])
    everything = np.concatenate([seen, more])
    normalizer = second.agent.observation_normalizer
    np.testing.assert_allclose(normalizer.mean, everything.mean(0), rtol=1e-4)
    np.testing.assert_allclose(normalizer.inverse_std, 1 / everything.std(0), rtol=1e-3)
    assert float(second.trackables()["advantage_moments"].rms) == pytest.approx(3.0)

    Checkpointer(tmp_path, second.trackables()).save(second.counters(), 1)
    first.restore_counters(Checkpointer(tmp_path, first.trackables()).restore() or {})
    for mine, its in zip(first.parameters_and_slots(), second.parameters_and_slots(), strict=True):
        np.testing.assert_array_equal(mine, its)


def test_values_of_a_run_from_before_the_unit_was_at_least_a_tenth_stay_what_they_were(
    tmp_path: Path,
) -> None:
    settings = resolved_config(value_normalization="running")
    spec = vector_spec()
    first, second = (
        Learner(agent_of(settings.agent, spec), spec, settings, LearnerGroup()) for _ in "12"
    )
    moments = value_moments(first.agent)
    for variable, value in zip(moments.variables, (0.5, 4e-4, 1.0), strict=True):
        variable.assign(value)  # mean, variance, weight
    unit = first.agent.policy_heads.unit
    unit.assign(moments.mean, tf.constant(0.02))
    weights = next(v for v in first.agent.trainable_variables if "baseline/w" in v.name)
    features = tf.random.stateless_normal((8, weights.shape[0]), (1, 2))
    before = first.agent.policy_heads(features).baseline
    old = {**first.trackables(), "value_normalizer": ValueNormalizer(moments)}
    Checkpointer(tmp_path, old).save({**first.counters(), "statistics_format": 2}, 0)

    state = Checkpointer(tmp_path, second.trackables()).restore()
    second.restore_counters(state or {})
    resumed = second.agent.policy_heads
    assert resumed.unit.std.numpy() == pytest.approx(0.1)
    np.testing.assert_allclose(resumed(features).baseline, before, rtol=1e-4, atol=1e-5)
