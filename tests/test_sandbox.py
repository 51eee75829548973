"""Scripts in sandbox/ say how they are called, do what they say, and name what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import one_process
import pytest
import tensorflow as tf

from impala_tf.types import AgentOutput, EnvOutput, NetworkOutput
from tests.helpers.losses import compute, loss_config
from tests.helpers.runs import PROJECT
from tests.helpers.statuses import a_status

SPREAD = r"[\d.,]+ \([\d.,]+ to [\d.,]+\)"
QUICK = ("--level_name=CartPole-v1", "--num_actors=1", "--metrics_interval_s=0.2")


def call(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"sandbox/{script}", *words]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=500)


@pytest.mark.parametrize(
    ("words", "figures"),
    [
        (
            ("speed", "--turns=1", "--seconds=2", *QUICK, "--", "--seed=1", "--", "--seed=2"),
            r"AVX512_BF16: (yes|no)\nturn 1: .+ CPU s per 1,000, \d+ % idle before  --seed=1(?s:.+)"
            rf"median: {SPREAD} agent steps/s, {SPREAD} of the first, {SPREAD} CPU s .+--seed=2\n",
        ),
        (
            ("parts", "--turns=1", "--parts=environment,inference", *QUICK),
            r"environment:\n(.+\n)+inference:\n.+\nturn 1: +[\d,]+ agent steps/s, .+  as given\n",
        ),
        (
            ("start", *QUICK),
            r"as given: first update after [\d.]+ s\n(?s:.*)actor +[\d,]+ MiB, at most [\d,]+ MiB",
        ),
        (
            ("scale", "--few=1", "--actors=3", "--seconds=5", *QUICK),
            r"3 actors: [\d,]+ agent steps/s, policy lag .+\nkilled and started again: all called",
        ),
    ],
    ids=["speed", "parts", "start", "scale"],
)
def test_a_benchmark_measures(words: tuple[str, ...], figures: str) -> None:
    done = call("benchmark.py", *words)
    assert done.returncode == 0, done.stderr
    assert re.search(figures, done.stdout), done.stdout


def test_one_process_learns_cartpole() -> None:
    """Newcomers read it first. A random policy reaches 22, this one 500 after 150,000 steps."""
    done = call("one_process.py", "--steps=30000")
    assert done.returncode == 0, done.stderr
    found = re.search(r"mean return of the last 100 games: ([\d.]+)", done.stdout)
    assert found is not None and float(found[1]) > 60, done.stdout


def test_one_process_has_the_formulas_of_the_project(seed: int = 3) -> None:
    assert "impala_tf" not in Path(one_process.__file__).read_text()
    rng, steps, actions = np.random.default_rng(seed), (6, 3), 4
    ended = np.zeros((7, 3), bool)
    ended[2, 0] = ended[4, 1] = True  # the step that follows is a reset
    reset = np.roll(ended, 1, axis=0)
    unroll = one_process.Unroll(
        observations=np.zeros((7, 3, 2), np.float32),
        rewards=rng.uniform(-1, 1, (7, 3)).astype(np.float32),
        terminated=ended & (np.arange(3) == 0),
        reset=reset,
        actions=rng.integers(0, actions, steps),
        logits=rng.normal(size=(*steps, actions)).astype(np.float32),
    )
    logits = tf.constant(rng.normal(size=(7, 3, actions)), tf.float32)
    values = tf.constant(rng.normal(size=(7, 3)), tf.float32)

    here = one_process.compute_losses(logits, values, unroll)
    config = loss_config(discounting=one_process.DISCOUNT)
    there = compute(
        NetworkOutput(logits, values[..., None]),
        EnvOutput(
            reward=tf.constant(unroll.rewards),
            terminated=tf.constant(unroll.terminated),
            truncated=tf.constant(ended & ~unroll.terminated),
            autoreset=tf.constant(reset),
            episode_start=tf.constant(reset),
            observation=tf.constant(unroll.observations),
            last_action=tf.zeros((7, 3), tf.int32),
        ),
        AgentOutput(tf.constant(unroll.actions, tf.int32), tf.constant(unroll.logits)),
        config,
    )
    np.testing.assert_allclose(here.policy_gradient, there.policy_gradient, rtol=1e-5)
    np.testing.assert_allclose(here.baseline, there.baseline, rtol=1e-5)
    np.testing.assert_allclose(here.entropy / there.steps, there.entropy, rtol=1e-5)


def test_the_display_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(json.dumps(a_status()))
    done = call("draw_display.py", str(tmp_path), f"{tmp_path}/out.svg")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out.svg").read_text()
    assert "PongNoFrameskip-v4" in text and "@font-face" not in text


def test_a_game_is_drawn(tmp_path: Path) -> None:
    done = call("draw_game.py", "examples/pong", f"{tmp_path}/out.svg", "--skip=0", "--frames=20")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out.svg").read_text()
    assert text.count("<g ") == 20 and len(text) < 30_000
