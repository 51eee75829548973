"""A launch says which port of its learners is in use, before it starts anything."""

import socket

import pytest

from tests.helpers.launched_run import windows
from tests.helpers.ports import free_port
from tests.helpers.stand_in import write_csv

pytestmark = pytest.mark.slow


def test_a_port_that_another_program_holds_is_named_before_anything_starts(run, capfd):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        write_csv(run.csv, run.project, learners=(str(port),))
        assert run.launch(detach=True) == 1
        said = capfd.readouterr().err
        assert (
            f"another process listens on localhost:{port}; end it, or give the learner another"
            " tf_port" in said
        )
        assert windows() == []
    assert run.launch(detach=True) == 0, "the port is free again"


def test_a_port_where_learners_find_each_other_is_named_before_anything_starts(run, capfd):
    """Learner 0 failed after the launch, and the others waited ten minutes for it."""
    write_csv(run.csv, run.project, learners=(free_port(), free_port()))
    with socket.create_server(("localhost", run.rendezvous_port)):
        assert run.launch(detach=True) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line == (
        f"this machine: another process listens on localhost:{run.rendezvous_port}; end it, or"
        " give another --rendezvous_port, where learners find each other"
    )
    assert windows() == []
