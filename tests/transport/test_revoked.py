"""A machine whose certificate was stolen can be shut out, and nobody else notices."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from impala_tf.cluster import operate
from impala_tf.machine import certificates
from impala_tf.transport import HandshakeRefused, credentials
from tests.helpers.waiting import wait_until
from tests.helpers.wire import FakeLearner, files_of, make_unroll


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The certificates of a run that nobody else uses."""
    path = tmp_path / "credentials"
    certificates.create(path, keep_authority=True)
    return path


def test_a_revoked_machine_is_refused_while_the_others_train(
    folder: Path, learner: FakeLearner, caplog: pytest.LogCaptureFixture
) -> None:
    one = learner.serve(folder=folder)
    thief, honest = (
        learner.connect(one.port, name, folder=files_of(folder, machine))
        for machine, name in (("10.0.0.7", "actor-0"), ("10.0.0.8", "actor-1"))
    )
    for each in (thief, honest):
        each.push(make_unroll(1))
    certificates.revoke(folder, "10.0.0.7")
    began = time.monotonic()
    assert credentials.READ_AGAIN_S < operate.REVOKED_AFTER_S  # as `revoke` says
    with pytest.raises(HandshakeRefused, match=r"its certificate, 10\.0\.0\.7 .*, was revoked"):
        while time.monotonic() - began < 60:
            thief.push(make_unroll(2))
            time.sleep(0.1)
    assert "was revoked" in caplog.text
    learner.versions()
    honest.push(make_unroll(3))
    wait_until(lambda: learner.versions()[-1:] == [3])
    with pytest.raises(HandshakeRefused, match="was revoked"):
        learner.connect(one.port, "actor-5", folder=files_of(folder, "10.0.0.7")).handshake()
    thief.close()
    successor = learner.connect(one.port, "actor-0", folder=files_of(folder, "10.0.0.8"))
    successor.push(make_unroll(4))  # the name is free


def test_the_certificate_of_a_machine_stays_the_same_until_it_is_let_in_again(folder: Path) -> None:
    first = certificates.of_machine(folder, "worker:7/../x")
    assert certificates.of_machine(folder, "worker:7/../x") == first
    assert certificates.of_machine(folder, "worker") != first
    assert sorted(path.name for path in folder.iterdir())[-1] == "machines"
    assert certificates.revoked_folder(folder, "worker:7/../x") is None
    text = certificates.revoke(folder, "worker:7/../x")
    assert certificates.revoke(folder, "worker:7/../x") == text
    found = certificates.revoked_folder(folder, "worker:7/../x")
    assert found is not None
    assert found.parent == folder / "machines"
