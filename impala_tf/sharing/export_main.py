"""impala export: exports a folder for others, which the Hugging Face hub accepts."""

from __future__ import annotations

import contextlib
import csv
import errno
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from impala_tf.agents.interface import Policy, interface_of_config
from impala_tf.config import ConfigError, Given, config_file, user_commands
from impala_tf.environments import suites
from impala_tf.environments.observations import layout_of
from impala_tf.evaluation import exported
from impala_tf.evaluation.exported import About
from impala_tf.lazy import tf
from impala_tf.logdir import Logdir
from impala_tf.processes import evaluate_main, players, provenance, trained_flags
from impala_tf.processes.common import logdir_of, resolve
from impala_tf.processes.players import Player
from impala_tf.processes.tensorflow_startup import import_tensorflow, select_device, start_xla
from impala_tf.reporting import runs
from impala_tf.reporting.runs import Run
from impala_tf.sharing import card
from impala_tf.types import AgentOutput, EnvOutput, Nest

_COMPARED_STEPS = 250
_TOLERANCE = 1e-3  # relative to the largest logit: LiteRT and TensorFlow round differently
_NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)


def main(given: Given) -> int:
    """Exports the agent of --logdir to the folder --to; returns 0.

    The folder's files appear when all of them are complete. The model plays games for its card.

    Raises:
      ConfigError: the folder is not empty or cannot be written, --logdir has no agent, or LiteRT
        cannot compute its network.
    """
    trained_as = trained_flags.as_trained(given)
    target = Path(given["to"] or Path(given["logdir"]) / "export")
    _check_free(target)
    # Other machines compute in float32, and LiteRT has no bfloat16.
    config, spec = resolve(trained_as.replace(precision="float32"))
    import_tensorflow()  # takes seconds, so only after wrong flags have been reported
    run = runs.read(Path(config.run.logdir))
    select_device(config.process.device)
    start_xla()
    trained = players.load_checkpoint(config, spec)
    print(f"{trained.source} at {trained.environment_frames:,} frames; {spec.protocol}")
    with _made_aside(target) as folder:
        _fill(folder, trained, run, given)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"written to {target}, {size / 1e6:.2f} MB: {', '.join(_names(target))}")
    trust = ["--trust_level_module"] if suites.modules(config.environment) else []
    print("to play it:", user_commands.impala("test", f"--logdir={target}", *trust))
    return 0


def _check_free(target: Path) -> None:
    """Raises ConfigError if the folder holds anything, such as a run or an earlier export."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigError(f"--to={target}: is not empty; name a folder that is new or empty")


@contextlib.contextmanager
def _made_aside(target: Path) -> Iterator[Path]:
    """Yields a folder to fill, in `target`. On success its files move up; on failure it is removed.

    An existing `target` stays the same folder, because it may be the mount of a container.
    """
    is_new, aside = not target.exists(), target / f".{os.getpid()}"
    try:
        aside.mkdir(parents=True)
        yield aside
        for path in list(aside.iterdir()):
            path.rename(target / path.name)
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        raise ConfigError(f"--to={target}: cannot write there: {error.strerror}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):  # it has the files, or was never made
                target.rmdir()


def _fill(folder: Path, trained: Player, run: Run, given: Given) -> None:
    """Writes all files into the folder."""
    from impala_tf.learner.conversion import ConversionError, whole_file
    from impala_tf.sharing import saved_model

    config, spec, agent = trained.config, trained.spec, trained.agent
    assert agent is not None
    interface = interface_of_config(config.agent, spec)
    about = About(
        flags=exported.level_flags(config.environment),
        level=exported.seen(spec),
        agent_name=config.agent.agent_name,
        algorithm=config.loss.algorithm,
        environment_frames=trained.environment_frames,
        core_state=[list(part.shape) for part in interface.core_state],
        has_q_values=interface.has_q_values,
    )
    Logdir(folder).agent.write_text(exported.text_of(about), encoding="utf-8")
    try:
        (folder / exported.MODEL).write_bytes(whole_file(agent, spec))
    except ConversionError as error:
        raise ConfigError(f"--to: {' '.join(str(error).split())[:500]}") from error
    saved_model.write(agent, spec, folder / exported.SAVED_MODEL)
    evaluation = _play(folder, trained, given)
    (folder / exported.EVALUATION).write_text(json.dumps(evaluation, indent=1) + "\n")
    flags = provenance.repeating(provenance.read(logdir_of(config)))
    (folder / exported.CONFIG).write_text(config_file.text(flags), encoding="utf-8")
    _write_curve(folder, run)
    modules = suites.modules(config.environment)
    for module in trained_flags.own_modules(Given.of(config)):
        if (path := Path(config.run.logdir) / f"{module}.py").is_file():  # from a notebook
            shutil.copyfile(path, folder / path.name)
    text = card.text(about, run, evaluation, modules, _names(folder))
    (folder / exported.CARD).write_text(text, encoding="utf-8")


def _play(folder: Path, trained: Player, given: Given) -> dict[str, Any]:
    """Plays the exported agent, and compares it; returns the content of evaluation.json."""
    # Trusted, because `as_trained` has already asked whether to import the run's modules.
    kept = ("test_num_episodes", "test_policy", "seed", "metrics_interval_s")
    flags = {name: given[name] for name in kept if name in given}
    of_test = {"mode": "test", "logdir": str(folder), "trust_level_module": True}
    player = players.load_exported(Given({**flags, **of_test}))
    num_games = player.config.evaluation.test_num_episodes
    print(f"playing {num_games} games for the card", flush=True)
    result = evaluate_main.evaluate(compared(player, trained))
    evaluate_main.show(result)
    return {**result, "checkpoint": exported.MODEL}


def compared(player: Player, trained: Player) -> Player:
    """Returns the player; in its first steps, its policy compares its logits with the agent's.

    Nobody shall publish an agent that plays otherwise than what was trained. The policy raises
    ConfigError if the logits differ by more than rounding explains.
    """
    layout, agent = layout_of(trained.spec), trained.agent
    assert agent is not None
    step = tf.function(lambda *inputs: agent.step(*inputs), autograph=False)

    def policy(num_envs: int, seed: int, choice: Literal["sampled", "greedy"]) -> Policy:
        act, steps = player.policy(num_envs, seed, choice), itertools.count()

        def act_and_compare(env_output: EnvOutput, core: Nest) -> tuple[AgentOutput, Nest]:
            answer, next_core = act(env_output, core)
            if next(steps) < _COMPARED_STEPS:
                inputs = (layout.to_network(env_output), core)
                outputs, _ = step(*tf.nest.map_structure(tf.constant, inputs))
                expected = outputs.policy_logits.numpy()
                largest = np.abs(answer.policy_logits - expected).max()
                if not largest <= _TOLERANCE * max(1.0, np.abs(expected).max()):  # NaN, too
                    raise ConfigError(
                        f"--to: {exported.MODEL} would differ from the trained agent: a logit by"
                        f" {largest:.2g}. This is a bug: please report it"
                    )
            return answer, next_core

        return act_and_compare

    return player._replace(policy=policy)


def _write_curve(folder: Path, run: Run) -> None:
    from impala_tf.reporting import comparison, curves  # Matplotlib takes half a second

    with (folder / exported.CURVE_CSV).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("environment_frames", "minutes", run.kind.column))
        for frames, minutes, mean in zip(*run.curve, strict=True):
            writer.writerow((int(frames), f"{minutes:.3f}", f"{mean:g}"))
    (level,) = comparison.group([run])
    if (svg := curves.picture(level)) is not None:
        (folder / exported.CURVE).write_text(svg, encoding="utf-8")


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
