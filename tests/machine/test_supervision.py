"""Supervised processes: restarted when they fail, stopped cleanly, and nothing is left running."""

import re
import signal
import sys

import pytest

from impala_tf.machine import process_output, supervision
from impala_tf.machine.supervision import (
    Command,
    GiveUpError,
    RestartBudget,
    SupervisedProcess,
    start_ticks,
)
from tests.helpers.runs import PROJECT
from tests.helpers.waiting import wait_until


class NoPauses(RestartBudget):
    """A budget whose pauses take no time."""

    def pause_s(self, ran_s):
        return None if super().pause_s(ran_s) is None else 0.0


def supervised(tmp_path, script, **changes):
    settings = {n: changes.pop(n) for n in ("before_start", "in_group") if n in changes}
    command = Command(
        "actor-0", ("sh", "-c", script), str(tmp_path), str(tmp_path / "logs" / "log"), **changes
    )
    return SupervisedProcess(command, budget=NoPauses(command.max_restarts), **settings)


def wait_until_up(log):
    wait_until(lambda: log.exists() and "up\n" in log.read_text())


def outcome(process):
    process.start()
    process.join(60)
    assert not process.is_alive()
    state = process.state
    return state.state, state.exit_status, state.restarts


def test_a_process_is_restarted_until_it_succeeds(tmp_path):
    script = "echo started >> starts; [ $(wc -l < starts) = 4 ]"
    assert outcome(supervised(tmp_path, script)) == ("finished", 0, 3)


LEVEL_THAT_EXITS = """
import os, pathlib
from impala_tf.machine.process_lifetime import say_done, stop_with_parent
stop_with_parent()
if not pathlib.Path("again").exists():
    pathlib.Path("again").touch()
    os._exit(0)
say_done()
"""


def test_a_process_whose_level_exits_is_not_done_but_lost(tmp_path):
    """The run went on without any actor, and said nothing."""
    (tmp_path / "level.py").write_text(LEVEL_THAT_EXITS)
    environment = {"PYTHONPATH": str(PROJECT)}
    script = f"exec {sys.executable} level.py"
    assert outcome(supervised(tmp_path, script, environment=environment)) == ("finished", 0, 1)
    assert "called exit" in (tmp_path / "logs" / "log").read_text()


def test_the_log_says_what_failed_and_when_no_restart_is_left(tmp_path):
    """The last line is the cause: a user sees it where the run is shown."""
    script = "echo 10:20:30 the level is missing; exit 7"
    process = supervised(tmp_path, script, max_restarts=2)
    assert outcome(process) == ("failed", 7, 2)
    log = (tmp_path / "logs" / "log").read_text()
    assert re.search(r"exit status 7 after \d+ s: the level is missing; restart 1", log)
    said = r"exit status 7 after \d+ s: the level is missing; .*2 an hour"
    assert re.search(said, log) and re.search(said, process.state.detail)
    silent = supervised(tmp_path, "exit 1", max_restarts=0)
    assert outcome(silent) == ("failed", 1, 0)
    assert "missing" not in silent.state.detail  # it was of the process before


def test_unusable_flags_and_missing_programs_are_refused_without_a_restart(tmp_path):
    assert outcome(supervised(tmp_path, "exit 2")) == ("refused", 2, 0)
    assert outcome(supervised(tmp_path, "exit 3", max_restarts=9)) == ("failed", 3, 0)
    process = SupervisedProcess(
        Command("actor-0", ("/no/python",), str(tmp_path), str(tmp_path / "l"))
    )
    assert outcome(process) == ("refused", None, 0)
    assert "No such file" in process.state.detail


def test_a_learner_can_be_asked_to_start_again_with_others(tmp_path, monkeypatch):
    monkeypatch.setattr(supervision, "_REGROUP_PAUSE_S", 0.0)
    rounds = iter("12")
    process = SupervisedProcess(
        Command("learner-0", ("sh", "-c", "[ $ROUND = 2 ] && exit; "
                "trap 'echo saved; exit 4' USR2; echo up; sleep 1000 & wait"),
                str(tmp_path), str(tmp_path / "log"), max_restarts=0),
        environment=lambda: {"ROUND": next(rounds)},
    )  # fmt: skip
    process.start()
    wait_until_up(tmp_path / "log")
    assert process.regroup()
    assert not process.regroup(), "it is asked only once"
    process.join(60)
    assert (process.state.state, process.state.restarts) == ("finished", 1)
    assert "saved" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(("in_group", "signal_name"), [(True, "USR2"), (False, "TERM")])
