"""What learners agree on before they step together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.peers import ControlFlags, exchange


class GroupOf:
    """This learner, and others that send (flags, whether they have a batch)."""

    rank = 0

    def __init__(self, *others: tuple[tuple[int, ...], bool]) -> None:
        self.size = 1 + len(others)
        self._others = others

    def sum(self, nest: Any, name: str) -> Any:
        """Each fills a place of its own after the five flags."""
        total = np.array(nest)
        for rank, (flags, has_batch) in enumerate(self._others, start=1):
            total[: len(flags)] += flags
            total[5 + rank] += has_batch
        return total


@pytest.mark.parametrize(
    ("mine", "others", "agreed"),
    [
        ((False, False, False), (0, 0, 0), (False, False, False)),
        ((True, False, False), (0, 0, 0), (True, False, False)),
        ((False, True, False), (0, 0, 0), (False, True, False)),
        ((False, False, True), (0, 0, 0), (False, False, True)),
        ((False, False, False), (0, 1, 0), (False, True, False)),
        ((True, False, True), (1, 1, 0), (True, True, True)),
        ((False, False, False), (0, 0, 0, 1), (False, False, False, True)),
    ],
)
def test_a_flag_of_one_learner_is_set_for_all(
    mine: tuple[bool, ...], others: tuple[int, ...], agreed: tuple[bool, ...]
) -> None:
    """Learners that disagree about the end would wait for each other for ever."""
    group: Any = GroupOf((others, True), ((0, 0, 0), False))
    flags, has_batch = exchange(group, ControlFlags(*mine), True)
    assert flags == ControlFlags(*agreed)
    assert has_batch == [True, True, False]


@pytest.mark.parametrize("has_batch", [True, False])
def test_a_learner_alone_agrees_with_itself(has_batch: bool) -> None:
    flags = ControlFlags(stop=True, write_row=False, checkpoint=True)
    assert exchange(LearnerGroup(), flags, has_batch) == (flags, [has_batch])
