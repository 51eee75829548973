"""Population based training: runs copy the network and flags of better ones as they train.

    python sandbox/population.py --folder=runs/population --members=4 --generations=10 \
        --search=learning_rate=log:1e-5..1e-2 --search=entropy_cost=log:1e-4..1e-1 \
        -- --level_name=LunarLander-v3 --total_environment_frames=200000

From Jaderberg et al. (2017, arXiv 1711.09846); the IMPALA paper used it, too. Members begin with
random values of the searched flags. In each generation, all of them train one after another, each
for --total_environment_frames. Then the quarter with the lowest mean returns continues with
networks and flags of the best quarter, and each searched flag is multiplied or divided by 1.2. The
run of member M in generation G is in FOLDER/G/M; it begins with its parent's network
(--start_from). The same command resumes after Ctrl-C. At the end: a table, FOLDER/population.csv,
and the flags and curve (FOLDER/best.csv) that led to the best.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from many_runs import rows

from impala_tf.config import (
    FLAGS,
    ConfigError,
    LossConfig,
    OptimizerConfig,
    ReplayConfig,
    command_line,
)
from impala_tf.machine.process_lifetime import StopRequest
from impala_tf.studies.child_runs import (
    SearchedFlag,
    claim_folder,
    is_done,
    mean_return,
    read_searched,
    refuse_wrong_flags,
    start,
)

_FACTOR = 1.2
_OWN = {"logdir", "seed", "start_from", "fresh", "mirror"}
_COUNTS = ("wall_time_s", "agent_steps", "environment_frames", "learner_updates", "episodes")
_OF_LEARNING = {
    field.name
    for group in (LossConfig, OptimizerConfig, ReplayConfig)
    for field in dataclasses.fields(group)
}


class Member(NamedTuple):
    """A member in one generation."""

    generation: int  # from 1
    number: int  # from 1
    parent: int  # the number of the member whose network it began with; its own at first
    values: tuple[float, ...]  # of the searched flags
    score: float = -math.inf  # mean return of its last 100 games; -inf: it failed


def searched(text: str) -> SearchedFlag:
    """Returns the flag and range of NAME=A..B or NAME=log:A..B.

    Raises:
      ConfigError: the text is wrong; the message says so.
    """
    flag = read_searched("search", text)
    if flag.choices:
        raise ConfigError(f"--search={text}: must be NAME=A..B or NAME=log:A..B")
    if flag.name not in _OF_LEARNING or FLAGS[flag.name].kind not in (int, float):
        raise ConfigError(f"--search={text}: {flag.name} is no number that is about learning")
    return flag


def draw_value(flag: SearchedFlag, draw: random.Random) -> float:
    """Returns a random value of the range."""
    if flag.is_log:
        return _rounded(flag, math.exp(draw.uniform(math.log(flag.low), math.log(flag.high))))
    return _rounded(flag, draw.uniform(flag.low, flag.high))


def changed(flag: SearchedFlag, value: float, draw: random.Random) -> float:
    """Returns a value that is 1.2 times as large or as small, but within the range."""
    grows = draw.random() < 0.5
    new = _rounded(flag, value * _FACTOR if grows else value / _FACTOR)
    if flag.is_int and new == value:
        new = _rounded(flag, value + (1 if grows else -1))
    return new


def _rounded(flag: SearchedFlag, value: float) -> float:
    value = min(max(value, flag.low), flag.high)
    return round(value) if flag.is_int else float(f"{value:.6g}")


def first_generation(
    count: int, space: Sequence[SearchedFlag], draw: random.Random
) -> list[Member]:
    """Returns members with random values of the searched flags."""
    numbers = range(1, count + 1)
    return [
        Member(1, number, number, tuple(draw_value(flag, draw) for flag in space))
        for number in numbers
    ]


def next_generation(
    members: Sequence[Member], space: Sequence[SearchedFlag], draw: random.Random
) -> list[Member]:
    """Returns the members with the lowest quarter, and those that failed, replaced.

    They are replaced by copies of members of the best quarter, drawn at random, with changed flags
    ("truncation selection").

    Args:
      members: a generation with its scores; at least one has not failed.
      space: the searched flags.
      draw: what decides.
    """
    quarter = max(1, len(members) // 4)
    ranked = sorted(members, key=lambda member: -member.score)
    best = [member for member in ranked[:quarter] if member.score > -math.inf]
    failed = [member for member in members if member.score == -math.inf]
    worst = {member.number for member in [*ranked[-quarter:], *failed]}
    planned = []
    for member in members:
        parent, values = member, member.values
        if member.number in worst:
            parent = draw.choice(best)
            pairs = zip(space, parent.values, strict=True)
            values = tuple(changed(flag, value, draw) for flag, value in pairs)
        planned.append(Member(member.generation + 1, member.number, parent.number, values))
    return planned


def typed(space: Sequence[SearchedFlag], values: Sequence[float]) -> list[str]:
    """Returns searched flags as they are typed."""
    return [f"--{flag.name}={value:.10g}" for flag, value in zip(space, values, strict=True)]


def level_rate(flags: Sequence[str]) -> list[str]:
    """Returns the flags that keep a searched learning rate from falling in each generation.

    The kl schedule, the default for vectors, still lowers it while the KL divergence is large.
    """
    return [
        flag.replace("learning_rate", "learning_rate_end")
        for flag in flags
        if flag.startswith("--learning_rate=")
    ]


class Population:
    """Trains the generations of a population, and keeps its table."""

    def __init__(
        self, folder: Path, members: int, space: Sequence[SearchedFlag], flags: list[str], seed: int
    ) -> None:
        self._folder, self._space, self._flags, self._seed = folder, space, flags, seed
        self._members = members
        self._table = folder / "population.csv"
        self.stop = StopRequest()
        self.stop.install()

    def train(self, generations: int) -> list[list[Member]]:
        """Returns all generations, each with its scores; those in the table are not trained."""
        table = self._read()
        last = max((member.generation for member in table), default=0)
        self._write([m for m in table if m.generation < last or m.score > -math.inf])
        done = {(member.generation, member.number): member for member in self._read()}
        history: list[list[Member]] = []
        for number in range(1, generations + 1):
            # Each has draws of its own, so that a resumed population makes the same decisions.
            draw = random.Random(f"{self._seed}/{number}")
            planned = (
                next_generation(history[-1], self._space, draw)
                if history
                else first_generation(self._members, self._space, draw)
            )
            history.append(
                [done.get((number, member.number)) or self._trained(member) for member in planned]
            )
            if all(member.score == -math.inf for member in history[-1]):
                sys.exit(
                    "no member has a return; once the reason above is mended, the same command"
                    " resumes from here"
                )
            best = max(history[-1], key=lambda member: member.score)
            print(f"generation {number} of {generations}: best {_shown(best.score)}", flush=True)
        return history

    def flags_of(self, member: Member) -> list[str]:
        """Returns the searched flags of a member, as they are typed."""
        return typed(self._space, member.values)

    def _logdir(self, member: Member) -> Path:
        return self._folder / str(member.generation) / str(member.number)

    def _trained(self, member: Member) -> Member:
        logdir = self._logdir(member)
        logdir.mkdir(parents=True, exist_ok=True)
        seed = random.Random(f"{self._seed}/{member.generation}/{member.number}").randrange(10**6)
        # The user's flags win over --learning_rate_end.
        own = [*self.flags_of(member), *self._flags, f"--seed={seed}"]
        flags = [*level_rate(own), *own, f"--logdir={logdir}"]
        if member.generation > 1:
            parent = member._replace(generation=member.generation - 1, number=member.parent)
            flags.append(f"--start_from={self._logdir(parent)}")
        output = logdir / "output.txt"
        run = start(flags, output)
        self.stop.on_request(run.terminate)
        status = run.wait()
        if self.stop():
            sys.exit("stopped; the same command resumes from here")
        has_ended = status == 0 and is_done(logdir)
        mean = mean_return(logdir) if has_ended else None
        trained = member._replace(score=-math.inf if mean is None else mean)
        found = f"return {_shown(trained.score)}"
        if not has_ended:
            found = f"failed with status {status}; see {output}"
        elif mean is None:
            found = "no game has finished; give more --total_environment_frames"
        origin = "" if member.parent == member.number else f" from member {member.parent}"
        print(
            f"generation {member.generation}, member {member.number}{origin}:"
            f" {' '.join(self.flags_of(member))}: {found}",
            flush=True,
        )
        self._append(trained)
        return trained

    def _read(self) -> list[Member]:
        if not self._table.exists():
            return []
        with self._table.open(newline="", encoding="utf-8") as file:
            return [
                Member(
                    int(row["generation"]),
                    int(row["member"]),
                    int(row["parent"]),
                    tuple(float(row[flag.name]) for flag in self._space),
                    float(row["return"]),
                )
                for row in csv.DictReader(file)
            ]

    def _write(self, table: list[Member]) -> None:
        head = ["generation", "member", "parent", "return", *(flag.name for flag in self._space)]
        with self._table.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(head)
        for member in table:
            self._append(member)

    def _append(self, member: Member) -> None:
        with self._table.open("a", newline="", encoding="utf-8") as file:
            row = [member.generation, member.number, member.parent, member.score, *member.values]
            csv.writer(file).writerow(row)

    def show(self, history: list[list[Member]]) -> None:
        """Prints the last generation, best first, and what led to its best member."""
        for member in sorted(history[-1], key=lambda member: -member.score):
            print(f"{_shown(member.score):>12}  {self._logdir(member)}")
        best = max(history[-1], key=lambda member: member.score)
        lineage = [best]
        for members in reversed(history[:-1]):
            lineage.insert(0, members[lineage[0].parent - 1])
        print("what led to the best:")
        for member in lineage:
            print(f"{_shown(member.score):>12}  {' '.join(self.flags_of(member))}")
        self._write_curve(lineage)
        print(f"best: {self._logdir(best)}; curve: {self._folder / 'best.csv'}")

    def _write_curve(self, lineage: list[Member]) -> None:
        """Writes the rows of a lineage's runs as those of one run."""
        curve: list[dict[str, str]] = []
        for member in lineage:
            before = dict(curve[-1]) if curve else {}
            for row in rows(self._logdir(member)):
                sums = {name: float(before.get(name) or 0) + float(row[name]) for name in _COUNTS}
                curve.append({**row, **{name: f"{total:.15g}" for name, total in sums.items()}})
        with (self._folder / "best.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(curve[0]))
            writer.writeheader()
            writer.writerows(curve)


def _shown(score: float) -> str:
    return "none" if score == -math.inf else f"{score:.4g}"


def main(arguments: list[str]) -> int:
    """Trains the population; returns the exit status."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    own, flags = arguments[:at], arguments[at + 1 :]
    about = str(__doc__).partition("\n")[0]
    parser = argparse.ArgumentParser("population.py", description=about, allow_abbrev=False)
    parser.add_argument("--folder", type=Path, default=Path("runs/population"))
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--generations", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1, help="of all draws")
    parser.add_argument("--search", action="append", required=True, metavar="NAME=VALUES")
    options = parser.parse_args(own)
    for name, least in (("members", 2), ("generations", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name}={getattr(options, name)}: must be {least} or more")
    space = []
    for text in options.search:
        try:
            space.append(searched(text))
        except ConfigError as error:
            parser.error(str(error))
    searched_names = [flag.name for flag in space]
    if len({*searched_names}) < len(searched_names):
        parser.error("--search: names a flag twice")
    if taken := command_line.read_flags(flags).keys() & (_OWN | {*searched_names}):
        parser.error(f"--{min(taken)}: population.py gives it; leave it out after --")
    if "learning_rate" not in searched_names:  # its schedule would begin again and again
        flags = ["--learning_rate_schedule=constant", *flags]  # the user's flags win
    for end in ("low", "high"):
        own = [*typed(space, [getattr(flag, end) for flag in space]), *flags]
        refuse_wrong_flags([*level_rate(own), *own, f"--logdir={options.folder / '1' / '1'}"])
    names = ("search", "members", "seed")
    mine = {**{name: getattr(options, name) for name in names}, "flags": flags}
    try:
        claim_folder("folder", options.folder, mine)
    except ConfigError as error:
        parser.error(str(error))
    population = Population(options.folder, options.members, space, flags, options.seed)
    population.show(population.train(options.generations))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
