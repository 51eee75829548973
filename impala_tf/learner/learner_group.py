"""The group of learners and its all-reduce: a group of one, or Horovod's.

This is the only file that imports Horovod, and only if there is more than one learner.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from impala_tf import config as configs
from impala_tf.config import Config, ConfigError, user_commands
from impala_tf.config.flags import LEARNERS
from impala_tf.machine.supervision import Members
from impala_tf.types import Nest

_log = logging.getLogger("impala_tf.learner")


class LearnerGroup:
    """A group of learners with collective operations: here of one, in `HorovodGroup` of several.

    All learners must make the same calls in the same order.

    Args:
      told: the members, if the run has more learners that are away; None: this is the only one.

    Attributes:
      rank: this learner's rank. Rank 0 writes checkpoints and metrics.
      size: the number of learners in the group.
      members: the group's learners by rank, as numbers among all learners of the run.
      away_since_unix_s: Unix time since when each learner outside the group is away, by number.
    """

    rank = 0
    size = 1

    def __init__(self, told: Members | None = None) -> None:
        self.members: Sequence[int] = (0,) if told is None else told.numbers
        self.away_since_unix_s = {} if told is None else told.away_since_unix_s

    @property
    def others(self) -> str:
        """The names of the other learners; '' if there are none."""
        own = self.members[self.rank]
        return " or ".join(f"learner-{number}" for number in self.members if number != own)

    def sum(self, nest: Nest, name: str) -> Nest:
        """Returns a nest of tensors, summed over all learners.

        Calls with the same name must have the same shapes. It may be called inside a graph.
        """
        return nest

    def broadcast(self, variables: list[tf.Variable]) -> None:
        """Assigns rank 0's values to the variables of every learner."""

    def gather(self, value: Any) -> list[Any]:
        """Returns every learner's JSON-able value, by rank."""
        return [value]

    def is_lost_peer(self, error: BaseException) -> bool:
        """Returns whether `error`, raised by one of these operations, means a lost learner."""
        return False

    def close(self) -> None:
        """Leaves the group, which ends the group for all learners."""


class HorovodGroup(LearnerGroup):
    """The learners that horovodrun, mpirun or supervisors started as one group.

    Args:
      told: the members, from a supervisor; None: all learners of the run, by rank.

    Raises:
      ImportError: Horovod is not installed.
    """

    def __init__(self, told: Members | None = None) -> None:
        import horovod.tensorflow as hvd

        super().__init__(told)
        self._hvd = hvd
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()
        if told is None:
            self.members = range(self.size)

    def sum(self, nest: Nest, name: str) -> Nest:
        """Returns the sums, from one fused all-reduce."""
        # Horovod matches operations by name. Automatic names depend on how often a graph was built,
        # which differs between learners.
        sums = self._hvd.grouped_allreduce(
            tf.nest.flatten(nest), op=self._hvd.Sum, name=name, ignore_name_scope=True
        )
        return tf.nest.pack_sequence_as(nest, sums)

    def broadcast(self, variables: list[tf.Variable]) -> None:
        """Assigns rank 0's values to the variables of every learner."""
        self._hvd.broadcast_variables(variables, root_rank=0)

    def gather(self, value: Any) -> list[Any]:
        """Returns every learner's value, sent as JSON: Horovod's own gather would unpickle it."""
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        sizes = self._hvd.allgather(tf.constant([text.size], tf.int32)).numpy()
        everything = self._hvd.allgather(tf.constant(text)).numpy()
        parts = np.split(everything, np.cumsum(sizes)[:-1])
        return [json.loads(part.tobytes()) for part in parts]

    def is_lost_peer(self, error: BaseException) -> bool:
        """Returns whether a collective operation failed: Horovod reports a lost peer that way."""
        return isinstance(error, tf.errors.OpError) and "orovod" in str(error)

    def close(self) -> None:
        """Leaves the group, which ends the group for all learners."""
        self._hvd.shutdown()


def join_group(config: Config, told: Members | None) -> LearnerGroup:
    """Waits for the other learners of a run; returns their group.

    Raises:
      ConfigError: Horovod is missing, or has started another number of learners.
    """
    learners = len(configs.split(config.process.learner_hosts))
    expected = learners if told is None else len(told.numbers)
    if away := {} if told is None else told.away_since_unix_s:
        names = ", ".join(f"learner-{number}" for number in away)
        _log.warning("training with %d of %d learners, without %s", expected, learners, names)
    if expected == 1:
        return LearnerGroup(told)
    _log.info("waiting for the other learners; %d in all", expected)
    try:
        group = HorovodGroup(told)
    except ImportError:
        raise ConfigError(
            f"--learner_hosts: {learners} learners need Horovod; install it with"
            f" {user_commands.install_horovod(Path(sys.executable))}"
        ) from None
    if group.size != expected:
        raise ConfigError(
            f"--learner_hosts: names {learners} learners, but Horovod started {group.size};"
            f" start them with horovodrun -np {learners}"
        )
    return group


def check_equal_flags(config: Config, group: LearnerGroup) -> None:
    """Raises ConfigError if the learners of a group would not take the same steps.

    Some defaults depend on the number of actors, which a machine may have to guess.
    """
    values = configs.to_dict(config)
    own = {name: values[name] for name in configs.flags_of(LEARNERS)}
    everyones = group.gather(own)
    problems = [
        f"--{name}: the learners have {', '.join(str(flags[name]) for flags in everyones)};"
        " give all of them the same value"
        for name, value in own.items()
        if any(flags[name] != value for flags in everyones)
    ]
    if problems:
        raise ConfigError(problems)
