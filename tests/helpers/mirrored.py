"""A logdir with checkpoints that can be mirrored, without a run."""

from __future__ import annotations

import json
from pathlib import Path

from impala_tf.checkpoint import files
from impala_tf.logdir import Logdir
from tests.helpers.states import state


class Run:
    """What a run writes."""

    def __init__(self, path: Path, run_id: str = "one") -> None:
        self.logdir = Logdir(path)
        self.run_id = run_id
        path.mkdir()
        self.logdir.tensorboard.mkdir()
        self.logdir.config.write_text(json.dumps({"flags": {}, "sources": {}}))
        self.logdir.config_file.write_text("seed: 1\n")
        self.logdir.metrics.write_text("environment_frames\n")

    def checkpoint(self, updates: int) -> Path:
        """Adds a row, and a checkpoint after so many updates and ten times as many frames."""
        for path in (self.logdir.metrics, self.logdir.tensorboard / "events.out.tfevents.1"):
            with path.open("a") as file:
                file.write(f"{10 * updates}\n")
        folder = self.logdir.checkpoints / files.folder_name(updates)
        folder.mkdir(parents=True)
        (folder / "variables.index").write_text("index")
        (folder / "variables.data").write_text(f"{updates} " * 1000)
        files.write_state(folder, state(updates, run_id=self.run_id))
        return folder

    def rows(self) -> list[str]:
        """Returns the rows of metrics.csv."""
        return self.logdir.metrics.read_text().splitlines()[1:]


def brought_back(logdir: Logdir) -> int | None:
    """Returns after how many updates the newest whole checkpoint of a logdir was written."""
    found = files.find(logdir.checkpoints)
    return None if found is None else int(found.path.name.removeprefix("ckpt-"))
