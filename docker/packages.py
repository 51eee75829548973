"""Says what pip installs into an image: `python3 docker/packages.py LIST [TENSORFLOW]`.

LIST is `actor` or `learner` (with the distribution of TensorFlow to use), `horovod-tools` (what its
build wants), `horovod`, or `horovod-environment` (NAME=VALUE of its build): an item a line.
Everything comes from pyproject.toml and from frontend/requirements.py; this only chooses. Standard
library only.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from frontend import requirements  # noqa: E402

# Videos, SSH, windows and the wrappers of levels that draw: evaluation and the front end want them.
NOT_FOR_ACTORS = ("av", "opencv-python-headless", "paramiko", "pygame")

_USAGE = "usage: packages.py actor|learner TENSORFLOW | horovod[-tools|-environment]"


def packages(image: str, tensorflow: str) -> list[str]:
    """Returns the requirements of an image, in the order of pyproject.toml.

    Args:
      image: actor or learner.
      tensorflow: the distribution to use, such as tensorflow-cpu or tensorflow[and-cuda]. It gets
        the version of the project's own requirement.
    """
    left_out = NOT_FOR_ACTORS if image == "actor" else ()
    found = [name for name in requirements.dependencies() if name not in left_out]
    return [
        f"{tensorflow}=={name.removeprefix('tensorflow==')}"
        if name.startswith("tensorflow==")
        else name
        for name in found
    ]


def main(arguments: list[str]) -> int:
    """Prints a list; returns the exit status."""
    match arguments:
        case ["actor" | "learner" as image, tensorflow] if tensorflow:
            lines = packages(image, tensorflow)
        case ["horovod-tools"]:
            lines = list(requirements.HOROVOD_BUILD_TOOLS)
        case ["horovod"]:
            lines = [requirements.HOROVOD]
        case ["horovod-environment"]:
            lines = list(requirements.HOROVOD_BUILD_ENVIRONMENT)
        case _:
            print(_USAGE, file=sys.stderr)
            return 2
    print(*lines, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
