"""The digest of the flags that learners and actors of a run must share, which they compare."""

from __future__ import annotations

import dataclasses
from typing import Any

from impala_tf import config as configs
from impala_tf.config import EnvironmentConfig, Given, to_dict
from tests.helpers.flags import DEFAULTS, TYPES

# The level and its protocol, the network, and the shape of an unroll.
WIRE_FLAGS = {
    "info_metrics",
    *(field.name for field in dataclasses.fields(EnvironmentConfig)),
    "agent_name",
    "width_scale",
    "core",
    "heads",
    "layer_norm",
    "observation_normalization",
    "algorithm",
    "unroll_length",
    "inference",
    "synchronization",
}
RESOLVED = configs.resolve(Given(), "atari")


def another(name: str) -> Any:
    """Returns a value that differs from the default."""
    if name == "algorithm":
        return "ppo"
    default = to_dict(RESOLVED)[name]
    if isinstance(default, tuple):
        return ("x",)
    if isinstance(default, bool):
        return not default
    if isinstance(default, str):
        return default + "x"
    if default is None:
        return 3 if TYPES[name] in (int | None, float | None) else "x"
    return default + 1


def test_the_wire_digest_depends_on_the_flags_that_must_agree_and_on_no_others() -> None:
    """Too few: an actor plays another game. Too many: a harmless flag locks actors out."""
    before = configs.wire_digest(RESOLVED)
    assert before == configs.wire_digest(configs.resolve(Given(), "atari"))
    changes = {
        name
        for name in DEFAULTS
        if configs.wire_digest(configs.replace(RESOLVED, **{name: another(name)})) != before
    }
    assert changes == WIRE_FLAGS
