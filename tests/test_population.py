"""sandbox/population.py: better members replace worse ones, with changed flags; it resumes."""

from __future__ import annotations

import csv
import math
import random
import signal
from pathlib import Path
from unittest import mock

import population
import pytest
from population import Member, changed, next_generation

from impala_tf.studies.child_runs import SearchedFlag
from tests.helpers.logdirs import rows, write_run

RATE = SearchedFlag("learning_rate", 1e-4, 1e-2, is_log=True, is_int=False)
LENGTH = SearchedFlag("unroll_length", 2, 30, is_log=False, is_int=True)
SPACE = (RATE, LENGTH)


def draws() -> list[random.Random]:
    return [random.Random(seed) for seed in range(200)]


def test_the_worst_quarter_continues_with_the_best_quarters_networks_and_changed_flags() -> None:
    members = [Member(1, n, n, (1e-3, 10), float(score)) for n, score in
               enumerate((5, 9, 8, 1, 6, 7, 2, 3), start=1)]  # fmt: skip
    parents, values = set(), set()
    for draw in draws():
        planned = next_generation(members, SPACE, draw)
        for old, new in zip(members, planned, strict=True):
            assert (new.generation, new.number, new.score) == (2, old.number, -math.inf)
            if old.score > 2:
                assert (new.parent, new.values) == (old.number, old.values)
            else:
                parents.add(new.parent)
                values.add(new.values)
    assert parents == {2, 3}
    assert values == {(rate, length) for rate in (1.2e-3, 0.000833333) for length in (12, 8)}


def test_values_stay_in_their_range_and_whole_numbers_move() -> None:
    for draw in draws():
        assert changed(RATE, 1e-2, draw) in (1e-2, 0.00833333)
        assert changed(LENGTH, 2, draw) in (2, 3)
        assert changed(LENGTH, 30, draw) in (25, 30)


def test_a_member_that_failed_always_continues_with_one_that_did_not() -> None:
    scores = (-math.inf, -math.inf, -500.0)
    members = [Member(1, n + 1, n + 1, (1e-3, 9), score) for n, score in enumerate(scores)]
    for draw in draws():
        assert [member.parent for member in next_generation(members, SPACE, draw)] == [3, 3, 3]


def test_an_interrupted_population_resumes_and_shows_what_led_to_its_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The runs are stand-ins, whose return is their member's number."""
    started: list[dict[str, str]] = []

    def start(flags: list[str], output: Path) -> mock.Mock:
        given = dict(flag.removeprefix("--").split("=") for flag in flags)
        started.append(given)
        points = rows((0, 0, 0), (4000, 1, int(output.parent.name)))
        curve = [{**row, "learner_updates": 9, "episodes": 5} for row in points]
        write_run(Path(given["logdir"]), curve)
        if len(started) == 2:
            signal.raise_signal(signal.SIGINT)
        return mock.Mock(**{"wait.return_value": 0})

    monkeypatch.setattr(population, "start", start)
    words = [f"--folder={tmp_path}", "--members=2", "--generations=2",
             "--search=learning_rate=log:1e-4..1e-2", "--", "--level_name=CartPole-v1"]  # fmt: skip
    with pytest.raises(SystemExit, match="stopped; the same command resumes from here"):
        population.main(words)
    assert population.main(words) == 0
    runs = [str(Path(given["logdir"]).relative_to(tmp_path)) for given in started]
    assert runs == ["1/1", "1/2", "1/2", "2/1", "2/2"]
    # The worse one of the first generation continues with the better one.
    assert [given.get("start_from") for given in started[2:]] == [None, *[f"{tmp_path}/1/2"] * 2]
    with (tmp_path / "population.csv").open(newline="") as file:
        members = [(row["generation"], row["member"]) for row in csv.DictReader(file)]
    assert members == [("1", "1"), ("1", "2"), ("2", "1"), ("2", "2")]
    with (tmp_path / "best.csv").open(newline="") as file:
        assert [row["environment_frames"] for row in csv.DictReader(file)][-1] == "8000"
    assert "what led to the best:" in capsys.readouterr().out
