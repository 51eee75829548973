"""cluster.json: the record of a launch, for `status`, `logs` and `stop`. It holds no secrets."""

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
    """Absolute. Passwords, if there are any, are read from it again."""
    plan: Plan
    """The folders of its places are absolute."""


def save(record: Record, logdir: Path) -> None:
    """Writes cluster.json atomically."""
    logdir.mkdir(parents=True, exist_ok=True)
    temporary = logdir / f".{NAME}"
    temporary.write_text(json.dumps(dataclasses.asdict(record), indent=1) + "\n", encoding="utf-8")
    temporary.replace(logdir / NAME)


def load(logdir: Path) -> Record:
    """Reads cluster.json. Raises ConfigError if it is missing or unusable."""
    path = logdir / NAME
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Record(**{**fields, "plan": _plan(fields["plan"])})
    except OSError as error:
        raise ConfigError(f"--logdir={logdir}: holds no launched run ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not a record of a launch ({error})") from error


def find(logdir: str | None, tmux_sess: str) -> Path:
    """Returns `logdir`, or if it is None, that of the newest run under runs/ in a tmux session.

    Raises:
      ConfigError: if there is no such run.
    """
    if logdir is not None:
        return Path(logdir)
    found = [(load(path.parent), path.parent) for path in Path("runs").glob(f"*/{NAME}")]
    found = [(record, path) for record, path in found if record.plan.tmux_sess == tmux_sess]
    if not found:
        raise ConfigError(
            f"--tmux_sess={tmux_sess}: no run under runs/ was launched in it; give --logdir"
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
