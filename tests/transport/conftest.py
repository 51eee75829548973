"""Learners whose servers and peers are closed when a test ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from impala_tf.machine import certificates
from tests.helpers.wire import FakeLearner


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "credentials"
    certificates.create(path)
    return path


@pytest.fixture
def learner(directory: Path) -> Iterator[FakeLearner]:
    one = FakeLearner(directory)
    yield one
    one.close()
