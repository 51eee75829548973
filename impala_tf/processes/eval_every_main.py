"""The process that evaluates one checkpoint for --eval_every; see `training_evaluations`.

    python -m impala_tf.processes.eval_every_main FLAGS...

FLAGS are the run's. The last line of output is an `Evaluation` as JSON.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from impala_tf.environments import suites
from impala_tf.evaluation import games
from impala_tf.processes import beside_main, evaluate_main
from impala_tf.processes.beside import result_line
from impala_tf.processes.training_evaluations import NAME, Evaluation

if TYPE_CHECKING:
    from impala_tf.processes.players import Player


def main(arguments: list[str]) -> None:
    """Plays whole games of every level with the newest checkpoint.

    Raises:
      ConfigError: there is no complete checkpoint, or a level cannot be made.
    """
    trained = beside_main.load(arguments)
    from impala_tf.processes import players  # of a checkpoint: imports TensorFlow

    player = players.of_checkpoint(trained)
    # In one process, which can take its time: the learner and actors need the cores.
    environment = dataclasses.replace(player.environment, environment_processes="never")
    player = player._replace(environment=environment)
    count = len(suites.levels(environment))
    played = [_played(player, index) for index in range(count)]
    found = Evaluation(
        trained.environment_frames,
        [{**trained.progress, **row} for row, _ in played],
        [note for _, note in played if note],
    )
    print(result_line(NAME, found._asdict()))


def _played(player: Player, index: int) -> tuple[Mapping[str, Any], str]:
    """Plays level `index`; returns its columns of evaluation.csv, and what the user should know."""
    level = suites.levels(player.environment)[index]
    unseen = suites.unseen(player.environment, index)
    env = unseen or player.environment
    began_at = time.monotonic()
    episodes = evaluate_main.play(player, env, index, num_threads=1)
    summary = games.summary(episodes)
    note = games.cut_note(summary)
    row = {
        "level_name": level.level_name,
        "played": "unseen levels" if unseen else "other seeds",
        "episodes": summary["num_episodes"],
        **{f"return_{name}": summary[name] for name in ("mean", "std", "min", "max")},
        "length_mean": sum(summary["episode_lengths"]) / len(episodes),
        "normalized_return_mean": suites.normalized(level, summary["mean"]),
        "policy": player.evaluation.test_policy,
        "evaluation_s": time.monotonic() - began_at,
        "protocol": suites.spec(suites.levels(env)[index]).protocol,
    }
    return row, f"evaluation of {level.level_name}: {note}" if note else ""


if __name__ == "__main__":
    beside_main.run(main)
