"""Slurm on this machine: munge, a controller, and several nodes on loopback addresses. Needs root.

Debian's slurmd is built so that several of them can run on one machine (`slurmd -N NODE`).
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.helpers.ports import free_port
from tests.helpers.waiting import wait_until

_FIRST = 11
# A node's name is its address, because nothing here resolves other names. Requeued jobs wait for
# the expiry of their credentials, by default two minutes.
_CONFIGURATION = """\
ClusterName=imp
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
ProctrackType=proctrack/linuxproc
SchedulerParameters=bf_interval=2,sched_interval=2,bf_continue
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=6
SlurmdParameters=config_overrides
NodeName={nodes} NodeHostname={host} Port=[{first_port}-{last_port}] CPUs=2 State=UNKNOWN
PartitionName=all Nodes={nodes} Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A cluster that runs.

    Attributes:
      folder: of its files.
      nodes: their names, which are their addresses.
      environment: variables with which Slurm's commands talk to it.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.nodes = [f"127.0.0.{_FIRST + number}" for number in range(count)]
        self._processes: dict[str, Any] = {}
        first_port = free_port()
        nodes = f"127.0.0.[{_FIRST}-{_FIRST + count - 1}]"
        text = _CONFIGURATION.format(
            folder=folder, controller_port=free_port(), nodes=nodes, host=os.uname().nodename,
            first_port=first_port, last_port=first_port + count - 1,
        )  # fmt: skip
        (folder / "state").mkdir()
        self._configuration = folder / "slurm.conf"
        self._configuration.write_text(text)
        self.environment = {**os.environ, "SLURM_CONF": str(self._configuration)}

    def start(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        munge = [f"--key-file={key}", f"--socket={self.folder}/munge.socket",
                 f"--pid-file={self.folder}/munged.pid", f"--seed-file={self.folder}/munge.seed",
                 f"--log-file={self.folder}/munged.log"]  # fmt: skip
        self._run("munged", "munged", "--foreground", "--force", *munge)
        wait_until((self.folder / "munge.socket").exists)
        self._run("slurmctld", "slurmctld", "-D", "-c")
        for node in self.nodes:
            self.boot(node)
        wait_until(lambda: self.states() == ["idle"])

    def boot(self, node: str) -> None:
        self._run(node, "slurmd", "-D", "-N", node)

    def kill(self, node: str) -> None:
        """Ends a node and all that runs on it at once, as a power cut does."""
        daemon = self._processes.pop(node)
        daemon.kill()
        daemon.wait()
        mine = {f"SLURMD_NODENAME={node}".encode(), f"SLURM_CONF={self._configuration}".encode()}
        tasks, steps = [], []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                variables = (folder / "environ").read_bytes().split(b"\0")
                if mine <= set(variables):
                    tasks.append(int(folder.name))
                    parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                    if Path("/proc", parent, "comm").read_text().strip() == "slurmstepd":
                        steps.append(int(parent))
        # Who would report the end of the tasks comes first.
        for pid in dict.fromkeys([*steps, *tasks]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def states(self) -> list[str]:
        done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=self.environment,
                              capture_output=True, text=True)  # fmt: skip
        return sorted(set(done.stdout.split()))

    def close(self) -> None:
        for node in list(self.nodes):
            if node in self._processes:
                self.kill(node)
        for process in reversed(self._processes.values()):
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _run(self, name: str, *command: str) -> None:
        path = shutil.which(command[0]) or f"/usr/sbin/{command[0]}"
        with (self.folder / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [path, *command[1:]], env=self.environment, stdout=log, stderr=log
            )
