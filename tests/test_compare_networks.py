"""sandbox/compare_networks.py: one command trains several networks, also if it is interrupted."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.logdirs import rows, write_run
from tests.helpers.runs import PROJECT, checkpointed_frames
from tests.helpers.waiting import wait_until

LEVEL = "tests.helpers.worlds:CalmCartPole-v1"  # so that it can be interrupted in a run
FRAMES = 12_000
SHORT = (
    f"--total_environment_frames={FRAMES}", "--num_actors=1", "--envs_per_actor=8",
    "--batch_size=8", "--metrics_interval_s=0.5", "--checkpoint_interval_s=1",
)  # fmt: skip
AGENTS = "--agent_names=MLPAgent,MLPLSTMAgent"


def command(folder: Path, *arguments: str) -> list[str]:
    script = [sys.executable, "sandbox/compare_networks.py", f"--folder={folder}"]
    return [*script, *arguments]


def compare(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, *arguments), cwd=PROJECT, capture_output=True, text=True, timeout=400
    )


@pytest.mark.long
def test_an_interrupted_comparison_goes_on_and_ends_with_a_report(tmp_path: Path) -> None:
    """Hours of training are not lost, and nothing is trained twice."""
    folder, cartpole = tmp_path / "out", f"--level_name={LEVEL}"
    arguments = (cartpole, AGENTS, "--seeds=1", *SHORT)
    first = subprocess.Popen(
        command(folder, *arguments), cwd=PROJECT, stdout=subprocess.PIPE, text=True
    )
    second_run = folder / "MLPLSTMAgent" / "seed-1"
    wait_until(lambda: checkpointed_frames(second_run) > 0, 300, poll_s=0.05)
    first.send_signal(signal.SIGINT)
    out, _ = first.communicate(timeout=100)
    assert first.returncode == 1
    assert "run 2 of 2, MLPLSTMAgent, seed 1" in out
    assert out.endswith("the same command resumes from here\n")
    done = (folder / "MLPAgent" / "seed-1" / "metrics.csv").read_bytes()
    stopped_at = checkpointed_frames(second_run)
    assert stopped_at < FRAMES
    assert not (folder / "report.html").exists()

    second = compare(folder, *arguments)
    assert second.returncode == 0, second.stderr
    assert (folder / "MLPAgent" / "seed-1" / "metrics.csv").read_bytes() == done
    assert f"{stopped_at:,} frames" in (folder / "MLPLSTMAgent" / "seed-1.log").read_text()
    with (folder / "report.csv").open(newline="") as file:
        states = {row["setting"]: row["state"] for row in csv.DictReader(file)}
    assert states == {"MLPAgent": "done", "MLPLSTMAgent": "done"}
    assert f"2 networks on {LEVEL}" in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        (["--agent_names=MLPAgent", "--agent_name=MLPAgent", "--seed=3", "--logdir=x"],
         ["--agent_name: give --agent_names instead", "--seed: give --seeds instead",
          "--logdir: give --folder instead"]),
        (["--agent_names=", "--seeds=0"],
         ["--agent_names: name at least one agent", "--seeds=0: must be 1 or more"]),
        (["--agent_names=MLPAgent", "--algorithms=dqn,ppo", "--algorithm=ppo"],
         ["--algorithm: give it, or --algorithms, and not both"]),
        (["--agent_names=MLPLSTMAgent", "--algorithms=ppo,dqn"],
         ["--algorithm=dqn: replays single steps, which the lstm of MLPLSTMAgent cannot"]),
        (["--agent_names=MLPAgent,ResNetAgent"], ["--agent_name=ResNetAgent: takes images, but"]),
        (["--agent_names", "MLPAgent", "--learning_rate", "0.1", "--batch_sze", "3"],
         ["--batch_sze: no such flag; did you mean --batch_size?"]),
    ],
)  # fmt: skip
def test_wrong_flags_are_named_before_anything_starts(
    tmp_path: Path, arguments: list[str], problems: list[str]
) -> None:
    """The third agent would otherwise be refused after hours of training the first two."""
    folder = tmp_path / "out"
    done = compare(folder, "--level_name=CartPole-v1", *arguments)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == len(problems), done.stderr
    for line, problem in zip(lines, problems, strict=True):
        assert line.startswith(f"compare_networks.py: {problem}")
    assert not folder.exists()


def test_runs_with_other_flags_are_not_compared(tmp_path: Path) -> None:
    """Half of the runs with one learning rate and half with another would look like a result."""
    (tmp_path / "runs_of.json").write_text(json.dumps({"flags": ["--level_name=CartPole-v1"]}))
    (tmp_path / "MLPAgent-1").mkdir()
    done = compare(tmp_path, "--level_name=CartPole-v1", AGENTS, "--learning_rate=0.1")
    assert done.returncode == 2
    assert "holds runs of" in done.stderr and "choose another --folder" in done.stderr


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """All scripts that start many runs check their --folder in one place."""
    folder = tmp_path / "notes.txt"
    folder.write_text("mine")
    done = compare(folder, "--level_name=CartPole-v1", AGENTS)
    assert done.returncode == 2
    assert done.stderr == (f"--folder={folder}: cannot write there (File exists); choose another\n")


def test_the_time_left_counts_each_agent_at_its_own_speed(tmp_path: Path) -> None:
    """A ResNet may take five times as long as a shallow network."""
    script = """if True:
        import json, sys
        from pathlib import Path
        import compare_progress as progress
        folder = Path(sys.argv[1])
        runs = [
            progress.RunProgress(agent, seed, folder / agent / str(seed), 4000, [], 1.0)
            for seed in (1, 2) for agent in ("quick", "slow", "new")
        ]
        print(json.dumps(progress.estimate([(run, run.status()) for run in runs])))
    """
    for agent, frames, minutes in (("quick", 4000, 10), ("slow", 2000, 20), ("new", 40, 9)):
        logdir = write_run(tmp_path / agent / "1", rows((frames, minutes, 0)))
        row = {"environment_frames": frames, "wall_time_s": 60 * minutes}
        status = {"state": "training", "environment_frames": frames, "row": row}
        (logdir / "status.json").write_text(json.dumps(status))
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{PROJECT / 'sandbox'}:{PROJECT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    share, seconds = json.loads(done.stdout)
    assert share == pytest.approx((4000 + 2000 + 40) / 24_000)
    # quick: one run of 10 minutes; slow: half a run and one, 40 minutes each; new: almost two
    # runs at 25 minutes, the mean of the others, because it has only started.
    assert seconds / 60 == pytest.approx(10 + 60 + (2 - 0.01) * 25)
