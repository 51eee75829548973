"""A launched run is looked at and stopped while something is wrong with it."""

from pathlib import Path

import pytest

from impala_tf.frontend.node.state import living_pids
from tests.helpers.disks import fill
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.slow


def test_actors_can_be_looked_at_without_a_learner(launched, capfd):
    assert launched.command("stop") == 0
    assert launched.command("restart", "actor-0") == 0
    wait_until(lambda: launched.state("actor-0").state == "running")
    capfd.readouterr()
    assert launched.command("status") == 0
    assert "actor-0" in capfd.readouterr().out


def test_a_run_can_be_looked_at_and_stopped_while_its_csv_is_edited(launched, capfd):
    with launched.csv.open("a") as file:
        file.write("actr,localhost,,-1,,\n")
    for command in ("status", "stop"):
        assert launched.command(command) == 0
        assert "must be learner or actor\nso no passwords are read" in capfd.readouterr().err
    assert launched.command("add") == 2
    assert not living_pids(launched.node())


@pytest.mark.faults
def test_a_run_on_a_full_disk_can_be_stopped(small_disk, launched, capfd):
    pids = living_pids(launched.node())
    fill(small_disk)
    assert launched.command("stop", "actor-0") == 1
    said = capfd.readouterr().err
    assert "No space left on device; until that is mended, only all can be stopped" in said
    assert launched.command("stop", "--timeout_s=20") == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())
