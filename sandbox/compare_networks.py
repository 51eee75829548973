r"""Which network, or algorithm, learns a level best? Trains each with seeds and writes a report.

    python sandbox/compare_networks.py --level_name=PongNoFrameskip-v4 \
        --agent_names=ShallowConvNetAgent,ImpoolaAgent --seeds=3 [--algorithms=dqn,ppo] \
        [--folder=DIR] [FLAG ...]

Trains one run after another with `run_experiment.py` and the given flags, such as
--algorithm=ppo or --total_environment_frames=4000000: seed 1 of every agent (with each of
--algorithms), then seed 2, and so on. If it was interrupted, the same command resumes it: complete
runs are kept, and the one that was training resumes from its checkpoint. Agents, algorithms and
seeds may be added later.

Writes report.html, report.md and report.csv to the folder (default: runs/compare/LEVEL, with the
algorithm if one is given).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import many_runs
from compare_progress import RunProgress, Watcher

from impala_tf import config as configs
from impala_tf.config import ConfigError, Given, command_line
from impala_tf.machine.process_lifetime import StopRequest
from impala_tf.processes.common import resolve

_OWN = {"agent_name": "agent_names", "seed": "seeds", "logdir": "folder"}


class _Compared(NamedTuple):
    """A network with an algorithm, to compare with others."""

    agent_name: str
    algorithm: str  # "" for the one in the other flags

    @property
    def name(self) -> str:
        return "-".join(filter(None, self))

    def flags(self) -> list[str]:
        flags = [f"--agent_name={self.agent_name}"]
        return [*flags, f"--algorithm={self.algorithm}"] if self.algorithm else flags


class Plan(NamedTuple):
    """All runs, in the order in which they are trained, and the flags of the report."""

    folder: Path
    shared: list[str]  # flags of every run
    runs: list[RunProgress]
    report: list[str]


def plan(options: argparse.Namespace, flags: Sequence[str]) -> Plan:
    """Returns what to train and report; touches nothing.

    Raises:
      ConfigError: a flag, level or agent cannot be used.
    """
    names = [flag.partition("=")[0].lstrip("-") for flag in flags]
    problems = [f"--{n}: give --{_OWN[n]} instead" for n in names if n in _OWN]
    agents = list(dict.fromkeys(configs.split(options.agent_names)))
    if not agents:
        problems.append("--agent_names: name at least one agent")
    if options.seeds < 1:
        problems.append(f"--seeds={options.seeds}: must be 1 or more")
    algorithms = list(dict.fromkeys(configs.split(options.algorithms)))
    if algorithms and "algorithm" in names:
        problems.append("--algorithm: give it, or --algorithms, and not both")
    if problems:
        raise ConfigError(problems)
    shared = [f"--level_name={options.level_name}", *flags]
    folder = options.folder or _folder(command_line.parse(shared))
    compared = [_Compared(*pair) for pair in itertools.product(agents, algorithms or [""])]
    seeds = range(1, options.seeds + 1)
    runs = [_run(folder, shared, contestant, seed) for seed in seeds for contestant in compared]
    # The user has named the level on this command line, so its module is trusted.
    report = ["--mode=report", f"--report_folder={folder}", "--trust_level_module"]
    report += [f"--logdir={folder / contestant.name}" for contestant in compared]
    return Plan(folder, shared, runs, report)


def _folder(given: Given) -> Path:
    suffix = f"-{given['algorithm']}" if "algorithm" in given else ""
    return Path("runs", "compare", configs.slug(given["level_name"]) + suffix)


def _run(folder: Path, shared: Sequence[str], compared: _Compared, seed: int) -> RunProgress:
    logdir = folder / compared.name / f"seed-{seed}"
    named = [*compared.flags(), f"--seed={seed}", f"--logdir={logdir}"]
    config, _ = resolve(command_line.parse([*shared, *named]))
    configs.check_batches(config)
    frames = config.run.total_environment_frames
    return RunProgress(compared.name, seed, logdir, frames, named, config.run.metrics_interval_s)


def train(planned: Plan, watcher: Watcher, stop: StopRequest) -> int:
    """Trains incomplete runs; returns 0, or the exit status of the first run that fails.

    A stopped run counts as failed, with status 1.
    """
    for run in planned.runs:
        if many_runs.is_done(run.logdir):
            continue
        watcher.begin(run)
        with _log(run) as log:
            status = many_runs.run_experiment(
                [*planned.shared, *run.flags], stop, log, watcher.update
            )
        if status or not many_runs.is_done(run.logdir):
            watcher.failed = None if stop() else _last_lines(run)
            return status or 1
    return 0


@contextlib.contextmanager
def _log(run: RunProgress) -> Iterator[IO[str]]:
    run.log.parent.mkdir(parents=True, exist_ok=True)
    with run.log.open("a", encoding="utf-8") as log:
        yield log


def _last_lines(run: RunProgress) -> str:
    lines = run.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
    return "\n".join([f"{run.agent_name}, seed {run.seed} failed; the end of {run.log}:", *lines])


def main(arguments: list[str]) -> int:
    """Trains, resumes and writes the report; returns the exit status."""
    parser = argparse.ArgumentParser(
        description="Trains several networks with several seeds and writes a report.",
        epilog="All other flags are those of run_experiment.py.",
        allow_abbrev=False,
    )
    parser.add_argument("--level_name", required=True)
    parser.add_argument("--agent_names", required=True, help="comma separated")
    parser.add_argument(
        "--algorithms", default="", help="comma separated; each agent learns with each of them"
    )
    parser.add_argument("--seeds", type=int, default=3, help="how many; the first is 1")
    parser.add_argument("--folder", type=Path, help="default: runs/compare/LEVEL")
    options, flags = parser.parse_known_args(arguments)
    try:
        planned = plan(options, many_runs.joined(flags))
    except ConfigError as error:
        print("\n".join(f"compare_networks.py: {line}" for line in error.problems), file=sys.stderr)
        return 2
    many_runs.refuse_other_runs(planned.folder, {"flags": planned.shared})
    stop = StopRequest()
    stop.install()
    with Watcher(planned.runs) as watcher:
        status = train(planned, watcher, stop)
    if watcher.failed is not None:
        print(watcher.failed, file=sys.stderr)
    if status:
        print("the same command resumes from here")
        return status
    return many_runs.run_experiment(planned.report, stop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
