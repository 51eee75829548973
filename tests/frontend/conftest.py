"""Fixtures of the front end's tests: an sshd of the test's own."""

import pytest

from tests.helpers.sshd import running_sshd


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    """A server that takes root with one key."""
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server
