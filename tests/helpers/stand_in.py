"""A project with a run_experiment.py that trains nothing: quick processes for the launcher."""

import sys

from impala_tf.cluster.requirements import ROOT
from tests.helpers.ports import free_port

PROGRAM = """
import faulthandler, json, os, signal, sys, time
faulthandler.register(signal.SIGUSR1)
flags = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
job, task, logdir = flags["job_name"], int(flags.get("task", 0)), flags["logdir"]
stopping, is_full = [], False
signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(4))
print(job, task, "is up with", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
assert sorted(os.listdir(f"{logdir}/credentials")), "no credentials"
name = "status.json" if task == 0 else f"status-{task}.json"
actors = [{"name": f"actor-{k}", "host": "h", "agent_steps_per_s": 1234.0, "parameter_lag": 2.5,
           "push_wait_fraction": 0.0, "last_contact_unix_s": time.time()} for k in range(9)]
while not stopping:
    if os.path.exists("finish"):
        sys.exit(int(open("finish").read() or 0) if job == "learner" else 0)
    if job == "actor" and os.path.exists("broken"):
        print("the level is broken", flush=True)
        sys.exit(3)
    if job == "learner" and os.path.exists("fail"):
        sys.exit(3)
    if job == "learner":
        row = {"agent_steps_per_s": 5678.0, "policy_lag_mean": 3.25, "policy_lag_max": 9.0,
               "frames_per_s": 5678.0, "episodes": 1, "episode_return_mean": 1.0,
               "queue_size": 1, "learner_idle_fraction": 0.0} if task == 0 else None
        status = {"state": "training", "updated_unix_s": time.time(), "actors": actors,
                  "row": row, "learners": [], "level_name": "Stand-in-v0", "agent_name": "a",
                  "logdir": logdir, "agent_steps": 1, "environment_frames": 1,
                  "total_environment_frames": 9, "frames_per_step": 1, "queue_capacity": 1,
                  "checkpoint": None, "pid": os.getpid(), "updated_uptime_s": time.monotonic()}
        if os.path.exists("reached"):
            status |= {"state": "done", "end_reason": open("reached").read()}
        try:
            with open(f"{logdir}/.{name}", "w") as file:
                json.dump(status, file)
            os.rename(f"{logdir}/.{name}", f"{logdir}/{name}")
            is_full = False
        except OSError:
            is_full = True
    time.sleep(0.05)
if job == "learner" and (is_full or os.path.exists("full")):
    sys.exit(1)
print("stopped cleanly", flush=True)
"""


def make_project(folder):
    """Makes the stand-in project in `folder`, with the launcher of this one."""
    folder.mkdir(parents=True)
    (folder / "impala_tf").symlink_to(ROOT / "impala_tf")
    (folder / "run_experiment.py").write_text(PROGRAM)
    (folder / "horovod").mkdir()  # a launch of several learners looks for it
    return folder


def write_csv(path, workdir, learners=(), actors=2):
    """Writes a workers CSV of this machine; returns its path. One learner, if no port is named."""
    learners = learners or [free_port()]
    rows = [f"learner,localhost,{port},,{workdir},{sys.executable}" for port in learners]
    rows += [f"actor,localhost,,-1,{workdir},{sys.executable}"] * actors
    header = "job,ip,tf_port,cuda_visible_devices,workdir,python"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path
