"""A folder belongs to one run: seeds do not mix, and nothing that was trained is lost."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from impala_tf import config as configs
from impala_tf.config import ConfigError, Given
from impala_tf.logdir import Logdir
from impala_tf.processes import provenance
from impala_tf.processes.common import resolve
from tests.helpers.runs import Run, checkpointed_frames

CARTPOLE = ("--level_name=CartPole-v1", "--num_actors=1", "--metrics_interval_s=1")
SHORT = (*CARTPOLE, "--total_environment_frames=5000")
ENDLESS = (*CARTPOLE, "--total_environment_frames=1000000000", "--checkpoint_interval_s=1")
FOLDER = "runs/CartPole-v1-MLPAgent-appo-1"

Start = Callable[..., Run]
RunHere = Callable[..., tuple[int, str, str]]


def described(logdir: Path) -> dict[str, Any]:
    return dict(json.loads((logdir / "config.json").read_text()))


def test_one_folder_is_one_run_which_resumes_or_is_moved_aside(
    start: Start, run_here: RunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*flags: str) -> str:
        code, out, err = start(*SHORT, *flags, cwd=tmp_path).wait()
        assert code == 0, err + out
        return out

    monkeypatch.chdir(tmp_path)
    train()
    before = sorted(Path(FOLDER).rglob("*")), Path(FOLDER, "metrics.csv").read_bytes()
    code, out, err = run_here(*SHORT)
    assert code == 0, err
    assert re.search(r"this run is complete \(5,\d{3} frames; you asked for 5,000\)", out)
    code, out, err = run_here(*SHORT, "--learning_rate=0.1", "--seed=1")
    assert (code, out) == (2, "")
    for words in ("--learning_rate=0.1, but", "trained with --learning_rate=0.0025", "--fresh"):
        assert words in err
    assert "--seed" not in err
    assert before == (sorted(Path(FOLDER).rglob("*")), Path(FOLDER, "metrics.csv").read_bytes())

    assert "--schedule_frames=10000, not 5000" in train("--total_environment_frames=10000")
    first, second = described(Path(FOLDER))["history"]
    assert (first["environment_frames"], first["flags"]["seed"]) == (0, 1)
    assert first["flags"]["total_environment_frames"] == 5_000
    assert second["environment_frames"] >= 5_000
    assert second["flags"]["total_environment_frames"] == 10_000
    assert "seed" not in second["flags"]

    metrics = Path(FOLDER, "metrics.csv").read_bytes()
    moved = Path(f"{FOLDER}.1")
    run = start(*ENDLESS, "--learning_rate=0.1", "--fresh", cwd=tmp_path)
    run.wait_until(lambda: moved.exists() and checkpointed_frames(Path(FOLDER)) > 0)
    code, _, err = run_here(*ENDLESS, "--fresh")
    assert code == 2 and f"--logdir={FOLDER}: another run is writing there" in err
    assert not Path(f"{FOLDER}.2").exists()
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.wait()
    assert code == 0, err + out
    assert f"the run that was in {FOLDER} is now in" in out
    assert (moved / "metrics.csv").read_bytes() == metrics
    assert described(moved)["flags"]["learning_rate"] == 0.0025
    assert described(Path(FOLDER))["flags"]["learning_rate"] == 0.1
    assert len(described(Path(FOLDER))["history"]) == 1
    resume = next(line for line in out.splitlines() if line.startswith("to resume:"))
    assert "--learning_rate=0.1" in resume and "--fresh" not in resume
    (moved / "config.json").unlink()  # nothing would say with which flags the run was trained
    code, _, err = run_here(*SHORT, f"--logdir={moved}")
    assert code == 2 and "holds checkpoints but no config.json" in err


def test_runs_that_start_at_once_never_share_a_folder(start: Start, tmp_path: Path) -> None:
    """As trials of a sweep do: one trains, the other is refused before it writes anything."""
    runs = [start(*SHORT, f"--learning_rate=0.00{number}", cwd=tmp_path) for number in (1, 2)]
    results = [run.wait() for run in runs]
    assert sorted(code for code, _, _ in results) == [0, 2], results
    for code, _, err in results:
        assert code == 0 or "another run" in err or "was trained with" in err
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [Path(FOLDER).name]
    rate = described(tmp_path / FOLDER)["flags"]["learning_rate"]
    assert rate == (0.001 if results[0][0] == 0 else 0.002)
    assert len(described(tmp_path / FOLDER)["history"]) == 1


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"batch_size": 4}, {"batch_size", "ring_batches", "learning_rate", "learning_rate_end"}),
        ({"batch_size": 4, "synchronization": "trajectory"}, {"batch_size", "ring_batches"}),
    ],
)
def test_a_repeat_on_a_larger_machine_learns_from_the_same_batches(
    given: dict[str, Any], kept: set[str]
) -> None:
    """More actors have larger ones by default, also if those of a few were given."""
    config = configs.resolve(Given({"num_actors": 2, **given}), "atari")
    origins = configs.sources(config, "atari")
    before = {"flags": configs.to_dict(config), "sources": origins, "level": {"kind": "atari"}}
    repeating = provenance.repeating(before)
    assert kept <= repeating.keys()
    more = configs.resolve(Given(repeating).replace(num_actors=64), "atari")
    assert more.optimizer == config.optimizer


def test_a_resumed_run_subtracts_from_observations_what_it_did(tmp_path: Path) -> None:
    """Numbers far from zero differ by less than float32 can tell. A clock's offset moves on."""
    level_name = "tests.environments.test_spaces:Far"
    config, now = resolve(Given({"level_name": level_name, "logdir": str(tmp_path)}))
    offsets = {name: (np.asarray(each) + 4096).tolist() for name, each in now.offsets.items()}
    before = now._replace(offsets=offsets, protocol="as before")
    described = provenance.describe(config, before, {}, 0, "CPU")
    (tmp_path / "config.json").write_text(json.dumps(described))
    described = provenance.read(Logdir(tmp_path))
    assert provenance.keep_offsets(now, described) == before
    assert provenance.keep_offsets(now._replace(level_name="Other-v0"), described) != before
    for wrong in ({"x": [float("nan")] * 2}, {"n": "many"}, 7):
        described["level"]["offsets"] = wrong
        with pytest.raises(ConfigError, match=f"^--level_name={level_name}: "):
            provenance.keep_offsets(now, described)
