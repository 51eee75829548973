"""Lets a test say how many cores there are."""

import pytest


def pretend(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    """Makes `cores_here` return `cores`, also in a container with a quota."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr("impala_tf.config.this_machine._limits", lambda *arguments: [])
