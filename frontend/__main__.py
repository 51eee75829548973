"""python -m frontend COMMAND: sets up machines for a run, and looks after the run."""

from __future__ import annotations

import signal
import sys

from impala_tf.config import user_commands

user_commands.require_packages(user_commands.FRONTEND)  # before the imports that need packages

if __name__ == "__main__":
    try:
        from impala_tf.cluster.cluster_main import main

        status = main(sys.argv[1:])
    except KeyboardInterrupt:  # before `main` takes care of it
        status = 128 + signal.SIGINT
    sys.exit(status)
