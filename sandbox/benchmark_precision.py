"""How much faster is bfloat16 than float32 on this machine?

    python sandbox/benchmark_precision.py [AGENT_NAME ...]

Prints the agent steps per second of each agent in either precision: for updates of a learner with
batches of 32 unrolls of 20 steps, and for inference of an actor with 32 environments; on one
thread, as with one process per core. The two take turns, because machines are noisy.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from impala_tf import config as configs  # noqa: E402
from impala_tf.config import Given  # noqa: E402
from impala_tf.environments import suites  # noqa: E402
from impala_tf.processes import tensorflow_startup  # noqa: E402

AGENTS = ("ShallowConvNetAgent", "SimpleConvNetAgent", "ResNetLSTMAgent", "ImpoolaAgent")
PRECISIONS = ("float32", "bfloat16")
NUM_ENVS, BATCH_SIZE, UNROLL_LENGTH = 32, 32, 20  # as in the preset
TURNS, TURN_S = 5, 2.0


def works(agent_name: str, kind: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """Returns functions for an update of a learner and for inference, ready to be timed."""
    # Imported here: they import TensorFlow, which --help does not need.
    from impala_tf.agents import precision
    from impala_tf.agents.agent import agent_of
    from impala_tf.measure import learning

    given = Given().replace(preset="paper", agent_name=agent_name, precision=kind)
    config = configs.resolve(given, "atari")
    spec = suites.spec(config.environment)
    agent = agent_of(config.agent, spec, precision.torso_dtype(config.agent))
    return learning.updates(agent, spec, config), learning.answers(agent, spec, config)


def rate(work: Callable[[], object], steps: int) -> float:
    """Returns agent steps per second."""
    done, started = 0, time.monotonic()
    while time.monotonic() - started < TURN_S:
        work()
        done += steps
    return done / (time.monotonic() - started)


def main(arguments: list[str]) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agent_names", nargs="*", default=AGENTS, metavar="AGENT_NAME")
    agent_names = parser.parse_args(arguments).agent_names
    tensorflow_startup.import_tensorflow()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tensorflow_startup.start_xla()
    sizes = (BATCH_SIZE * UNROLL_LENGTH, NUM_ENVS)
    print(f"{'agent steps/s':<22}{'':<8}" + "".join(f"{p:>10}" for p in (*PRECISIONS, "ratio")))
    for agent_name in agent_names:
        pairs = zip(*(works(agent_name, kind) for kind in PRECISIONS), strict=True)
        for kind, pair, steps in zip(("update", "answer"), pairs, sizes, strict=True):
            for work in pair:
                work()
            turns = [[rate(work, steps) for work in pair] for _ in range(TURNS)]
            fine, coarse = (statistics.median(column) for column in zip(*turns, strict=True))
            print(f"{agent_name:<22}{kind:<8}{fine:10,.0f}{coarse:10,.0f}{coarse / fine:10.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
