"""TF_CONFIG: the environment variable in which schedulers describe a process's role in a cluster.

    {"cluster": {"learner": ["10.0.0.1:8001"], "actor": ["10.0.0.2", "10.0.0.3"]},
     "task": {"type": "actor", "index": 1}}

means --job_name=actor --task=1 --learner_hosts=10.0.0.1:8001 --actor_hosts=10.0.0.2,10.0.0.3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from impala_tf.config.addresses import valid_host_port
from impala_tf.config.errors import ConfigError
from impala_tf.config.flag_values import Given

VARIABLE = "TF_CONFIG"
_JOBS = ("learner", "actor")


def applied(given: Given, environment: Mapping[str, str]) -> Given:
    """Returns the given flags; if they give no role, with the role from TF_CONFIG.

    Flags on the command line take precedence. TF_CONFIG is ignored with --job_name,
    --workers_csv_path or a --mode other than train.

    Args:
      given: the flags of the command line.
      environment: the process's variables.

    Raises:
      ConfigError: TF_CONFIG is malformed.
    """
    text = environment.get(VARIABLE, "").strip()
    has_role = given["job_name"] or given["workers_csv_path"]
    if not text or has_role or given["mode"] != "train":
        return given
    return Given({**_flags(text), **given.flags})


def _flags(text: str) -> dict[str, Any]:
    """Returns the flags that TF_CONFIG stands for."""
    try:
        described = json.loads(text)
    except json.JSONDecodeError as error:
        raise _unusable(f"is not JSON: {error}") from None
    cluster, task = _object(described, "cluster"), _object(described, "task")
    job, index = task.get("type"), task.get("index")
    if job not in _JOBS:
        raise _unusable(f"task.type: {job!r}: must be learner or actor")
    hosts = {name: _hosts(cluster, name) for name in _JOBS}
    if not hosts["learner"]:
        raise _unusable("cluster.learner: names no learner")
    for number, host in enumerate(hosts["learner"]):
        if not valid_host_port(host):
            raise _unusable(f"cluster.learner[{number}]: {host!r} is not host:port")
    count = len(hosts[job])
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise _unusable(f"task.index: {index!r}: must be a number, 0 or more")
    if count and index >= count:
        raise _unusable(f"task.index: {index}: cluster.{job} names {count}")
    return {
        "job_name": job,
        "task": index,
        "learner_hosts": ",".join(hosts["learner"]),
        "actor_hosts": ",".join(hosts["actor"]),
    }


def _object(described: Any, name: str) -> dict[str, Any]:
    value = described.get(name) if isinstance(described, dict) else None
    if not isinstance(value, dict):
        raise _unusable(f'{name}: must be an object, in {{"cluster": ..., "task": ...}}')
    return value


def _hosts(cluster: dict[str, Any], name: str) -> list[str]:
    hosts = cluster.get(name, [])
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise _unusable(f"cluster.{name}: must be a list of strings, one per machine")
    for number, host in enumerate(hosts):
        if not host or "," in host or host != host.strip():
            raise _unusable(f"cluster.{name}[{number}]: {host!r}: must be one machine name")
    return hosts


def _unusable(problem: str) -> ConfigError:
    return ConfigError(f"{VARIABLE}: {problem}")
