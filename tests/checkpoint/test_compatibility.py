"""The names and the order of variables in checkpoints, which belong to their format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.checkpoint.checkpointer import Checkpointer
from impala_tf.types import EnvironmentSpec
from tests.helpers.agents import make_agent
from tests.helpers.samples import image_spec

# The order is that of the optimizer's slots, which are
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
    ],
)
def test_an_agent_reads_the_checkpoints_of_its_format(
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
