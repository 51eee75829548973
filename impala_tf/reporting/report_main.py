"""--mode=report: a page, Markdown and CSV about the runs in --logdir."""

from __future__ import annotations

import datetime
import importlib.util
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

import gymnasium

from impala_tf import config as configs
from impala_tf.agents.agent import agent_of
from impala_tf.config import ConfigError, Given, plug_ins, user_commands
from impala_tf.logdir import write_atomically
from impala_tf.measure.layers import layers_of
from impala_tf.processes import players, trained_agent
from impala_tf.processes.common import resolve
from impala_tf.processes.tensorflow_startup import select_device, start_xla
from impala_tf.processes.trained_agent import TrainedAgent
from impala_tf.processes.trained_flags import as_trained
from impala_tf.reporting import curves, documents, numbers, runs, settings, table
from impala_tf.reporting.runs import Run
from impala_tf.reporting.settings import Setting
from impala_tf.reporting.summary import Exhibit, LevelSummary, summarize_level

_SEVERAL = "runs/report"
# Short games are filmed in succession until the clip is full.
_MAX_GAMES = 50


def main(given: Given) -> int:
    """Writes report.html, report.md and report.csv about the runs in --logdir; returns 0.

    The flags that are not given are those of each run.

    Raises:
      ConfigError: there is no run, a run cannot be read, the folder cannot be written, or a package
        is missing.
    """
    if given["report_videos"] and importlib.util.find_spec("av") is None:
        raise ConfigError(
            "--mode=report: videos need the package av, which is in the extra 'learner':"
            f" {user_commands.install_extra('learner')}, or give --no_report_videos"
        )
    levels = settings.group(runs.find(given["logdir"]))
    folder = _folder(given)
    select_device(given["device"])
    start_xla()
    summaries = [
        summarize_level(
            level,
            {setting: _exhibit(given, setting) for setting in level.settings},
            given["report_return"],
        )
        for level in levels
    ]
    flags = configs.to_flags(given.without("mode"))
    command = shlex.join([*user_commands.from_anywhere("report"), *flags])
    try:
        _write(folder, summaries, command)
    except OSError as error:
        problem = f"--report_folder={folder}: cannot write there: {error.strerror}"
        raise ConfigError(problem) from None
    print(f"written to {folder}: report.html, report.md, report.csv")
    return 0


def _folder(given: Given) -> Path:
    logdirs = configs.split(given["logdir"])
    default = logdirs[0] if len(logdirs) == 1 else _SEVERAL
    folder = Path(given["report_folder"] or default)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"--report_folder={folder}: cannot write there: {error.strerror}"
        ) from None
    return folder


def _exhibit(given: Given, setting: Setting) -> Exhibit:
    """Builds a setting's agent and films it; the report says what fails."""
    run = max(setting.runs, key=lambda run: run.share)  # of equal ones, the one with the first seed
    print(f"{run.level_name}: {setting.label}", flush=True)
    try:
        of_run = given.replace(logdir=str(run.logdir), seed=run.seed)
        trained = trained_agent.load(*resolve(as_trained(of_run)))
    except (Exception, SystemExit) as error:  # a level's own code may raise anything
        problem = error.problems[0] if isinstance(error, ConfigError) else plug_ins.raised(error)
        print(f"  {problem}", flush=True)
        return Exhibit(caption=f"no video: {problem}" * given["report_videos"])
    # In float32, layers are computed as they are described.
    layers = layers_of(agent_of(trained.config.agent, trained.spec), trained.spec)
    exhibit = Exhibit(
        parameters=sum(layer.parameters for layer in layers),
        multiply_adds=sum(layer.multiply_adds for layer in layers),
    )
    return _filmed(exhibit, trained, run) if given["report_videos"] else exhibit


def _filmed(exhibit: Exhibit, trained: TrainedAgent, run: Run) -> Exhibit:
    from impala_tf.evaluation import video  # needs a package that not every machine has

    try:
        with players.filmed(players.of_checkpoint(trained), _MAX_GAMES) as (pictures, fps):
            mp4, seconds = video.first_seconds(pictures, fps)
    except (Exception, SystemExit) as error:  # from a level, or from drawing it
        own = isinstance(error, (ConfigError, gymnasium.error.Error))
        problem = " ".join(str(error).split()) if own else plug_ins.raised(error)
        print(f"  no video: {problem}", flush=True)
        return exhibit._replace(caption=f"no video: {problem}")
    caption = (
        f"seed {run.seed} after {numbers.count(trained.environment_frames)} frames,"
        f" the first {seconds:.0f} s of play"
    )
    return exhibit._replace(clip=mp4, caption=caption)


def _write(folder: Path, summaries: Sequence[LevelSummary], command: str) -> None:
    now = datetime.datetime.now(datetime.UTC)
    written = f"{now.day} {now:%B %Y, %H:%M} UTC"
    pictures = {}
    for summary in summaries:
        if (svg := curves.picture(summary)) is not None:
            name = f"report-{configs.slug(summary.level.name)}.svg"
            pictures[summary.level.name] = name
            write_atomically(folder / name, svg)
    write_atomically(folder / "report.html", documents.html(summaries, command, written))
    text = documents.markdown(summaries, pictures, command, written)
    write_atomically(folder / "report.md", text)
    write_atomically(folder / "report.csv", table.as_csv(summaries))
