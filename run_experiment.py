#!/usr/bin/env python3
"""Trains on this machine or on a cluster, runs one process of a cluster, or evaluates."""

from __future__ import annotations

import os
import signal
import sys

# Before TensorFlow is imported: without a GPU it logs errors that are none; real ones are raised.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# What gRPC would log of a port in use or an absent learner is said in this project's own words.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from impala_tf import flags, quiet
from impala_tf.config import Config, ConfigError
from impala_tf.shutdown import end_undisturbed, end_with_starter


def run(config: Config) -> int:
    """Does what the flags ask for; returns the exit status."""
    # Imported where needed: the starter of a local run stays small, without TensorFlow.
    if config.run.mode == "test" or config.process.job_name:
        quiet.import_tensorflow()
    if config.run.mode == "test":
        from impala_tf.processes import evaluate

        return evaluate.main(config)
    if config.process.job_name == "learner":
        from impala_tf.processes import learner

        return learner.main(config)
    if config.process.job_name == "actor":
        from impala_tf.processes import actor

        return actor.main(config)
    if config.cluster.workers_csv_path:
        return launch(config)
    from impala_tf.processes import local

    return local.main(config)


def launch(config: Config) -> int:
    """Launches a run on the machines of a workers CSV; returns the exit status."""
    from frontend import cluster
    from impala_tf.display import Display
    from impala_tf.transport import credentials

    return cluster.launch(
        config,
        make_credentials=credentials.ensure,
        make_display=lambda status: Display(status, interval_s=config.run.metrics_interval_s),
    )


def main() -> int:
    """Parses the flags; unusable ones are answered in a line each and exit status 2."""
    end_with_starter()
    try:
        return run(flags.parse(sys.argv[1:]))
    except ConfigError as error:
        return flags.fail(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        end_undisturbed()


if __name__ == "__main__":
    sys.exit(main())
