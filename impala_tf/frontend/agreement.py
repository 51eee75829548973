"""Whether the flags of a launch agree with the rows of its workers CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impala_tf.config import Given
from impala_tf.frontend.inventory import Machine, Row


def problems(given: Given, rows: Sequence[Row], names: Mapping[Machine, str]) -> list[str]:
    """Returns one line for each port or count with which a run could not start, or not continue.

    Args:
      given: the flags of the launch, with `workers_csv_path`.
      rows: the valid rows of the CSV.
      names: {login: name of the machine}; logins of this machine share a name.
    """
    learners = [row for row in rows if row.job == "learner"]
    return [*_shared_ports(given, learners, names), *_counts(given, rows)]


def _shared_ports(given: Given, learners: Sequence[Row], names: Mapping[Machine, str]) -> list[str]:
    """Returns a line for each learner whose port another one has, under any of their addresses."""
    used: dict[tuple[str, int | None], Row] = {}
    return [
        f"{given.cluster.workers_csv_path}:{row.line}: tf_port: {row.tf_port} is already used by"
        f" the learner in line {first.line}, which is on the same machine"
        for row in learners
        if (first := used.setdefault((names[row.machine], row.tf_port), row)) is not row
    ]


def _counts(given: Given, rows: Sequence[Row]) -> list[str]:
    lines = []
    for flag, job in (("min_learners", "learner"), ("min_actors", "actor")):
        fewest = getattr(given.cluster, flag)
        count = sum(row.job == job for row in rows)
        if fewest is not None and fewest > count:
            csv = given.cluster.workers_csv_path
            lines.append(f"--{flag}={fewest}: {csv} has {count} {job}(s); give at most {count}")
    return lines
