"""Flags that somebody gave and that do nothing in the run: those of other algorithms and levels.

They are not refused: scripts give several algorithms the same flags, and old runs have such flags.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from impala_tf.config import plug_ins, presets
from impala_tf.config.algorithms import ALGORITHMS, algorithm
from impala_tf.config.compositions import AGENTS
from impala_tf.config.flag_values import BUILT_IN, Given, to_flag

SuiteName = Literal["Atari", "retro", "Procgen", "Gymnasium"]

_OF_LEVELS: dict[str, tuple[SuiteName, ...]] = {
    **dict.fromkeys(("distribution_mode", "num_levels", "start_level"), ("Procgen",)),
    **dict.fromkeys(("full_action_space", "terminal_on_life_loss"), ("Atari",)),
    **dict.fromkeys(
        ("protocol", "width", "height", "frame_skip", "stacked_frames", "noop_max",
         "max_episode_frames", "repeat_action_probability"),
        ("Atari", "retro"),
    ),
}  # fmt: skip

_OF_LAUNCHES = ("tmux_sess", "detach", "accept_new_host_keys", "rendezvous_port", "min_actors",
                "min_learners", "start_at_boot")  # fmt: skip
_OF_JOBS = ("join_learners", "join_port", "actors_per_node")
_WITH: dict[str, tuple[str, tuple[str, ...]]] = {
    "decay": ("optimizer", ("rmsprop",)),
    "momentum": ("optimizer", ("rmsprop",)),
    "learning_rate_end": ("learning_rate_schedule", ("linear", "kl")),
    "parameter_lag": ("inference", ("actor",)),
    "clip_separately": (
        "agent_name",
        tuple(name for name, agent in AGENTS.items() if agent.separate_baseline),
    ),
}
"""{flag: (another flag, the values of the other flag with which this one has an effect)}."""


def notes(given: Given, suites: Collection[SuiteName]) -> list[str]:
    """Returns a line for each given flag that does nothing.

    Args:
      given: the flags of a run.
      suites: the suites of its levels.
    """
    name = given["algorithm"] or presets.PRESETS[given["preset"]]["atari"]["algorithm"]
    own = (
        {}
        if plug_ins.is_own(name)
        else {candidate: algorithm(candidate).own_flags for candidate in ALGORITHMS}
    )
    lines = []
    for flag, value in given.flags.items():
        users = [candidate for candidate, flags in own.items() if flag in flags]
        levels = _OF_LEVELS.get(flag, suites)
        if value is None:
            continue
        if starter := _starter(given, flag):
            lines.append(f"{to_flag(flag, value)} does nothing here: it is for {starter}")
        elif users and name not in users:
            lines.append(
                f"{to_flag(flag, value)} does nothing here: it is for {_listed(users)}, and this"
                f" run's --algorithm is {name}"
            )
        elif not set(levels) & set(suites):
            lines.append(
                f"{to_flag(flag, value)} does nothing here: it is for levels of {_listed(levels)}"
            )
        elif own and flag in _WITH:
            other, values = _WITH[flag]
            if not _possible(given, name, other) & set(values):
                wanted = " or ".join(to_flag(other, candidate) for candidate in values)
                lines.append(f"{to_flag(flag, value)} does nothing here: it is for {wanted}")
    return lines


def _starter(given: Given, flag: str) -> str:
    """Returns the flag that starts the runs for which a flag is, if this run has another; or ''."""
    if any(given[name] for name in ("job_name", "workers_csv_path", "engine", "join")):
        return ""
    if flag in _OF_LAUNCHES:
        return "--workers_csv_path"
    return "--join" if flag in _OF_JOBS else ""


def _possible(given: Given, name: str, flag: str) -> set[Any]:
    """Returns the values that a flag may have in the run, whose kind of level is not known yet."""
    if given[flag] is not None:
        return {given[flag]}
    preset = given["preset"]
    return {
        presets.values(preset, kind, name, continuous).get(flag, BUILT_IN[flag])
        for kind in presets.PRESETS[preset]
        for continuous in (False, True)
    }


def _listed(names: Collection[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
