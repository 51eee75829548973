"""Learners under horovodrun have the same parameters and count frames together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.horovod_worker import UPDATES, B, T
from tests.helpers.runs import PROJECT

pytestmark = pytest.mark.xdist_group("horovod")

HOROVODRUN = Path(sys.executable).with_name("horovodrun")


def run(directory: Path) -> Any:
    """Returns what a group of two real learners wrote."""
    command = [str(HOROVODRUN), "-np", "2", sys.executable, "-m", "tests.helpers.horovod_worker"]
    process = subprocess.Popen(
        [*command, str(directory)],
        cwd=PROJECT,
        env={**os.environ, "PATH": f"{HOROVODRUN.parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        printed, _ = process.communicate(timeout=400)
    finally:
        process.terminate()  # horovodrun ends its learners with it
        process.wait()
    assert process.returncode == 0, printed
    return json.loads((directory / "result.json").read_text())


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run(tmp_path_factory.mktemp("horovod"))


def test_learners_with_different_seeds_are_bit_for_bit_equal_after_every_update(result):
    first, second = result["ranks"]
    assert first["before"] != second["before"]
    assert len(first["digests"]) == UPDATES
    assert len(set(first["digests"])) == UPDATES
    assert first["digests"] == second["digests"]


def test_two_learners_equal_one_with_the_mean_gradient(result):
    assert result["moved"] > 1e-3
    assert result["distance"] < 1e-5


def test_a_resumed_group_continues_as_if_it_had_not_stopped(result):
    for rank in result["ranks"]:
        assert rank["resumed_updates"] == UPDATES
        assert rank["after_resume"] == rank["digests"][10:]


def test_the_seconds_of_the_all_reduce_include_the_wait_for_a_late_learner(result):
    punctual, late = (rank["all_reduce_s"] for rank in result["ranks"])
    assert late < 2.5 < punctual < 60


def test_frames_are_counted_once_over_all_learners(result):
    for rank in result["ranks"]:
        assert rank["agent_steps"] == rank["played"] < 2 * UPDATES * B * T
        assert rank["environment_frames"] == 2 * rank["agent_steps"]


def test_a_learner_without_a_batch_does_not_block_the_group_and_adds_no_frames(result):
    (first, first_steps, first_stops), (second, second_steps, second_stops) = (
        rank["joined"] for rank in result["ranks"]
    )
    assert first == second
    assert 0 < first_steps == second_steps <= B * T
    assert first_stops
    assert second_stops
