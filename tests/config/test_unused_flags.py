"""Flags that do nothing in a run are said, so that nobody believes to have changed it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from impala_tf.config import ALGORITHMS, BUILT_IN, Given, algorithm, unused_flags
from impala_tf.config.help_pages import texts


@pytest.mark.parametrize(
    ("flags", "suite", "note"),
    [
        ({"gae_lambda": 0.9}, "Gymnasium",
         "--gae_lambda=0.9 does nothing here: it is for ppo, and this run's --algorithm is appo"),
        ({"preset": "paper", "surrogate_clipping": 0.1}, "Atari",
         "--surrogate_clipping=0.1 does nothing here: it is for appo and ppo, and this run's"
         " --algorithm is impala"),
        ({"algorithm": "pqn", "n_step": 3}, "Atari", "--n_step=3 does nothing here: it is for dqn"),
        ({"algorithm": "dqn", "entropy_cost": 0.1}, "Atari", "--entropy_cost=0.1 does nothing"),
        ({"algorithm": "pqn", "loss_reduction": "sum"}, "Atari", "--loss_reduction=sum does"),
        ({"decay": 0.9}, "Atari", "--decay=0.9 does nothing here: it is for --optimizer=rmsprop"),
        ({"preset": "paper", "optimizer": "adam", "momentum": 0.1}, "Atari", "--momentum=0.1 does"),
        ({"learning_rate_schedule": "constant", "learning_rate_end": 0.1}, "Atari",
         "--learning_rate_end=0.1 does nothing here: it is for --learning_rate_schedule=linear or"
         " --learning_rate_schedule=kl"),
        ({"agent_name": "NatureAgent", "clip_separately": True}, "Atari",
         "--clip_separately does nothing here: it is for --agent_name=SeparateShallowConvNetAgent"
         " or --agent_name=SeparateMLPAgent"),
        ({"inference": "learner", "parameter_lag": 9}, "Atari",
         "--parameter_lag=9 does nothing here: it is for --inference=actor"),
        ({"detach": True}, "Atari", "--detach does nothing here: it is for --workers_csv_path"),
        ({"join_port": 3000}, "Atari", "--join_port=3000 does nothing here: it is for --join"),
        ({"num_levels": 3}, "Gymnasium",
         "--num_levels=3 does nothing here: it is for levels of Procgen"),
        ({"protocol": "sticky"}, "Procgen",
         "--protocol=sticky does nothing here: it is for levels of Atari and retro"),
    ],
)  # fmt: skip
def test_a_flag_of_another_algorithm_or_level_is_named(
    flags: dict[str, Any], suite: unused_flags.SuiteName, note: str
) -> None:
    (line,) = unused_flags.notes(Given(flags), {suite})
    assert line.startswith(note)


@pytest.mark.parametrize(
    ("flags", "suite"),
    [
        ({"vtrace_lambda": 0.9, "ring_batches": 2, "learning_rate": 0.1}, "Gymnasium"),
        ({"algorithm": "a3c", "vtrace_lambda": 0.9, "decay": 0.9}, "Gymnasium"),  # has RMSProp
        ({"preset": "paper", "decay": 0.9, "momentum": 0.1, "learning_rate_end": 0.1}, "Atari"),
        ({"algorithm": "dqn", "learning_rate_end": 0.1}, "Gymnasium"),
        ({"algorithm": "a3c", "loss_reduction": "sum"}, "Gymnasium"),
        ({"gae_lambda": None, "n_step": None}, "Atari"),  # asks for the default
        ({"frame_skip": 1, "width": 42}, "retro"),
        ({"parameter_lag": 9}, "Atari"),
        ({"workers_csv_path": "w.csv", "detach": True}, "Atari"),
        ({"engine": "slurm", "actors_per_node": 3}, "Atari"),
        ({"clip_separately": True}, "Gymnasium"),  # robots have a separate baseline
        ({"algorithm": "module:MINE", "gae_lambda": 0.9, "n_step": 2}, "Atari"),  # may use all
    ],
)
def test_what_a_run_uses_is_not_named(flags: dict[str, Any], suite: unused_flags.SuiteName) -> None:
    assert unused_flags.notes(Given(flags), {suite}) == []


def test_notes_do_not_keep_a_run_from_starting(run_here, tmp_path) -> None:
    """Scripts give several algorithms the same flags, and the config.yaml of old runs has some."""
    (tmp_path / "run.yaml").write_text("level_name: CartPole-v1\nq_lambda: 0.5\n")
    words = (f"--config={tmp_path}/run.yaml", "--num_levels=5", f"--logdir={tmp_path}/run")
    code, out, err = run_here(*words, "--dry_run")
    assert code == 0 and "note:" not in out
    assert [line.partition(" does")[0] for line in err.splitlines()] == [
        "note: --q_lambda=0.5", "note: --num_levels=5",
    ]  # fmt: skip


def test_help_names_the_algorithms_that_use_a_flag() -> None:
    own = {name: algorithm(name).own_flags for name in ALGORITHMS}
    assert {flag for flags in own.values() for flag in flags} <= set(BUILT_IN)
    for flag, text in texts().items():
        named = re.match(r"((?:, )?[a-z0-9]+)+(?=: )", text)
        if named and set(named[0].split(", ")) <= set(ALGORITHMS):
            assert named[0].split(", ") == [name for name in own if flag in own[name]], flag
