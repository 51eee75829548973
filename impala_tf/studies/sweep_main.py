"""`impala sweep`: searches for flags with Optuna, some trials at a time; prunes bad trials.

    impala sweep --trials=20 --jobs=1 \
        --search=learning_rate=log:1e-4..1e-2 --search=unroll_length=16..64 \
        --search='batch_size=8|16|32' -- --level_name=CartPole-v1 --total_environment_frames=200000

The flags after -- are those of all trials. A trial is a run in TO/trials/N. Its value is the
mean return of the last 100 games at its end; for several levels, the mean over the levels, of
normalised returns if each level has them. A trial is stopped if it is worse than the median of the
others after as many frames. The study is in TO/study.db: the same command resumes it. Ctrl-C
stops the trials cleanly. At the end: a table, TO/trials.csv, and the best flags.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from impala_tf.config import ConfigError, command_line, config_file, user_commands
from impala_tf.reporting.texts import decimals
from impala_tf.studies import child_runs
from impala_tf.studies.child_runs import SearchedFlag

try:
    import optuna
except ImportError:
    raise ConfigError(
        f"sweep: needs optuna; install it with {user_commands.install_extra('sweep')}"
    ) from None

_POLL_S = 0.5


def suggest(trial: optuna.Trial, flag: SearchedFlag) -> Any:
    """Returns a trial's value of a flag."""
    name, low, high, is_log, is_int, choices = flag
    if choices:
        return trial.suggest_categorical(name, choices)
    if is_int:
        return trial.suggest_int(name, int(low), int(high), log=is_log)
    return trial.suggest_float(name, low, high, log=is_log)


def checked_values(flag: SearchedFlag) -> tuple[Any, ...]:
    """Returns the values to check before any trial: both ends, or every choice."""
    ends = (flag.low, flag.high)
    return flag.choices or (tuple(map(int, ends)) if flag.is_int else ends)


def refuse_wrong_values(searched: Sequence[SearchedFlag], flags: list[str], folder: Path) -> None:
    """Exits with 2 and a run's own lines if it would refuse an end of a range, or a choice."""
    values = {flag.name: checked_values(flag) for flag in searched}
    for number in range(max(map(len, values.values()))):
        # All lowest values, all highest, and each choice once.
        own = [f"--{name}={each[min(number, len(each) - 1)]}" for name, each in values.items()]
        child_runs.refuse_wrong_flags([*flags, *own, f"--logdir={folder / 'trials' / '0'}"])


class Sweep:
    """Trains trials until it is asked to stop."""

    def __init__(self, folder: Path, searched: Sequence[SearchedFlag], flags: list[str]) -> None:
        self._folder, self._searched, self._flags = folder, searched, flags
        self._running: set[subprocess.Popen[bytes]] = set()
        self.stopping = threading.Event()

    def stop(self, *_: object) -> None:
        """Stops the running trials; each writes a checkpoint."""
        self.stopping.set()
        for run in list(self._running):
            run.terminate()

    def train(self, trial: optuna.Trial) -> float:
        """Trains a trial to its end; returns its mean return.

        Raises:
          RuntimeError: it failed or was stopped; a line on stderr says so.
        """
        try:
            return self._trained(trial)
        except RuntimeError as error:
            print(f"sweep: {error}", file=sys.stderr, flush=True)
            raise

    def _trained(self, trial: optuna.Trial) -> float:
        self._end_if_stopping(trial)
        chosen = {flag.name: suggest(trial, flag) for flag in self._searched}
        logdir = self._folder / "trials" / str(trial.number)
        logdir.mkdir(parents=True, exist_ok=True)
        flags = [*self._flags, *(f"--{name}={value}" for name, value in chosen.items())]
        print(f"trial {trial.number}: {' '.join(flags[len(self._flags) :])}", flush=True)
        run = child_runs.start([*flags, f"--logdir={logdir}"], logdir / "output.txt")
        self._running.add(run)
        try:
            is_pruned = self._watch(trial, run, logdir)
        finally:
            self._running.discard(run)
        if is_pruned:
            if self.stopping.is_set():
                trial.study.stop()
            raise optuna.TrialPruned
        self._end_if_stopping(trial)
        if run.returncode != 0 or not child_runs.is_done(logdir):
            raise RuntimeError(f"trial {trial.number} failed; see {logdir}/output.txt")
        mean = child_runs.mean_return(logdir)
        return float("-inf") if mean is None else mean

    def _end_if_stopping(self, trial: optuna.Trial) -> None:
        if self.stopping.is_set():
            trial.study.stop()
            raise RuntimeError(f"trial {trial.number} was stopped")

    def _watch(self, trial: optuna.Trial, run: subprocess.Popen[bytes], logdir: Path) -> bool:
        """Waits for a run; returns whether it was pruned."""
        reported, without_mean = -1, None
        while run.poll() is None:
            time.sleep(_POLL_S)
            newest = child_runs.status(logdir)
            if newest is None or newest["row"] in (None, without_mean):
                continue
            # In tenths of a run: pruners compare trials at the same step.
            tenth = 10 * newest["environment_frames"] // newest["total_environment_frames"]
            if tenth <= reported:
                continue
            try:
                mean = child_runs.mean_return(logdir)
            except OSError:  # network file systems fail briefly from time to time
                continue
            if mean is None:
                without_mean = newest["row"]  # do not read again before the next row
                continue
            reported = tenth
            trial.report(mean, tenth)
            text = f"{mean:.{decimals(mean)}f}"
            print(f"trial {trial.number}: {10 * tenth} %, return {text}", flush=True)
            if trial.should_prune():
                run.terminate()
                run.wait()
                return True
        return False


