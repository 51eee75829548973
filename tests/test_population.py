"""sandbox/population.py: better members replace worse ones, with changed flags; it resumes."""

from __future__ import annotations

import csv
import math
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from population import Member, changed, first_generation, next_generation

from impala_tf.studies.child_runs import SearchedFlag
from tests.helpers.runs import PROJECT
from tests.helpers.waiting import wait_until

RATE = SearchedFlag("learning_rate", 1e-4, 1e-2, is_log=True, is_int=False)
LENGTH = SearchedFlag("unroll_length", 2, 30, is_log=False, is_int=True)
SPACE = (RATE, LENGTH)


def command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "sandbox/population.py", f"--folder={folder}", *words]


def draws() -> list[random.Random]:
    return [random.Random(seed) for seed in range(200)]


def test_members_begin_anywhere_in_the_range_of_each_flag() -> None:
    members = [first_generation(1, SPACE, draw)[0] for draw in draws()]
    rates, lengths = zip(*(member.values for member in members), strict=True)
    assert 1e-4 <= min(rates) < 2e-4 and 8e-3 < max(rates) <= 1e-2
    assert 70 < sum(rate < 1e-3 for rate in rates) < 130  # half of a logarithmic range
    assert set(lengths) == set(range(2, 31))


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


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--search=learning_rate=1e-4..1e-3", "--", "--seed=3"], "--seed: population.py gives it"),
        (["--search=unroll_length=0..40", "--", "--level_name=CartPole-v1"], "--unroll_length=0"),
    ],
)
def test_what_is_wrong_is_said_before_anything_trains(
    tmp_path: Path, words: list[str], problem: str
) -> None:
    folder = tmp_path / "population"
    done = subprocess.run(command(folder, *words), cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 2
    assert problem in done.stderr
    assert not folder.exists()


def test_an_interrupted_population_resumes_and_shows_what_led_to_its_best(tmp_path: Path) -> None:
    folder = tmp_path / "population"
    words = command(
        folder, "--members=2", "--generations=2", "--search=learning_rate=log:1e-4..1e-2", "--",
        "--level_name=CartPole-v1", "--total_environment_frames=12000", "--num_actors=1",
        "--metrics_interval_s=1",
    )  # fmt: skip
    table = folder / "population.csv"
    first = subprocess.Popen(words, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: table.exists() and table.read_text().count("\n") > 1, 240)
        before = table.read_text()
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=100)
    finally:
        first.kill()
    assert first.returncode == 1
    done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert table.read_text().startswith(before)
    with table.open(newline="") as file:
        members = list(csv.DictReader(file))
    assert [(row["generation"], row["member"]) for row in members] == [
        ("1", "1"), ("1", "2"), ("2", "1"), ("2", "2")
    ]  # fmt: skip
    copied = [row for row in members if row["parent"] != row["member"]]
    assert len(copied) == 1  # the worse one of the first generation
    log = (folder / "2" / copied[0]["member"] / "output.txt").read_text()
    assert f"starting from {folder}/1/{copied[0]['parent']}/checkpoints/" in log
    with (folder / "best.csv").open(newline="") as file:
        frames = [int(row["environment_frames"]) for row in csv.DictReader(file)]
    assert frames == sorted(frames) and frames[-1] >= 24_000
    assert "what led to the best:" in done.stdout
