"""Kubernetes: renders a run as manifests, applies them with kubectl, and looks after the run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.config import ConfigError, Given, user_commands
from impala_tf.frontend.engines import kubernetes_manifests as manifests
from impala_tf.frontend.engines.documents import yaml_text
from impala_tf.frontend.engines.engine import (
    Hooks,
    called,
    print_commands,
    print_frames,
    read_record,
    write_record,
)
from impala_tf.frontend.errors import ClusterError
from impala_tf.logdir import write_atomically
from impala_tf.machine import certificates

_TEXT = "kubernetes.yaml"
_COMMAND_S = 240.0
"""Longer than pods have to stop (`kubernetes_manifests`)."""
_TAIL_LINES = "200"
_INDEX = "batch.kubernetes.io/job-completion-index"
_HEAD = """\
# A run of impala_tf: kubectl apply -f THIS_FILE
# Two Secrets are not in it: the run's certificates for learners and for actors. Without --dry_run,
# --engine=kubernetes makes them, too. By hand:
#   .venv/bin/python docker/credentials.py credentials/learner credentials/actor
#   kubectl create secret generic {name}-learner --from-file=credentials/learner{namespace}
#   kubectl create secret generic {name}-actor --from-file=credentials/actor{namespace}
"""


class Job(NamedTuple):
    """A run that was submitted."""

    logdir: Path
    """Its folder here, which has the certificates and what was applied."""
    name: str
    namespace: str
    """'': that of kubectl's context."""
    logdir_there: str
    actors_per_pod: int


def render(given: Given) -> str:
    """Returns the manifests of a run as YAML, without its Secrets; see `engine.Engine`."""
    namespace = given["kubernetes_namespace"]
    name = manifests.name_of(given)
    texts = [_HEAD.format(name=name, namespace=f" -n {namespace}" if namespace else "")]
    for remark, found in manifests.objects(given):
        about = "".join(f"# {line}\n" for line in remark.splitlines())
        document = _placed(found, namespace)
        texts.append(about + yaml_text(document))
    return "---\n".join(texts)


def submit(given: Given, hooks: Hooks | None = None) -> int:
    """Makes the Secrets and applies the manifests; see `engine.Engine`."""
    if shutil.which("kubectl") is None:
        raise ConfigError("--engine=kubernetes: no kubectl here; install it, or give --dry_run")
    logdir = Path(given["logdir"]).absolute()
    record = {
        "job": manifests.name_of(given),
        "namespace": given["kubernetes_namespace"],
        "logdir": manifests.logdir_there(given),
        "actors_per_pod": manifests.actors_per_pod(given),
    }
    job, here = _job_of(logdir, record), f"--logdir={given['logdir']}"
    if running := _jobs(
        job, "-o=jsonpath={range .items[?(@.status.active)]}{.metadata.name} {end}"
    ):
        raise ConfigError(
            f"--logdir={logdir}: {running.strip()} in Kubernetes trains there; stop it first:"
            f" {user_commands.frontend('stop', here)}"
        )
    text = render(given)
    try:
        logdir.mkdir(parents=True, exist_ok=True)
        credentials = Path(given["credentials"] or logdir / "credentials")
        certificates.renew(credentials)
        secrets = [manifests.secret(given, role, credentials) for role in manifests.FILES]
        write_atomically(logdir / _TEXT, text)
        write_record(logdir, manifests.ENGINE, record)
    except OSError as error:
        raise ConfigError(f"{error.filename or logdir}: {error.strerror}") from None
    # A finished Job cannot start again: this is a new one. The volume has the checkpoints.
    _delete_jobs(job, "--wait=true")
    _apply(job, secrets, str(logdir / _TEXT))
    print(f"applied {logdir / _TEXT}: the run is {job.name} in Kubernetes")
    print_commands(given, ["status"], ["logs", "learner-0"], ["stop"])
    return 0


