"""The objects of a run in Kubernetes: two Indexed Jobs, and what they need.

Learners and actors are a Job each, of pods that run `--join`. A learner's name is known before it
runs: pod K of the Job NAME-learner is NAME-learner-K.NAME, for a headless Service NAME.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from impala_tf import config as configs
from impala_tf.config import Given
from impala_tf.config.engine_limits import pairs
from impala_tf.frontend.engines.documents import label
from impala_tf.frontend.engines.engine import OF_THE_LAUNCH, read_record
from impala_tf.frontend.join import LEFT
from impala_tf.frontend.plan import sizes
from impala_tf.machine import certificates
from impala_tf.machine.supervision import UNUSABLE_INPUT

ENGINE = "kubernetes"
RUN_LABEL, ROLE_LABEL = "impala-tf/run", "app.kubernetes.io/name"
FILES = {"learner": certificates.LEARNER_FILES, "actor": certificates.ACTOR_FILES}
"""{role: the files of its Secret}."""
_LEFT_OUT = (*OF_THE_LAUNCH, "task", "actor_hosts", "join_port")
_PORT = 8001
_IDLE_EXIT_MINUTES = 60.0
_GRACE_S = 120
"""More than a supervisor waits for a learner that stops: `supervision.STOP_TIMEOUT_S`."""
_RUNS, _SECRET, _CREDENTIALS = "/runs", "/secret", "/credentials"
_HEALTH = {"exec": {"command": ["python", "/opt/impala_tf/docker/health.py"]}, "timeoutSeconds": 10}
_UNPRIVILEGED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_USER = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "fsGroup": 1000,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
_INT32_MAX = 2**31 - 1

Object = dict[str, Any]


def name_of(given: Given) -> str:
    """Returns what the run's objects are called.

    That is the name that the run of the logdir was submitted with, if it was: its volume has it,
    and earlier versions left out the hash of the path, which tells folders of one name apart.
    """
    logdir = Path(given["logdir"])
    if recorded := read_record(logdir, ENGINE, lambda _, record: str(record["job"])):
        return recorded
    return label(logdir.absolute().name, of=str(logdir.resolve()))


def logdir_there(given: Given) -> str:
    """Returns the run's folder in its pods."""
    return f"{_RUNS}/{name_of(given)}"


def actors_per_pod(given: Given) -> int:
    """Returns how many actor processes a pod has."""
    cpu = pairs(given["kubernetes_actor_resources"])["cpu"]
    cores = float(cpu[:-1]) / 1000 if cpu.endswith("m") else float(cpu)
    return given["actors_per_node"] or max(1, int(cores))


def objects(given: Given) -> list[tuple[str, Object]]:
    """Returns the objects, each with what is to be said about it; the Jobs are the last ones.

    Args:
      given: the flags; `logdir` is among them, and `envs_per_actor` if actors wait for updates.
    """
    name, learners = name_of(given), given["kubernetes_learners"]
    found = [
        ("Pods of learners have names: NAME-learner-0.NAME, ...", _service(name, _port(given))),
        (
            "Nothing may connect to the run's pods, but for what the next policies allow. This"
            " works only\nif the cluster's network enforces policies. If it does not, the"
            " certificates still keep others out.",
            _policy(name, "closed", {}, []),
        ),
        ("", _policy(name, "actors", {"role": "learner"}, [_from(name, "actor", _port(given))])),
    ]
    if learners > 1:
        between = _policy(name, "learners", {"role": "learner"}, [_from(name, "learner")])
        found.append(("Learners find each other, and average their gradients.", between))
    if not given["kubernetes_claim"]:
        found.append(("The logdir. It stays when the Jobs are deleted.", _claim(given, name)))
    return [
        *found,
        (
            "Ends when learner 0 is done. Pods that lose their machine, or leave it (status"
            " 75),\nare replaced, and do not count as failed.",
            _job(given, "learner"),
        ),
        ("Ends when a learner tells an actor that the run is over.", _job(given, "actor")),
    ]


def selector(name: str, role: str = "") -> dict[str, str]:
    """Returns the labels of a run's objects, or of the pods of a role."""
    own = {ROLE_LABEL: role} if role else {}
    return {**own, RUN_LABEL: name}


def secret(given: Given, role: str, credentials: Path) -> Object:
    """Returns the Secret of a role.

    Args:
      given: the flags.
      role: learner or actor.
      credentials: a folder with the run's certificates.
    """
    name = name_of(given)
    texts = {file: (credentials / file).read_text() for file in FILES[role]}
    return _object("v1", "Secret", f"{name}-{role}", name, {"type": "Opaque", "stringData": texts})


def _object(version: str, kind: str, name: str, run: str, rest: Object) -> Object:
    labels = {"app.kubernetes.io/part-of": "impala-tf", RUN_LABEL: run}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "labels": labels},
        **rest,
    }


def _port(given: Given) -> int:
    return given["join_port"] or _PORT


def _service(name: str, port: int) -> Object:
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,  # learners find each other before they are ready
        "selector": selector(name, "learner"),
        "ports": [{"name": "grpc", "port": port, "targetPort": "grpc", "protocol": "TCP"}],
    }
    return _object("v1", "Service", name, name, {"spec": spec})


def _policy(run: str, what: str, of: dict[str, str], rules: list[Object]) -> Object:
    spec: Object = {
        "podSelector": {"matchLabels": selector(run, of.get("role", ""))},
        "policyTypes": ["Ingress"],
    }
    if rules:
        spec["ingress"] = rules
    return _object("networking.k8s.io/v1", "NetworkPolicy", f"{run}-{what}", run, {"spec": spec})


