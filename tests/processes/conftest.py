"""The parts of a small learner process, made in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from impala_tf.config import Given
from impala_tf.learner.group import LearnerGroup
from impala_tf.processes.common import logdir_of, resolve
from impala_tf.processes.learner_parts import LearnerParts


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[..., LearnerParts]]:
    """Makes a learner's parts, with flags; always in the same logdir: a second one resumes."""
    made: list[LearnerParts] = []

    def close() -> None:
        for parts in made:
            parts.queue.close()
            parts.server.stop(0)
            parts.recorder.close()
        made.clear()

    def make(**more: Any) -> LearnerParts:
        close()
        flags = Given().replace(
            **{
                "level_name": "CartPole-v1",
                "logdir": str(tmp_path / "run"),
                "learner_hosts": "127.0.0.1:0",
                **more,
            },
        )
        config, spec = resolve(flags)
        made.append(LearnerParts(config, spec, logdir_of(config), LearnerGroup()))
        return made[-1]

    yield make
    close()