def _show(study: optuna.Study, folder: Path, flags: Sequence[str]) -> None:
    """Writes trials.csv and best.yaml; prints the trials, best first, and the best one's flags."""
    trials = [trial for trial in study.trials if trial.state.is_finished()]
    trials.sort(key=lambda trial: (trial.value is None, -(trial.value or 0.0)))
    names = sorted({name for trial in trials for name in trial.params})
    rows: list[list[Any]] = [
        [
            trial.number,
            trial.state.name.lower(),
            trial.value,
            *(trial.params.get(name) for name in names),
        ]
        for trial in trials
    ]
    head = ["trial", "state", "return", *names]
    with (folder / "trials.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *rows])
    for row in [head, *rows]:
        cells = (f"{cell:.5g}" if isinstance(cell, float) else str(cell) for cell in row)
        print("  ".join(cell.ljust(12) for cell in cells).rstrip())
    if any(trial.state == optuna.trial.TrialState.COMPLETE for trial in trials):
        path = folder / "best.yaml"
        best = [f"--{name}={value}" for name, value in study.best_params.items()]
        given = command_line.parse([*flags, *best])
        path.write_text(config_file.text(given.flags), encoding="utf-8")
        print(f"best: {shlex.join([f'--config={path}'])}")


def main(words: Sequence[str]) -> int:
    """Runs the sweep; returns 0, or 1 if it was stopped or no trial was completed.

    Raises:
      ConfigError: an argument is wrong, Optuna is missing, or the folder holds another sweep.
    """
    at = list(words).index("--") if "--" in words else len(words)
    own, flags = words[:at], list(words[at + 1 :])
    parser = command_line.OneLineParser(
        "impala sweep",
        "impala sweep --search=NAME=VALUES [options] -- [--flag=VALUE ...]",
        description=str(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--to", type=Path, default=Path("runs/sweep"), metavar="FOLDER")
    parser.add_argument("--trials", type=int, default=20, help="in all, resumed ones included")
    parser.add_argument("--jobs", type=int, default=1, help="trials that train side by side")
    parser.add_argument("--seed", type=int, default=1, help="of the search")
    parser.add_argument("--search", action="append", required=True, metavar="NAME=VALUES")
    options = parser.parse_args(own)
    if options.trials < 1:
        raise ConfigError(f"--trials={options.trials}: must be 1 or more")
    searched = [child_runs.read_searched("search", text) for text in options.search]
    if len({flag.name for flag in searched}) < len(searched):
        raise ConfigError("--search: names a flag twice")
    refuse_wrong_values(searched, flags, options.to)
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # its warnings are tracebacks of trials
    child_runs.claim_folder("to", options.to, {"search": options.search, "flags": flags})
    study = optuna.create_study(
        study_name="sweep",
        storage=f"sqlite:///{options.to}/study.db",
        load_if_exists=True,
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=2),
    )
    # A resumed sampler with the same seed would draw the same values again.
    study.sampler = optuna.samplers.TPESampler(seed=options.seed + len(study.trials))
    sweep = Sweep(options.to, searched, flags)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, sweep.stop)
    ended = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    remaining = options.trials - sum(trial.state in ended for trial in study.trials)
    if remaining > 0:
        study.optimize(sweep.train, n_trials=remaining, n_jobs=options.jobs, catch=(RuntimeError,))
    _show(study, options.to, flags)
    is_complete = any(trial.state == optuna.trial.TrialState.COMPLETE for trial in study.trials)
    return 1 if sweep.stopping.is_set() or not is_complete else 0
