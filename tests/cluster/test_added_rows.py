"""`add`: rows that are appended to the workers CSV of a run that trains."""

import sys

from impala_tf.cluster.record import load
from tests.helpers.launched_run import windows
from tests.helpers.stand_in import write_csv
from tests.helpers.waiting import wait_until


def test_rows_can_be_added_while_it_trains(launched, capfd):
    with launched.csv.open("a") as file:
        file.write(f"actor,localhost,,-1,{launched.project},{sys.executable}\n")
    pid = launched.state("actor-0").pid
    assert launched.command("add") == 0
    assert "added actor-2" in capfd.readouterr().out
    wait_until(lambda: "actor 2 is up" in launched.log("actor-2"))
    assert launched.state("actor-0").pid == pid, "a process that ran already was restarted"
    wait_until(lambda: windows()[-1] == "actor-2 0")
    assert [p.name for p in load(launched.logdir).plan.processes][-1] == "actor-2"
    assert launched.command("add") == 0
    assert "no new rows" in capfd.readouterr().out
    write_csv(launched.csv, launched.project, learners=("8001", "8002"), actors=2)
    assert launched.command("add") == 2
    assert "the learners have changed; stop the run and launch it again" in capfd.readouterr().err


def test_a_row_with_a_wrong_address_can_be_taken_back(launched, capfd):
    """It would be a machine of the run for ever, and actors after it would have other numbers."""
    rows = launched.csv.read_text().replace("\n", ",ssh_host\n", 1)
    good = f"actor,localhost,,-1,{launched.project},{sys.executable},\n"
    launched.csv.write_text(rows + good.replace(",\n", ",no-such-host.invalid\n") + good)
    assert launched.command("add") == 1
    said = capfd.readouterr().err
    assert "no-such-host.invalid: " in said and "no row was added; " in said
    assert "restart" not in said, "there is nothing to restart"
    launched.csv.write_text(rows + good)
    assert launched.command("add") == 0
    assert capfd.readouterr().out.endswith("added actor-2\n")
    assert "--num_actors=3" in load(launched.logdir).plan.processes[0].arguments
    assert launched.command("status") == 0
    assert "no-such-host" not in capfd.readouterr().out
