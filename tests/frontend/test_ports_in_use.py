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
    first = free_port()
    write_csv(run.csv, run.project, learners=(first, first - 2))
    with socket.create_server(("localhost", first + 1)):
        assert run.launch(detach=True) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line == (
        f"this machine: another process listens on localhost:{first + 1}; end it, or give"
        " learner-0 another tf_port: learners meet at the next one"
    )
    assert windows() == []
