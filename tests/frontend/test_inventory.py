"""The workers CSV: every valid form is accepted, and all problems are reported together."""

import socket

import pytest

from impala_tf.config import ConfigError
from impala_tf.frontend.inventory import Row, Secret, read_workers
from impala_tf.frontend.project import ROOT

HEADER = "job,ip,tf_port,cuda_visible_devices,ssh_port,ssh_username,ssh_password\n"


def read(tmp_path, text, mode=0o600):
    path = tmp_path / "w.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return read_workers(path)


def problems(tmp_path, text, mode=0o600):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text, mode)
    return [line.replace(str(tmp_path / "w.csv"), "F") for line in caught.value.problems]


def test_the_example_is_two_learners_and_three_actors_on_this_machine():
    rows = read_workers(ROOT / "sandbox" / "local_workers_example.csv")
    assert [(row.job, row.ip, row.tf_port) for row in rows] == [
        ("learner", "localhost", 8001), ("learner", "localhost", 8002),
        ("actor", "localhost", None), ("actor", "localhost", None), ("actor", "localhost", None),
    ]  # fmt: skip


def test_any_column_order_bom_crlf_and_comments_are_accepted(tmp_path):
    text = (
        '\ufeff# made by "hand\r\n\r\n'
        "envs,key_filename,ip,job,python,tf_port,workdir,ssh_password\r\n"
        ",,10.0.0.1,Learner,,8001,,,,\r\n"
        '# an "open quote\r\n'
        '4,~/.ssh/id,10.0.0.2,actor,/opt/py/bin/python,,"my, folder",  s p\r\n'
    )
    assert read(tmp_path, text) == [
        Row(line=4, job="learner", ip="10.0.0.1", tf_port=8001),
        Row(
            line=6, job="actor", ip="10.0.0.2", envs=4, key_filename="~/.ssh/id",
            python="/opt/py/bin/python", workdir="my, folder", ssh_password=Secret("s p"),
        ),
    ]  # fmt: skip


def test_all_problems_of_a_file_are_reported_together(tmp_path):
    text = HEADER + (
        "boss,10.0.0.1,8001,,22,,\n"
        "learner,10.0.0.1,,0,22,,\n"
        "learner,10.0.0.1,99999,GPU 0,0,-oProxyCommand=x,\n"
        "actor,$(id),,,22,a;touch x,\n"
        "actor,10.0.0.1,,,22,me,,more\n"
    )
    named = "2: job, 3: tf_port, 4: tf_port, 4: cuda_visible_devices, 4: ssh_port, 4: ssh_username,"
    named += " 5: ip, 5: ssh_username, 6: ssh_password"
    found = problems(tmp_path, text)
    assert ", ".join(": ".join(line[2:].split(": ")[:2]) for line in found) == named


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (["learner,localhost,8001,", "actor,10.0.0.2,,"], ["F:2: ip: on 10.0.0.2 (line 3)"]),
        (
            ["learner,10.0.0.3,8001,", "learner,10.0.0.3,8001,", "actor,a,,w", "actor,a,,v"],
            ["F:3: tf_port: 8001 is already", "F:5: workdir: differs from line 4"],
        ),
        (
            ["learner,fd00::1,8001,", "learner,fd00::2,8001,", "actor,fd00::1,,"],
            ["F:2: ip: fd00::1: several learners need IPv4", "F:3: ip: fd00::2: several"],
        ),
        # Commas that spreadsheets add at line ends do not matter.
        (
            ["learner,10.0.0.1,8001,,, ", "actor,a,,,,,more,"],
            ["F:3: workdir: 4 columns, but 7"],
        ),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(tmp_path, rows, named):
    found = problems(tmp_path, "\n".join(["job,ip,tf_port,workdir", *rows]))
    for line, beginning in zip(found, named, strict=True):
        assert line.startswith(beginning)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workdir", '"a\nb"'),
        ("workdir", "a\x03b"),
        ("workdir", "-oProxyCommand=x"),
        ("python", "-c"),
        ("python", "A=1/python"),
        ("key_filename", "a\x00b"),
        ("key_filename", "~/.ssh/id_ed25519.pub"),
        ("ip", "-oProxyCommand=x"),
        ("ip", '"10.0.0.1\n"'),
        ("ip", "10.0..1"),
        ("ssh_host", "a" * 64),
        ("ssh_username", '"root\n"'),
        ("cuda_visible_devices", "$(id)"),
        ("envs", "0"),
        ("ssh_host", "-oProxyCommand=x"),
        ("host_key", "ssh-ed25519"),
        ("host_key", "MD5:00"),
        *(
            (field, address)
            for field in ("ip", "ssh_host")
            for address in ("0.0.0.0", "::", "[::]", "224.0.0.1", "ff02::1")
        ),
        ("envs", "１"),  # noqa: RUF001 - a digit, but not one of 0-9
    ],
)
def test_fields_that_a_program_could_misread_are_refused(tmp_path, field, value):
    names = ["job", "ip"] if field == "ip" else ["job", "ip", field]
    values = ["actor", value] if field == "ip" else ["actor", "10.0.0.1", value]
    found = problems(tmp_path, f"{','.join(names)}\n{','.join(values)}\n")
    assert [line.split(": ")[:2] for line in found] == [["F:2", field]]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "F:1: job: the file is empty; its first line must name the columns, some of job,ip,"),
        ("job,port,gpu\n", "F:1: 'port', 'gpu': no such column; the columns are job, ip,"),
        (
            "learner,10.0.0.1,8001\n",
            "F:1: job: the first line must name the columns, such as job,ip,tf_port; the columns",
        ),
        (
            "job,ip\nactor,localhost\n",
            "F:1: job: no learner; a run needs at least one learner and one actor",
        ),
        (b"job,ip\n\nactor,\xff\n", "F:3: job: not UTF-8"),
        ('job,ip\nactor,"10.0.0.1', "F:2: job: not valid CSV from here on"),
        ("job;ip\nactor;a\n", "F:1: job: columns are separated by ';' here; separate them by ','"),
        ("job,,ip\n", "F:1: '': no such column"),
        ("job\tip\nactor\ta\n", "F:1: job: columns are separated by '\\t' here; separate"),
    ],
)
def test_a_file_that_is_not_a_workers_csv_is_named_with_its_line(tmp_path, text, problem):
    assert problems(tmp_path, text)[0].startswith(problem)


