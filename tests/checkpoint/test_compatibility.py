"""The names and the order of variables in checkpoints, which belong to their format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.checkpoint.checkpointer import Checkpointer
from impala_tf.types import EnvironmentSpec
from tests.helpers.agents import make_agent
from tests.helpers.samples import image_spec
from tests.helpers.states import state

SHALLOW = [
    "_heads/_baseline/b", "_heads/_baseline/w", "_heads/_policy/b", "_heads/_policy/w",
    "_torso/_convs/0/b", "_torso/_convs/0/w", "_torso/_convs/1/b", "_torso/_convs/1/w",
    "_torso/_linear/b", "_torso/_linear/w",
    "observation_normalizer/inverse_std", "observation_normalizer/mean",
]  # fmt: skip
RESNET_LSTM = [
    "_core/_lstm/_w_h", "_core/_lstm/_w_i", "_core/_lstm/b",
    "_heads/_baseline/b", "_heads/_baseline/w", "_heads/_policy/b", "_heads/_policy/w",
    "_torso/_linear/b", "_torso/_linear/w",
    *(f"_torso/_sections/{section}/{part}/{name}"
      for section in range(3)
      for part in ("0", *(f"1/{block}/_convs/{conv}" for block in range(2) for conv in range(2)))
      for name in "bw"),
]  # fmt: skip


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
        **{n: tree(child) if isinstance(child, dict) else child for n, child in children.items()}
    )


@pytest.mark.parametrize(
    ("agent_name", "spec", "normalization", "names"),
    [
        ("ShallowConvNetAgent", image_spec((84, 84, 4), stacked_frames=4), "elementwise", SHALLOW),
        ("ResNetLSTMAgent", image_spec((16, 16, 3)), "none", RESNET_LSTM),
    ],
)
def test_an_agent_reads_the_checkpoints_of_its_format(
    tmp_path: Path, agent_name: str, spec: EnvironmentSpec, normalization: str, names: list[str]
) -> None:
    """A renamed attribute would make runs of weeks unreadable. The order is that of the slots."""
    agent = make_agent(agent_name, spec, observation_normalization=normalization)
    saved = {
        name: np.full(variable.shape, number, np.float32)
        for number, (name, variable) in enumerate(zip(names, agent.variables, strict=True))
    }
    Checkpointer(tmp_path, {"agent": tree(saved)}).save(state(1), 1)
    assert Checkpointer(tmp_path, {"agent": agent}).restore() == state(1)
    for variable, expected in zip(agent.variables, saved.values(), strict=True):
        np.testing.assert_array_equal(variable, expected)
