"""The agent of a run, as its newest checkpoint has it, for evaluation and reports."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from impala_tf import config as configs
from impala_tf.agents import precision
from impala_tf.agents.agent import Agent, agent_of
from impala_tf.agents.policy import compile_policy
from impala_tf.checkpoint.checkpointer import Checkpointer
from impala_tf.checkpoint.compatibility import check_compatible, signature_of
from impala_tf.config import (
    BUILT_IN,
    Config,
    ConfigError,
    EvaluationConfig,
    Given,
    ReportConfig,
    command_line,
    plug_ins,
)
from impala_tf.environments import suites
from impala_tf.environments.suites import RenderedGame
from impala_tf.evaluation.games import play
from impala_tf.logdir import Logdir
from impala_tf.processes.common import logdir_of, seed_of
from impala_tf.types import EnvironmentSpec

# What a run's flags say about its own processes, and what only the user at the terminal decides:
# someone else's config.json must not say that its code is trusted.
_NOT_KEPT = (
    *("mode", "job_name", "learner_hosts", "task", "seed", "logdir"),
    *(field.name for field in dataclasses.fields(EvaluationConfig)),
    *(field.name for field in dataclasses.fields(ReportConfig)),
)


class TrainedAgent(NamedTuple):
    """A run's agent with the parameters of its newest whole checkpoint."""

    config: Config  # resolved
    spec: EnvironmentSpec
    agent: Agent
    checkpoint: Path
    environment_frames: int


def as_trained(given: Given) -> Given:
    """Returns the given flags with the level, protocol and agent of the run in --logdir.

    A level and its wrappers may name Python modules. If the run names one, and not the command, the
    user is asked: the logdir may come from someone else, and importing a module runs its code.

    Args:
      given: the flags of the command line, which stay as they are.

    Raises:
      ConfigError: there is no run, or its level's module is not trusted.
    """
    if given["logdir"] is None:
        raise ConfigError(f"--mode={given['mode']}: needs --logdir of a run")
    logdir = Logdir(Path(given["logdir"]))
    # Runs from before there were presets are of the paper's.
    flags = {"preset": "paper", **_flags_in(logdir)}
    kept = {name: flags[name] for name in flags if name in BUILT_IN and name not in _NOT_KEPT}
    merged = Given({**_checked(kept, logdir).flags, **given.flags})
    _check_trusted(given, merged)
    if any(
        (logdir.path / f"{module}.py").is_file() for module in suites.modules(merged.environment)
    ):
        sys.path.append(str(logdir.path))  # `impala_tf.train` wrote it there, from a notebook
    return merged


def _flags_in(logdir: Logdir) -> dict[str, Any]:
    try:
        flags = json.loads(logdir.config.read_text())["flags"]
    except FileNotFoundError:
        raise ConfigError(f"--logdir={logdir.path}: holds no run (no config.json)") from None
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigError(f"{logdir.config}: is not a run's config.json ({error})") from None
    if not isinstance(flags, dict):
        raise ConfigError(f"{logdir.config}: is not a run's config.json (flags: no dictionary)")
    return flags


def _checked(flags: dict[str, Any], logdir: Logdir) -> Given:
    """Returns what a command line with these flags gives; refuses what it would."""
    try:
        return command_line.parse(configs.to_flags(Given(flags)))
    except ConfigError as error:
        raise ConfigError([f"{logdir.config}: {problem}" for problem in error.problems]) from None


def _check_trusted(typed: Given, given: Given) -> None:
    """Asks before modules are imported that the run names, and the command line does not."""
    named = {*suites.modules(typed.environment), *plug_ins.modules(typed.everything())}
    flags = given.without("callbacks").everything()  # only training calls these
    every = {*suites.modules(given.environment), *plug_ins.modules(flags)}
    modules = sorted(every - named)
    if not modules or given.evaluation.trust_level_module:
        return
    logdir = given["logdir"]
    if sys.stdin.isatty():
        question = f"{logdir} imports {', '.join(modules)}, whose code runs here. Import? [y/N] "
        if input(question).strip().lower() in ("y", "yes"):
            return
    raise ConfigError(
        f"--logdir={logdir}: it imports the Python module {modules[0]}, whose code would run"
        " here; if you trust it, add --trust_level_module"
    )


def load(config: Config, spec: EnvironmentSpec) -> TrainedAgent:
    """Makes the agent of a config and restores its parameters.

    Raises:
      ConfigError: no whole checkpoint, or one of another level or network.
    """
    dtype = precision.torso_dtype(config.agent)
    precision.disable_failing_fusion(config.agent)
    agent = agent_of(config.agent, spec, dtype)
    logdir = logdir_of(config)
    is_best = config.evaluation.checkpoint == "best"
    folder = logdir.best if is_best else logdir.checkpoints
    checkpointer = Checkpointer(folder, {"agent": agent})
    signature = signature_of(config, spec)
    state = checkpointer.restore(
        lambda state: check_compatible(state["identity"], signature, config.run.logdir),
        partial=True,
    )
    if state is None or checkpointer.latest is None:
        which = "best checkpoint yet" if is_best else "checkpoint to test"
        raise ConfigError(f"--logdir={config.run.logdir}: holds no {which}")
    frames = state["counters"]["environment_frames"]
    return TrainedAgent(config, spec, agent, checkpointer.latest, frames)


@contextlib.contextmanager
def filmed(
    trained: TrainedAgent, num_games: int = 1, index: int = 0
) -> Iterator[tuple[Iterator[np.ndarray], float]]:
    """Yields (pictures uint8 [H, W, 3] of more games, pictures per second).

    `index`: which level is played, if the agent learned several.

    Raises:
      ConfigError: the level cannot be rendered.
    """
    config, spec, agent = trained.config, trained.spec, trained.agent
    seed = seed_of(config.run.seed, "video")
    game = RenderedGame(config.environment, seed, index)
    policy = compile_policy(agent, spec, 1, seed, config.evaluation.test_policy)

    def pictures() -> Iterator[np.ndarray]:
        for episode in play(policy, agent.initial_state(1), game.environment, 1, num_games):
            if episode is None:
                yield game.frame()

    try:
        yield pictures(), game.fps
    finally:
        game.close()
