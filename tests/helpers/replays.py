"""Small replays, and unrolls that name themselves by their parameter_version."""

from __future__ import annotations

from typing import Any

import numpy as np

from impala_tf.agents.agent import unroll_specs
from impala_tf.config import Config
from impala_tf.types import EnvironmentSpec, Unroll
from tests.helpers.agents import make_agent
from tests.helpers.samples import resolved_config
from tests.helpers.unrolls import random_unrolls

T, A = 5, 4


def config_of(**flags: Any) -> Config:
    usual = {
        "algorithm": "dqn", "agent_name": "MLPAgent", "unroll_length": T, "batch_size": 2,
        "replay_capacity": 4 * T, "n_step": 2, "reward_clipping": "none",
    }  # fmt: skip
    return resolved_config(**{**usual, **flags})


def specs_of(spec: EnvironmentSpec) -> Unroll:
    name = "MLPAgent" if spec.kind == "vector" else "ShallowConvNetAgent"
    return unroll_specs(make_agent(name, spec, heads="q_values"), spec, T)


def unrolls_of(spec: EnvironmentSpec, count: int, seed: int = 0) -> Unroll:
    found = random_unrolls(specs_of(spec), count, seed)
    versions = 100 * seed + np.arange(count)
    return found._replace(parameter_version=versions, td_errors=np.abs(found.td_errors))