def _from(run: str, role: str, port: int | None = None) -> Object:
    rule: Object = {"from": [{"podSelector": {"matchLabels": selector(run, role)}}]}
    return {**rule, "ports": [{"protocol": "TCP", "port": port}]} if port else rule


def _claim(given: Given, name: str) -> Object:
    several = given["kubernetes_learners"] > 1
    spec: Object = {
        "accessModes": ["ReadWriteMany" if several else "ReadWriteOnce"],
        "resources": {"requests": {"storage": given["kubernetes_storage"]}},
    }
    if given["kubernetes_storage_class"]:
        spec["storageClassName"] = given["kubernetes_storage_class"]
    return _object("v1", "PersistentVolumeClaim", name, name, {"spec": spec})


def _job(given: Given, role: str) -> Object:
    run, pods = name_of(given), given[f"kubernetes_{role}s"]
    is_learner = role == "learner"
    exits = [("Ignore", LEFT), ("FailJob", UNUSABLE_INPUT)]
    spec = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        # Actors are always restarted, as in every other run.
        "backoffLimit": 6 if is_learner else _INT32_MAX,
        "successPolicy": {
            "rules": [{"succeededIndexes": "0"} if is_learner else {"succeededCount": 1}]
        },
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
                *(
                    {
                        "action": action,
                        "onExitCodes": {"containerName": role, "operator": "In", "values": [code]},
                    }
                    for action, code in exits
                ),
            ]
        },
        "template": {
            "metadata": {
                "labels": {"app.kubernetes.io/part-of": "impala-tf", **selector(run, role)}
            },
            "spec": _pod(given, role),
        },
    }
    return _object("batch/v1", "Job", f"{run}-{role}", run, {"spec": spec})


def _pod(given: Given, role: str) -> Object:
    name = name_of(given)
    is_learner = role == "learner"
    runs: Object = {"emptyDir": {"sizeLimit": "1Gi"}}
    if is_learner:
        runs = {"persistentVolumeClaim": {"claimName": given["kubernetes_claim"] or name}}
    return {
        **({"subdomain": name} if is_learner else {}),
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_S,
        "securityContext": dict(_USER),
        "initContainers": [_copies_credentials(given, role)],
        "containers": [_container(given, role)],
        "volumes": [
            {"name": "secret", "secret": {"secretName": f"{name}-{role}", "defaultMode": 0o440}},
            {"name": "credentials", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "runs", **runs},
        ],
    }


def _copies_credentials(given: Given, role: str) -> Object:
    """Files of a Secret are root's; private keys that others can read are refused. So: a copy."""
    return {
        "name": "credentials",
        "image": given[f"kubernetes_{role}_image"],
        "imagePullPolicy": "IfNotPresent",
        "command": [
            "install",
            "--mode=600",
            f"--target-directory={_CREDENTIALS}",
            *(f"{_SECRET}/{file}" for file in FILES[role]),
        ],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": dict(_UNPRIVILEGED),
        "volumeMounts": [
            {"name": "secret", "mountPath": _SECRET, "readOnly": True},
            {"name": "credentials", "mountPath": _CREDENTIALS},
        ],
    }


def _container(given: Given, role: str) -> Object:
    resources = pairs(given[f"kubernetes_{role}_resources"])
    is_learner = role == "learner"
    ports = [{"name": "grpc", "containerPort": _port(given), "protocol": "TCP"}]
    ready = {"readinessProbe": {**_HEALTH, "periodSeconds": 15, "failureThreshold": 3}}
    return {
        "name": role,
        "image": given[f"kubernetes_{role}_image"],
        "imagePullPolicy": "IfNotPresent",
        # Kubernetes replaces $(VARIABLE) in them, and takes $$ as $.
        "args": ["join", *(flag.replace("$", "$$") for flag in _flags(given, role))],
        "env": [{"name": "HOME", "value": "/tmp"}],
        **({"ports": ports} if is_learner else {}),
        "startupProbe": {**_HEALTH, "periodSeconds": 10, "failureThreshold": 60},
        **(ready if is_learner else {}),
        "livenessProbe": {**_HEALTH, "periodSeconds": 30, "failureThreshold": 4},
        "resources": {
            "requests": resources,
            # Cores may be used while others leave them idle.
            "limits": {each: amount for each, amount in resources.items() if each != "cpu"},
        },
        "securityContext": dict(_UNPRIVILEGED),
        "volumeMounts": [
            {"name": "runs", "mountPath": _RUNS},
            {"name": "credentials", "mountPath": _CREDENTIALS, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _flags(given: Given, role: str) -> list[str]:
    """Returns the flags of a pod. It finds its number in JOB_COMPLETION_INDEX."""
    name, learners = name_of(given), given["kubernetes_learners"]
    each = actors_per_pod(given)
    actors = each * given["kubernetes_actors"]
    hosts = (f"{name}-learner-{index}.{name}:{_port(given)}" for index in range(learners))
    flags: dict[str, Any] = {
        "join": True,
        "job_name": role,
        "learner_hosts": ",".join(hosts),
        "logdir": logdir_there(given),
        "credentials": _CREDENTIALS,
        "actors_per_node": each,
        **sizes(given, learners, [given["envs_per_actor"]] * actors),
    }
    if given["idle_exit_minutes"] is None:
        flags["idle_exit_minutes"] = _IDLE_EXIT_MINUTES
    return configs.to_flags(given.without(*_LEFT_OUT).replace(**flags))