def test_a_learner_whose_machine_leaves_does_not_end_the_run_of_the_others(
    tmp_path, in_group, signal_name
):
    """One of several rented machines was taken away, and the learners on the others finished."""
    script = "trap 'echo USR2; exit 4' USR2; trap 'echo TERM; exit' TERM; echo up; sleep 99 & wait"
    process = supervised(tmp_path, script, in_group=in_group)
    process.start()
    log = tmp_path / "logs" / "log"
    wait_until_up(log)
    process.stop(leaving=True)
    process.join(60)
    assert process.state.state == "left"
    assert f"{signal_name}\n" in log.read_text()


def test_an_unproven_process_is_restarted_only_if_it_was_killed(tmp_path):
    """A program that fails at once will fail again; one that was killed may not."""
    assert outcome(supervised(tmp_path, "exit 1", proven_after_s=60.0)) == ("failed", 1, 0)
    script = "[ -e again ] && exit 0; touch again; echo joined; kill -9 $$"
    assert outcome(supervised(tmp_path, script, proven_after_s=60.0)) == ("finished", 0, 1)
    log = (tmp_path / "logs" / "log").read_text()
    assert re.search(r"killed by SIGKILL after \d+ s; restart 1", log), "it does not say why"


def test_the_budget_is_for_an_hour_and_returns_after_ten_good_minutes():
    now = [0.0]
    budget = RestartBudget(2, clock=lambda: now[0])
    assert [budget.pause_s(5.0) for _ in range(3)] == [2.0, 6.0, None]
    now[0] += 3600
    assert [budget.pause_s(61.0), budget.pause_s(61.0), budget.pause_s(61.0)] == [1.0, 1.0, None]
    assert budget.pause_s(600.0) == 1.0
    budget.refill()
    assert [budget.pause_s(5.0) for _ in range(3)] == [2.0, 6.0, None]
    endless = RestartBudget(None)
    assert [endless.pause_s(0.0) for _ in range(7)] == [2, 6, 18, 54, 120, 120, 120]
    assert endless.pause_s(60.0) == 1.0
    assert endless.pause_s(0.0) == 2.0, "a good minute must reset the pauses"


def test_a_process_that_is_told_to_stop_can_finish_its_work(tmp_path):
    process = supervised(tmp_path, "trap 'echo saved; exit' TERM; echo up; sleep 1000 & wait")
    process.start()
    log = tmp_path / "logs" / "log"
    wait_until_up(log)
    process.stop()
    process.join(30)
    assert process.state.state == "stopped"
    assert "saved\n" in log.read_text()


def test_a_process_that_will_not_stop_is_killed_with_its_children(tmp_path):
    script = "trap '' TERM; sleep 1000 & echo $! > child; sleep 1000"
    process = supervised(tmp_path, script, stop_timeout_s=0.3)
    child = tmp_path / "child"
    process.start()
    wait_until(lambda: child.exists() and child.read_text().endswith("\n"))
    process.stop()
    process.join(30)
    assert (process.state.state, process.state.exit_status) == ("stopped", -signal.SIGKILL)
    wait_until(lambda: start_ticks(int(child.read_text())) is None, what="end of the child")


def test_a_process_that_may_not_start_is_not_started(tmp_path):
    def give_up(stopping):
        raise GiveUpError("learner-1 is lost")

    assert outcome(supervised(tmp_path, "touch started", before_start=give_up))[0] == "failed"
    assert not (tmp_path / "started").exists()


def test_a_log_that_grows_without_end_keeps_its_newest_part(tmp_path, monkeypatch):
    monkeypatch.setattr(process_output, "MAX_BYTES", 10_000)
    log = tmp_path / "actor-0.log"
    script = "seq -f 'line %g' 4000; while [ -s actor-0.log ]; do sleep .1; done; echo last"
    process = SupervisedProcess(Command("actor-0", ("sh", "-c", script), str(tmp_path), str(log)))
    process.start()
    process.join(60)
    earlier = log.with_name("actor-0.log.1").read_text().splitlines()
    assert earlier[-1] == "line 4000"
    assert log.with_name("actor-0.log.1").stat().st_size <= 10_000
    assert log.read_text().splitlines()[0] == "last"
    assert log.stat().st_size < 10_000
