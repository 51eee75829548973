"""--mode=export --to=FOLDER: exports a folder for others, which the Hugging Face hub accepts."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from impala_tf.agents.interface import interface_of_config
from impala_tf.config import (
    BUILT_IN,
    ConfigError,
    Given,
    config_file,
    user_commands,
)
from impala_tf.environments import suites
from impala_tf.evaluation import exported, games
from impala_tf.evaluation.exported import About, ExportedAgent
from impala_tf.logdir import Logdir
from impala_tf.processes import evaluate_main, players, provenance
from impala_tf.processes.common import logdir_of, resolve
from impala_tf.processes.tensorflow_startup import import_tensorflow, select_device, start_xla
from impala_tf.processes.trained_flags import as_trained
from impala_tf.reporting import curves, runs, settings
from impala_tf.reporting.runs import Run
from impala_tf.reporting.summary import Exhibit, summarize_level
from impala_tf.sharing import card
from impala_tf.sharing.faithful import difference

if TYPE_CHECKING:
    from impala_tf.processes.trained_agent import TrainedAgent


def main(given: Given) -> int:
    """Exports the agent of --logdir to the folder --to; returns 0.

    The folder appears when it is complete. The model plays games for its card.

    Raises:
      ConfigError: the folder is not empty or cannot be written, --logdir has no agent, or LiteRT
        cannot compute its network.
    """
    target = Path(given["to"])
    _check_free(target)
    # Other machines compute in float32, and LiteRT has no bfloat16.
    config, spec = resolve(as_trained(given).replace(precision="float32"))
    import_tensorflow()  # takes seconds, so only after wrong flags have been reported
    from impala_tf.processes import trained_agent

    run = runs.read(Path(config.run.logdir))
    select_device(config.process.device)
    start_xla()
    trained = trained_agent.load(config, spec)
    print(f"{trained.checkpoint} at {trained.environment_frames:,} frames; {spec.protocol}")
    with _made_aside(target) as folder:
        _fill(folder, trained, run, given)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"written to {target}, {size / 1e6:.2f} MB: {', '.join(_names(target))}")
    trust = ["--trust_level_module"] if suites.modules(config.environment) else []
    print("to play it:", user_commands.run_experiment("--mode=test", f"--logdir={target}", *trust))
    return 0


def _check_free(target: Path) -> None:
    """Raises ConfigError if the folder holds anything, such as a run."""
    if target.absolute().resolve() == Path.cwd():
        raise ConfigError(f"--to={target}: is the folder that you are in; name a new one")
    try:
        if target.is_dir() and not any(target.iterdir()):
            return
        if not target.exists() and not target.is_symlink():
            return
    except OSError as error:
        raise ConfigError(f"--to={target}: cannot be read: {error.strerror}") from None
    what = "is not empty" if target.is_dir() else "is not a folder"
    if target.is_dir() and Logdir(target).config.exists():
        what = "holds a run"
    raise ConfigError(f"--to={target}: {what}; name a folder that is new or empty")


@contextlib.contextmanager
def _made_aside(target: Path) -> Iterator[Path]:
    """Yields a folder to fill. On success it becomes `target`; on failure it is removed.

    An existing `target`, such as the mount of a container, cannot be replaced, so the contents are
    moved into it.
    """
    is_there = target.is_dir()
    name = f".{target.name}.{os.getpid()}"
    aside = target.absolute() / name if is_there else target.absolute().with_name(name)
    try:
        with _refused(target):
            aside.mkdir(parents=True)
        with _refused(target, errno.ENOSPC, errno.EDQUOT):
            yield aside
        with _refused(target):
            if not is_there:
                aside.rename(target)
            for path in list(aside.iterdir()) if is_there else []:
                path.rename(target / path.name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def _refused(target: Path, *only: int) -> Iterator[None]:
    """Converts an OSError to a ConfigError; with `only`, just those with these error numbers."""
    try:
        yield
    except OSError as error:
        if only and error.errno not in only:
            raise
        raise ConfigError(f"--to={target}: cannot write there: {error.strerror}") from None


def _fill(folder: Path, trained: TrainedAgent, run: Run, given: Given) -> None:
    """Writes all files into the folder."""
    from impala_tf.evaluation.export import export
    from impala_tf.learner.conversion import ConversionError, whole_file

    config, spec, precision = trained.config, trained.spec, given["export_precision"]
    about = _about(trained, precision)
    (folder / Logdir(folder).agent.name).write_text(exported.text_of(about), encoding="utf-8")
    try:
        (folder / exported.MODEL).write_bytes(whole_file(trained.agent, spec, precision))
    except ConversionError as error:
        raise ConfigError(f"--to: {' '.join(str(error).split())[:500]}") from error
    logits_difference = difference(trained, ExportedAgent(folder, about, spec), precision)
    print(logits_difference, flush=True)
    if precision == "float32":
        space, recipe = suites.action_space(config.environment), suites.recipe(config.environment)
        model, flag = folder / exported.SAVED_MODEL, f"--to={given['to']}"
        longest = games.longest_game(config.environment)
        export(trained.agent, spec, space, recipe, model, flag, longest)
    evaluation = _played(folder, given)
    (folder / exported.EVALUATION).write_text(json.dumps(evaluation, indent=1) + "\n")
    flags = _repeating(logdir_of(config))
    (folder / exported.CONFIG).write_text(config_file.text(flags), encoding="utf-8")
    _write_curve(folder, run)
    modules = suites.modules(config.environment)
    for module in modules:
        if (path := Path(config.run.logdir) / f"{module}.py").is_file():  # from a notebook
            shutil.copyfile(path, folder / path.name)
    files = _names(folder)
    facts = card.Facts(about, flags, run, evaluation, logits_difference, modules, files)
    (folder / exported.CARD).write_text(card.text(facts), encoding="utf-8")


def _about(trained: TrainedAgent, precision: str) -> About:
    config, spec = trained.config, trained.spec
    interface = interface_of_config(config.agent, spec)
    return About(
        flags=exported.level_flags(config.environment),
        level=exported.seen(spec),
        agent_name=config.agent.agent_name,
        algorithm=config.loss.algorithm,
        precision=precision,
        environment_frames=trained.environment_frames,
        core_state=[list(part.shape) for part in interface.core_state],
        has_q_values=interface.has_q_values,
    )


def _played(folder: Path, given: Given) -> dict[str, Any]:
    """Plays the exported agent; returns the content of evaluation.json."""
    # Trusted, because `as_trained` has already asked whether to import the run's modules.
    kept = ("test_num_episodes", "test_policy", "seed", "metrics_interval_s")
    flags = {name: given[name] for name in kept if name in given}
    of_test = {"mode": "test", "logdir": str(folder), "trust_level_module": True}
    player = players.of_exported(Given({**flags, **of_test}))
    print(f"playing {player.evaluation.test_num_episodes} games for the card", flush=True)
    result, output = evaluate_main.played(player)
    evaluate_main.show(output)
    return {**result, "checkpoint": exported.MODEL}


def _repeating(logdir: Logdir) -> dict[str, Any]:
    """Returns the flags that repeat the run; for older runs, all flags that this version knows."""
    described = provenance.read(logdir)
    flags: Mapping[str, Any] = described["flags"]
    known = {name: flags[name] for name in flags if name in BUILT_IN}
    origins = described.get("sources") or dict.fromkeys(known, "given")
    sources = {**dict.fromkeys(known), **origins}
    return provenance.repeating({**described, "flags": known, "sources": sources})


def _write_curve(folder: Path, run: Run) -> None:
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    writer.writerow(("environment_frames", "minutes", run.kind.column))
    for frames, minutes, mean in zip(*run.curve, strict=True):
        writer.writerow((int(frames), f"{minutes:.3f}", f"{mean:g}"))
    (folder / exported.CURVE_CSV).write_text(rows.getvalue(), encoding="utf-8")
    (level,) = settings.group([run])
    nothing = {setting: Exhibit() for setting in level.settings}
    if (svg := curves.picture(summarize_level(level, nothing, None))) is not None:
        (folder / exported.CURVE).write_text(svg, encoding="utf-8")


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