def find(logdir: str | Path | None) -> Job | None:
    """Returns the run that was submitted with a logdir; see `engine.Engine`."""
    return read_record(logdir, manifests.ENGINE, _job_of)


def _job_of(logdir: Path, record: Any) -> Job:
    name, namespace = str(record["job"]), str(record["namespace"])
    return Job(logdir, name, namespace, str(record["logdir"]), int(record["actors_per_pod"]))


def show_status(job: Job) -> int:
    """Prints the run's Jobs and pods, and its frames while it runs; see `engine.Engine`."""
    said = _kubectl(job, "get", "jobs,pods", _selector(job), "--ignore-not-found").rstrip()
    print(said or f"{job.name} has no Jobs in Kubernetes any more")
    running = "--field-selector=status.phase=Running"
    names = "-o=jsonpath={.items[*].metadata.name}"
    pods = _kubectl(job, "get", "pods", _selector(job, "learner", 0), running, names).split()
    if not pods:
        return 0
    path = f"{job.logdir_there}/status.json"
    try:
        print_frames(_kubectl(job, "exec", pods[0], "-c=learner", "--", "cat", path))
    except (ClusterError, ValueError, KeyError):
        print("learner-0 has not written its status yet")
    return 0


def follow_log(job: Job, name: str, follow: bool) -> int:
    """Prints the output of the pod that runs a process; see `engine.Engine`."""
    match = re.fullmatch(r"(learner|actor)-(\d{1,9})", name)
    if match is None:
        raise ClusterError(f"{name}: no process of a run; name one such as learner-0 or actor-2")
    role, task = match[1], int(match[2])
    pod = task if role == "learner" else task // job.actors_per_pod
    command = ["logs", _selector(job, role, pod), f"-c={role}", f"--tail={_TAIL_LINES}"]
    return subprocess.run(_command(job, *command, *(["-f"] if follow else []))).returncode


def stop(job: Job) -> int:
    """Deletes the run's Jobs, so that its learners write a checkpoint; see `engine.Engine`."""
    if not _jobs(job, "-o=name"):
        print(f"{job.name} has no Jobs in Kubernetes any more")
        return 0
    # They stay until their pods have ended, so that nobody starts the run again before that.
    _delete_jobs(job, "--wait=false")
    print(f"{job.name} stops: the learners write a checkpoint")
    return 0


def _placed(found: manifests.Object, namespace: str) -> manifests.Object:
    if not namespace:
        return found
    name, *rest = found["metadata"].items()
    return {**found, "metadata": dict([name, ("namespace", namespace), *rest])}


def _apply(job: Job, secrets: list[manifests.Object], file: str) -> None:
    """Applies all or, if something is refused, nothing."""
    for tried in (["--dry-run=server"], []):
        for each in secrets:
            # Without --server-side, kubectl would add a copy of the keys as an annotation.
            text = json.dumps(_placed(each, job.namespace))
            _kubectl(job, "apply", "--server-side", "--force-conflicts", "-f=-", *tried, text=text)
        _kubectl(job, "apply", f"-f={file}", *tried)


def _jobs(job: Job, output: str) -> str:
    return _kubectl(job, "get", "jobs", _selector(job), output)


def _delete_jobs(job: Job, wait: str) -> None:
    _kubectl(job, "delete", "jobs", _selector(job), "--cascade=foreground", wait)


def _selector(job: Job, role: str = "", index: int | None = None) -> str:
    labels: dict[str, Any] = manifests.selector(job.name, role)
    if index is not None:
        labels[_INDEX] = index
    return "--selector=" + ",".join(f"{label}={value}" for label, value in labels.items())


def _command(job: Job, *words: str) -> list[str]:
    namespace = [f"--namespace={job.namespace}"] if job.namespace else []
    return ["kubectl", *namespace, *words]


def _kubectl(job: Job, *words: str, text: str | None = None) -> str:
    return called(f"kubectl {words[0]}", _command(job, *words), _COMMAND_S, text)
