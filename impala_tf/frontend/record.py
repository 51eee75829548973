"""cluster.json: the record of a launch, for every later command. It holds no secrets."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import NamedTuple

from impala_tf.config import ClusterConfig, ConfigError
from impala_tf.frontend.inventory import Secret, read_workers
from impala_tf.frontend.node.plain import from_plain, to_plain
from impala_tf.frontend.plan import NodeSpec, Plan, passwords
from impala_tf.logdir import replace_file

NAME = "cluster.json"
_HINT = "a run on this machine alone shows itself in the terminal that it was started in"


class Record(NamedTuple):
    """A launched run."""

    run_id: str
    launched_unix_s: float
    workers_csv_path: str
    """Absolute. Passwords, if there are any, are read again from this file."""
    flags: tuple[str, ...]
    """The flags of the launch."""
    plan: Plan
    max_hours: float | None = None
    end_command: str | None = None
    secrets: tuple[str, ...] = ()
    """Names of variables whose values the processes get. No file of this machine has the values."""
    credentials: str = ""
    """Folder of the run's certificates on this machine, if it is not in the logdir."""
    has_started: bool = False
    """Whether learner 0's machine has started it, by this launch or an earlier one."""

    def passwords(self) -> dict[str, Secret]:
        """Returns {name of the node: password}, from the workers CSV if it can still be read.

        The status and stop commands must work even while the CSV is edited.
        """
        path = Path(self.workers_csv_path)
        try:
            return passwords(self.plan, read_workers(path)) if path.exists() else {}
        except ConfigError as error:
            print(*error.problems, "so no passwords are read from it", sep="\n", file=sys.stderr)
            return {}

    def first_learner(self) -> NodeSpec:
        """Returns the machine that has the files of the run."""
        return self.plan.node(self.plan.processes[0].node)


def save(record: Record, logdir: Path) -> None:
    """Writes cluster.json atomically."""
    logdir.mkdir(parents=True, exist_ok=True)
    text = json.dumps(to_plain(record), indent=1) + "\n"
    replace_file(logdir / NAME, text.encode(), 0o644)


def load(logdir: Path) -> Record:
    """Reads cluster.json. Raises ConfigError if it is missing or unusable."""
    path = logdir / NAME
    try:
        return from_plain(Record, json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        reason = "" if logdir.is_dir() else f" ({error.strerror})"
        raise ConfigError(f"--logdir={logdir}: holds no launched run{reason}; {_HINT}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not a record of a launch ({error})") from error


def find(logdir: str | Path | None, tmux_sess: str = ClusterConfig.tmux_sess) -> Path:
    """Returns `logdir`; if it is None, the logdir of the newest run under runs/ in a tmux session.

    Raises:
      ConfigError: there is no such run.
    """
    if logdir is not None:
        return Path(logdir)
    runs = []
    for path in Path("runs").glob(f"*/{NAME}"):
        with contextlib.suppress(ConfigError):  # a damaged one must not hide the others
            record = load(path.parent)
            if record.plan.tmux_sess == tmux_sess:
                runs.append((record.launched_unix_s, path.parent))
    if not runs:
        raise ConfigError(
            f"no run in runs/ was launched with --tmux_sess={tmux_sess}; name the run with"
            f" --logdir; {_HINT}"
        )
    return max(runs)[1]
