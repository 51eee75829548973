"""Stops the processes of a run on its machines, and says what was lost."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.config import user_commands
from impala_tf.frontend.connection import CommandRunner, ask_agent
from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.parallel import Machines, good, on_all, problems
from impala_tf.frontend.record import Record
from impala_tf.machine.node import is_learner
from impala_tf.machine.supervision import ENDED_AS_TOLD, describe

STOP_S = 120.0
MAY_BE_LOST = "what was learned since the last checkpoint may be lost"


class Ended(NamedTuple):
    """The result of `end`."""

    was_running: bool
    """Whether a process ran and had to be stopped."""
    lines: list[str]
    """One line for each process that still runs, each actor that had to be killed, and each machine
    that cannot be asked; and a line that names the machines where processes may still run."""
    lost: list[str]
    """One line for each learner that may not have saved what it has learned."""


def end(
    record: Record,
    machines: Machines,
    logdir: Path,
    timeout_s: float = STOP_S,
    is_final: bool = True,
) -> Ended:
    """Stops the processes of a run, learners first. Closes tmux windows where no process is left.

    Args:
      record: the run's record.
      machines: the run's machines.
      logdir: the run's logdir, on this machine.
      timeout_s: how long to wait for the learners, and then for all processes.
      is_final: whether the machines then run --end_command.
    """
    plan = record.plan
    with_learners = [r for r in machines.reached() if plan.role(r.node) == "learner"]
    learners = [process.name for process in plan.processes if process.is_learner]
    first = end_processes(record, with_learners, learners, timeout_s, False, is_final)
    then = end_processes(record, machines.reached(), None, timeout_s, True, is_final)
    answers = [*good(first).values(), *good(then).values()]
    lost = lost_work(first, logdir) + lost_work(then, logdir)
    lines = left_running(then)
    if is_final:
        lines += may_still_run({**machines.found, **then})
    return Ended(any(answer["stopped"] for answer in answers), lines, lost)


def may_still_run(answers: Mapping[str, object]) -> list[str]:
    """Returns a line that names the machines that could not be asked, if there are any."""
    names = [name for name, found in answers.items() if isinstance(found, ClusterError)]
    line = f"{', '.join(names)}: processes may still run there; the same command tries again"
    return [line] if names else []


def left_running(answers: Mapping[str, dict[str, Any] | ClusterError]) -> list[str]:
    """Returns one line for each process that `end_processes` could not stop, or actor it killed."""
    lines = problems(answers)
    for name, answer in good(answers).items():
        lines += [f"{name}: {process} is still running (pid {pid})"
                  for process, pid in answer["left"].items()]  # fmt: skip
        lines += [
            f"{name}: {process} did not stop in time and was killed"
            for process, status in answer["stopped"].items()
            if status == -signal.SIGKILL and not is_learner(process)
        ]
    return lines


def lost_work(answers: Mapping[str, dict[str, Any] | ClusterError], logdir: Path) -> list[str]:
    """Returns one line for each learner that may not have saved before `end_processes` ended it.

    Args:
      answers: the result of `end_processes`.
      logdir: the run's logdir, on this machine.
    """
    lines = []
    for name, answer in good(answers).items():
        for process, status in answer["stopped"].items():
            if is_learner(process) and (status is None or status not in ENDED_AS_TOLD):
                logs = user_commands.frontend("logs", f"--logdir={logdir}", process)
                lines.append(f"{name}: {process}: {_how(status)}; {MAY_BE_LOST}; see {logs}")
    return lines


def _how(status: int | None) -> str:
    if status is None:  # its supervisor was dead, or could not write it to a full disk
        return "how it ended is not known"
    if status == -signal.SIGKILL:
        return "did not stop in time and was killed"
    return describe(status)


def end_processes(
    record: Record,
    runners: Sequence[CommandRunner],
    names: Sequence[str] | None,
    timeout_s: float,
    close: bool,
    is_final: bool = True,
) -> dict[str, dict[str, Any] | ClusterError]:
    """Stops a run's processes on machines; see `impala_tf.frontend.node.agent.stop`."""

    def end_on(runner: CommandRunner) -> dict[str, Any]:
        processes = {process.name for process in record.plan.on(runner.node)}
        question = {
            "run_id": record.run_id,
            "tmux_sess": record.plan.tmux_sess,
            "names": None if names is None else sorted(processes & set(names)),
            "timeout_s": timeout_s,
            "close": close,
            "is_final": is_final,
        }
        return ask_agent(runner, "stop", question, timeout_s + 60.0)

    return on_all(runners, end_on)
