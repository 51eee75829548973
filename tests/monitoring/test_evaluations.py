"""evaluation.csv goes back with a run that resumes, but loses nothing that its checkpoint had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from impala_tf.monitoring import render
from impala_tf.monitoring.evaluations import EvaluationRows
from tests.helpers.statuses import a_status


class TensorBoard:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.points: list[tuple[int, dict[str, float]]] = []

    def add(self, values: dict[str, float], frames: int, group: str) -> None:
        assert group == "eval"
        self.points.append((frames, values))


def row(frames: int, level: str = "L", mean: float = 1.0) -> dict[str, Any]:
    games = {"episodes": 2, "return_mean": mean, "protocol": 'L, "hard", 2 actions'}
    return {"environment_frames": frames, "level_name": level, "played": "other seeds", **games}


def progress(frames: int) -> dict[str, Any]:
    return {"environment_frames": frames}


def opened(path: Path) -> tuple[EvaluationRows, Any]:
    tensorboard: Any = TensorBoard()
    return EvaluationRows(path, tensorboard), tensorboard


def lines(path: Path) -> list[str]:
    return [line.split(",")[2] for line in path.read_text().splitlines()[1:]]


def test_a_resumed_run_keeps_what_its_checkpoint_had_and_drops_what_it_did_not(
    tmp_path: Path,
) -> None:
    """The result of a checkpoint comes after it: cutting the file there would lose it."""
    path = tmp_path / "evaluation.csv"
    rows, _ = opened(path)
    rows.rewind(None)
    rows.write(progress(100))
    rows.add([row(100)])
    rows.write(progress(200))
    rows.add([row(200)])
    rows.add([row(300)])
    rows.close()
    resumed, tensorboard = opened(path)
    resumed.rewind(200)
    assert lines(path) == ["100", "200"]
    resumed.write(progress(210))
    resumed.add([row(400)])
    resumed.write(progress(410))
    assert lines(path) == ["100", "200", "400"]
    assert [frames for frames, _ in tensorboard.points] == [400]
    resumed.close()


def test_several_levels_have_a_point_each_and_a_mean(tmp_path: Path) -> None:
    rows, tensorboard = opened(tmp_path / "evaluation.csv")
    rows.add([row(100, "A", 1.0), row(100, "B", 3.0)])
    rows.close()
    assert tensorboard.points == [
        (100, {"return_mean/A": 1.0, "return_mean/B": 3.0, "return_mean": 2.0})
    ]
    newest = rows.newest
    assert newest is not None
    assert (newest["return_mean"], newest["episodes"], newest["normalized"]) == (2.0, 4, False)


def test_levels_with_published_scores_are_judged_by_normalised_returns(tmp_path: Path) -> None:
    """Else the level with the largest returns decides alone."""
    rows, _ = opened(tmp_path / "evaluation.csv")
    pong = row(100, "Pong", 18.0) | {"normalized_return_mean": 1.1}
    breakout = row(100, "Breakout", 400.0) | {"normalized_return_mean": 13.9}
    rows.add([pong, breakout])
    rows.close()
    newest = rows.newest
    assert newest is not None
    assert (newest["return_mean"], newest["normalized"]) == (7.5, True)
    shown = render.evaluation(a_status(evaluation=newest))
    assert all(each in shown for each in ("7.50", "normalised", "4 games", "100 frames"))
