"""What `status` says about each process, in words."""

from __future__ import annotations

from collections.abc import Mapping

from impala_tf.frontend.errors import ClusterError
from impala_tf.frontend.look import Look, Status
from impala_tf.frontend.record import Record
from impala_tf.machine.supervision import OVER

COLUMNS = ("process", "host", "state", "uptime", "restarts", "agent steps/s", "parameter lag",
           "last contact", "detail")  # fmt: skip
Answers = Mapping[str, Look | ClusterError]
"""{name of a machine: its answer, or why there is none}."""


def rows_of(record: Record, answers: Answers) -> list[list[str]]:
    """Returns the cells of every process; see COLUMNS."""
    rates, contacts, troubles = _rates(answers), _contacts(answers), _actors_troubles(answers)
    found = []
    for process in record.plan.processes:
        answer = answers[process.node]
        if isinstance(answer, ClusterError):
            row = ["unknown", "", "", "", "", "", "unreachable"]
        else:
            row = _row(answer, process.name, rates, contacts)
            row[-1] = row[-1] or troubles.get(process.name, "")
        found.append([process.name, process.node, *row])
    return found


def _row(
    seen: Look, name: str, rates: Mapping[str, tuple[str, str]], contacts: Mapping[str, str]
) -> list[str]:
    state = seen.state.processes.get(name) if seen.state is not None else None
    if state is None:
        return ["not started", "", "", "", "", "", ""]
    word = "lost" if seen.is_silent and state.state not in (*OVER, "left") else state.state
    up_s = None
    if word == "running" and state.started_unix_s is not None:
        up_s = seen.now_unix_s - state.started_unix_s
    row = [word, _duration(up_s), str(state.restarts)]
    if word == "lost":
        return [*row, "", "", "", "the machine has rebooted" if seen.has_rebooted
                else "its supervisor is silent"]  # fmt: skip
    if word != "running":
        return [*row, "", "", "", "; ".join(filter(None, [state.detail, *_notes(seen, name)]))]
    detail = _trouble(seen, name) or state.detail
    return [*row, *rates.get(name, ("", "")), contacts.get(name, ""), detail]


def _trouble(seen: Look, name: str) -> str:
    """Returns what a learner says is wrong."""
    status = _status_of(seen, name)
    found = _away(status, seen.now_unix_s)
    if since_s := status.get("starving_since_unix_s"):
        found.append(f"starving for {_duration(seen.now_unix_s - since_s)}: no unrolls")
    if refused := status.get("refused_actor"):
        found.append(refused)
    if trouble := status.get("storage_trouble"):
        found.append(
            f"{trouble['text']} (for {_duration(seen.now_unix_s - trouble['since_unix_s'])})"
        )
    return "; ".join(found + _notes(seen, name))


def noted(answers: Answers) -> set[str]:
    """Returns the names of learners that tell their user something, also if they have ended."""
    looks = (each for each in answers.values() if isinstance(each, Look))
    return {
        f"learner-{rank}"
        for seen in looks
        for rank, status in seen.statuses.items()
        if status.get("notes")
    }


def _notes(seen: Look, name: str) -> list[str]:
    """Returns what a learner's user must know."""
    return list(_status_of(seen, name).get("notes", []))


def _status_of(seen: Look, name: str) -> Status:
    """Returns what a process that is a learner says; {} of others."""
    statuses = {f"learner-{rank}": status for rank, status in seen.statuses.items()}
    return statuses.get(name, {})


def _away(status: Status, now_unix_s: float) -> list[str]:
    """Returns a line if learners of the run are away."""
    away = status.get("away_learners") or []
    if not away:
        return []
    here = status["num_learners"]
    who = ", ".join(
        f"learner-{each['learner']} (for {_duration(max(0.0, now_unix_s - each['since_unix_s']))})"
        for each in away
    )
    return [f"training with {here} of {here + len(away)} learners; away: {who}"]


def _statuses(answers: Answers) -> list[Status]:
    looks = (each for each in answers.values() if isinstance(each, Look))
    return [status for seen in looks for status in seen.statuses.values()]


def _actors_troubles(answers: Answers) -> dict[str, str]:
    """Returns {name: what keeps an actor from acting}, as the learners say."""
    actors = [actor for status in _statuses(answers) for actor in status["actors"]]
    return {actor["name"]: actor.get("trouble", "") for actor in actors}


def _rates(answers: Answers) -> dict[str, tuple[str, str]]:
    """Returns {name: (agent steps/s, parameter lag)}; learner 0 knows the rates of all learners."""
    found = {}
    for status in _statuses(answers):
        row = status["row"]
        for each in status["actors"]:
            found[each["name"]] = each["agent_steps_per_s"], each["parameter_lag"]
        for each in status["learners"] or ([{"learner": 0, **row}] if row else []):
            name = f"learner-{each['learner']}"
            found[name] = each["agent_steps_per_s"], each.get("policy_lag_mean")
    return {
        name: ("" if rate is None else f"{rate:,.0f}", "" if lag is None else f"{lag:.1f}")
        for name, (rate, lag) in found.items()
    }


def steps_per_s(record: Record, answers: Answers) -> float | None:
    """Returns the agent steps a second of all learners, if learner 0 reports them."""
    seen = _of_learner_0(record, answers)
    if seen is None or seen.state is None or seen.is_silent:
        return None
    row = seen.statuses.get(0, {}).get("row")
    learner = seen.state.processes.get("learner-0")  # None after a restart of others
    is_running = learner is not None and learner.state == "running"
    return row["agent_steps_per_s"] if row and is_running else None


def end_reason(record: Record, answers: Answers) -> str:
    """Returns why the run was done before its last frame; '' if it was not."""
    seen = _of_learner_0(record, answers)
    learner = seen.state.processes.get("learner-0") if seen and seen.state else None
    if seen is None or learner is None or learner.state != "finished":
        return ""
    return str(seen.statuses.get(0, {}).get("end_reason", ""))


def _of_learner_0(record: Record, answers: Answers) -> Look | None:
    node = next(p.node for p in record.plan.processes if p.name == "learner-0")
    seen = answers[node]
    return seen if isinstance(seen, Look) else None


def _contacts(answers: Answers) -> dict[str, str]:
    """Returns how long ago learners and actors were last heard from, in words."""
    found = {}
    for seen in (each for each in answers.values() if isinstance(each, Look)):
        for rank, status in seen.statuses.items():
            heard = {actor["name"]: actor["last_contact_unix_s"] for actor in status["actors"]}
            heard[f"learner-{rank}"] = status["updated_unix_s"]
            for name, unix_s in heard.items():
                found[name] = f"{_duration(max(0.0, seen.now_unix_s - unix_s))} ago"
    return found


def orphans(record: Record, answers: Answers) -> int:
    """Returns how many actors still run although every learner is over; 0 if that is not certain.

    With --detach, nothing stops these actors. An actor cannot tell whether a learner is over or
    unreachable for a while, so it keeps waiting.
    """
    alive = 0
    for process in record.plan.processes:
        seen = answers[process.node]
        if not isinstance(seen, Look):
            return 0
        state = seen.state.processes.get(process.name) if seen.state is not None else None
        is_over = state is not None and state.state in OVER
        if not process.is_learner:
            alive += state is not None and not is_over and not seen.is_silent
        elif not is_over:
            return 0
    return alive


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, seconds_left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds_left:02d} s" if minutes else f"{seconds_left} s"
