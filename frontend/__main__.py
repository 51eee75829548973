"""python -m frontend COMMAND: sets up machines for a run, and looks after the run."""

from __future__ import annotations

import sys

from impala_tf.config import installation, user_commands

installation.require(user_commands.FRONTEND)  # before the imports that need packages

from impala_tf.frontend.main import main
from impala_tf.measure import cost_model

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], predict=cost_model.prediction))
