"""How fast and how expensive a cluster would be, before anybody pays for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from impala_tf.config import ConfigError, Given, cores_here
from impala_tf.frontend import main as launcher
from impala_tf.measure import cost_model
from impala_tf.measure.cost_model import Machine, Speed, predict, read_speed
from tests.helpers.ports import free_port

# An actor makes 1,000 agent steps a second on a core, a learner learns 4,000 on one.
SPEED = Speed("Pong", "Agent", 4, 1e-3, 2.5e-4, float("inf"), 100.0, 900.0, 1.0)
BENCHMARK: dict[str, Any] = {
    "level_name": "Pong",
    "agent_name": "Agent",
    "frames_per_step": 4,
    "bytes_up": 100.0,
    "bytes_down": 900.0,
    "whole": 1_200.0,
    "ceiling": 1_600.0,
    "parts": [
        {"name": name, "core_us_per_step": us, "agent_steps_per_s": 1.0, "device": "CPU"}
        for name, us in (
            ("environments", 600), ("inference", 300), ("transport", 200), ("updates", 150)
        )
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("cluster", "rate", "limit"),
    [
        # Too few actors: each has a core of its own.
        ([Machine("a", 2, 1, 0, 0), Machine("b", 8, 0, 3, 0)], 3_000, "actors"),
        # More than its learner can use: 2 cores learn 8,000.
        ([Machine("a", 2, 1, 0, 0), Machine("b", 64, 0, 20, 0)], 8_000, "learners"),
        # Everything on two cores: 2 / (1 ms + 0.25 ms).
        ([Machine("a", 2, 1, 2, 0)], 1_600, "actors"),
        # Actors that share too few cores.
        ([Machine("a", 2, 1, 0, 0), Machine("b", 2, 0, 6, 0)], 2_000, "actors"),
        # Learners average gradients: the faster machine waits for the slower one.
        ([Machine("a", 1, 1, 0, 0), Machine("b", 4, 1, 0, 0), Machine("c", 64, 0, 64, 0)],
         8_000, "learners"),
    ],
)  # fmt: skip
def test_the_rate_is_what_the_cores_allow(cluster: list[Machine], rate: float, limit: str) -> None:
    found = predict(SPEED, cluster)
    assert found.agent_steps_per_s == pytest.approx(rate, rel=1e-6)
    assert found.frames_per_s == pytest.approx(4 * rate, rel=1e-6)
    assert found.limit == limit


def test_a_gpu_learns_beside_the_cores() -> None:
    on_gpu = SPEED._replace(learner_core_s=0.0001, learner_steps_per_s=5_000.0)
    cluster = [Machine("a", 16, 1, 0, 3.0), Machine("b", 64, 0, 50, 1.5)]
    found = predict(on_gpu, cluster)
    assert found.agent_steps_per_s == pytest.approx(5_000)
    assert found.actors_per_learner == pytest.approx(5.0)
    assert found.learner_bytes_per_s == pytest.approx(5_000 * 1_000)
    assert found.price == 4.5


DryRun = Callable[[str, str], tuple[int, str, str]]


@pytest.fixture
def dry_run(tmp_path: Path, run_here: Callable[..., tuple[int, str, str]]) -> DryRun:
    def run(rows: str, benchmark: str) -> tuple[int, str, str]:
        csv, speed = tmp_path / "w.csv", tmp_path / "speed.json"
        csv.write_text(rows)
        speed.write_text(benchmark)
        return run_here("--level_name=CartPole-v1", f"--workers_csv_path={csv}", "--dry_run",
                        f"--speed_json={speed}", f"--logdir={tmp_path}/logs")  # fmt: skip

    return run


def test_a_dry_run_predicts(dry_run: DryRun) -> None:
    rows = (
        "job,ip,tf_port,cores,price\nlearner,10.9.9.1,8001,4,0.20\n"
        "actor,10.9.9.2,,2,0.05\nactor,10.9.9.2,,2,0.05\nactor,10.9.9.3,,,\n"
    )
    status, out, err = dry_run(rows, json.dumps(BENCHMARK))
    assert (status, err) == (0, "")
    assert "actor-0 to actor-1" in out
    # Three actors on a core each at 1,000 agent steps a second; whole runs reach 75 % of the sum.
    assert "predicted: 9,000 frames/s (2,250 agent steps/s) of Agent on Pong, limited by its" in out
    assert "a learner there can use 16.0 actors with a core each, and exchanges 2.2 MB/s" in out
    assert "0.25 an hour: 0.0077 for a million frames" in out


def test_the_doctor_predicts_with_the_cores_of_the_machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    csv, speed = tmp_path / "w.csv", tmp_path / "speed.json"
    csv.write_text(f"job,ip,tf_port\nlearner,127.0.0.1,{free_port()}\nactor,127.0.0.1,\n")
    speed.write_text(json.dumps({**BENCHMARK, "whole": 1.0, "ceiling": 1.0}))
    command = ["doctor", f"--workers_csv_path={csv}", f"--speed_json={speed}"]
    launcher.main(command, predict=cost_model.prediction)
    cores = cores_here()
    # One actor of 1 ms a step; each step also takes 0.25 ms of the learner.
    steps = 1_000 if cores > 1 else 800
    assert f"predicted: {4 * steps:,} frames/s ({steps:,} agent steps/s)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "1", json.dumps({**BENCHMARK, "parts": BENCHMARK["parts"][:3]})]
)
def test_what_is_no_benchmark_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "speed.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="--speed_json=.*: must be what .*--mode=benchmark"):
        read_speed(path)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--speed_json=.*nothing.json: No such file"):
        read_speed(tmp_path / "nothing.json")


def test_machines_that_were_asked_have_the_cores_that_they_say() -> None:
    from impala_tf.frontend.inventory import Row
    from impala_tf.frontend.plan import LocalNode, make_plan

    rows = [Row(1, "learner", "10.9.9.1", 8001), Row(2, "actor", "10.9.9.2", cores=2)]
    plan = make_plan(
        Given().replace(logdir="x"),
        rows,
        LocalNode(Path("/w"), "p", Path("/l"), lambda host: False),
    )
    found = cost_model.machines(plan, {"10.9.9.1": 32})
    assert [(each.name, each.cores) for each in found] == [("10.9.9.1", 32), ("10.9.9.2", 2)]
