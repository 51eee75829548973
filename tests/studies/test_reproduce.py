"""impala reproduce says whether the default command still learns; so it must notice if not."""

from __future__ import annotations

from pathlib import Path

import pytest

from impala_tf.config import ConfigError
from impala_tf.studies import compare_main, reproduce_main
from tests.helpers.logdirs import rows, write_run


@pytest.fixture
def seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two seeds that were trained; the words of a call that compares them with a band."""
    monkeypatch.setattr(compare_main, "main", lambda words: 0)  # trains nothing
    for seed in (1, 2):
        curve = rows((0, 0, 20), (5000, 1, 400), (10000, 2, 450 + 20 * seed), steps_per_frame=1)
        write_run(tmp_path / "CartPole-v1" / "as-given" / f"seed-{seed}", curve)
    return ["--level_name=CartPole-v1", f"--to={tmp_path}"]


def test_a_written_band_is_a_little_below_its_seeds(
    tmp_path: Path, seeds: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    band = tmp_path / "band.csv"
    assert reproduce_main.main([*seeds, f"--write_band={band}", "--seed=1"]) == 0
    first, head, *lines = band.read_text().splitlines()
    assert (first, head) == ("# flags: --seed=1", "agent_steps,minimum_return")
    assert lines[3] == "4900,329.5"  # 400, less 15 % of what they gained, 470
    assert reproduce_main.main([*seeds, f"--band={band}"]) == 0
    assert "every seed is inside the band" in capsys.readouterr().out


def test_a_seed_below_the_band_is_named(
    tmp_path: Path, seeds: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    band = tmp_path / "band.csv"
    band.write_text("# flags: --seed=1\nagent_steps,minimum_return\n5000,399\n10000,480.5\n")
    assert reproduce_main.main([*seeds, f"--band={band}"]) == 1
    said = capsys.readouterr().out
    assert "seed-1, 10,000 agent steps: 470.00; the band starts at 480.5" in said
    assert "seed-2" not in said
    band.write_text(band.read_text().replace("10000", "20000"))
    assert reproduce_main.main([*seeds, f"--band={band}"]) == 1
    assert "seed-2, 20,000 agent steps: ended before" in capsys.readouterr().out


def test_a_level_has_a_band_in_the_package_or_the_user_is_told_to_make_one(
    seeds: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce_main.main(seeds) == 1  # the package's band of CartPole has more steps
    assert "ended before" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="Acrobot-v1.csv.*--write_band"):
        reproduce_main.main(["--level_name=Acrobot-v1"])


def test_wrong_flags_are_named_before_anything_trains(tmp_path: Path) -> None:
    """Seeds would leave folders with wrong flags."""
    words = ["--level_name=CartPole-v1", f"--to={tmp_path / 'runs'}", "--batch_sze=3"]
    with pytest.raises(SystemExit) as wrong:  # the run has said why
        reproduce_main.main(words)
    assert wrong.value.code == 2
    assert not (tmp_path / "runs").exists()
