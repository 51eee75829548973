"""Runs are averaged if they differ in their seeds only, and told apart by what differs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from impala_tf.reporting import runs, settings
from impala_tf.reporting.settings import Level
from tests.helpers.logdirs import rows, write_run


def levels(folder: Path, *flags: dict[str, Any]) -> list[Level]:
    for number, each in enumerate(flags):
        write_run(folder / str(number), **each)
    return settings.group(runs.find(str(folder)))


def labels(folder: Path, *flags: dict[str, Any]) -> list[tuple[str, list[int]]]:
    (level,) = levels(folder, *flags)
    return [(each.label, [run.seed for run in each.runs]) for each in level.settings]


def test_seeds_are_grouped_by_agent_in_the_order_of_the_runs(tmp_path: Path) -> None:
    found = labels(
        tmp_path,
        {"agent_name": "ResNetAgent", "seed": 2},
        {"agent_name": "ImpoolaAgent"},
        {"agent_name": "ResNetAgent", "seed": 1, "metrics_interval_s": 5.0},
    )
    assert found == [("ResNetAgent", [1, 2]), ("ImpoolaAgent", [1])]


def test_an_algorithm_is_named_and_what_it_brings_along_is_not(tmp_path: Path) -> None:
    """Ppo changes a dozen flags that nobody gave."""
    found = labels(tmp_path, {"algorithm": "ppo"}, {"algorithm": "impala"})
    assert [label for label, _ in found] == [
        "ShallowConvNetAgent, ppo",
        "ShallowConvNetAgent, impala",
    ]


def test_a_given_flag_is_named_where_it_is_needed(tmp_path: Path) -> None:
    """But not the flags that follow from it, such as --learning_rate_end."""
    found = labels(tmp_path, {"learning_rate": 0.001}, {"learning_rate": 0.002}, {})
    assert [label for label, _ in found] == [
        "ShallowConvNetAgent, learning_rate=0.001",
        "ShallowConvNetAgent, learning_rate=0.002",
        "ShallowConvNetAgent, learning_rate=0.00035",
    ]


def test_the_number_of_actors_of_another_machine_makes_no_setting(tmp_path: Path) -> None:
    """But a given one does."""
    write_run(tmp_path / "here", seed=1)
    path = write_run(tmp_path / "there", seed=2) / "config.json"
    (default,) = settings.group(runs.find(str(tmp_path / "here")))
    actors = default.runs[0].flags["num_actors"]
    path.write_text(
        path.read_text().replace(f'"num_actors": {actors}', f'"num_actors": {actors + 30}')
    )
    (level,) = settings.group(runs.find(str(tmp_path)))
    assert [each.label for each in level.settings] == ["ShallowConvNetAgent"]
    write_run(tmp_path / "given", num_actors=actors + 7)
    (level,) = settings.group(runs.find(str(tmp_path)))
    assert len(level.settings) == 2


def test_seeds_that_start_from_runs_of_their_own_are_one_setting(tmp_path: Path) -> None:
    found = labels(
        tmp_path,
        {"seed": 1},
        {"seed": 2},
        {"seed": 1, "start_from": "runs/small-1"},
        {"seed": 2, "start_from": "/elsewhere/runs/small-2"},
    )
    assert found == [
        ("ShallowConvNetAgent, start_from=nothing", [1, 2]),
        ("ShallowConvNetAgent, start_from=a run", [1, 2]),
    ]


def test_where_a_run_is_mirrored_or_tracked_makes_no_setting(tmp_path: Path) -> None:
    """Each run needs a mirror of its own."""
    found = labels(
        tmp_path,
        {"seed": 1, "mirror": "/mnt/1"},
        {"seed": 2, "mirror": "/mnt/2", "stop_at_return": 18.0},
        {"seed": 3, "track_tags": "night", "info_metrics": "won", "environment_timeout_s": 900.0},
    )
    assert found == [("ShallowConvNetAgent", [1, 2, 3])]


def test_of_a_seeds_runs_the_one_that_got_furthest_counts(tmp_path: Path) -> None:
    """--fresh leaves the old run beside the new one."""
    write_run(tmp_path / "old", rows((0, 0, 0), (1000, 1, 1)), seed=1)
    write_run(tmp_path / "new", seed=1)
    write_run(tmp_path / "other", seed=2)
    (level,) = settings.group(runs.find(str(tmp_path)))
    (setting,) = level.settings
    assert [run.logdir.name for run in setting.runs] == ["new", "other"]
    assert [run.logdir.name for run in setting.repeats] == ["old"]


def test_a_run_counts_and_not_its_mirror(tmp_path: Path) -> None:
    """A mirror has no status, so it looks like a run that has just been started."""
    logdir = write_run(tmp_path / "run", seed=1)
    shutil.copytree(logdir, tmp_path / "a copy")
    (tmp_path / "a copy" / "status.json").unlink(missing_ok=True)
    (tmp_path / "a copy" / "mirrored").mkdir()
    (level,) = settings.group(runs.find(str(tmp_path)))
    assert [run.logdir.name for run in level.settings[0].runs] == ["run"]


def test_levels_are_kept_apart(tmp_path: Path) -> None:
    found = levels(tmp_path, {}, {"level_name": "BreakoutNoFrameskip-v4"}, {"seed": 2})
    assert [(level.name, len(level.runs)) for level in found] == [
        ("PongNoFrameskip-v4", 2),
        ("BreakoutNoFrameskip-v4", 1),
    ]


def test_an_installed_package_has_another_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings.user_commands, "IS_CHECKOUT", False)
    (level,) = settings.group(runs.find(str(write_run(tmp_path / "run", seed=3))))
    assert settings.command(level.runs[0])[:3] == [
        "impala", "train", "--level_name=PongNoFrameskip-v4"
    ]  # fmt: skip


def test_a_command_repeats_its_run(tmp_path: Path) -> None:
    """It has what was given, and no port or other detail of a process."""
    logdir = write_run(
        tmp_path / "run",
        seed=3,
        learning_rate=0.002,
        terminal_on_life_loss=False,
        job_name="learner",
        learner_hosts="127.0.0.1:4711",
        metrics_interval_s=1.0,
    )
    (level,) = settings.group(runs.find(str(logdir)))
    assert settings.command(level.runs[0]) == [
        "python", "run_experiment.py", "--level_name=PongNoFrameskip-v4",
        "--agent_name=ShallowConvNetAgent", "--seed=3", "--total_environment_frames=4000",
        "--metrics_interval_s=1.0", "--no_terminal_on_life_loss", "--learning_rate=0.002",
        f"--logdir={logdir}",
    ]  # fmt: skip
