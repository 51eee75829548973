"""Runs of real actors and learners over NAT, jump hosts, cut links, and machines that reboot."""

import shutil
import subprocess
import sys
import time

import pytest

from tests.helpers.netns import hidden_node, know, network_of
from tests.helpers.runs import PROJECT, status
from tests.helpers.runs import rows as rows_of
from tests.helpers.waiting import wait_until

pytestmark = [
    pytest.mark.zoo,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("cluster"),
]
TUNNEL = "10.213.79"
"""The network inside WireGuard."""
HEADER = "job,ip,tf_port,cuda_visible_devices,ssh_host,ssh_username,envs,workdir,python"
FLAGS = ("--level_name=tests.helpers.worlds:CalmCartPole-v1", "--batch_size=4",
         "--total_environment_frames=1000000000", "--checkpoint_interval_s=2",
         "--metrics_interval_s=1")  # fmt: skip


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    with network_of(tmp_path_factory.mktemp("network"), 3) as found:
        for node in found[0]:
            copy_project(node)
        yield found


def copy_project(node):
    """Puts the project on a machine, like `impala cluster setup`; this interpreter has packages."""
    node.workdir.mkdir()
    (node.workdir / "impala_tf").symlink_to(PROJECT / "impala_tf")
    (node.workdir / "run_experiment.py").write_bytes((PROJECT / "run_experiment.py").read_bytes())


