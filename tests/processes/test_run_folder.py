"""A folder belongs to one run: seeds do not mix, and nothing that was trained is lost."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from impala_tf import config as configs
from impala_tf.config import Given
from impala_tf.processes import provenance
from impala_tf.types import Kind
from tests.helpers import mirrored
from tests.helpers.runs import Run, checkpointed_frames

CARTPOLE = ("--level_name=CartPole-v1", "--num_actors=1", "--metrics_interval_s=1")
SHORT = (*CARTPOLE, "--total_environment_frames=5000")
ENDLESS = (*CARTPOLE, "--total_environment_frames=1000000000", "--checkpoint_interval_s=1")
FOLDER = "runs/CartPole-v1-MLPAgent-appo-1"

Start = Callable[..., Run]


def described(logdir: Path) -> dict[str, Any]:
    return dict(json.loads((logdir / "config.json").read_text()))


def test_one_folder_is_one_run_which_resumes_or_is_moved_aside(
    start: Start, tmp_path: Path
) -> None:
    def train(*flags: str) -> tuple[int, str, str]:
        return start(*SHORT, *flags, cwd=tmp_path).wait()

    code, out, err = train()
    assert code == 0, err + out
    before = (tmp_path / FOLDER / "metrics.csv").read_bytes()
    refused = train("--learning_rate=0.1")
    assert refused[0] == 2
    assert "--learning_rate=0.1, but" in refused[2]
    assert "was trained with --learning_rate=0.0025" in refused[2]
    assert (tmp_path / FOLDER / "metrics.csv").read_bytes() == before

    code, out, err = train("--total_environment_frames=10000")
    assert code == 0, err + out
    assert "--schedule_frames=10000, not 5000" in out
    now = described(tmp_path / FOLDER)
    first, second = now["history"]
    assert (first["environment_frames"], first["flags"]["seed"]) == (0, 1)
    assert first["flags"]["total_environment_frames"] == 5_000
    assert second["environment_frames"] >= 5_000
    assert second["flags"]["total_environment_frames"] == 10_000
    assert "seed" not in second["flags"]

    before = (tmp_path / FOLDER / "metrics.csv").read_bytes()
    moved = tmp_path / f"{FOLDER}.1"
    run = start(*ENDLESS, "--learning_rate=0.1", "--fresh", cwd=tmp_path)
    run.wait_until(lambda: moved.exists() and checkpointed_frames(tmp_path / FOLDER) > 0)
    code, _, err = start(*ENDLESS, "--fresh", cwd=tmp_path).wait()
    assert code == 2 and f"--logdir={FOLDER}: another run is writing there" in err
    assert not (tmp_path / f"{FOLDER}.2").exists()
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.wait()
    assert code == 0, err + out
    assert f"the run that was in {FOLDER} is now in {moved}" in out
    assert (moved / "metrics.csv").read_bytes() == before
    assert described(moved)["flags"]["learning_rate"] == 0.0025
    assert described(tmp_path / FOLDER)["flags"]["learning_rate"] == 0.1
    assert len(described(tmp_path / FOLDER)["history"]) == 1
    resume = next(line for line in out.splitlines() if line.startswith("to resume:"))
    assert "--learning_rate=0.1" in resume and "--fresh" not in resume


def test_runs_that_start_at_once_never_share_a_folder(start: Start, tmp_path: Path) -> None:
    """As trials of a sweep do: one trains, the others are refused before they write anything."""
    flags = [f"--learning_rate=0.00{number}" for number in (1, 2, 3, 4)]
    runs = [start(*SHORT, flag, cwd=tmp_path) for flag in flags]
    results = [run.wait() for run in runs]
    assert sorted(code for code, _, _ in results) == [0, 2, 2, 2], results
    for code, _, err in results:
        assert code == 0 or "another run" in err or "was trained with" in err
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [Path(FOLDER).name]
    rate = described(tmp_path / FOLDER)["flags"]["learning_rate"]
    winner = next(number for number, result in enumerate(results, 1) if result[0] == 0)
    assert rate == winner / 1000
    assert len(described(tmp_path / FOLDER)["history"]) == 1


def test_a_repeat_on_a_larger_machine_learns_from_the_same_batches() -> None:
    """More actors have larger ones by default, also if those of a few were given."""
    few = Given({"num_actors": 2, "batch_size": 4})
    cases: tuple[tuple[Given, Kind, set[str]], ...] = (
        (few, "atari", {"batch_size", "ring_batches", "learning_rate", "learning_rate_end"}),
        (few.replace(synchronization="trajectory"), "atari", {"batch_size", "ring_batches"}),
        (few.without("batch_size"), "vector", set()),
        (Given({"algorithm": "impala"}), "atari", set()),
    )
    for flags, kind, expected in cases:
        config = configs.resolve(flags, kind)
        origins = configs.sources(config, kind)
        before = {"flags": configs.to_dict(config), "sources": origins, "level": {"kind": kind}}
        repeating = provenance.repeating(before)
        assert expected <= repeating.keys()
        assert expected or "batch_size" not in repeating
        more = configs.resolve(Given(repeating).replace(num_actors=64), kind)
        assert more.optimizer == config.optimizer


def test_checkpoints_without_a_config_are_not_trained_on(
    run_here: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Nothing would say with which flags the run was trained so far."""
    logdir = tmp_path / "run"
    mirrored.Run(logdir).checkpoint(2)
    (logdir / "config.json").unlink()
    code, _, err = run_here(*SHORT, f"--logdir={logdir}")
    assert code == 2
    assert f"--logdir={logdir}: holds checkpoints but no config.json" in err
