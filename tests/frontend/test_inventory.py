"""The workers CSV: every valid form is accepted, and all problems are reported together."""

import os
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
        ",,10.0.0.1,learner,,8001,,\r\n"
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
    assert problems(tmp_path, text) == [
        "F:2: job: 'boss': must be learner or actor",
        "F:3: tf_port: a learner needs a port to listen on",
        "F:4: tf_port: '99999': must be a port from 1 to 65535",
        "F:4: cuda_visible_devices: 'GPU 0': must be GPU numbers such as 0 or \"0,1\", "
        "or -1 for none",
        "F:4: ssh_port: '0': must be a port from 1 to 65535",
        "F:4: ssh_username: '-oProxyCommand=x': not a valid user name",
        "F:5: ip: '$(id)': must be an address or a host name",
        "F:5: ssh_username: 'a;touch x': not a valid user name",
        "F:6: ssh_password: 7 columns, but 8 fields; a field with a comma needs quotes, such as "
        '"0,1"',
    ]


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
        ("envs", "１"),  # noqa: RUF001 - a digit, but not one of 0-9
    ],
)
def test_fields_that_a_program_could_misread_are_refused(tmp_path, field, value):
    names = ["job", "ip"] if field == "ip" else ["job", "ip", field]
    values = ["actor", value] if field == "ip" else ["actor", "10.0.0.1", value]
    found = problems(tmp_path, f"{','.join(names)}\n{','.join(values)}\n")
    assert [line.split(": ")[:2] for line in found] == [["F:2", field]]


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "[::]", "224.0.0.1", "ff02::1"])
@pytest.mark.parametrize("field", ["ip", "ssh_host"])
def test_an_address_of_no_machine_is_refused(tmp_path, field, address):
    """The learner listened, and no other machine reached it."""
    values = {"ip": "10.0.0.1", "ssh_host": "", field: address}
    text = f"job,ip,tf_port,ssh_host\nlearner,{values['ip']},8001,{values['ssh_host']}\nactor,a,,\n"
    assert problems(tmp_path, text) == [
        f"F:2: {field}: {address!r}: give the address at which the other machines reach this one"
    ]


def test_rows_that_do_not_fit_together_are_refused(tmp_path):
    text = "job,ip,tf_port,workdir\n" + (
        "learner,localhost,8001,\n"
        "actor,10.0.0.2,,a\n"
        "actor,10.0.0.2,,b\n"
        "learner,10.0.0.3,8001,\n"
        "learner,10.0.0.3,8001,\n"
    )
    assert problems(tmp_path, text) == [
        "F:2: ip: on 10.0.0.2 (line 3), localhost is another machine; give the address at which "
        "the other machines reach this learner",
        "F:4: workdir: differs from line 3, which has the same machine",
        "F:6: tf_port: 8001 is already used by the learner in line 5",
    ]


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
        ("job\tip\nactor\ta\n", "F:1: job: columns are separated by '\\t' here; separate"),
    ],
)
def test_a_file_that_is_not_a_workers_csv_is_named_with_its_line(tmp_path, text, problem):
    assert problems(tmp_path, text)[0].startswith(problem)


def test_commas_that_spreadsheets_add_at_line_ends_do_not_matter(tmp_path):
    text = "job,ip,tf_port,,\nlearner,10.0.0.1,8001,, \nactor,10.0.0.2,,,,\nactor,10.0.0.3\n"
    assert [(row.ip, row.tf_port) for row in read(tmp_path, text)] == [
        ("10.0.0.1", 8001), ("10.0.0.2", None), ("10.0.0.3", None)
    ]  # fmt: skip
    text = "job,ip,tf_port,\nlearner,10.0.0.1,8001,\nactor,10.0.0.2,,,more,\n"
    (line,) = problems(tmp_path, text)
    assert line.startswith("F:3: tf_port: 3 columns, but 5 fields; a field with a comma needs")
    assert problems(tmp_path, "job,,ip\n")[0].startswith("F:1: '': no such column")


def test_a_job_may_be_written_with_a_capital(tmp_path):
    assert [row.job for row in read(tmp_path, "job,ip,tf_port\nLearner,a,1\nACTOR,a,\n")] == [
        "learner", "actor"
    ]  # fmt: skip


def test_a_missing_file_is_named_with_its_flag(tmp_path):
    with pytest.raises(ConfigError, match="--workers_csv_path=.*none.csv: No such file"):
        read_workers(tmp_path / "none.csv")


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
        ('learner, 10.0.0.1, 8001,,, me, " a"', " a"),
    ],
)
def test_blanks_after_commas_are_no_part_of_a_password(tmp_path, line, password):
    """The machine refused it, or the file had to be private without a password in it."""
    row, _ = read(tmp_path, f"{HEADER}{line}\nactor,10.0.0.2,,,,,\n")
    assert row.ssh_password == (None if password is None else Secret(password))


def test_a_quoted_field_may_follow_a_blank(tmp_path):
    row, _ = read(tmp_path, f'{HEADER}learner, 10.0.0.1, 8001, "0,1"\nactor,10.0.0.2\n')
    assert row.cuda_visible_devices == "0,1"


def test_where_to_log_in_may_differ_from_the_address(tmp_path):
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIP0"
    text = (
        "job,ip,tf_port,ssh_host,ssh_port,host_key\n"
        f"learner,10.0.0.1,8001,203.0.113.7,,{key} me@here\n"
        "actor,10.0.0.2,,127.0.0.1,2201,\n"
    )
    first, second = read(tmp_path, text)
    assert (first.ip, first.ssh_host, first.ssh_port) == ("10.0.0.1", "203.0.113.7", None)
    assert first.host_key == key, "the comment is no part of the key"
    assert (second.ssh_host, second.ssh_port) == ("127.0.0.1", 2201)


def test_this_machine_by_its_name_is_not_called_another_machine(tmp_path):
    """The launch was refused, although an actor of this machine reaches a learner on loopback."""
    header, learner = "job,ip,tf_port,ssh_host,ssh_port\n", "learner,127.0.0.1,8001,,\n"
    here = f"actor,{socket.gethostname()},,"
    assert [row.line for row in read(tmp_path, f"{header}{learner}{here},\n")] == [2, 3]
    (line,) = problems(tmp_path, f"{header}{learner}{here},\nactor,192.0.2.1,,,\n")
    assert line.startswith("F:2: ip: on 192.0.2.1 (line 4), 127.0.0.1 is another machine; give the")
    (line,) = problems(tmp_path, f"{header}{learner}{here}127.0.0.1,2201\n")
    assert line.startswith(f"F:2: ip: on {socket.gethostname()} (line 3), 127.0.0.1 is another")


def test_several_learners_at_ipv6_addresses_are_refused(tmp_path):
    text = "job,ip,tf_port\nlearner,fd00::1,8001\nlearner,fd00::2,8001\nactor,fd00::1,\n"
    found = problems(tmp_path, text)
    assert [line.split(": ")[0] for line in found] == ["F:2", "F:3"]
    assert "Horovod cannot use IPv6" in found[0]


def test_passwords_in_a_file_of_another_user_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    path = tmp_path / "w.csv"
    path.write_text(HEADER + "learner,10.0.0.1,8001,,22,me,x\nactor,10.0.0.2,,,22,me,x\n")
    path.chmod(0o600)
    if path.stat().st_uid == 0:
        os.chown(path, 54321, -1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        read_workers(path)
