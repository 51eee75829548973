"""Pictures of curves say in words what their lines are."""

from __future__ import annotations

from pathlib import Path

import plot_metrics
import pytest

from tests.helpers.logdirs import rows, write_run


def test_a_legend_has_words_and_seeds_share_a_line(tmp_path: Path) -> None:
    """File names mean nothing to a reader."""
    for seed in (1, 2):
        write_run(tmp_path / "a" / str(seed), seed=seed, agent_name="ResNetAgent")
    copied = write_run(tmp_path / "b", rows((0, 0, 1), (4000, 3, 4))) / "metrics.csv"
    out = tmp_path / "out.svg"
    assert plot_metrics.main([str(out), f"{tmp_path / 'a'}", f"learning_rate=0.1={copied}"]) == 0
    text = out.read_text()
    for label in ("ResNetAgent", "learning_rate=0.1"):
        assert f">{label}</text>" in text
    assert "metrics.csv" not in text and "seed" not in text


def test_a_copied_file_has_to_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path / "run") / "metrics.csv"
    assert plot_metrics.main([str(tmp_path / "out.svg"), str(path)]) == 2
    assert "say what it is" in capsys.readouterr().err
    assert not (tmp_path / "out.svg").exists()


def test_labels_do_not_hide_that_levels_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Returns of two games on one axis, or their mean, would look like a comparison."""
    pong = write_run(tmp_path / "pong")
    qbert = write_run(tmp_path / "qbert", level_name="QbertNoFrameskip-v4")
    out = str(tmp_path / "out.svg")
    for paths in ([f"a={pong}", f"b={qbert}"], [f"a={pong}", f"a={qbert}"], [f"a={pong}", qbert]):
        assert plot_metrics.main([out, *map(str, paths)]) == 2
        expected = "runs of several levels: PongNoFrameskip-v4, QbertNoFrameskip-v4"
        assert expected in capsys.readouterr().err
    assert plot_metrics.main([out, f"a={pong}", f"b={qbert / 'metrics.csv'}"]) == 0
