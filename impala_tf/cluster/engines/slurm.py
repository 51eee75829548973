"""Slurm: renders a run as one batch script, submits it, and looks after the job.

The script starts `--join` once on each node. Learners and actors are the two components of a
heterogeneous job, so that their nodes may differ. Slurm restarts the whole job when it loses a
node, and the script requeues the job when its time limit is near; the run resumes from its
checkpoint.
"""

from __future__ import annotations

import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from impala_tf import config as configs
from impala_tf.cluster.engines.engine import (
    OF_THE_LAUNCH,
    make_logdir,
    print_commands,
    print_log,
    trains_there,
)
from impala_tf.cluster.join import LEFT, written
from impala_tf.cluster.node import state as files
from impala_tf.cluster.record import Launch, earlier, write
from impala_tf.cluster.runner import ClusterError
from impala_tf.cluster.status import print_run, run_in
from impala_tf.config import ConfigError, Given, user_commands
from impala_tf.logdir import write_atomically

_NAME, _SCRIPT = "slurm", "slurm.sh"
_COMMAND_S = 60.0
_RUNS = ("RUNNING", "COMPLETING", "SUSPENDED")
"""Jobs in other states, such as PENDING, have no processes."""
_HEAD = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --output={output}
#SBATCH --open-mode=append
#SBATCH --chdir={workdir}
#SBATCH --signal=B:USR1@120
"""
_BODY = """\

# Comes two minutes before the time is over: the learners write a checkpoint, and all nodes leave.
late= interrupted=
trap 'late=1 interrupted=1; scancel --signal=TERM "$SLURM_JOB_ID"' USR1

run=({command})
on_every_node=(--cpu-bind=none --wait=0 --kill-on-bad-exit=0)
{steps}
while interrupted=; wait "$learners"; status=$?; [ "$interrupted" ]; do :; done
if [ "$late" ] && {{ [ "$status" = 0 ] || [ "$status" = {left} ]; }}; then
    exec scontrol requeue "$SLURM_JOB_ID"
fi
{end}exit "$status"
"""
_BOTH_STEPS = """\
srun --het-group=1 "${on_every_node[@]}" "${run[@]}" &
actors=$!
srun --het-group=0 "${on_every_node[@]}" "${run[@]}" &
learners=$!"""
_ONE_STEP = """\
srun "${on_every_node[@]}" "${run[@]}" &
learners=$!"""
_LAST_WORDS = """\
for _ in {1..20}; do kill -0 "$actors" 2>/dev/null && sleep 1; done # the learners tell the actors
"""


def render(given: Given) -> str:
    """Returns the batch script of a run; see `engine.Engine`."""
    logdir = Path(given["logdir"]).absolute()
    program = (sys.executable, *user_commands.program())
    flags = given.without(*OF_THE_LAUNCH).replace(join=True, logdir=str(logdir))
    learners = given["num_learners"] or 1
    components = [_component(given, learners, "slurm_options", "slurm_learner_options")]
    if given["slurm_actors"]:
        actors = _component(given, given["slurm_actors"], "slurm_options")
        components += ["#SBATCH hetjob\n", actors]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", logdir.name)
    output = str(logdir).replace("%", "%%") + "/slurm-%j.out"
    head = _HEAD.format(name=f"impala-{name}", output=_quoted(output), workdir=_quoted(Path.cwd()))
    body = _BODY.format(
        command=shlex.join([*program, *configs.to_flags(flags)]),
        steps=_BOTH_STEPS if given["slurm_actors"] else _ONE_STEP,
        left=LEFT,
        end=_LAST_WORDS if given["slurm_actors"] else "",
    )
    return head + "".join(components) + body


def submit(given: Given, *_: object) -> int:
    """Submits a run; returns 0. See `engine.Engine`."""
    logdir = Path(given["logdir"]).absolute()
    script = render(given)
    if shutil.which("sbatch") is None:
        raise ConfigError("--engine=slurm: no sbatch here; use a machine with Slurm's commands")
    before = earlier(logdir, _NAME)
    if before is not None and (state := _queue(before, "%T")):
        raise trains_there(logdir, f"job {before.job['job']} is {state[0]} and")
    with written(logdir):
        make_logdir(given)
        write_atomically(logdir / _SCRIPT, script)
        number = _slurm("sbatch", "--parsable", str(logdir / _SCRIPT)).strip().partition(";")[0]
        launch = Launch(_NAME, str(logdir.resolve()), time.time(), {"job": number})
        write(secrets.token_hex(8), launch)
    print(f"submitted job {number}; it prints to {logdir}/slurm-{number}.out")
    logs = [["logs", "learner-0"]] if given["slurm_actors"] else []
    print_commands(given, ["status"], *logs, ["stop"])
    return 0


def show_status(launch: Launch) -> int:
    """Prints Slurm's state of the job, and the state of every process; returns 0."""
    lines = [f"job {line}" for line in _queue(launch, "%i %T, %M of %l, %D node(s) %R")]
    print(*(lines or [f"job {launch.job['job']} is not in the queue any more"]), sep="\n")
    is_there = any(f" {state}," in line for line in lines for state in _RUNS)
    print_run(run_in(Path(launch.logdir), is_there))
    return 0


def follow_log(launch: Launch, name: str, follow: bool) -> int:
    """Prints the end of a process's log; with the name 'supervisor', the end of the job's log."""
    of_job = Path(launch.logdir, f"slurm-{launch.job['job']}.out")
    is_job = name == "supervisor"
    return print_log(of_job if is_job else files.log_path(launch.logdir, name), follow)


def stop(launch: Launch) -> int:
    """Stops the whole run, with a checkpoint, or takes it out of the queue; returns 0."""
    number, states = launch.job["job"], _queue(launch, "%T")
    if not states:
        print(f"job {number} is not in the queue any more")
    elif "RUNNING" in states:
        # Its nodes stop their learners first, and the script ends after them.
        _slurm("scancel", "--signal=INT", number)
        print(f"job {number} stops: the learners write a checkpoint")
    else:
        _slurm("scancel", number)
        print(f"job {number} is cancelled")
    return 0


def _component(given: Given, nodes: int, *flags: str) -> str:
    options = [given[flag] for flag in flags if given[flag]]
    # Whole nodes, unless the user asks for cores; a node starts as many actors as it has cores.
    asked = re.search(r"(^| )(--cpus-per-task|-c|--exclusive)", " ".join(options))
    whole = "" if asked else " --exclusive"
    lines = [f"--nodes={nodes} --ntasks-per-node=1{whole} --requeue", *options]
    return "".join(f"#SBATCH {line}\n" for line in lines)


def _quoted(value: object) -> str:
    text = str(value)
    return f'"{text}"' if re.search(r"\s", text) else text


def _queue(launch: Launch, form: str) -> list[str]:
    """Returns a line for each component of the job that is in the queue."""
    command = ["squeue", "--noheader", f"--jobs={launch.job['job']}", f"--format={form}"]
    try:
        return _slurm(*command).splitlines()
    except ClusterError as error:
        if "Invalid job id" in str(error):  # Slurm no longer knows the job
            return []
        raise


def _slurm(*command: str) -> str:
    """Returns the output of a command of Slurm. Raises ClusterError if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"{command[0]}: {error}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"]
        raise ClusterError(f"{command[0]}: {lines[-1]}")
    return done.stdout
