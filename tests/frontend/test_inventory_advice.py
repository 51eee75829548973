"""What is said about a row of the workers CSV is true, and is what mends it."""

import socket

import pytest

from impala_tf.config import ConfigError
from impala_tf.frontend.inventory import Secret, read_workers

HEADER = "job,ip,tf_port,cuda_visible_devices"
SAID = 'leave no blank before the quote, as in ,"0,1"'


@pytest.fixture
def read(tmp_path):
    """Returns the rows of a CSV with these lines, or what is said about it."""

    def read_lines(*lines):
        path = tmp_path / "w.csv"
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o600)
        try:
            return read_workers(path)
        except ConfigError as error:
            return [line.removeprefix(f"{path}:") for line in error.problems]

    return read_lines


@pytest.mark.parametrize("gpus", ['"0,1"', '"0"', '"0,1",,'])
@pytest.mark.parametrize("blank", [" ", "\t"])
def test_a_blank_before_a_quote_is_what_is_wrong(read, gpus, blank):
    """The error asked for quotes, which were there, or for numbers, which were there too."""
    learner = f"learner, 10.0.0.1, 8001,{blank}{gpus}"
    assert read(HEADER, learner, "actor, 10.0.0.2,,") == [f"2: cuda_visible_devices: {SAID}"]


def test_each_field_with_such_a_blank_is_named(read):
    """A folder with quotes in its name was looked for on the machine."""
    actor = 'actor, "10.0.0.2",,, "my folder"'
    assert read(f"{HEADER},workdir", "learner,10.0.0.1,8001,,", actor) == [
        f"3: ip: {SAID}",
        f"3: workdir: {SAID}",
    ]


def test_a_password_may_begin_with_a_blank_and_a_quote(read):
    lines = ["job,ip,tf_port,ssh_password", 'learner,10.0.0.1,8001, "a', "actor,10.0.0.2,,"]
    assert read(*lines)[0].ssh_password == Secret(' "a')
    lines[1] = 'learner,10.0.0.1,8001, "a,b"'
    assert read(*lines) == [f"2: ssh_password: {SAID}"]


def test_this_machine_by_its_name_is_not_called_another_machine(read):
    """The launch was refused, although an actor of this machine reaches a learner on loopback."""
    here = f"actor,{socket.gethostname()},,"
    rows = read(HEADER, "learner,127.0.0.1,8001,", here)
    assert [row.line for row in rows] == [2, 3]
    (line,) = read(HEADER, "learner,127.0.0.1,8001,", here, "actor,192.0.2.1,,")
    assert line.startswith("2: ip: on 192.0.2.1 (line 4), 127.0.0.1 is another machine; give the")
    ports = f"{HEADER},ssh_host,ssh_port"
    (line,) = read(ports, "learner,127.0.0.1,8001,,,", f"{here},127.0.0.1,2201")
    assert line.startswith(f"2: ip: on {socket.gethostname()} (line 3), 127.0.0.1 is another")
