"""LOGDIR/best: a copy of the checkpoint with the best score."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from impala_tf.logdir import Logdir, read_json, write_atomically
from impala_tf.monitoring.rows import GAMES, Score

FEWEST_GAMES = 10
"""With fewer games, a mean says too little to keep a checkpoint as the best one."""


class BestCheckpoint:
    """Keeps a copy of the checkpoint with the best score, in LOGDIR/best.

    Scores over fewer than 100 games count only until there is one over 100: on levels with long
    games, a run may end before that.

    Args:
      logdir: the run's logdir.
      name: the score's name in best.json.
    """

    def __init__(self, logdir: Logdir, name: str = "episode_return_mean") -> None:
        self._folder, self._note, self._name = logdir.best, logdir.best / "best.json", name
        try:
            note = read_json(self._note)
            self._best = Score(float(note[name]), int(note["games"]))
        except (OSError, ArithmeticError, LookupError, TypeError, ValueError):  # none, or damaged
            self._best = Score(float("-inf"), 0)

    def keep(self, checkpoint: Path, score: Score | None) -> None:
        """Copies a checkpoint if its score is the best so far; None: no game has ended.

        Raises:
          OSError: it cannot be copied.
        """
        if score is None or score.games < FEWEST_GAMES or _rank(score) <= _rank(self._best):
            return
        self._folder.mkdir(exist_ok=True)
        others = [entry for entry in self._folder.iterdir() if entry.is_dir()]
        target, partial = self._folder / checkpoint.name, self._folder / f".{checkpoint.name}"
        try:
            partial.mkdir()
            for file in checkpoint.iterdir():  # not shutil.copytree, whose errors are lists
                shutil.copy2(file, partial)
            # It exists if the run has resumed from an older checkpoint.
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
        finally:  # a partial copy would keep a full disk full
            shutil.rmtree(partial, ignore_errors=True)
        note = {self._name: score.mean, "games": min(score.games, GAMES)}
        write_atomically(self._note, json.dumps(note))
        self._best = score
        for other in others:
            if other.name != checkpoint.name:
                shutil.rmtree(other, ignore_errors=True)


def _rank(score: Score) -> tuple[bool, float]:
    """Returns a key that is greater for a better score."""
    return score.games >= GAMES, score.mean
