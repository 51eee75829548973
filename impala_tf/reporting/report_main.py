"""impala report: a page, Markdown and CSV about the runs in --logdir."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

from impala_tf import config as configs
from impala_tf.config import ConfigError, Given, plug_ins
from impala_tf.logdir import write_atomically
from impala_tf.processes import players
from impala_tf.processes.common import resolve
from impala_tf.processes.tensorflow_startup import select_device, start_xla
from impala_tf.processes.trained_flags import as_trained
from impala_tf.reporting import comparison, curves, documents, runs
from impala_tf.reporting.comparison import Setting
from impala_tf.reporting.documents import Exhibit
from impala_tf.reporting.texts import count

# Short games are filmed in succession until the clip is full.
_MAX_GAMES = 50


def main(given: Given) -> int:
    """Writes report.html, report.md and report.csv about the runs in --logdir; returns 0.

    The flags that are not given are those of each run.

    Raises:
      ConfigError: there is no run, a run cannot be read, or the folder cannot be written.
    """
    levels = comparison.group(runs.find(given["logdir"]))
    logdirs = configs.split(given["logdir"])
    folder = Path(given["to"] or (logdirs[0] if len(logdirs) == 1 else "runs/report"))
    try:
        folder.mkdir(parents=True, exist_ok=True)  # before minutes of work
        select_device(given["device"])
        start_xla()
        settings = [setting for level in levels for setting in level.settings]
        exhibits = {setting: _exhibit(given, setting) for setting in settings}
        command = shlex.join(["impala", "report", *configs.to_flags(given.without("mode"))])
        for level in levels:
            if (svg := curves.picture(level)) is not None:
                write_atomically(folder / documents.picture_name(level), svg)
        for name in ("report.html", "report.md"):
            write_atomically(folder / name, documents.render(name, levels, exhibits, command))
        write_atomically(folder / "report.csv", documents.as_csv(levels, exhibits))
    except OSError as error:
        raise ConfigError(f"--to={folder}: cannot write there: {error.strerror}") from None
    print(f"written to {folder}: report.html, report.md, report.csv")
    return 0


def _exhibit(given: Given, setting: Setting) -> Exhibit:
    """Builds a setting's agent and films it; the report says what fails."""
    run = max(setting.runs, key=lambda run: run.frames)
    print(f"{run.level_name}: {setting.label}", flush=True)
    parameters = None
    try:
        of_run = given.replace(logdir=str(run.logdir), seed=run.seed)
        player = players.load_checkpoint(*resolve(as_trained(of_run)))
        assert player.agent is not None
        parameters = sum(math.prod(each.shape) for each in player.agent.trainable_variables)
        from impala_tf.evaluation import video  # needs a package that not every machine has

        with player.film(_MAX_GAMES) as (pictures, fps):
            clip, seconds = video.first_seconds(pictures, fps)
    except (Exception, SystemExit) as error:  # a level's own code may raise anything
        problem = str(error) if isinstance(error, ConfigError) else plug_ins.raised(error)
        print(f"  no video: {problem}", flush=True)
        return Exhibit(parameters, caption=f"no video: {problem}")
    frames = count(player.environment_frames)
    caption = f"seed {run.seed} after {frames} frames, the first {seconds:.0f} s of play"
    return Exhibit(parameters, clip, caption)
