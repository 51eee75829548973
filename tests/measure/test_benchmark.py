"""--mode=benchmark: the sums are right, and every part can be measured."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from impala_tf.config import user_commands
from impala_tf.environments import suites
from impala_tf.measure import benchmark_main, parts
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


WHOLE_RUN = """
import pathlib, sys, time
flags = dict(word[2:].split('=', 1) for word in sys.argv[1:] if '=' in word)
logdir = pathlib.Path(flags['logdir'])
logdir.mkdir()
head = 'agent_steps_per_s,learner_idle_fraction,actor_environment_fraction,'
head += 'actor_inference_fraction,actor_wait_fraction\\n'
(logdir / 'metrics.csv').write_text(head + 20 * '1000,0.01,0.2,0.1,{waits}\\n')
time.sleep(60)
"""
"""A run in which actors wait for a share of their time."""


def test_the_table_adds_up(
    run_here: RunHere, measured: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(WHOLE_RUN.format(waits=0.05))
    monkeypatch.setattr(user_commands, "program", lambda: (str(script),))
    code, text, err = run_here(*FLAGS)
    assert code == 0 and {line.split()[0] for line in err.splitlines()} == {"measuring"}, err
    # Two cores for 1/4000 s, twice for each step.
    assert re.search(r"updates +CPU, 2 cores +2,000 +1,000 +74%", text), text
    assert re.search(r"all on the cores +1,481 +1,350", text), text
    assert re.search(r"a whole run +1,000", text), text
    assert "limited by: updates (74% of the cores' time)" in text
    assert f"faster with: {ADVICE['updates'][:40]}" in text
    # As when a GPU computes the updates: more actors would only wait for it.
    script.write_text(WHOLE_RUN.format(waits=0.6))
    text = run_here(*FLAGS)[1]
    assert "limited by: updates" in text and "actors wait 60%" in text


def test_the_whole_run_stays_on_this_machine(
    run_here: RunHere, measured: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
    flags = ("--workers_csv_path=machines.csv", "--env=NAME=VALUE", "--max_hours=2", "--detach")
    code, _, err = run_here(*FLAGS, *flags)
    assert code == 2
    started = err[err.index("started with") :]
    assert started.endswith(", None\n")
    assert "'--level_name=CartPole-v1'" in started
    assert not [flag for flag in flags if flag.partition("=")[0] in started], started


def test_every_part_is_measured(run_here: RunHere, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_PART_S", 0.3), ("_WHOLE_S", 1.0), ("_ROW_S", 0.25)):
        monkeypatch.setattr(benchmark_main, name, seconds)
    code, out, err = run_here(*FLAGS, "--num_actors=1")
    assert code == 0, err
    found = re.findall(r"(\S+) +CPU.*? ([\d,]+) +([\d,]+) +\d+% +([\d,]+) MiB", out)
    assert [name for name, *_ in found] == ["environments", "inference", "updates"], out
    for _, *figures in found:
        steps_per_s, core_us, memory_mb = (int(figure.replace(",", "")) for figure in figures)
        assert steps_per_s > 100 and core_us < 10_000 and memory_mb > 30, out
    assert re.search("limited by: (environments|inference|updates|transport)", out), out


def test_environments_are_stepped_with_actions_that_they_take() -> None:
    config = resolved_config(level_name="Pendulum-v1", envs_per_actor=2)
    spec = suites.spec(config.environment)
    assert parts.environment(config, spec, 0.2).steps_per_s > 100
