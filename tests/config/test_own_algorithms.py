"""An algorithm of the user's own is checked like one of the project's."""

from __future__ import annotations

from impala_tf.config import Given, problems

SYNCHRONOUS = """
import dataclasses

from impala_tf.algorithms import ppo

ALGORITHM = dataclasses.replace(ppo.ALGORITHM, about="ppo of one's own")
"""


def test_a_learner_started_by_hand_has_to_know_who_waits_for_it(tmp_path, monkeypatch):
    """Else it waits for ever for a batch of as many unrolls as this machine's actors would send."""
    (tmp_path / "synchronous.py").write_text(SYNCHRONOUS)
    monkeypatch.chdir(tmp_path)
    flags = {"job_name": "learner", "learner_hosts": "127.0.0.1:5000"}
    (line,) = problems(Given({**flags, "algorithm": "synchronous:ALGORITHM"}))
    assert line.startswith("--job_name=learner: actors wait for updates")
