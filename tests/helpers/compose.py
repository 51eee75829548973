"""A cluster of containers: the Compose file that users have, under a project name for tests."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.helpers.ports import free_port
from tests.helpers.runs import PROJECT

HOST_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
COMPILED = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "impala_tf")
_NEEDED = ("docker", "impala_tf", ".dockerignore", "pyproject.toml",
           "run_experiment.py")  # fmt: skip


def run(*command: str, timeout_s: float = 120.0, **options: Any) -> str:
    """Returns what a command printed; if it fails, the failure shows that."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        **options,
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-5000:]}"
    return done.stdout


def docker(*words: str, **options: Any) -> str:
    """Runs docker."""
    return run("docker", *words, **options).strip()


@functools.cache
def compose_command() -> tuple[str, ...]:
    """Returns the command of Compose v2 if it is installed, else docker-compose 1.29."""
    has_v2 = subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0
    return ("docker", "compose") if has_v2 else ("docker-compose",)


def copy_project(folder: Path) -> Path:
    """Copies what images are built from, this machine's authorities, and its wheel of Horovod."""
    folder.mkdir()
    for name in _NEEDED:
        if (PROJECT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "keys", "*.crt")
            shutil.copytree(PROJECT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(PROJECT / name, folder / name)
    if COMPILED.exists():
        shutil.copytree(COMPILED, folder / "docker" / "wheels", dirs_exist_ok=True)
    if HOST_AUTHORITIES.exists():
        shutil.copy(HOST_AUTHORITIES, folder / "docker" / "certificates" / "host.crt")
    return folder


class Cluster:
    """A Compose project. Settings are environment variables and override docker/.env."""

    def __init__(self, folder: Path, name: str, profile: str = "", **settings: str) -> None:
        self.name = name
        self._file = folder / "docker" / "docker-compose.yml"
        self._profile = ["--profile", profile] if profile else []
        self.settings = {"IMAGE_TAG": "tests", "TENSORBOARD_PORT": str(free_port()), **settings}

    def compose(self, *words: str, timeout_s: float = 300.0) -> str:
        """Runs Compose for this project."""
        return run(
            *compose_command(),
            *("-f", str(self._file), "-p", self.name),
            *self._profile,
            *words,
            timeout_s=timeout_s,
            env={**os.environ, **self.settings},
        )

    def up(self, *words: str) -> None:
        """Starts every service that is not running."""
        self.compose("up", "-d", "--no-build", *words)

    def remove(self) -> None:
        """Removes everything, including volumes."""
        self.compose("down", "--volumes", "--remove-orphans")

    def containers(self, service: str, state: str = "") -> list[str]:
        """Returns the ids of a service's containers, including those that are not running."""
        filters = [
            f"label=com.docker.compose.project={self.name}",
            f"label=com.docker.compose.service={service}",
            *([f"status={state}"] if state else []),
        ]
        words = [word for each in filters for word in ("--filter", each)]
        return docker("ps", "-a", "-q", "--no-trunc", *words).split()

    def inspect(self, container: str) -> dict[str, Any]:
        """Returns everything that the engine knows about a container."""
        return dict(json.loads(docker("inspect", container))[0])

    def logs(self, service: str) -> str:
        """Returns everything that the existing containers of a service have printed."""
        return "".join(docker("logs", each) for each in self.containers(service))

    def read(self, path: str) -> str:
        """Returns the text of a file on the volume with the runs; '' if there is none."""
        container = self.containers("tensorboard", "running")[0]
        command = ["docker", "exec", container, "cat", path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        return done.stdout if done.returncode == 0 else ""

    def status(self, logdir: str) -> dict[str, Any]:
        """Returns a run's status.json; {} if there is none yet."""
        text = self.read(f"{logdir}/status.json")
        return dict(json.loads(text)) if text else {}


if __name__ == "__main__":  # builds the images early; the tests' own builds then find all layers
    with tempfile.TemporaryDirectory() as temporary:
        Cluster(copy_project(Path(temporary, "project")), "impala-tests").compose(
            "build", timeout_s=3000
        )
