"""SkyPilot: renders a run as the YAML of a task. `sky` itself is for the user to call.

Nodes of SkyPilot share no disk, so the certificates are copied to each of them, and the checkpoints
of a run that is to survive its machines need --mirror.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf import config as configs
from impala_tf.config import ConfigError, Given, extras, user_commands
from impala_tf.config.engine_limits import pairs
from impala_tf.frontend.engines.documents import label, yaml_text
from impala_tf.frontend.engines.engine import OF_THE_LAUNCH, Hooks, read_record, write_record
from impala_tf.frontend.join import LEFT
from impala_tf.frontend.plan import credentials_of
from impala_tf.logdir import write_atomically
from impala_tf.machine import certificates

_NAME, _TEXT = "skypilot", "skypilot.yaml"
_CREDENTIALS = "impala_tf-credentials"  # in the home folder, as the runs
_FILES = sorted({*certificates.LEARNER_FILES, *certificates.ACTOR_FILES})
"""Of the credentials: if the run was over SSH before, they have the authority's key, too."""
_RUNS = "impala_tf-runs"
_HEAD = """\
# A run of impala_tf: {command}
"""
_SETUP = """\
set -e
fits() {{  # without ensurepip, as on Debian, Python cannot make a venv
  "$1" -c 'import ensurepip, sys
sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null
}}
uv=$(PATH="$PATH:$HOME/.local/bin" command -v uv || true)
if fits python3.11; then
  python3.11 -m venv .venv
elif fits python3.12; then
  python3.12 -m venv .venv
elif fits python3; then
  python3 -m venv .venv
elif [ -n "$uv" ]; then  # SkyPilot's own images have Python 3.10, and uv, which gets another one
  "$uv" venv --seed --allow-existing --python '>=3.11,<3.13' .venv
else
  echo "setup: there is neither Python 3.11 or 3.12 with venv, nor uv; choose another image" >&2
  exit 1
fi
.venv/bin/python -m pip install -c impala_tf/constraints.txt -e '.[{extras}]'{more}
"""
_PROCGEN = """\
# EnvPool's games of Procgen load it.
/sbin/ldconfig -p | grep -q libQt5Gui.so.5 || {
  sudo apt-get update
  sudo apt-get install -y libqt5gui5
}
"""
_HOROVOD = """\
# Several learners average their gradients with it. It is compiled.
command -v cmake && command -v g++ || sudo apt-get install -y cmake g++ make python3-dev
sh impala_tf/frontend/install_horovod.sh .venv/bin/python
"""
_RUN = """\
# What copies them may not keep their modes, and keys that others can read are refused.
credentials="$HOME"/{credentials}
chmod 700 "$credentials"
chmod 600 "$credentials"/*
logdir="$HOME"/{logdir}
.venv/bin/python run_experiment.py {flags} --logdir="$logdir" --credentials="$credentials"
"""


class Job(NamedTuple):
    """A run whose YAML was written."""

    logdir: Path
    name: str
    is_managed: bool
    """Whether it is for `sky jobs`, which starts a lost run again on other machines."""


def render(given: Given) -> str:
    """Returns the YAML of a run; see `engine.Engine`."""
    return _HEAD.format(command=_command(given)) + yaml_text(_task(given))


def submit(given: Given, hooks: Hooks | None = None) -> int:
    """Writes the YAML and the run's certificates to the logdir, and says what to type."""
    logdir = Path(given["logdir"]).absolute()
    text = render(given)
    record = {"job": _name(given), "managed": bool(given["mirror"])}
    try:
        logdir.mkdir(parents=True, exist_ok=True)
        certificates.renew(credentials_of(given))
        write_atomically(logdir / _TEXT, text)
        write_record(logdir, _NAME, record)
    except OSError as error:
        raise ConfigError(f"{error.filename or logdir}: {error.strerror}") from None
    print(f"written; start the run with: {_command(given)}")
    return 0


def find(logdir: str | Path | None) -> Job | None:
    """Returns the run whose YAML is in a logdir; see `engine.Engine`."""
    return read_record(
        logdir, _NAME, lambda path, record: Job(path, str(record["job"]), bool(record["managed"]))
    )


def show_status(job: Job) -> int:
    """Says what to ask SkyPilot.

    Raises:
      ConfigError: always.
    """
    raise ConfigError(_ask(job, "sky jobs queue", f"sky queue {job.name}"))


def follow_log(job: Job, name: str, follow: bool) -> int:
    """As `show_status`."""
    raise ConfigError(_ask(job, f"sky jobs logs -n {job.name}", f"sky logs {job.name}"))


def stop(job: Job) -> int:
    """As `show_status`."""
    raise ConfigError(_ask(job, f"sky jobs cancel -n {job.name}", f"sky cancel -a {job.name}"))


def _ask(job: Job, managed: str, plain: str) -> str:
    return f"{job.logdir}: SkyPilot has this run; ask it: {managed if job.is_managed else plain}"


def _name(given: Given) -> str:
    return label(Path(given["logdir"]).absolute().name)


def _command(given: Given) -> str:
    file = user_commands.in_current_folder(Path(given["logdir"]).absolute() / _TEXT)
    if given["mirror"]:
        return shlex.join(["sky", "jobs", "launch", "-n", _name(given), file])
    return shlex.join(["sky", "launch", "-c", _name(given), file])


def _check_folder() -> None:
    """Raises ConfigError unless `workdir: .` is the project: in a home folder, it has keys."""
    if user_commands.IS_CHECKOUT and user_commands.in_current_folder(user_commands.PROJECT) == ".":
        return
    where = f", {user_commands.PROJECT}" if user_commands.IS_CHECKOUT else ""
    raise ConfigError(
        "--engine=skypilot: SkyPilot copies the current folder to its machines; start this in the"
        f" folder of the project's source code{where}"
    )


def _typed(value: str) -> Any:
    """Returns what a value is in YAML: a number, true, or a text such as */us-east-1."""
    import yaml

    try:
        return yaml.safe_load(value)
    except (yaml.YAMLError, ValueError):  # ValueError: of a date that no calendar has
        return value


def _task(given: Given) -> dict[str, Any]:
    _check_folder()
    learners, actors = given["skypilot_learners"], given["skypilot_actors"]
    flags = given.without(*OF_THE_LAUNCH, "logdir", "credentials").replace(
        join=True, join_learners=learners
    )
    own = pairs(given["skypilot_resources"]).items()
    resources: dict[str, Any] = {name: _typed(value) for name, value in own}
    if given["mirror"]:
        # A node that was told to leave says so; SkyPilot then starts all of them again.
        resources["job_recovery"] = {"max_restarts_on_errors": 3, "recover_on_exit_codes": [LEFT]}
    name, credentials = _name(given), credentials_of(given)
    needed = extras.of_run(given.everything())
    more = " gcsfs" if given["mirror"].startswith("gs://") else ""  # not in the extra `mirror`
    packages = _SETUP.format(extras=",".join(["learner", *needed]), more=more)
    return {
        "name": name,
        "num_nodes": learners + actors,
        **({"resources": resources} if resources else {}),
        "workdir": ".",
        "file_mounts": {
            f"~/{_CREDENTIALS}/{file}": user_commands.in_current_folder(credentials / file)
            for file in _FILES
        },
        "setup": packages
        + (_PROCGEN if "procgen" in needed else "")
        + (_HOROVOD if learners > 1 else ""),
        "run": _RUN.format(
            credentials=_CREDENTIALS,
            logdir=f"{_RUNS}/{name}",
            flags=shlex.join(configs.to_flags(flags)),
        ),
    }
