"""What actors act with: LiteRT by default, or TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.runs import Run, status, words_of

ENDLESS = (
    "--level_name=tests.helpers.worlds:CalmCartPole-v1",
    "--metrics_interval_s=1",
    "--total_environment_frames=1000000000",
)


def has_tensorflow(pid: int) -> bool:
    return "libtensorflow" in Path(f"/proc/{pid}/maps").read_text()


def trains(logdir: Path) -> bool:
    return bool(status(logdir).get("agent_steps"))


def test_actors_import_tensorflow_only_if_they_act_with_it(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    """It takes seconds and hundreds of MB of each, and a cheap machine has little of both."""
    run = start(*ENDLESS, "--num_actors=1", f"--logdir={tmp_path}")
    run.wait_until(lambda: trains(tmp_path))
    (actor,) = [pid for pid in run.alive() if "--job_name=actor" in words_of(pid)]
    assert not has_tensorflow(actor)


OWN_TORSO = """if True:
    import sonnet as snt
    import tensorflow as tf

    class Torso(snt.Module):
        def __call__(self, inputs):
            return inputs + tf.linalg.logdet(tf.eye(2) * (1.0 + inputs[0, 0] ** 2))
"""


def test_actors_act_with_tensorflow_where_litert_lacks_an_operation(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_torso.py").write_text(OWN_TORSO)
    monkeypatch.setenv("IMPALA_TF_MODULES", str(tmp_path))
    logdir = tmp_path / "run"
    run = start(*ENDLESS, "--agent_name=odd_torso:Torso", "--num_actors=1", f"--logdir={logdir}")
    run.wait_until(lambda: trains(logdir))
    (actor,) = [pid for pid in run.alive() if "--job_name=actor" in words_of(pid)]
    assert has_tensorflow(actor)
    assert "acting with TensorFlow: LiteRT cannot" in (logdir / "processes/actor-0.log").read_text()
