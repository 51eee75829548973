"""A run on three machines, from setup to stop. Needs root and iproute2."""

import functools
import shutil
import subprocess
import sys

import pytest

from impala_tf.cluster.cluster_main import main
from impala_tf.cluster.node.state import read_state, state_path
from impala_tf.cluster.record import load
from impala_tf.config import Given, user_commands
from impala_tf.monitoring.live_display import Display
from tests.helpers.launched_run import submit
from tests.helpers.netns import HERE, know, network_of
from tests.helpers.runs import status
from tests.helpers.sshd import fingerprint
from tests.helpers.waiting import wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("cluster"),
]
TRAINING = {"level_name": "CartPole-v1", "batch_size": 4, "total_environment_frames": 100_000_000}


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    with network_of(tmp_path_factory.mktemp("network"), 3) as found:
        yield found


def write_csv(path, nodes):
    first, second, third = nodes
    rows = [("learner", first, 8001), ("learner", second, 8001), ("actor", first, ""),
            ("actor", second, ""), ("actor", third, "")]  # fmt: skip
    lines = ["job,ip,tf_port,cuda_visible_devices,ssh_username,envs,workdir,python"]
    lines += [
        f"{job},{node.address},{port},-1,root,{4 if job == 'actor' else ''},"
        f"{node.workdir},{sys.executable}"
        for job, node, port in rows
    ]
    lines.append(f"actor,{HERE},,-1,,4,,")  # This machine has the project already.
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return path


def test_a_run_over_three_machines(network, home, private_tmux, tmp_path, capfd, monkeypatch):
    nodes, _ = network
    csv, logdir = write_csv(tmp_path / "w.csv", nodes), tmp_path / "here" / "runs"
    logdir.parent.mkdir()
    monkeypatch.chdir(logdir.parent)
    monkeypatch.setenv("COLUMNS", "300")
    flag = f"--workers_csv_path={csv}"

    assert main(["setup", flag]) == 1
    refused = printed(capfd)
    for node in nodes:  # all are reported together
        assert f"{node.address}: unknown host key" in refused, refused
        assert fingerprint(node.host_key) in refused
    know(home / "known_hosts", nodes)
    assert main(["doctor", flag, "--logdir=runs"]) == 1
    set_up = user_commands.frontend("setup")
    assert f"{nodes[0].workdir}: no such folder; run {set_up}" in printed(capfd)
    assert main(["setup", flag]) == 0
    assert printed(capfd).count("ready: ") == 4
    healthy = main(["doctor", flag, "--logdir=runs"])
    found = printed(capfd)
    assert healthy == 0, found
    for listener, caller in ((0, 2), (1, 1)):
        reached = f"{nodes[caller].address} reaches {nodes[listener].address}:8001 ok"
        assert reached in found, found

    config = Given().replace(workers_csv_path=str(csv), logdir="runs", detach=True, **TRAINING)
    assert submit(config, Display) == 0, capfd.readouterr().err
    logdirs = [node.workdir / "runs" for node in nodes]
    actors_of = (["actor-0", "actor-2"], ["actor-1", "actor-3"])
    try:
        for rank, name in enumerate(("status.json", "status-1.json")):
            wait_until(functools.partial(sees, logdirs[rank], name, actors_of[rank]), 300)
        capfd.readouterr()
        assert main(["status", "--logdir=runs"]) == 0
        shown = printed(capfd)
        for name in ("learner-0", "learner-1", *actors_of[0], *actors_of[1]):
            assert f"\n{name} " in f"\n{shown}"
        assert shown.count(" running ") == 6
        assert main(["logs", "actor-2", "--logdir=runs"]) == 0
        private = list((logdirs[2] / "credentials").iterdir())
        assert sorted(path.name for path in private) == ["actor.key", "actor.pem", "ca.pem"]
        assert {path.stat().st_mode & 0o777 for path in private} == {0o600}
        stolen = shutil.copytree(logdirs[2] / "credentials", tmp_path / "stolen")
        plan = load(logdir).plan
        (actor,) = plan.on(next(each for each in plan.nodes if each.address == nodes[2].address))
        assert main(["revoke", nodes[2].address, "--logdir=runs"]) == 0, capfd.readouterr().err
        thief = subprocess.run(
            ["ip", "netns", "exec", nodes[2].space, sys.executable, *actor.arguments,
             f"--credentials={stolen}", f"--logdir={tmp_path / 'thief'}"],
            cwd=nodes[2].workdir, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert thief.returncode == 2, thief.stderr
        assert f"its certificate, {nodes[2].address} " in thief.stderr
        assert "was revoked" in thief.stderr
        before = status(logdirs[0])["agent_steps"]
        wait_until(lambda: status(logdirs[0])["agent_steps"] > before + 1000)
        assert main(["stop", "--logdir=runs"]) == 0, capfd.readouterr().err
    finally:
        main(["stop", "--logdir=runs"])
    for node in nodes:
        left = " ".join(node.processes())
        assert "run_experiment" not in left and "tmux" not in left
    assert any((logdirs[0] / "checkpoints").iterdir()), "no checkpoint was written at the end"
    found = [read_state(state_path(logdir, "node-here"))]
    for node, folder in zip(nodes, logdirs, strict=True):
        found.append(read_state(state_path(folder, f"node-{node.address}")))
    states = {name: state for each in found if each for name, state in each.processes.items()}
    assert len(states) == 6
    # It may have been refused before it was told to stop.
    assert states.pop(actor.name).exit_status in (0, 2)
    ends = {(state.state, state.exit_status) for state in states.values()}
    assert ends <= {("stopped", 0), ("finished", 0)}, states


def sees(logdir, name, actors):
    """Tells whether a learner's status names exactly these actors."""
    return sorted(actor["name"] for actor in status(logdir, name).get("actors", ())) == actors


def printed(capfd):
    """Returns what was printed since the last call, with one space between columns of tables."""
    return "\n".join(" ".join(line.split()) for line in capfd.readouterr().out.splitlines())
