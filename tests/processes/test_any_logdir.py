"""The files of someone else's logdir are read, or each problem is one line."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from impala_tf import config as configs
from impala_tf.config import Config, ConfigError, Given, command_line
from impala_tf.processes.trained_flags import as_trained

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=5,
)
FLAGS = st.fixed_dictionaries(
    {"flags": st.dictionaries(st.sampled_from(list(configs.to_dict(Config()))), JSON)}
)


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.binary(max_size=200) | st.one_of(JSON, FLAGS).map(encoded))
@example(content=encoded({"flags": {"level_name": 7}}))
@example(content=encoded({"flags": {"num_levels": [1]}}))
@example(content=encoded({"flags": {"protocol": {}}}))
@example(content=encoded({"flags": {"unroll_length": "many"}}))
@example(content=encoded({"flags": {"mode": "train", "logdir": "/", "level_name": "os:L-v0"}}))
@example(content=b"[" * 100_000)
@example(content=b'{"flags": []}')
def test_any_config_is_refused_or_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    try:
        merged = as_trained(Given({"mode": "test", "logdir": str(tmp_path)}))
    except ConfigError as error:
        for problem in error.problems:
            assert str(tmp_path) in problem
            assert problem.isprintable()
    else:
        assert merged["mode"] == "test"
        assert merged["logdir"] == str(tmp_path)


def test_given_flags_stay_and_the_others_are_the_runs(tmp_path: Path) -> None:
    """Also a flag that is given with its default; but not those of the run's machine and user."""
    flags = {"repeat_action_probability": 0.25, "noop_max": 7, "learning_rate": 0.5, "video": True,
             "device": "gpu", "track": "wandb", "num_actors": 7}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"flags": flags}))
    words = ["--mode=test", f"--logdir={tmp_path}", "--repeat_action_probability=0", "--seed=1"]
    merged = as_trained(command_line.parse(words))
    expected = {"repeat_action_probability": 0, "noop_max": 7, "learning_rate": 0.5,
                "video": False, "device": "auto", "track": "none", "num_actors": 7}  # fmt: skip
    assert {name: merged[name] for name in expected} == expected
    assert as_trained(command_line.parse([*words, "--track=wandb"]))["track"] == "wandb"
