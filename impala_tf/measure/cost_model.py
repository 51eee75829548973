"""Predicts the speed and cost of a run on a cluster from measurements of one machine.

Every agent step needs core time in its actor (environments, inference, half of the transport) and
in its learner (updates, the other half). Learners average gradients, so all learn equally fast. The
prediction is the largest rate at which no machine needs more cores than it has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from impala_tf.config import ConfigError
from impala_tf.frontend.plan import Plan

_HOW = "must be what run_experiment.py --mode=benchmark --json has printed"
_HALVINGS = 60


class Speed(NamedTuple):
    """The result of --mode=benchmark on a machine like those of the cluster."""

    level_name: str
    agent_name: str
    frames_per_step: int
    actor_core_s: float  # per agent step
    learner_core_s: float
    learner_steps_per_s: float  # on a GPU; infinite without one
    bytes_up: float  # per agent step
    bytes_down: float
    reached: float  # a whole run's rate, as a fraction of what its parts allow


class Machine(NamedTuple):
    """A machine of the cluster, and its processes."""

    name: str
    cores: float
    learners: int
    actors: int
    price: float  # per hour; 0: unknown


class Prediction(NamedTuple):
    """The predicted figures of a run."""

    agent_steps_per_s: float
    frames_per_s: float
    limit: str  # "learners" or "actors"
    actors_per_learner: float  # how many keep it busy, each on a core of its own
    learner_bytes_per_s: float  # from and to its actors
    price: float  # of all machines, per hour; 0: unknown


def prediction(plan: Plan, speed_json: str, cores: Mapping[str, int] | None = None) -> list[str]:
    """Returns lines about the speed and cost of a launch.

    Args:
      plan: the plan of the launch.
      speed_json: the file of the measurements.
      cores: {name of the machine: its cores}, if the machines were asked.

    Raises:
      ConfigError: the file cannot be used.
    """
    return _sentences(read_speed(Path(speed_json)), machines(plan, cores))


def read_speed(path: Path) -> Speed:
    """Returns a benchmark's result.

    Raises:
      ConfigError: the file cannot be read, or is not such a result.
    """
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        parts = {part["name"]: part for part in result["parts"]}
        core_s = {name: part["core_us_per_step"] * 1e-6 for name, part in parts.items()}
        on_gpu = parts["updates"]["device"] == "GPU"
        transport = core_s["transport"] / 2
        return Speed(
            str(result["level_name"]),
            str(result["agent_name"]),
            int(result["frames_per_step"]),
            core_s["environments"] + core_s["inference"] + transport,
            core_s["updates"] + transport,
            float(parts["updates"]["agent_steps_per_s"]) if on_gpu else float("inf"),
            float(result["bytes_up"]),
            float(result["bytes_down"]),
            float(result["whole"]) / float(result["ceiling"]),
        )
    except OSError as error:
        raise ConfigError(f"--speed_json={path}: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, ZeroDivisionError):
        raise ConfigError(f"--speed_json={path}: {_HOW}") from None


def machines(plan: Plan, cores: Mapping[str, int] | None = None) -> list[Machine]:
    """Returns the machines of a plan.

    Args:
      plan: the plan, with the machines and their processes.
      cores: {name of the machine: its cores}, if they were asked. Default: the cores in the CSV, or
        one for each process.
    """
    cluster = []
    for node in plan.nodes:
        processes = plan.on(node)
        learners = sum(process.is_learner for process in processes)
        count = (cores or {}).get(node.name) or node.cores or len(processes)
        actors = len(processes) - learners
        cluster.append(Machine(node.name, count, learners, actors, node.price or 0.0))
    return cluster


def predict(speed: Speed, cluster: Sequence[Machine]) -> Prediction:
    """Returns the rate of a run on these machines."""
    learners = sum(machine.learners for machine in cluster)

    def is_possible(rate: float) -> bool:
        of_learner = rate / learners
        return of_learner <= _capacity(speed, cluster) and rate <= sum(
            _supply(speed, machine, of_learner) for machine in cluster
        )

    most = learners * _capacity(speed, cluster)
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_possible(middle) else (low, middle)
    rate = speed.reached * low
    return Prediction(
        agent_steps_per_s=rate,
        frames_per_s=rate * speed.frames_per_step,
        limit="learners" if low > 0.99 * most else "actors",
        actors_per_learner=_capacity(speed, cluster) * speed.actor_core_s,
        learner_bytes_per_s=rate / learners * (speed.bytes_up + speed.bytes_down),
        price=sum(machine.price for machine in cluster),
    )


def _sentences(speed: Speed, cluster: Sequence[Machine]) -> list[str]:
    """Returns a prediction as lines of text."""
    expected = predict(speed, cluster)
    lines = [
        f"predicted: {expected.frames_per_s:,.0f} frames/s ({expected.agent_steps_per_s:,.0f} agent"
        f" steps/s) of {speed.agent_name} on {speed.level_name}, limited by its {expected.limit}",
        f"a learner there can use {expected.actors_per_learner:,.1f} actors with a core each, and"
        f" exchanges {expected.learner_bytes_per_s / 1e6:,.1f} MB/s with its actors",
    ]
    if expected.price:
        of_million = 1e6 * expected.price / (3600 * expected.frames_per_s)
        lines.append(f"{expected.price:,.2f} an hour: {of_million:,.4f} for a million frames")
    return lines


def _capacity(speed: Speed, cluster: Sequence[Machine]) -> float:
    """Returns the agent steps/s of the slowest learner, if its machine does nothing else."""
    on_cores = (
        machine.cores / machine.learners / speed.learner_core_s
        for machine in cluster
        if machine.learners
    )
    return min(speed.learner_steps_per_s, *on_cores)


def _supply(speed: Speed, machine: Machine, of_learner: float) -> float:
    """Returns the agent steps/s of a machine's actors beside its learners, on a core each."""
    free = machine.cores - machine.learners * of_learner * speed.learner_core_s
    return max(0.0, min(free, machine.actors)) / speed.actor_core_s