def test_passwords_that_other_users_can_read_are_refused_and_not_shown(tmp_path):
    text = HEADER + "learner,10.0.0.1,8001,,22,me,canary\nactor,10.0.0.2,,,22,me,canary\n"
    found = problems(tmp_path, text, mode=0o640)
    assert len(found) == 1
    assert found[0].startswith("F:1: ssh_password: other users can read this file; run chmod 600 ")
    assert "canary" not in found[0]
    rows = read(tmp_path, text)
    assert rows[0].ssh_password is not None
    assert rows[0].ssh_password.reveal() == "canary"
    assert "canary" not in f"{rows} {rows[0].ssh_password}"


@pytest.mark.parametrize(
    ("line", "password"),
    [
        ("learner, 10.0.0.1, 8001, -1, 22, me, ", None),
        ("learner,10.0.0.1,8001,-1,22,me,\t ", None),
        ("learner, 10.0.0.1, 8001, -1, , me, a b ", "a b "),
        ('learner, 10.0.0.1, 8001, "0,1",, me, " a"', " a"),
    ],
)
def test_blanks_after_commas_are_no_part_of_a_password(tmp_path, line, password):
    """The machine refused it, or the file had to be private without a password in it."""
    row, _ = read(tmp_path, f"{HEADER}{line}\nactor,10.0.0.2,,,,,\n")
    assert row.ssh_password == (None if password is None else Secret(password))


def test_this_machine_by_its_name_is_not_called_another_machine(tmp_path):
    """The launch was refused, although an actor of this machine reaches a learner on loopback."""
    header, learner = "job,ip,tf_port,ssh_host,ssh_port\n", "learner,127.0.0.1,8001,,\n"
    here = f"actor,{socket.gethostname()},,"
    assert [row.line for row in read(tmp_path, f"{header}{learner}{here},\n")] == [2, 3]
    (line,) = problems(tmp_path, f"{header}{learner}{here},\nactor,192.0.2.1,,,\n")
    assert line.startswith("F:2: ip: on 192.0.2.1 (line 4), 127.0.0.1 is another machine; give the")
    (line,) = problems(tmp_path, f"{header}{learner}{here}127.0.0.1,2201\n")
    assert line.startswith(f"F:2: ip: on {socket.gethostname()} (line 3), 127.0.0.1 is another")