class Launched:
    """An attached launcher; its logdir on every machine is WORKDIR/runs."""

    def __init__(self, folder, rows):
        self._here = folder / "here"
        self._here.mkdir()
        csv = folder / "w.csv"
        csv.write_text("\n".join([HEADER, *rows]) + "\n")
        self.output = folder / "output"
        with self.output.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, str(PROJECT / "run_experiment.py"), "--logdir=runs",
                 f"--workers_csv_path={csv}", *FLAGS],
                cwd=self._here, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def wait_for(self, *texts):
        """Waits until the launcher has printed these texts."""
        self.wait_until(lambda: all(text in self.output.read_text() for text in texts))

    def wait_until(self, condition):
        """Waits until `condition()` is true; fails if the launcher ends before."""
        is_over = self._process.poll
        wait_until(lambda: condition() or is_over() is not None, explain=self.output.read_text)
        assert self._process.poll() is None, self.output.read_text()

    def frontend(self, *words):
        done = subprocess.run(
            [sys.executable, "-m", "frontend", words[0], f"--logdir={self._here}/runs", *words[1:]],
            cwd=PROJECT, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stop(self):
        if self._process.poll() is None:
            self.frontend("stop")
            assert self._process.wait(60) == 0, self.output.read_text()


@pytest.fixture
def launched(network, tmp_path):
    """Launches a run with these rows; it is stopped at the end."""
    runs = []
    for node in network[0]:
        shutil.rmtree(logdir(node), ignore_errors=True)

    def launch(rows):
        runs.append(Launched(tmp_path, rows))
        return runs[-1]

    yield launch
    for run in runs:
        run.stop()


def row(job, node, ssh_host="", ip=""):
    port, envs = ("8001", "") if job == "learner" else ("", 4)
    return (f"{job},{ip or node.address},{port},-1,{ssh_host},root,{envs},"
            f"{node.workdir},{sys.executable}")  # fmt: skip


def logdir(node):
    return node.workdir / "runs"


def trains_with(learner, *names):
    """Tells whether a learner has had an unroll of each of these actors in the last seconds."""
    seen = status(logdir(learner))
    recent = seen.get("updated_unix_s", 0) - 3
    actors = seen.get("actors", ())
    return set(names) <= {a["name"] for a in actors if a["last_contact_unix_s"] > recent}


def frames(learner):
    """Returns the frames in the newest row of a learner's metrics; 0 if there is none."""
    found = rows_of(logdir(learner))
    return int(found[-1]["environment_frames"]) if found else 0


def test_machines_that_are_cut_off_or_reboot(network, home, launched):
    (first, second, third), _ = network
    know(home / "known_hosts", network[0])
    run = launched([row("learner", first), row("actor", second), row("actor", third)])
    run.wait_until(lambda: trains_with(first, "actor-0", "actor-1"))

    second.cut_off()
    run.wait_for(f"{second.address}: ", "its processes may still run")
    run.wait_until(lambda: trains_with(first, "actor-1") and not trains_with(first, "actor-0"))
    second.reconnect()
    run.wait_for(f"{second.address}: reachable again")
    run.wait_until(lambda: trains_with(first, "actor-0", "actor-1"))

    third.reboot()
    run.wait_for(f"{third.address}: its supervisor is silent")
    run.frontend("restart", third.address)
    run.wait_for(f"{third.address}: its supervisor is there again")
    run.wait_until(lambda: trains_with(first, "actor-0", "actor-1"))

    trained = frames(first)
    assert trained > 0
    before_unix_s = time.time()
    first.reboot()
    run.wait_for(f"{first.address}: its supervisor is silent")
    run.frontend("restart", first.address)
    run.wait_for(f"{first.address}: its supervisor is there again")
    run.wait_until(
        lambda: (
            status(logdir(first))["updated_unix_s"] > before_unix_s  # else it is from before
            and trains_with(first, "actor-0", "actor-1")
        )
    )
    log = logdir(first) / "processes" / "learner-0.log"
    assert "resuming from" in log.read_text(), "the learner began again"
    run.wait_until(lambda: frames(first) > trained)
    shown = run.frontend("status")
    assert shown.count(" running ") == 3, shown


def test_a_learner_behind_nat_and_a_jump_host_whose_bashrc_prints(network, home, launched):
    (gate, _, other), user_key = network
    with hidden_node(gate, user_key.parent, "hidden") as learner:
        copy_project(learner)
        for node in (gate, learner):
            (node.home / ".bashrc").write_text("echo welcome; echo to this machine >&2\n")
        for rule in (
            ("PREROUTING", "-d", gate.address, "-p", "tcp", "--dport", "8001",
             "-j", "DNAT", "--to-destination", f"{learner.address}:8001"),
            ("POSTROUTING", "-o", "eth1", "-j", "MASQUERADE"),
        ):  # fmt: skip
            gate.run("iptables", "-t", "nat", "-A", *rule)
        gate.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        know(home / "known_hosts", [gate, learner, other])
        (home / "config").write_text(
            f"IdentityFile {home}/id_ed25519\n"  # ssh itself looks for keys in the user's home
            f"Host inside\n  HostName {learner.address}\n  ProxyJump root@{gate.address}\n"
        )
        run = launched([row("learner", learner, ssh_host="inside", ip=gate.address),
                        row("actor", other)])  # fmt: skip
        try:
            run.wait_until(lambda: trains_with(learner, "actor-0"))
            assert "inside" in run.frontend("status")
            assert "welcome" not in run.frontend("logs", "learner-0")
        finally:
            run.stop()
            gate.run("iptables", "-t", "nat", "-F")
            (gate.home / ".bashrc").unlink()


def test_machines_that_share_a_home(network, home, launched):
    (first, second, third), _ = network
    know(home / "known_hosts", network[0])
    shared = first.workdir
    rows = [row("learner", first), row("actor", first)]
    rows += [row("actor", node).replace(str(node.workdir), str(shared)) for node in (second, third)]
    run = launched(rows)
    run.wait_until(lambda: trains_with(first, "actor-0", "actor-1", "actor-2"))
    assert run.frontend("restart", second.address).strip() == "restarted actor-1"
    run.wait_until(lambda: trains_with(first, "actor-0", "actor-1", "actor-2"))
    assert "acting in 4 environments" in run.frontend("logs", "actor-2")


@pytest.fixture
def tunnel(network, tmp_path):
    """A WireGuard network of the first two machines; no other TCP passes between them."""
    nodes = network[0][:2]
    names = [f"{node.space}w" for node in nodes]  # They share the folder of WireGuard's sockets.
    public = []
    for number, node in enumerate(nodes):
        key = tmp_path / f"{number}.key"
        public.append(node.run("sh", "-c", f"wg genkey | tee {key} | wg pubkey").strip())
    for number, (node, name) in enumerate(zip(nodes, names, strict=True)):
        other = 1 - number
        node.run("wireguard-go", name)
        node.run("wg", "set", name, "listen-port", "51820",
                 "private-key", str(tmp_path / f"{number}.key"),
                 "peer", public[other], "endpoint", f"{nodes[other].address}:51820",
                 "allowed-ips", f"{TUNNEL}.{other + 1}/32")  # fmt: skip
        node.run("ip", "address", "add", f"{TUNNEL}.{number + 1}/24", "dev", name)
        node.run("ip", "link", "set", name, "mtu", "1420", "up")
        node.run("iptables", "-A", "INPUT", "-i", "eth0", "-p", "tcp", "-s", nodes[other].address,
                 "-j", "DROP")  # fmt: skip
    yield nodes
    for node, name in zip(nodes, names, strict=True):
        node.run("ip", "link", "del", name)  # which ends wireguard-go
        node.run("iptables", "-F")


def test_learners_average_gradients_through_wireguard(tunnel, network, home, launched):
    know(home / "known_hosts", network[0])
    rows = [row(job, node, ssh_host=node.address, ip=f"{TUNNEL}.{number + 1}")
            for job in ("learner", "actor") for number, node in enumerate(tunnel)]  # fmt: skip
    run = launched(rows)
    run.wait_until(lambda: trains_with(tunnel[0], "actor-0"))
    run.wait_until(lambda: frames(tunnel[0]) > 0)
    assert run.frontend("status").count(" running ") == 4
