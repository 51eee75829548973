"""Makes a run's certificates in two folders: `credentials.py LEARNER_FOLDER ACTOR_FOLDER`.

With two folders, learners see only their own certificates, and so do actors. Folders that already
hold usable certificates of the same run are left alone, so this can run before every start.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from impala_tf.config import ConfigError
from impala_tf.logdir import replace_file
from impala_tf.machine import certificates
from impala_tf.transport import credentials


def ensure(learner: Path, actor: Path) -> bool:
    """Fills both folders, unless they hold certificates of one run; returns whether it did."""
    if _usable(learner, actor):
        return False
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "credentials"
        certificates.create(made)
        for folder, names in (
            (learner, certificates.LEARNER_FILES),
            (actor, certificates.ACTOR_FILES),
        ):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for name in names:
                replace_file(folder / name, (made / name).read_bytes())
    return True


def _usable(learner: Path, actor: Path) -> bool:
    try:
        credentials.server_credentials(learner)
        credentials.channel_credentials(actor)
    except ConfigError:  # missing or damaged
        return False
    return (learner / "ca.pem").read_bytes() == (actor / "ca.pem").read_bytes()


def main(arguments: list[str]) -> int:
    """Makes the certificates; returns the exit status."""
    if len(arguments) != 2:
        print("usage: credentials.py LEARNER_FOLDER ACTOR_FOLDER", file=sys.stderr)
        return 2
    learner, actor = map(Path, arguments)
    made = ensure(learner, actor)
    print(f"{learner}, {actor}: {'created' if made else 'usable already, left unchanged'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
