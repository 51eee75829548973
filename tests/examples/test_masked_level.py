"""examples/masked_level.py: an agent wins, and never makes a forbidden move."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.runs import PROJECT, rows


def test_it_is_learned_without_a_forbidden_move(start, tmp_path: Path) -> None:
    code, out, err = start(
        "--level_name=masked_level:TicTacToe",
        "--total_environment_frames=60000",
        "--info_metrics=forbidden",
        "--stop_at_return=0.6",  # random play has 0.3
        "--num_actors=1",
        f"--logdir={tmp_path}",
        cwd=PROJECT / "examples",
    ).wait()
    assert code == 0, err + out
    last = rows(tmp_path)[-1]
    assert float(last["info/forbidden"]) == 0
    assert float(last["episode_return_mean"]) >= 0.6
