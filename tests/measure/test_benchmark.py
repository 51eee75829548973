"""--mode=benchmark: the sums are right, and every part can be measured."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from impala_tf.config import user_commands
from impala_tf.environments import suites
from impala_tf.measure import parts
from impala_tf.measure.parts import Measured
from impala_tf.monitoring.metrics import ADVICE
from tests.helpers.cores import pretend
from tests.helpers.samples import resolved_config

RunHere = Callable[..., tuple[int, str, str]]
MEASURED = {
    "environment": Measured(10_000.0, "CPU", 512.0, 1.0),
    "inference": Measured(4_000.0, "CPU, 1 thread", 512.0, 1.0),
    "update": Measured(4_000.0, "CPU, 2 cores", 1024.0, 2.0),
}
FLAGS = ("--mode=benchmark", "--level_name=CartPole-v1", "--updates_per_batch=2")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "measure", lambda what, *_: MEASURED[what])
    pretend(monkeypatch, 2)


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[float], None]:
    """Lets a script stand in for the whole run, in which actors wait for a share of their time."""

    def stand_in(waits: float) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            "import pathlib, sys, time\n"
            "flags = dict(word[2:].split('=', 1) for word in sys.argv[1:] if '=' in word)\n"
            "logdir = pathlib.Path(flags['logdir'])\n"
            "logdir.mkdir()\n"
            "head = 'agent_steps_per_s,learner_idle_fraction,actor_environment_fraction,'\n"
            "head += 'actor_inference_fraction,actor_wait_fraction\\n'\n"
            f"rows = 20 * '1000,0.01,0.2,0.1,{waits}\\n'\n"
            "(logdir / 'metrics.csv').write_text(head + rows)\n"
            "time.sleep(60)\n"
        )
        monkeypatch.setattr(user_commands, "program", lambda: (str(script),))

    return stand_in


def test_the_table_adds_up(
    run_here: RunHere, measured: None, whole: Callable[[float], None]
) -> None:
    whole(0.05)
    code, text, err = run_here(*FLAGS)
    assert code == 0 and {line.split()[0] for line in err.splitlines()} == {"measuring"}, err
    # Two cores for 1/4000 s, twice for each step.
    assert re.search(r"updates +CPU, 2 cores +2,000 +1,000 +74%", text), text
    assert re.search(r"all on the cores +1,481 +1,350", text), text
    assert re.search(r"a whole run +1,000", text), text
    assert "limited by: updates (74% of the cores' time)" in text
    assert f"faster with: {ADVICE['updates'][:40]}" in text


def test_a_limit_that_is_not_the_cores_is_told_from_who_waits(
    run_here: RunHere, measured: None, whole: Callable[[float], None]
) -> None:
    """As when a GPU computes the updates: more actors would only wait for it."""
    whole(0.6)
    text = run_here(*FLAGS)[1]
    assert "limited by: updates" in text and "actors wait 60%" in text


@pytest.mark.parametrize(
    "flags",
    [
        ("--workers_csv_path=machines.csv", "--env=NAME=VALUE", "--max_hours=2", "--detach"),
        ("--job_name=actor", "--task=1", "--learner_hosts=10.0.0.1:8001", "--actor_hosts=a,b"),
        ("--credentials=credentials-of-a-run",),
    ],
)
def test_the_whole_run_stays_on_this_machine(
    flags: tuple[str, ...],
    run_here: RunHere,
    measured: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Flags of a run.yaml, or a variable, would start endless training on other machines.

    What a run says that does not start is shown.
    """
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "raise SystemExit(f'started with {sys.argv[1:]}, {os.environ.get(\"TF_CONFIG\")}')"
    )
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"learner": ["10.0.0.1:8001"]}}')
    monkeypatch.setattr(user_commands, "program", lambda: (str(script),))
    code, _, err = run_here(*FLAGS, *flags)
    assert code == 2
    started = err[err.index("started with") :]
    assert started.endswith(", None\n")
    assert "'--level_name=CartPole-v1'" in started
    assert not [flag for flag in flags if flag.partition("=")[0] in started], started


def test_every_part_is_measured(run_here: RunHere) -> None:
    code, out, err = run_here(*FLAGS)
    assert code == 0, err
    found = re.findall(r"(\S+) +CPU.*? ([\d,]+) +([\d,]+) +\d+% +([\d,]+) MiB", out)
    assert [name for name, *_ in found] == ["environments", "inference", "updates"], out
    for _, *figures in found:
        steps_per_s, core_us, memory_mb = (int(figure.replace(",", "")) for figure in figures)
        assert steps_per_s > 100 and core_us < 10_000 and memory_mb > 30, out
    assert re.search("limited by: (environments|inference|updates|transport)", out), out


@pytest.mark.parametrize(
    "flags",
    [
        {"level_name": "CartPole-v1"},
        {"level_name": "Pendulum-v1"},
        # Each of two actors plays one of two levels in its only environment.
        {"level_name": "CartPole-v1,CartPole-v0", "envs_per_actor": 1, "num_actors": 2},
    ],
)
def test_environments_are_stepped_with_actions_that_they_take(flags: dict[str, Any]) -> None:
    config = resolved_config(**{"envs_per_actor": 2, **flags})
    spec = suites.spec(config.environment)
    assert parts.environment(config, spec, 0.2).steps_per_s > 100


def test_environments_in_processes_of_their_own_are_measured() -> None:
    flags = {"environment_processes": True, "envs_per_actor": 2}
    config = resolved_config(level_name="Acrobot-v1", **flags)
    spec = suites.spec(config.environment)
    assert parts.measure("environment", config, spec, 0.2).steps_per_s > 10
