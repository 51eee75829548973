"""Which games actors play: the same in every fresh run, and others after every start."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np

from impala_tf.processes.actor_main import seed_of_start
from impala_tf.processes.common import seed_of
from tests.helpers.runs import Run, checkpointed_frames

NUM_ENVS = 2


def test_a_resumed_run_and_a_restarted_actor_play_other_games(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    seeds_path, logdir = tmp_path / "seeds", tmp_path / "run"
    flags = (
        "--level_name=tests.helpers.worlds:SeedsCartPole-v1",
        "--num_actors=1", f"--envs_per_actor={NUM_ENVS}", "--seed=7", "--unroll_length=10",
        "--batch_size=2", "--checkpoint_interval_s=1", f"--logdir={logdir}",
        "--total_environment_frames=1000000000",
    )  # fmt: skip

    def seeds() -> list[int]:
        words = seeds_path.read_text().split() if seeds_path.exists() else []
        return [int(word) for word in words if word != "0"]  # of the look at the level

    def stop(run: Run) -> None:
        run.process.send_signal(signal.SIGINT)
        code, out, err = run.wait()
        assert code == 0, out + err

    environment = {"IMPALA_TF_TEST_SEEDS": str(seeds_path)}
    run = start(*flags, environment=environment)
    run.wait_until(lambda: len(seeds()) == NUM_ENVS and checkpointed_frames(logdir) > 0)
    os.kill(run.pid_of("--job_name=actor"), signal.SIGKILL)
    run.wait_until(lambda: len(seeds()) == 2 * NUM_ENVS)
    stop(run)
    run = start(*flags, environment=environment)
    run.wait_until(lambda: len(seeds()) == 3 * NUM_ENVS)
    stop(run)
    found = seeds()
    assert len(set(found)) == 3 * NUM_ENVS
    # What the first actor of every run with --seed=7 has.
    first = int(np.random.SeedSequence(seed_of(7, "actor", 0)).generate_state(1)[0] >> 2)
    assert found[:NUM_ENVS] == [first, first + 1]


def test_every_start_has_a_seed_of_its_own() -> None:
    starts = [(steps, restarts) for steps in (0, 1, 2, 10**12) for restarts in range(3)]
    seeds = [seed_of_start(seed, *start) for seed in (1, 2) for start in starts]
    assert len(set(seeds)) == len(seeds)
    assert seed_of_start(1, 0, 0) == 1
