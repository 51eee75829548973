"""TF_CONFIG: the environment variable in which schedulers describe a process's role in a cluster.

    {"cluster": {"learner": ["10.0.0.1:8001"], "actor": ["10.0.0.2", "10.0.0.3"]},
     "task": {"type": "actor", "index": 1}}

means --job_name=actor --task=1 --learner_hosts=10.0.0.1:8001 --actor_hosts=10.0.0.2,10.0.0.3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from impala_tf.config.errors import ConfigError
from impala_tf.config.flag_values import Given

VARIABLE = "TF_CONFIG"
_JOBS = ("learner", "actor")


def applied(given: Given, environment: Mapping[str, str]) -> Given:
    """Returns the given flags, which win; if they give no role, with the role from TF_CONFIG.

    It is ignored with --job_name, --workers_csv_path or a --mode other than train, and if its
    cluster has neither learners nor actors: Kubeflow and Vertex AI set it for jobs of one process,
    too. Raises ConfigError: TF_CONFIG is malformed.
    """
    text = environment.get(VARIABLE, "").strip()
    has_role = given["job_name"] or given["workers_csv_path"]
    if not text or has_role or given["mode"] != "train":
        return given
    try:
        described = json.loads(text)
        if not set(_JOBS) & set(described["cluster"]):
            return given
        return Given({**_flags(described), **given.flags})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f'{VARIABLE}: must be {{"cluster": {{"learner": [HOST:PORT, ...], "actor": [HOST,'
            f' ...]}}, "task": {{"type": "learner" or "actor", "index": NUMBER}}}}; {error!r}'
        ) from None


def _flags(described: Any) -> dict[str, Any]:
    """Returns the flags that TF_CONFIG stands for; raises if it is not as above."""
    cluster, task = described["cluster"], described["task"]
    hosts = {job: cluster.get(job, []) for job in _JOBS}
    for job, names in hosts.items():
        if not isinstance(names, list) or any("," in name for name in names):
            raise ValueError(f"cluster.{job}")
    if task["type"] not in _JOBS or type(task["index"]) is not int:
        raise ValueError("task")
    return {
        "job_name": task["type"],
        "task": task["index"],
        "learner_hosts": ",".join(hosts["learner"]),
        "actor_hosts": ",".join(hosts["actor"]),
    }
