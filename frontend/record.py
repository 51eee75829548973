"""cluster.json: what has been launched, for `status`, `logs` and `stop`. No secrets in it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from frontend.plan import Group, Place, Plan, Process
from impala_tf.config import ConfigError

NAME = "cluster.json"


@dataclasses.dataclass(frozen=True)
class Record:
    """A launched run."""

    run_id: str
    launched_unix_s: float
    workers_csv_path: str
    """Absolute: passwords, where there are any, are read from it again."""
    plan: Plan
    """Its places with absolute folders."""


def save(record: Record, logdir: Path) -> None:
    """Writes cluster.json as a whole."""
    logdir.mkdir(parents=True, exist_ok=True)
    aside = logdir / f".{NAME}"
    aside.write_text(json.dumps(dataclasses.asdict(record), indent=1) + "\n", encoding="utf-8")
    aside.replace(logdir / NAME)


def load(logdir: Path) -> Record:
    """Reads cluster.json. Raises ConfigError where it is missing or unusable."""
    path = logdir / NAME
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Record(**{**fields, "plan": _plan(fields["plan"])})
    except OSError as error:
        raise ConfigError(f"--logdir={logdir}: holds no launched run ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not what a launch wrote ({error})") from error


def find(logdir: str | None, tmux_sess: str) -> Path:
    """Returns the logdir of a run: `logdir`, or the newest under runs/ in that tmux session.

    Raises: ConfigError where there is none.
    """
    if logdir is not None:
        return Path(logdir)
    found = [(load(path.parent), path.parent) for path in Path("runs").glob(f"*/{NAME}")]
    found = [(record, path) for record, path in found if record.plan.tmux_sess == tmux_sess]
    if not found:
        raise ConfigError(
            f"--tmux_sess={tmux_sess}: no run under runs/ was launched into it; give --logdir"
        )
    return max(found, key=lambda pair: pair[0].launched_unix_s)[1]


def _plan(fields: dict[str, Any]) -> Plan:
    return Plan(
        tmux_sess=fields["tmux_sess"],
        places=tuple(Place(**place) for place in fields["places"]),
        processes=tuple(_process(process) for process in fields["processes"]),
        learner_hosts=tuple(fields["learner_hosts"]),
    )


def _process(fields: dict[str, Any]) -> Process:
    return Process(
        name=fields["name"],
        place=fields["place"],
        arguments=tuple(fields["arguments"]),
        environment=tuple((name, value) for name, value in fields["environment"]),
        max_restarts=fields["max_restarts"],
        group=Group(**fields["group"]) if fields["group"] else None,
    )
