"""The workers CSV: every valid form is accepted, and all problems are reported together."""

import pytest

from impala_tf.cluster.inventory import Row, Secret, read_workers
from impala_tf.cluster.requirements import ROOT
from impala_tf.config import ConfigError

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
    named += " 5: ip, 5: ssh_username, 6: more fields than columns; a field with a comma needs quot"
    found = problems(tmp_path, text)
    assert ", ".join(": ".join(line[2:].split(": ")[:2]) for line in found).startswith(named)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (["learner,a,8001,,", "actor,b,,w,", "actor,b,,v,"], "F:4: workdir: differs from line 3"),
        (["learner,a,8001,,,, ", "actor,b,,,,,more,"], "F:3: more fields than columns"),
        (["learner,a,8001,,"], "F:1: job: no actor"),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(tmp_path, rows, named):
    (line,) = problems(tmp_path, "\n".join(["job,ip,tf_port,workdir,ssh_username", *rows]))
    assert line.startswith(named)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workdir", "a\x03b"),
        ("workdir", "-oProxyCommand=x"),
        ("python", "A=1/python"),
        ("key_filename", "~/.ssh/id_ed25519.pub"),
        ("ip", "-oProxyCommand=x"),
        ("ip", "0.0.0.0"),
        ("ip", "ff02::1"),
        ("ssh_host", "-oProxyCommand=x"),
        ("cuda_visible_devices", "$(id)"),
        ("envs", "0"),
        ("host_key", "MD5:00"),
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
        ("", "F:1: job: the column is missing"),
        ("learner,10.0.0.1,8001\n", "F:1: 'learner': no such column"),
        ("job,ip,job\n", "F:1: job: the column appears twice"),
        ("job,ip\nactor,localhost\n", "F:1: job: no learner"),
        (b"job,ip\n\nactor,\xff\n", "F:3: not UTF-8"),
        ('job,ip\nactor,"10.0.0.1', "F:2: not valid CSV"),
        ("#\njob;ip\nactor;a\n", "F:2: separate the columns by ',', not by ';'"),
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
