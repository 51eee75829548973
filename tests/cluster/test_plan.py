"""The plan of a launch: which process runs where, with which flags."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from impala_tf.cluster import launch, requirements
from impala_tf.cluster import plan as plans
from impala_tf.cluster.engines import ssh
from impala_tf.cluster.inventory import Row, Secret
from impala_tf.cluster.node.group import gloo_environment
from impala_tf.cluster.node.state import GroupInfo, ProcessSpec
from impala_tf.cluster.plan import NodeSpec, Plan, make_plan, passwords
from impala_tf.cluster.record import Record, folder, load, save
from impala_tf.cluster.runner import ClusterError
from impala_tf.config import ConfigError, Given

GIVEN = Given().replace(
    logdir="runs/x",
    level_name="CartPole-v1",
    workers_csv_path="w.csv",
    tmux_sess="mine",
    detach=True,
    credentials="/keys",
)
FLAGS = ("--level_name=CartPole-v1",)
LEARNERS = "--learner_hosts=10.0.0.1:8001,10.0.0.2:8001,10.0.0.1:9000"


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """The names and addresses of this machine."""
    names = {"10.0.0.9", "localhost", "127.0.0.1", "node9"}
    monkeypatch.setattr(plans, "is_here", lambda host: host in names)
    return names


def plan_of(rows, given=GIVEN):
    return make_plan(given, rows, "/py", Path("/logs"))


def rows():
    one: dict[str, Any] = {"ssh_username": "me", "workdir": "w", "python": "/opt/py"}
    two: dict[str, Any] = {"ssh_port": 22, "key_filename": "k", "ssh_password": Secret("canary")}
    return [
        Row(2, "actor", "10.0.0.9", envs=4, cuda_visible_devices="-1"),
        Row(3, "learner", "10.0.0.1", 8001, cuda_visible_devices="0", **one),
        Row(4, "learner", "10.0.0.2", 8001, **two),
        Row(5, "learner", "10.0.0.1", 9000, cuda_visible_devices="1", **one),
        Row(6, "actor", "10.0.0.1", **one),
        Row(7, "actor", "10.0.0.9"),
        Row(8, "actor", "10.0.0.9"),
    ]


def test_the_whole_plan():
    hosts = ("10.0.0.1", "10.0.0.2", "10.0.0.1")

    def learner(task, node, environment, more=()):
        group = GroupInfo(task, hosts, hosts, 9001)
        flags = ("--logdir=runs/x", *FLAGS, "--num_actors=4", "--job_name=learner", *more, LEARNERS)
        script = ("run_experiment.py", *flags)
        return ProcessSpec(f"learner-{task}", node, script, environment, 3, group)

    def actor(task, node, logdir, environment=None, more=(), envs=()):
        flags = (f"--logdir={logdir}", *FLAGS, "--num_actors=4", *envs, "--job_name=actor", *more)
        script = ("run_experiment.py", *flags, LEARNERS)
        return ProcessSpec(f"actor-{task}", node, script, environment or {})

    assert plan_of(rows()) == Plan(
        tmux_sess="mine",
        nodes=(
            NodeSpec(
                "this machine", "", True, str(requirements.ROOT), "/py", "/logs",
            ),
            NodeSpec(
                "10.0.0.1", "10.0.0.1", False, "w", "/opt/py", "runs/x", "10.0.0.1",
                None, "me",
            ),
            NodeSpec(
                "10.0.0.2", "10.0.0.2", False, "impala_tf", ".venv/bin/python", "runs/x",
                "10.0.0.2", 22, None, str(Path("k").absolute()),
            ),
        ),
        processes=(
            learner(0, "10.0.0.1", {"CUDA_VISIBLE_DEVICES": "0"}),
            learner(1, "10.0.0.2", {}, ("--task=1",)),
            learner(2, "10.0.0.1", {"CUDA_VISIBLE_DEVICES": "1"}, ("--task=2",)),
            actor(
                0, "this machine", "/logs", {"CUDA_VISIBLE_DEVICES": "-1"},
                envs=("--envs_per_actor=4",),
            ),
            actor(1, "10.0.0.1", "runs/x", more=("--task=1",)),
            actor(2, "this machine", "/logs", more=("--task=2",)),
            actor(3, "this machine", "/logs", more=("--task=3",)),
        ),
        learner_hosts=("10.0.0.1:8001", "10.0.0.2:8001", "10.0.0.1:9000"),
    )  # fmt: skip


def test_a_learner_that_listens_on_loopback_only_is_refused(monkeypatch):
    """Debian's /etc/hosts has 127.0.1.1 for the machine's own name; actors elsewhere would wait."""
    fine = dict.fromkeys(("windows", "running", "taken", "foreign", "lacks_horovod"), ())
    monkeypatch.setattr(launch, "ask_agent", lambda *_: {**fine, "loopback": ["node1"]})
    plan = plan_of([Row(2, "learner", "node1", 8001), Row(3, "actor", "10.0.0.1")])
    with pytest.raises(ClusterError, match="loopback address for node1 there"):
        launch.check(plan, mock.Mock(node=plan.nodes[0]), Path("logs"), "w.csv")


def test_members_are_numbered_as_horovod_does(monkeypatch):
    monkeypatch.setattr("impala_tf.cluster.node.group.interface_of", lambda host: None)
    group = GroupInfo(0, ("a", "b", "c", "a2"), ("a", "b", "c", "a"), 9001)
    store = mock.Mock(address="127.0.0.1:1/x", port=1)

    def position(number, *members):
        found = gloo_environment(group._replace(number=number), members, store)
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
        return *(int(found[f"HOROVOD_{name}"]) for name in names), found["HOROVOD_HOSTNAME"]

    assert position(0, 0, 1, 2, 3) == (0, 4, 0, 2, 0, 3, "a")
    assert position(2, 0, 1, 2, 3) == (2, 4, 0, 1, 2, 3, "c")
    assert position(3, 0, 1, 2, 3) == (3, 4, 1, 2, 0, 1, "a2")
    # Without learner 1.
    assert position(2, 0, 2, 3) == (1, 3, 0, 1, 1, 2, "c")
    assert position(3, 0, 2, 3) == (2, 3, 1, 2, 0, 1, "a2")
    assert position(0, 0) == (0, 1, 0, 1, 0, 1, "a")


def test_a_forwarded_port_on_loopback_is_another_machine():
    forwarded = [
        Row(2, "learner", "10.0.0.1", 8001, ssh_host="127.0.0.1", ssh_port=2201),
        Row(3, "actor", "127.0.0.1", ssh_port=2202),
        Row(4, "actor", "127.0.0.1"),
    ]
    plan = plan_of(forwarded)
    assert [(node.ssh_host, node.ssh_port, node.is_local) for node in plan.nodes] == [
        ("127.0.0.1", 2201, False), ("127.0.0.1", 2202, False), ("", None, True)
    ]  # fmt: skip
    assert plan.nodes[0].address == "10.0.0.1"


@pytest.mark.parametrize(
    ("flags", "refused", "named"),
    [
        ({}, [Row(2, "learner", "localhost", 8001, workdir="/a"), Row(3, "actor", "10.0.0.9")],
         "--workers_csv_path=w.csv: rows on this machine differ in python or workdir"),
        ({}, [Row(2, "learner", "127.0.0.1", 8001), Row(3, "learner", "localhost", 8001)],
         "w.csv:3: tf_port: 8001 is that of the learner in line 2"),
        ({}, [Row(2, "learner", "127.0.0.1", 8001), Row(3, "actor", "node9"), Row(4, "actor", "x")],
         "w.csv:2: ip: on x (line 4), 127.0.0.1 is another machine"),
        ({"min_learners": 3}, [Row(2, "learner", "a", 8001)], "--min_learners=3: w.csv has only 1"),
    ],
)  # fmt: skip
def test_rows_that_contradict_each_other_are_named(flags, refused, named):
    with pytest.raises(ConfigError) as caught:
        plan_of(refused, GIVEN.replace(**flags))
    assert caught.value.problems[0].startswith(named)


def test_a_record_can_be_loaded_again_and_holds_no_password(tmp_path):
    plan = plan_of(rows())
    assert passwords(rows()) == {"10.0.0.2": Secret("canary")}
    record = Record("0" * 16, 1.5, "/w.csv", ("--seed=1",), plan, end_command="halt")
    save(record, tmp_path)
    assert load(tmp_path) == record
    written = folder() / f"{'0' * 16}.json"
    assert "canary" not in written.read_text()
    assert [path.stat().st_mode & 0o777 for path in (written.parent, written)] == [0o700, 0o600]


# --- --dry_run ---

ROWS = """job,ip,tf_port,cuda_visible_devices,ssh_host,ssh_username,ssh_port,envs
learner,10.9.9.1,8001,0,gpu_1,root,2201,
learner,10.9.9.2,8001,0,,,,
actor,10.9.9.3,,-1,,me,,32
actor,10.9.9.3,,-1,,me,,32
actor,10.9.9.4,,-1,,,,
actor,10.9.9.3,,-1,,me,,32
actor,10.0.0.9,,-1,,,,4
"""


def test_a_dry_run_prints_what_would_run_where(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("impala_tf.cluster.launch.connected", lambda *_: pytest.fail("connected"))
    csv, logs = tmp_path / "w.csv", tmp_path / "logs"
    csv.write_text(ROWS)
    given = Given().replace(workers_csv_path=str(csv), logdir=str(logs), envs_per_actor=16)
    assert ssh.render(given) == Path(__file__).with_name("ssh.golden.txt").read_text()
    with pytest.raises(ConfigError, match="--secret=NOT_SET: not set in this shell"):
        ssh.render(given.replace(secret=("NOT_SET",)))
    assert not logs.exists()


def test_what_is_probably_a_mistake_is_named():
    """Machines behind forwarded ports have loopback addresses, so the CSV looked right."""
    learner = Row(2, "learner", "127.0.0.1", 8001, ssh_port=2201)
    actor, away = (Row(3, "actor", "127.0.0.1", ssh_port=port) for port in (2201, 2202))
    assert plans.warnings(plan_of([learner, actor])) == []
    (line,) = plans.warnings(plan_of([learner, actor, away]))
    assert "learner-0 is at 127.0.0.1, out of reach" in line
    two = [Row(2, "learner", host, 8001) for host in ("10.0.0.1", "10.0.0.2")]
    (line,) = plans.warnings(plan_of([*two, Row(4, "actor", "10.0.0.1")]))
    assert "learner-1 would train nothing" in line
